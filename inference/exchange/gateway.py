"""One request from admission to settlement: the heart of the data plane, on one page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec
from django.conf import settings
from msgspec.structs import replace

from catalog import dialects
from catalog.dialects.base import (
    Chunk,
    Dialect,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    Reply,
    StreamParser,
)
from catalog.dialects.shared import finish_reasons as finish
from catalog.dialects.shared.reasoning import hidden
from catalog.pricing import Usage, completion_cost, nano_usd, prompt_cost, total_cost, usd
from config import egress
from config.api.errors import GatewayError, UpstreamError
from config.server.batching import Batcher
from inference import metrics
from inference.admission.admit import Admission, AdmissionRequest, AdmissionStore
from inference.admission.budgets import AffordableCandidate, fee_nano
from inference.admission.estimate import BYTES_PER_TOKEN, tokens
from inference.exchange import upstream
from inference.exchange.metadata import routing_metadata
from inference.filters.screening import ContentBlocked, Unscreened, screen
from inference.models import Generation
from inference.requests import sse
from inference.routing.health import HealthTable, classify_attempt
from inference.routing.routes import Candidate
from inference.settlement.journal import Heartbeat, Progress
from inference.settlement.settle import Settlement, SettlementStore

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Status = Generation.Status

# How much of a stream, of about 256 tokens, is told to the journal without waiting for its time.
_JOURNALLED_BYTES: Final = 256 * BYTES_PER_TOKEN
# How long a finished stream may take to close in good order, so that its connection is kept.
_GOODBYE_SECONDS: Final = 0.05
# How long a caller may take over the event that tells of a failure.
_PARTING_SECONDS: Final = 5.0
# How many long prompts a worker reads with content filters at a time.
_READERS: Final = 2
# How long the end of a generation waits for that of others. Until it is stored the hold stands, and
# the journal knows what was delivered.
_SETTLING_SECONDS: Final = 0.01
# How long a worker that stops waits for the database to take its last settlements.
_FAREWELL_SECONDS: Final = 15.0
_KINDS: Final = {
    (Operation.CHAT, False): "chat.completion",
    (Operation.CHAT, True): "chat.completion.chunk",
    (Operation.TEXT, False): "text_completion",
    (Operation.TEXT, True): "text_completion",
    (Operation.EMBEDDINGS, False): "list",
}
_FAILURES: Final = (
    GatewayError,
    InvalidReply,
    InvalidStream,
    ProviderFailure,
    TimeoutError,
    egress.EgressError,
)
_encode = msgspec.json.Encoder().encode


class CallerStuck(Exception):
    """The caller takes nothing more, for longer than any exchange may last: as good as gone."""


class Gateway:
    """Keeps the state of a worker between requests: egress client, stores and batches."""

    def __init__(self) -> None:
        self.egress_client = egress.EgressClient(settings.EGRESS_POLICY)
        self.health = HealthTable()
        self._admission = AdmissionStore(self.health)
        self._settlement = SettlementStore()
        self._admissions: Batcher[AdmissionRequest, Admission] = Batcher(self._admission.admit)
        self._settlements: Batcher[Settlement, None] = Batcher(
            self._settlement.store, pause=_SETTLING_SECONDS
        )
        self._heartbeat = Heartbeat(self._collect_progress, self.health)
        self._under_way: set[Exchange] = set()
        # A few, so that long prompts keep no other work of the worker from its threads.
        self._readers = ThreadPoolExecutor(_READERS, "screening")

    async def open(self) -> None:
        await self.egress_client.__aenter__()
        self._heartbeat.start()

    async def close(self) -> None:
        """Waits until everything delivered is settled, then closes the connections.

        A database that is away is waited for only so long: the sweeper ends what is left.
        """
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._admissions.drain()
                await self._settlements.drain()
        except TimeoutError:
            logger.error("some generations are left to the sweeper: the database is away")
        self._readers.shutdown(wait=False, cancel_futures=True)
        await self._heartbeat.close()
        await self._admission.close()
        await self._settlement.close()
        await self.egress_client.__aexit__(None, None, None)

    async def admit(self, entry: AdmissionRequest) -> Exchange:
        """Admits a request and returns its exchange; raises :class:`GatewayError`, nothing sent."""
        try:
            admission = await self._admitted(entry)
        except ContentBlocked as exc:
            metrics.filtered([exc.finding])
            raise
        metrics.filtered(admission.findings)
        exchange = Exchange(self, admission)
        self._under_way.add(exchange)
        return exchange

    async def repin(self, admission: Admission, candidate: Candidate) -> bool:
        """Pins the price of the next candidate; ``False`` when it may not be used any more."""
        return await self._admission.repin(admission, candidate)

    def settle(self, exchange: Exchange, settlement: Settlement) -> None:
        """Queues a settlement, which is stored even while nobody waits for it."""
        stored = self._settlements.submit(settlement)
        # Until then it lives: while the database is away, nobody may take it for dead.
        stored.add_done_callback(lambda _: self._under_way.discard(exchange))

    def journal_soon(self) -> None:
        """Has what was delivered journalled now rather than in a second."""
        self._heartbeat.flush_now()

    def _collect_progress(self, is_urgent: bool) -> list[Progress]:
        """Returns the progress of running generations.

        ``is_urgent`` leaves out those that delivered little since they were journalled.
        """
        running = filter(Exchange.is_ahead, self._under_way) if is_urgent else self._under_way
        return [progress for each in running if (progress := each.measure_progress()) is not None]

    def _abandon(self, admitted: asyncio.Future[Admission]) -> None:
        if admitted.exception() is None:
            Exchange(self, admitted.result()).settle(asyncio.CancelledError())

    async def _admitted(self, entry: AdmissionRequest) -> Admission:
        """Queues a request; one whose prompt is long to read is read meanwhile, and comes again."""
        while True:
            admitted = self._admissions.submit(entry)
            try:
                return await asyncio.shield(admitted)
            except asyncio.CancelledError:
                # Its batch goes on, and may store a generation that nobody would ever settle.
                admitted.add_done_callback(self._abandon)
                raise
            except Unscreened as exc:
                screened = await asyncio.get_running_loop().run_in_executor(
                    self._readers, screen, exc.filters, entry.request
                )
            entry = replace(entry, screened=screened)


@dataclass(slots=True)
class _Stream:
    """A stream whose first event has come."""

    response: egress.OutboundResponse
    parser: StreamParser
    chunks: list[Chunk]


class Exchange:
    """One admitted request: its attempts, its answer and, exactly once, its settlement."""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self.generation_id = admission.generation_id
        self._gateway = gateway
        self._request = admission.request
        self._admission = admission
        self._candidate = admission.candidates[0].candidate
        self._probe = admission.probe
        self._attempts: list[dict[str, Any]] = []
        self._started = time.monotonic()
        # Past this the sweeper presumes it dead, so nothing may go on for longer: not even an
        # upstream that sends a byte now and then.
        self._deadline = self._started + settings.HOLD_TIMEOUT
        self._latency_ms: int | None = None
        self._usage: Usage | None = None
        self._usage_is_final = False
        self._usage_is_last = False
        self._raw_usage: Any = None
        self._output_bytes = 0
        self._journalled_bytes = 0
        self._finish_reason: str | None = None
        self._native_finish_reason: str | None = None
        self._upstream_id: str | None = None
        self._upstream_model: str | None = None
        self._head: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._before: bytes | None = None
        self._tail: dict[str, Any] = {}
        self._is_settled = False
        self._is_taken = False
        self._is_delivering = False

    async def reply(self, rendered: Callable[[bytes], bytes]) -> bytes:
        """Returns the body of a whole answer and settles; raises :class:`GatewayError`.

        ``rendered`` puts it into the caller's words, and may find that it cannot be.
        """
        error: BaseException | None = None
        try:
            reply = await self._first_success(self._whole)
            self._note(reply)
            return rendered(self._rendered_reply(reply))
        except BaseException as exc:
            error = exc
            raise
        finally:
            self.settle(error)

    async def stream(self, deliver: Callable[[bytes], Awaitable[None]]) -> None:
        """Hands events to ``deliver`` from the moment when the upstream's first came; settles.

        An error before the first event is raised; one after it becomes the last event. Cancelling
        it ends the upstream call and settles what was delivered; so does :class:`CallerStuck`.
        """
        error: BaseException | None = None
        stream: _Stream | None = None
        try:
            stream = await self._first_success(self._opened)
            try:
                async with asyncio.timeout(self._deadline - time.monotonic()):
                    await self._relay(stream, deliver)
            except _FAILURES as exc:
                # A face may refuse to put what came into its words; only time ends a delivery.
                if self._is_delivering and isinstance(exc, TimeoutError):
                    raise CallerStuck from None
                error = translated = upstream.translate(exc, self._candidate.secret)
                self._report(self._candidate, translated)
                await self._take_leave(deliver, self._error_event(translated))
        except BaseException as exc:
            error = exc
            raise
        finally:
            if stream is not None:
                stream.response.close()
            self.settle(error)

    def settle(self, error: BaseException | None = None) -> None:
        """Settles the generation: the first call decides, the others do nothing."""
        if self._is_settled:
            return
        self._is_settled = True
        self._release_probe()
        status, usage, is_estimated = self._verdict(error)
        cost, upstream_cost = self._costs(usage)
        duration_ms = self._elapsed_ms()
        self._gateway.settle(
            self,
            Settlement(
                generation_id=self.generation_id,
                status=status,
                usage=usage,
                is_estimated=is_estimated,
                cost_nano=cost,
                upstream_cost_nano=upstream_cost,
                finish_reason=self._finish_reason,
                native_finish_reason=self._native_finish_reason,
                upstream_id=self._upstream_id,
                upstream_model=self._upstream_model,
                error_type=error.error_type if isinstance(error, GatewayError) else None,
                attempts=self._attempts,
                latency_ms=self._latency_ms,
                duration_ms=duration_ms,
            ),
        )
        metrics.settled(self._request.operation, status, usage, duration_ms)

    def is_ahead(self) -> bool:
        """Tells whether much was delivered of it since it was journalled."""
        return self._output_bytes >= self._journalled_bytes + _JOURNALLED_BYTES

    def measure_progress(self) -> Progress | None:
        """Returns what to journal of it; ``None`` for a young one that has delivered nothing."""
        if not self._output_bytes and time.monotonic() - self._started < 1:
            return None
        estimate = self._estimate()
        self._journalled_bytes = self._output_bytes
        return Progress(
            self.generation_id, estimate.prompt, estimate.completion if self._output_bytes else 0
        )

    async def _first_success(
        self, attempt: Callable[[AffordableCandidate], Awaitable[Answer]]
    ) -> Answer:
        """Tries the candidates in order until one begins to answer."""
        candidates = self._admission.candidates
        error: GatewayError | None = None
        for index, item in enumerate(candidates):
            candidate = item.candidate
            if error is not None and not await self._gateway.repin(self._admission, candidate):
                raise error
            self._candidate = candidate
            started = self._elapsed_ms()
            try:
                answer = await attempt(item)
            except _FAILURES as exc:
                error = upstream.translate(exc, candidate.secret)
                self._record_attempt(candidate, started, error)
                self._report(candidate, error)
                if not error.retryable or index + 1 == len(candidates):
                    error.details |= self._metadata()
                    raise error from None
            else:
                self._record_attempt(candidate, started, None)
                self._report(candidate, None, self._elapsed_ms() - started)
                self._latency_ms = self._elapsed_ms()
                return answer
        raise AssertionError("a selection has candidates")

    def _report(
        self, candidate: Candidate, error: GatewayError | None, latency_ms: int | None = None
    ) -> None:
        """Tells the health how an attempt went, or that its answer has begun."""
        health, now = self._gateway.health, time.time()
        outcome = classify_attempt(error, has_own_credential=candidate.is_byok)
        if outcome is None:
            self._release_probe()
        else:
            retry_after = None if error is None else error.headers.get("Retry-After")
            health.record(
                candidate.subject,
                outcome,
                now=now,
                retry_after=None if retry_after is None else float(retry_after),
                has_own_credential=candidate.is_byok,
            )
            self._probe = None
        if latency_ms is not None and self._request.stream:
            health.measure(candidate.measured_subject, latency_ms, now=now)

    def _release_probe(self) -> None:
        """Lets another request be the probe that this one, whose first attempt it was, is not."""
        if self._probe is not None:
            self._gateway.health.release(self._probe)
            self._probe = None

    def _report_speed(self) -> None:
        """Tells the health how fast the whole answer came, from its first event on."""
        if self._usage is None or self._latency_ms is None or not self._usage.completion:
            return
        seconds = max(self._elapsed_ms() - self._latency_ms, 1) / 1000
        self._gateway.health.measure(
            self._candidate.measured_subject,
            tokens_per_second=self._usage.completion / seconds,
            now=time.time(),
        )

    def _metadata(self) -> dict[str, Any]:
        """Returns how the request was routed, for a caller who asked to be told."""
        if not self._admission.is_metadata_wanted:
            return {}
        return {
            "openrouter_metadata": routing_metadata(
                self._admission.selection,
                self._attempts,
                region=self._admission.region,
                findings=self._admission.findings,
                generation_time_ms=self._elapsed_ms(),
            )
        }

    async def _whole(self, item: AffordableCandidate) -> Reply:
        async with asyncio.timeout(self._deadline - time.monotonic()):
            response = await self._send(item)
            try:
                body = await response.read()
            finally:
                response.close()
        return _dialect(item.candidate).parse_reply(self._request.operation, body)

    async def _opened(self, item: AffordableCandidate) -> _Stream:
        async with asyncio.timeout(settings.UPSTREAM_FIRST_EVENT_TIMEOUT):
            response = await self._send(item)
            dialect = _dialect(item.candidate)
            parser = dialect.stream_parser(self._request.operation, self._request.choices)
            try:
                if response.headers.get("Content-Type", "").startswith("application/json"):
                    # Some providers report an error so, whose message says more than ours would.
                    dialect.parse_reply(self._request.operation, await response.read())
                    raise InvalidStream("The answer to a streamed request is not a stream.")
                while data := await response.readany():
                    if chunks := parser.feed(data):
                        if chunks[0].is_done:
                            break
                        return _Stream(response, parser, chunks)
                parser.finish()
                raise InvalidStream("The stream has no events.")
            except BaseException:
                # What came before a fault in the same bytes was never shown, so a fallback may
                # still begin afresh.
                response.close()
                raise

    async def _send(self, item: AffordableCandidate) -> egress.OutboundResponse:
        self._is_taken = False
        response = await upstream.send(
            self._gateway.egress_client,
            _dialect(item.candidate),
            item.candidate,
            self._request,
            self._admission.user,
            item.max_tokens,
        )
        self._is_taken = True
        return response

    async def _relay(self, stream: _Stream, deliver: Callable[[bytes], Awaitable[None]]) -> None:
        """Delivers what every read of the upstream makes of events, to the end mark."""
        chunks = stream.chunks
        fault: Exception | None = None
        while True:
            if events := b"".join(map(self._rendered_chunk, chunks)):
                if self.is_ahead():
                    self._gateway.journal_soon()
                self._is_delivering = True
                await deliver(events)
                self._is_delivering = False
            if fault is not None:
                raise fault
            if chunks and chunks[-1].is_done:
                self._report_speed()
                self._is_delivering = True
                await deliver(self._usage_event() + sse.DONE)
                # A caller that leaves from now on has had everything.
                self.settle()
                stream.response.close(linger=_GOODBYE_SECONDS)
                return
            if not (data := await stream.response.readany()):
                if chunks := stream.parser.finish():
                    continue
                raise InvalidStream("The stream ended without its end mark.")
            try:
                chunks = stream.parser.feed(data)
            except (InvalidStream, ProviderFailure) as exc:
                chunks, fault = stream.parser.pending, exc

    async def _take_leave(self, deliver: Callable[[bytes], Awaitable[None]], event: bytes) -> None:
        """Delivers the last event after a failure; nobody waits long for it to be taken."""
        try:
            async with asyncio.timeout(_PARTING_SECONDS):
                await deliver(event)
        except TimeoutError:
            raise CallerStuck from None

    def _note(self, part: Reply | Chunk) -> None:
        """Taps what settlement needs."""
        self._output_bytes += part.output_bytes
        if part.finish_reason is not None and "choices" in part.fields:
            part.fields["choices"], reason, native = finish.named(part.fields["choices"])
            self._finish_reason = reason or self._finish_reason
            self._native_finish_reason = native or self._native_finish_reason
        else:
            self._finish_reason = part.finish_reason or self._finish_reason
        self._upstream_id = self._upstream_id or part.upstream_id
        self._upstream_model = self._upstream_model or part.model
        self._note_usage(part)

    def _note_usage(self, part: Reply | Chunk) -> None:
        """Keeps the count that holds: the latest, and after the end the first that comes alone.

        One that comes with a choice counts that choice, or the answer up to there: a larger one may
        follow, and output that follows is not in it.
        """
        if part.output_bytes:
            self._usage_is_final = self._usage_is_last = False
        usage, known = part.usage, self._usage
        if usage is None or self._usage_is_last:
            return
        is_less = known and usage.prompt + usage.completion < known.prompt + known.completion
        if is_less and self._usage_is_final:
            return
        self._usage = usage
        self._raw_usage = part.fields.get("usage")
        self._usage_is_final = self._finish_reason is not None
        is_alone = isinstance(part, Chunk) and not part.has_choices
        self._usage_is_last = self._usage_is_final and is_alone

    def _rendered_reply(self, reply: Reply) -> bytes:
        fields = reply.fields
        if self._request.hides_reasoning:
            fields["choices"] = hidden(fields["choices"])
        fields.update(self._identity(fields))
        if self._request.operation is Operation.EMBEDDINGS:
            del fields["created"]
        elif self._request.operation is Operation.CHAT:
            fields.setdefault("system_fingerprint", None)
        elif _is_null(fields.get("system_fingerprint")):
            fields.pop("system_fingerprint", None)
        fields["usage"] = self._usage_body()
        fields.update(self._metadata())
        return _encode(fields)

    def _rendered_chunk(self, chunk: Chunk) -> bytes:
        """Encodes a chunk under our identity; usage waits for the end, where the cost joins it."""
        if chunk.alike:
            self._output_bytes += chunk.output_bytes
            self._usage_is_final = self._usage_is_last = False
            before, alike = self._before_choices(), chunk.alike
            if self._request.hides_reasoning:
                alike = [_encode(hidden(msgspec.Raw(choices))) for choices in alike]
            return before + (b"}\n\n" + before).join(alike) + b"}\n\n"
        self._note(chunk)
        fields = chunk.fields
        if chunk.is_done:
            return b""
        if self._request.hides_reasoning and "choices" in fields:
            fields["choices"] = hidden(fields["choices"])
        if _is_null(fields.get("system_fingerprint")):
            fields.pop("system_fingerprint", None)
        if not self._head:
            self._head = self._identity(fields)
        usage = fields.pop("usage", None)
        if not (usage is None or _is_null(usage) or chunk.has_choices):
            self._tail.update(fields)
            return b""
        fields.update(self._head)
        self._last, self._before = fields, None
        return sse.event(fields)

    def _before_choices(self) -> bytes:
        """Returns the beginning of an event that repeats the last one but for its choices."""
        if self._before is None:
            fields = {name: value for name, value in self._last.items() if name != "choices"}
            self._before = sse.event(fields).removesuffix(b"}\n\n") + b',"choices":'
        return self._before

    def _identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns the members that say who answers: our id, the caller's model, the provider."""
        kind = _KINDS[self._request.operation, self._request.stream]
        return {
            "id": self.generation_id,
            "object": kind,
            "created": _integer(fields.get("created")) or int(time.time()),
            "model": self._candidate.route.model_slug,
            "provider": self._candidate.route.facts.provider_name,
        }

    def _usage_event(self) -> bytes:
        return sse.event(
            {
                **self._tail,
                **self._head,
                "choices": [],
                "usage": self._usage_body(),
                **self._metadata(),
            }
        )

    def _error_event(self, error: GatewayError) -> bytes:
        """Encodes an error after the first byte, when the status is spent: the last event."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "error"}
        if self._request.operation is Operation.CHAT:
            choice["delta"] = {"content": ""}
        else:
            choice |= {"text": "", "logprobs": None}
        self._finish_reason = "error"
        return sse.event({**self._head, **error.body(), **self._metadata(), "choices": [choice]})

    def _usage_body(self) -> dict[str, Any]:
        """Returns the upstream's usage with the cost, or an estimate where it counted none."""
        usage, _ = self._counted()
        cost, upstream_cost = self._costs(None if self._is_nothing(usage) else usage)
        price = self._candidate.route.price
        return {
            **_members(self._raw_usage),
            "prompt_tokens": usage.prompt,
            **self._completion_count(usage),
            "total_tokens": usage.prompt + usage.completion,
            "cost": usd(cost),
            "is_byok": self._candidate.is_byok,
            "cost_details": {
                "upstream_inference_cost": usd(upstream_cost),
                "upstream_inference_prompt_cost": usd(nano_usd(prompt_cost(price, usage))),
                "upstream_inference_completions_cost": usd(nano_usd(completion_cost(price, usage))),
            },
        }

    def _completion_count(self, usage: Usage) -> dict[str, int]:
        """Returns the count of the answer's tokens; embeddings have none, and no member for it."""
        is_counted = self._request.operation is not Operation.EMBEDDINGS
        return {"completion_tokens": usage.completion} if is_counted else {}

    def _costs(self, usage: Usage | None) -> tuple[int, int]:
        """Returns what credits pay and what the price makes of the usage, in nano-USD."""
        if usage is None:
            return 0, 0
        if self._request.images:
            usage = replace(usage, images=self._request.images)
        upstream_cost = nano_usd(total_cost(self._candidate.route.price, usage))
        if self._candidate.is_byok:
            return fee_nano(upstream_cost, settings.BYOK_FEE_PERCENT), upstream_cost
        return upstream_cost, upstream_cost

    def _verdict(self, error: BaseException | None) -> tuple[str, Usage | None, bool]:
        """Decides the terminal status, what is charged, and whether that is an estimate.

        Delivered output is charged by the upstream's count, else by an estimate; what failed
        before any output costs nothing, and neither does a blank answer, nor a whole one that its
        caller does not get. A caller who leaves pays for the prompt once the upstream has taken it.
        """
        if error is None:
            status = Status.COMPLETED
        elif isinstance(error, asyncio.CancelledError | CallerStuck):
            status = Status.CANCELLED
        else:
            status = Status.FAILED
        usage, is_estimated = self._counted()
        if status is Status.CANCELLED:
            is_due = self._is_taken
        elif status is Status.FAILED and not self._request.stream:
            is_due = False
        else:
            has_begun = self._usage is not None or status is Status.COMPLETED
            is_due = bool(self._output_bytes) or (has_begun and not self._is_nothing(usage))
        return (status, usage, is_estimated) if is_due else (status, None, False)

    def _counted(self) -> tuple[Usage, bool]:
        """Returns what was used so far, and whether that is an estimate.

        A count that came before the end of the answer may be short of what followed it.
        """
        if self._usage is not None and self._usage_is_final:
            return self._usage, False
        estimate = self._estimate()
        if self._usage is None:
            return estimate, True
        if self._usage.completion >= estimate.completion:
            return self._usage, False
        return replace(self._usage, completion=estimate.completion), True

    def _is_nothing(self, usage: Usage) -> bool:
        """Tells whether an answer is blank: it says nothing, and not why."""
        return not usage.completion and self._finish_reason in (None, "error")

    @cached_property
    def _prompt_estimate(self) -> int:
        # Kept, because a large prompt would otherwise be read anew for every heartbeat.
        return tokens(self._request.prompt_bytes)

    def _estimate(self) -> Usage:
        return Usage(
            prompt=self._prompt_estimate,
            completion=tokens(self._output_bytes),
        )

    def _record_attempt(
        self, candidate: Candidate, started_ms: int, error: GatewayError | None
    ) -> None:
        attempt: dict[str, Any] = {
            "provider": candidate.route.facts.provider_name,
            "endpoint_id": str(candidate.route.endpoint_id),
            "is_byok": candidate.is_byok,
            "latency_ms": self._elapsed_ms() - started_ms,
            "status": 200,
        }
        if error is not None:
            attempt["status"] = getattr(error, "upstream_status", None) or error.status
            attempt["error_type"] = error.error_type
        self._attempts.append(attempt)

    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)


def _dialect(candidate: Candidate) -> Dialect:
    route = candidate.route
    dialect = dialects.get(route.dialect or "", route.upstream_model_id)
    if dialect is None:
        raise UpstreamError("This release does not speak the provider's dialect.")
    return dialect


def _members(raw: Any) -> dict[str, Any]:
    """Decodes a usage that was read before; what only a reader of the whole refuses is left out."""
    try:
        body = {} if raw is None else _without_nulls(msgspec.json.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _integer(raw: Any) -> int | None:
    """Reads a member that should be an integer; anything else counts as absent."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=int)
    except msgspec.DecodeError:
        return None


def _is_null(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) and bytes(value) == b"null"


def _without_nulls(value: Any) -> Any:
    """Drops members that are null: one of the public clients refuses them in nested objects."""
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
