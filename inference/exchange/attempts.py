"""Tries the candidates of one generation in order until one begins to answer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from catalog import dialects
from catalog.capabilities import NativeFormat
from catalog.dialects.audio import PlainSound, read_plain_sound
from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    Dialect,
    InvalidReply,
    InvalidStream,
    Operation,
    Reply,
    Untranslatable,
    build_stated,
    check_answer,
)
from catalog.dialects.openai.speech import SpeechParser
from catalog.dialects.shared.constraints import ODD_NAME, fit_names, restore_names
from catalog.dialects.shared.left_out import name_asked
from catalog.dialects.shared.raw import is_unset, read_text
from catalog.dialects.wholes import JSON_TYPES, RenamingParser, is_stream, join_stream, split_reply
from catalog.operations import OPERATIONS
from config import egress
from config.api.errors import (
    ContentRefused,
    ContextTooShort,
    GatewayError,
    TooManyRequests,
    Unavailable,
    UpstreamError,
    UpstreamRefused,
)
from config.clocks.clock import clock
from config.egress.client import EgressClient, OutboundResponse
from config.egress.rules import tighten
from config.live_settings import settings
from config.secrets import hash_cache_key
from config.server.load.large_work import LARGE_BYTES
from inference.admission.admit import Repinned
from inference.admission.budgets import AffordableCandidate
from inference.admission.copies.organizations import record_first_use
from inference.admission.decide import Admission
from inference.exchange import failures
from inference.exchange.failures import FAILURES, PAUSING_HEADERS, blame_answer, read_pause
from inference.exchange.metadata import routing_metadata
from inference.exchange.rendering import ANSWERS
from inference.exchange.tap import Watcher
from inference.exchange.workload import ChunkReader, Workload
from inference.requests.operations import ROWS
from inference.requests.operations.completions import BOUNDS, EFFORTS
from inference.requests.operations.server_tools import (
    NO_TOOLS,
    OPERATOR_FIELDS,
    keep_searches,
    leave_out,
)
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import Failure, name_shortening
from inference.routing.health import (
    AttemptOutcome,
    HealthTable,
    classify_attempt,
    refuses_credential,
)
from inference.routing.routes import Candidate, FirstUse, Route
from inference.store import run_in_thread

logger = logging.getLogger(__name__)

Begun = TypeVar("Begun")
Repin = Callable[[Admission, Candidate], Awaitable[Repinned]]
Replan = Callable[[Admission, Collection[Candidate]], Awaitable[None]]
# What is made of a large request while its body is built: decoded parts, and the body.
_BUILDING_COPIES: Final = 2
# Their requests have a file, or a voice, that a server may not be able to use.
_FILE_OPERATIONS: Final = (Operation.SPEECH, Operation.TRANSCRIPTION)
# How often the candidates are selected again between two attempts, while changes go on.
_REPLANS: Final = 4
# The field that names a place in the provider's cache, which all who use an account share.
_CACHE_KEY: Final = "prompt_cache_key"


@dataclass(slots=True)
class Stream:
    """A stream whose first chunks have arrived."""

    reader: ChunkReader
    first_chunks: list[Chunk]


class Plan:
    """The candidates of an admission that are left to try, and those that were tried."""

    def __init__(self, admission: Admission, repin: Repin, replan: Replan) -> None:
        self._admission = admission
        self._repin = repin
        self._replan = replan
        self._left: Sequence[AffordableCandidate] = admission.candidates
        self._tried: list[Candidate] = []
        # The endpoints that had no room when the generation was to move there.
        self._full: set[uuid.UUID] = set()
        # The refusals so far, each with the route that gave it.
        self._refusals: list[tuple[UpstreamRefused, Route]] = []

    def take(self) -> AffordableCandidate:
        """Returns the next candidate, which is tried from now on."""
        item, *self._left = self._left
        self._tried.append(item.candidate)
        return item

    def note_refusal(self, error: UpstreamRefused) -> None:
        """Keeps a refusal of the latest candidate, which some of the others share."""
        self._refusals.append((error, self._tried[-1].route))

    def number(self, error: GatewayError) -> None:
        """Adds the number of the latest attempt, and of the candidates, to a provider's failure."""
        if "provider_name" in error.metadata and "attempt" not in error.metadata:
            number = len(self._tried)
            error.metadata |= {"attempt": number, "candidates": number + len(self._left)}

    async def pin_next(self) -> bool:
        """Moves the generation to the next candidate; returns whether there is one.

        One that is full is passed over. If the key, the organization or the catalogue has changed,
        the candidates are selected again. Raises the :class:`GatewayError` that would refuse a new
        request.
        """
        for _ in range(_REPLANS):
            while True:
                self._left = [item for item in self._left if self._may_accept(item.candidate.route)]
                if not self._left:
                    return False
                following = self._left[0].candidate
                repinned = await self._repin(self._admission, following)
                if repinned is Repinned.MOVED:
                    return True
                if repinned is Repinned.CHANGED:
                    break
                self._full.add(following.route.endpoint_id)
            await self._replan(self._admission, self._tried)
            self._left = self._admission.candidates
        return False

    def _may_accept(self, route: Route) -> bool:
        is_full = route.endpoint_id in self._full
        refusals = self._refusals
        return not is_full and all(may_accept(route, error, refused) for error, refused in refusals)


class Attempts:
    """Tries the candidates of an admission, and records how each attempt went.

    ``item`` is the candidate of the latest attempt with its hold. ``response`` is what its upstream
    answers, or ``None`` if it has not been reached or has failed; ``parser`` parses that response
    if it is a stream. ``records`` are the stored attempts, ``failures`` the errors of failed ones.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        egress_client: EgressClient,
        health: HealthTable,
        repin: Repin,
        replan: Replan,
        workload: Workload,
        watcher: Watcher,
    ) -> None:
        self.item = admission.candidates[0]
        self.candidate = self.item.candidate
        self.response: OutboundResponse | None = None
        self.reader: ChunkReader | None = None
        # What the head of an answer of audio says of it.
        self.sound: PlainSound | None = None
        # A whole answer that is being parsed.
        self._answer: Body | None = None
        # The names of what is not sent to the latest candidate; its readers share the list.
        self.left_out: list[str] = [*admission.request.left_out]
        # The names of functions that are too long for the present target, by those that it got.
        self._names: dict[str, str] = {}
        self.latency_ms: int | None = None
        self.records: list[dict[str, Any]] = []
        self.failures: list[Failure] = []
        self._admission = admission
        request = self._request = admission.request
        # Whether the endpoint and its format decide about more than the fields of a call.
        self._has_wishes = (
            request.server_tools is not NO_TOOLS
            or not EFFORTS.isdisjoint(request.fields)
            or request.has_long_cache
            or request.native is not None
        )
        # The bytes of the request that are read again to complete its answer.
        has_completion = ROWS[request.operation].complete is not None
        self._reread = request.size if has_completion else 0
        self._egress_client, self._workload = egress_client, workload
        self._watcher = watcher
        # The subject that the first attempt probes, while it has no outcome.
        self.probe = admission.probe
        self._health = health
        self._plan = Plan(admission, repin, replan)
        # The estimate that counts for the pace of the latest attempt until its usage is known.
        self._paced_tokens = 0
        self._started = time.monotonic()
        # No attempt may run longer, even if its upstream still sends bytes, because the sweeper
        # ends the generation then.
        self._deadline = self._started + settings.HOLD_TIMEOUT
        # The end of the latest attempt, in monotonic time.
        self.attempt_deadline = self._deadline

    @property
    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    @property
    def is_sent(self) -> bool:
        """Returns whether the upstream of the latest attempt may work, or has worked, for us."""
        return self.response is not None and self.response.is_sent

    @property
    def has_refusal(self) -> bool:
        """Returns whether the upstream has answered with another status than 200."""
        return self.response is not None and self.response.status not in (0, 200)

    async def first_success(
        self, attempt: Callable[[AffordableCandidate, Dialect], Awaitable[Begun]]
    ) -> Begun:
        """Tries the candidates in order and returns the first answer that begins.

        Raises :class:`GatewayError` when no candidate is left, or when the error is not retryable.
        """
        while True:
            self.item = self._plan.take()
            self.candidate = self.item.candidate
            if (pace := self.candidate.pace) is not None:
                self._count_pace(pace.provider_id)
            started_ms = self.elapsed_ms
            try:
                begun = await attempt(self.item, _dialect_of(self.candidate, self._request))
            except FAILURES as exc:
                # A failed attempt is free, even if the caller leaves before the next one.
                self.discard()
                error = self.explain(exc)
                self._record(self.elapsed_ms - started_ms, error)
                self.failures.append(failures.describe_failure(error))
                self._report(error)
                if isinstance(error, UpstreamRefused):
                    self._plan.note_refusal(error)
            else:
                self.latency_ms = self.elapsed_ms
                self._record(self.latency_ms - started_ms, None)
                self._report(None, self.latency_ms - started_ms)
                return begun
            try:
                has_time = time.monotonic() < self._deadline
                has_next = error.retryable and has_time and await self._plan.pin_next()
            except GatewayError as exc:
                # The others whose statement failed with this one's have the same error.
                error, has_next = copy(exc), False
            if not has_next:
                if self._request.shortening and isinstance(error, ContextTooShort):
                    name_shortening(error, self._request.shortening)
                error.details |= self.metadata()
                if kept := self._admission.selection.kept_private():
                    error.metadata = {"excluded": kept, **error.metadata}
                try:
                    raise error from None
                finally:
                    # The traceback leads to this frame: its name for the error would make a cycle,
                    # which keeps all that the request holds until the collector runs.
                    del error
            self._watcher.note_fallback(self.candidate)
            # Changed content filters may have changed the request.
            self._request = self._admission.request

    def _report(self, error: GatewayError | None, latency_ms: int | None = None) -> None:
        """Tells the health of endpoints that an attempt failed, or that its answer has begun."""
        now, candidate = clock.time(), self.candidate
        outcome = classify_attempt(error, has_own_credential=candidate.is_byok)
        if outcome is AttemptOutcome.FAILURE and not self._is_certain(error, now):
            outcome = None
        if (rest := candidate.rest) is not None:
            self._report_rest(rest, error, now)
        if outcome is None or self.probe not in (None, candidate.subject):
            self.release_probe()
        if outcome is not None:
            self._health.record(
                candidate.subject,
                outcome,
                now=now,
                retry_after=error.retry_after if isinstance(error, UpstreamError) else None,
                has_own_credential=candidate.is_byok,
            )
            self.probe = None
        if latency_ms is not None and self._request.stream:
            self._health.measure(candidate.measured_subject, latency_ms, now=now)

    def _report_rest(self, rest: uuid.UUID, error: GatewayError | None, now: float) -> None:
        """Tells whether the provider has refused or accepted an own credential."""
        credential_id, refused = self.candidate.credential_id, self._health.refused
        assert credential_id is not None, "only an own credential rests"
        if error is None:
            if self._health.end_rest(rest, now):
                refused.clear_own(credential_id)
        elif isinstance(error, UpstreamError) and refuses_credential(error):
            self._health.begin_rest(rest, now)
            refused.mark_own(credential_id, self.candidate.secret.label, error.upstream_status or 0)

    def _is_certain(self, error: GatewayError | None, now: float) -> bool:
        """Returns whether a failure is the endpoint's.

        Many servers answer a file that they cannot decode, and a voice that they do not know, like
        a failure of their own: it counts when requests of other callers fail too.
        """
        is_doubtful = getattr(error, "upstream_status", None) == 500
        if not is_doubtful or self._request.operation not in _FILE_OPERATIONS:
            return True
        authority, subject = self._admission.authority, self.candidate.subject
        caller = authority.key_id if self.candidate.is_byok else authority.organization_id
        return self._health.confirm_doubt(subject, caller, now)

    def explain(self, exc: Exception, *, limit: str = "first_event") -> GatewayError:
        """Returns the error for a failure of the latest attempt; see :func:`failures.translate`."""
        error = failures.translate(exc, self.candidate, self._request, limit=limit)
        self._plan.number(error)
        return error

    def break_off(self, exc: Exception) -> GatewayError:
        """Returns the error for an answer that fails after it began, and records the failure."""
        error = self.explain(exc, limit="total")
        self.records[-1] |= _name_kind(error)
        self._watcher.note_failure(self.candidate, error)
        self._report(error)
        return error

    async def fetch_reply(self, item: AffordableCandidate, dialect: Dialect) -> Reply:
        """Sends the request and returns the whole reply.

        A model may think about a plain answer as long as it likes: only the time in all ends it.
        """
        return await self._read_reply(dialect, await self._send(item, dialect))

    async def _read_reply(self, dialect: Dialect, response: OutboundResponse) -> Reply:
        body = self._answer = await self._workload.read_answer(response)
        size = max(len(body), self._reread)
        try:
            reply = await self._workload.run(
                size, _parse_reply, dialect, self.candidate, self._request, self._names, body
            )
        except BaseException:
            self._workload.forget_answer(body)
            raise
        if reply.size > len(body):
            # It repeats parts of the request, which are in memory again until they are sent.
            self._workload.add(reply.size - len(body))
        return reply

    async def open_stream(self, item: AffordableCandidate, dialect: Dialect) -> Stream:
        """Sends the request and waits for the first chunks of its stream."""
        limits = item.candidate.route.time_limits
        headers = tighten(settings.UPSTREAM_HEADERS_TIMEOUT, limits.headers)
        first_event = tighten(settings.UPSTREAM_FIRST_EVENT_TIMEOUT, limits.first_event)
        async with asyncio.timeout(first_event):
            response = await self._send(item, dialect, headers)
            if response.headers.get("Content-Type", "").startswith(JSON_TYPES):
                reply = await self._read_reply(dialect, response)
                reader = self._open_reader(response)
                # From now on it counts as what the stream keeps, which outlives the request's body.
                self._workload.forget_answer(self._answer or b"")
                reader.take_whole(reply.size)
                return Stream(reader, _split_reply(self.candidate, self._request, reply))
            if OPERATIONS[self._request.operation].is_bytes and not _may_be_audio(response):
                raise InvalidStream("The answer is not audio.")
            reader = self._open_reader(response)
            while (chunks := await reader.read()) is not None:
                # The caller has received nothing, not even chunks that precede a fault in the same
                # bytes, so the next candidate can answer from the start.
                if chunks:
                    if chunks[0].is_done:
                        break
                    response.idle_timeout = tighten(settings.UPSTREAM_IDLE_TIMEOUT, limits.idle)
                    return Stream(reader, chunks)
            if (chunks := reader.finish()) and not chunks[0].is_done:
                return Stream(reader, chunks)
            raise InvalidStream("The stream has no events.")

    async def receive_late_reply(self) -> Reply:
        """Returns the whole reply of the latest attempt, within the budget of its organization.

        Raises :class:`TooLarge` where the organization holds too much: the usage of an answer that
        nobody reads is not worth a place.
        """
        assert self.response is not None
        await accept_response(self.response, self.candidate, self._request)
        try:
            # The caller may have left while a thread parsed the answer.
            body = self._answer or await self._workload.read_answer(self.response)
            dialect, size = _dialect_of(self.candidate, self._request), max(len(body), self._reread)
            return await self._workload.run(
                size, _parse_reply, dialect, self.candidate, self._request, self._names, body
            )
        except (TooManyRequests, Unavailable):
            raise egress.TooLarge from None

    async def receive_late_parts(self, limit: int) -> AsyncGenerator[Chunk | Reply]:
        """Yields the further chunks of the latest attempt's stream, of ``limit`` bytes in all.

        An answer that is one JSON value is yielded whole: its usage may have counted already.
        Raises :class:`TooLarge` for more, and as :meth:`receive_late_reply` does.
        """
        assert self.response is not None
        await accept_response(self.response, self.candidate, self._request)
        if self.response.headers.get("Content-Type", "").startswith(JSON_TYPES):
            reply = await self.receive_late_reply()
            _split_reply(self.candidate, self._request, reply)  # fails as for a caller who stays
            yield reply
            return
        reader = self.reader or self._open_reader(self.response)
        while limit > 0 and (chunks := await _read_late(reader)) is not None:
            limit -= reader.step_bytes
            for chunk in chunks:
                yield chunk
                if chunk.is_done:
                    return
        if limit <= 0:
            raise egress.TooLarge
        for chunk in reader.finish():
            yield chunk

    def _open_reader(self, response: OutboundResponse) -> ChunkReader:
        request = self._request
        dialect = _dialect_of(self.candidate, request)
        parser = dialect.stream_parser(request.operation, request.choices)
        if isinstance(parser, SpeechParser):
            self.sound = read_plain_sound(response.headers)
            is_plain = read_text(request.fields["response_format"]) == "pcm"
            parser.expect(self.sound, is_plain=is_plain)
        if self._names:
            parser = RenamingParser(parser, self._names)
        response.watch_unread(self._workload.note_unread)
        self.reader = ChunkReader(response, parser, self._workload)
        return self.reader

    def discard(self) -> None:
        """Closes the response of a failed attempt and forgets it."""
        self.close()
        if self.reader is not None:
            self.reader.forget()
        self.response = self.reader = self._answer = None
        self._names = {}

    def forget_answer(self) -> None:
        """Frees the upstream's answer where the caller gets it in another format."""
        self._answer = None

    def close(self) -> None:
        """Closes the response of the latest attempt; an unread rest is not waited for."""
        if self.response is not None:
            self.response.close()

    async def _send(
        self, item: AffordableCandidate, dialect: Dialect, headers_timeout: float = math.inf
    ) -> OutboundResponse:
        """Sends the request of an attempt and returns its response with the status 200."""
        candidate, request = item.candidate, self._request
        own_total = tighten(math.inf, candidate.route.time_limits.total)
        self.attempt_deadline = min(self._deadline, time.monotonic() + own_total)
        call = build_call(candidate, request, self._admission.user, item.max_tokens)
        native = call.native
        if _CACHE_KEY in call.fields or (native is not None and _CACHE_KEY in native.fields):
            call = _hide_cache_key(call, self._admission.authority.organization_id)
        try:
            for name in ("tools", "messages"):
                raw = call.fields.get(name)
                if (
                    isinstance(raw, msgspec.Raw)
                    and ODD_NAME.search(raw)
                    and native is None
                    and OPERATIONS[request.operation].has_messages
                ):
                    target = dialects.constraints_of(candidate.route.dialect, call.capabilities)
                    fields, self._names = fit_names(call.fields, target)
                    call = replace(call, fields=fields)
                    break
            build = partial(build_stated, dialect.build) if call.secret.is_object else dialect.build
            outbound = await self._workload.run(request.size, build, call, copies=_BUILDING_COPIES)
        except msgspec.ValidationError as exc:  # a number out of range
            raise Untranslatable(f"This provider's format cannot have the request: {exc}") from None
        lost = call.left_out | outbound.left_out
        if lost or self.left_out or self._has_wishes:
            self.left_out[:] = candidate.name_left_out(request, lost)
        if settings.TRACE_UPSTREAMS:
            outbound = self._watcher.trace_request(outbound)
        # What was made for the upstream is in memory until it answers.
        made = size if (size := len(outbound.body)) > LARGE_BYTES else 0
        if made:
            self._workload.add(made)
        try:
            # Nothing but the deadline bounds the waits for the answer. The caller closes it.
            self.response = response = await self._egress_client.start(
                outbound,
                connect_timeout=tighten(
                    settings.EGRESS_POLICY.connect_timeout, candidate.route.time_limits.connect
                ),
                idle_timeout=math.inf,
                deadline=self.attempt_deadline,
                reach=candidate.route.reach,
            )
            await accept_response(response, candidate, request, headers_timeout)
        finally:
            if made:
                self._workload.release(made)
        headers = response.headers
        if not PAUSING_HEADERS.isdisjoint(headers) and (pause := read_pause(headers)) is not None:
            self._health.pause(candidate.subject, pause, now=clock.time())
        if candidate.first_use is not None:
            await _bind_credential(candidate.first_use)
        return response

    def report_end(self, completion_tokens: int, *, is_unmarked: bool) -> None:
        """Reports the throughput of a whole stream after its first event, and a missing mark."""
        if is_unmarked:
            self._report_missing_mark()
        if self.latency_ms is not None and completion_tokens:
            seconds = max(self.elapsed_ms - self.latency_ms, 1) / 1000
            self._health.measure(
                self.candidate.measured_subject,
                tokens_per_second=completion_tokens / seconds,
                now=clock.time(),
            )

    def _report_missing_mark(self) -> None:
        """Notes that a whole stream ended without its end mark, which is no failure."""
        candidate = self.candidate
        self._watcher.note_missing_mark(candidate)
        if self._health.note_missing_mark(candidate.route.endpoint_id):
            logger.warning(
                "the endpoint %s ends its streams without an end mark; finish reason and usage "
                "came, so they are delivered as complete",
                candidate.route.endpoint_id,
            )

    def release_probe(self) -> None:
        """Gives back the probe of the first candidate, if it has had no outcome."""
        if self.probe is not None:
            self._health.release(self.probe)
            self.probe = None

    def _count_pace(self, provider_id: uuid.UUID) -> None:
        """Counts an attempt before it is sent; admission has counted the first one.

        The estimate of the prompt counts now, the usage of the answer afterwards.
        """
        self._paced_tokens = self.candidate.route.family.estimate(self._request.text)
        if self.records:
            self._health.pacer.count(provider_id, 1, self._paced_tokens, clock.time())

    def count_usage(self, tokens: int) -> None:
        """Counts the tokens of the last attempt in place of their estimate."""
        if (pace := self.candidate.pace) is not None:
            more = tokens - self._paced_tokens
            self._health.pacer.count(pace.provider_id, 0, more, clock.time())

    def metadata(self) -> dict[str, Any]:
        """Returns the members that describe the routing; none unless the caller asked for them."""
        if not self._admission.is_metadata_wanted:
            return {}
        return _describe_routing(self._admission, self.records, self.left_out, self.elapsed_ms)

    def forget_request(self) -> None:
        """Frees the content of the request, which no other candidate gets."""
        self._request.forget()

    def _record(self, latency_ms: int, error: GatewayError | None) -> None:
        """Records an attempt as the generation stores it.

        Only the console shows ``credential_id``, the organization's own credential, and
        ``requested``, the name that the request gave the model if that has another one.
        """
        record: dict[str, Any] = {
            "provider": self.candidate.route.facts.provider_name,
            "endpoint_id": str(self.candidate.route.endpoint_id),
            "is_byok": self.candidate.is_byok,
            "latency_ms": latency_ms,
            "status": 200,
        }
        if self.candidate.credential_id is not None:
            record["credential_id"] = str(self.candidate.credential_id)
        if self._admission.selection.resolution is not None:
            record["requested"] = self._admission.selection.requested
        if error is not None:
            record["status"] = getattr(error, "upstream_status", None) or error.status
            record["error_type"] = error.error_type
            record |= _name_kind(error)
        self.records.append(record)
        self._watcher.note_attempt(self.candidate, self._request.operation, latency_ms, error)


def may_accept(route: Route, error: UpstreamRefused, refusing: Route) -> bool:
    """Returns whether a route may accept a request that another one has refused.

    A prompt that is too long for a model may fit an endpoint with a longer context, and content
    that was refused once is shown to no other provider of the same model. Any other model of the
    request is tried.
    """
    if route.model_slug != refusing.model_slug:
        return True
    match error:
        case ContextTooShort():
            length, refused = route.context_length, refusing.context_length
            return length is not None and (refused is None or length > refused)
        case ContentRefused():
            return False
        case _:
            return True


def _describe_routing(
    admission: Admission, records: list[dict[str, Any]], left_out: list[str], elapsed_ms: int
) -> dict[str, Any]:
    """Returns the members that describe the routing."""
    return {
        "openrouter_metadata": routing_metadata(
            admission.selection,
            records,
            region=admission.region,
            findings=admission.findings,
            left_out=left_out,
            retry_of=admission.retry_of,
            generation_time_ms=elapsed_ms,
        )
    }


def _name_kind(error: GatewayError) -> dict[str, str]:
    """Returns the exact kind of a failure, for the operator; the caller's may be less exact."""
    if isinstance(error, failures.UnableEndpoint):
        return {name: error.metadata[name] for name in ("kind", "lacks")}
    if not isinstance(error, UpstreamError):
        return {}
    named = {"kind": error.kind, "limit": error.limit}
    return {name: text for name, text in named.items() if text is not None}


def _parse_reply(
    dialect: Dialect,
    candidate: Candidate,
    request: InferenceRequest,
    names: Mapping[str, str],
    body: Body,
) -> Reply:
    """Parses a whole reply with at most as many choices as were asked for.

    ``names`` are the functions' own, by those that the target got. Raises :class:`InvalidReply`,
    whatever is wrong, or :class:`ProviderFailure`.
    """
    choices = request.choices
    try:
        if len(body) > LARGE_BYTES:
            check_answer(body, choices)
        if body[:1] != b"{" and OPERATIONS[request.operation].is_written and is_stream(body):
            parser = dialect.stream_parser(request.operation, choices)
            reply = join_stream(parser, body, _native_format(candidate, request))
        else:
            reply = dialect.parse_reply(request.operation, body)
        if reply.choices > choices:
            raise InvalidReply(f"It has {reply.choices} choices; {choices} were asked for.")
        reply.size = len(body)
        if (complete := ROWS[request.operation].complete) is not None:
            # A provider's options may ask for another form of the answer.
            complete({**request.fields, **(candidate.options or {})}, reply)
        if names:
            reply.fields["choices"] = restore_names(reply.fields["choices"], names)
        return reply
    except Exception as exc:
        raise blame_answer(exc, InvalidReply) from None


def _split_reply(candidate: Candidate, request: InferenceRequest, reply: Reply) -> list[Chunk]:
    """Returns the chunks of a whole answer to a streamed request.

    Raises :class:`InvalidStream`, also where the operation has no such chunks.
    """
    split = ANSWERS[request.operation].split
    try:
        if OPERATIONS[request.operation].is_written:
            return split_reply(reply, _native_format(candidate, request))
        if split is None:
            raise InvalidStream("The answer to a streamed request is not a stream.")
        return split(reply)
    except Exception as exc:
        raise blame_answer(exc, InvalidStream) from None


async def _bind_credential(use: FirstUse) -> None:
    """Binds a credential that an upstream has accepted, before the caller receives anything.

    A refused secret binds nothing: it was perhaps stored for another host, while requests went on.
    """
    try:
        reason = await run_in_thread(record_first_use, use)
    except Unavailable:
        logger.warning("credential %s is not bound yet: the next use binds it", use.credential_id)
        return
    if reason is not None:
        logger.warning("credential %s went to %s: %s", use.credential_id, use.host, reason)


def _native_format(candidate: Candidate, request: InferenceRequest) -> NativeFormat | None:
    """Returns the format of an answer if it is the caller's own and not chat's."""
    native = candidate.native_of(request)
    return None if native is None else native.format


def _may_be_audio(response: OutboundResponse) -> bool:
    """Returns whether an answer says that it is audio, events with audio, or nothing."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    return main in ("", "audio") or kind == "text/event-stream" or sub == "octet-stream"


def _dialect_of(candidate: Candidate, request: InferenceRequest) -> Dialect:
    """Returns the dialect of a candidate; that of native requests, if it gets one."""
    route = candidate.route
    is_native = candidate.native_of(request) is not None
    find = dialects.get_native if is_native else dialects.get
    dialect = find(route.dialect or "", route.capabilities)
    if dialect is None:
        raise UpstreamError(
            "This installation does not speak the provider's dialect.",
            metadata={"kind": "untranslatable"},
        )
    return dialect


async def _read_late(reader: ChunkReader) -> list[Chunk] | None:
    """Returns the next chunks for nobody; raises :class:`TooLarge` where they find no room."""
    try:
        return await reader.read()
    except (TooManyRequests, Unavailable):
        raise egress.TooLarge from None


async def accept_response(
    response: OutboundResponse,
    candidate: Candidate,
    request: InferenceRequest,
    timeout: float = math.inf,
) -> None:
    """Waits ``timeout`` seconds for the head of a response, and returns if its status is 200.

    Raises :class:`EgressError` if the upstream fails, and :class:`GatewayError` if it refuses the
    request. A call that was cancelled may be repeated.
    """
    if not response.status:
        await response.receive_head(timeout)
    if response.status != 200:
        raise await failures.read_refusal(response, candidate, request)


def build_call(
    candidate: Candidate, request: InferenceRequest, user: str | None, max_tokens: int | None
) -> Call:
    """Returns the call that a dialect puts into the provider's format.

    ``user`` is the pseudonym of the end user. ``max_tokens`` bounds the answer if the request does
    not.
    """
    route = candidate.route
    options = candidate.options or {}
    fields = {**request.fields, **options}
    if not EFFORTS.isdisjoint(options):
        for name in EFFORTS - options.keys():
            fields.pop(name, None)
    left_out = frozenset[str]()
    if (known := route.supported_parameters) is not None:
        # Some providers refuse unknown parameters, even those without effect. The output bound is
        # never left out, because the hold is computed from it.
        kept = BOUNDS | request.server_tools.searches
        if unlisted := request.parameters - known - kept:
            left_out = _drop_unlisted(fields, request, unlisted)
        if request.max_tokens and BOUNDS & fields.keys() and not BOUNDS & fields.keys() <= known:
            # The endpoint must apply the bound, so it is sent under a name that the endpoint lists.
            max_tokens = request.max_tokens
    names = ROWS[request.operation].bound_names
    for name in BOUNDS.difference(names):
        fields.pop(name, None)
    if not candidate.is_byok:
        for name in OPERATOR_FIELDS - (known or frozenset()):
            fields.pop(name, None)
    if request.server_tools is not NO_TOOLS:
        leave_out(fields, candidate.find_unpriced(request) | candidate.find_dearer(request))
    if user is not None:
        fields["user"] = user
    if max_tokens is not None and names:
        for name in BOUNDS:
            fields.pop(name, None)
        fields[_bound_name(names, route.supported_parameters)] = max_tokens
    native = candidate.native_of(request)
    return Call(
        native=native,
        left_out=left_out if native is None else frozenset(),
        keeps_lifetimes=not (request.has_long_cache and candidate.shortens_caches(request)),
        operation=request.operation,
        base_url=route.base_url,
        model=route.upstream_model_id,
        secret=candidate.secret,
        fields=fields,
        stream=request.stream,
        max_completion_tokens=route.max_completion_tokens,
        is_byok=candidate.is_byok,
        supported_parameters=route.listed_parameters,
        capabilities=route.capabilities,
        abilities=route.abilities,
        files=request.files,
        is_billed_by_token=route.price.bills_completions,
        most_searches=request.server_tools.most_searches,
    )


def _hide_cache_key(call: Call, organization_id: uuid.UUID) -> Call:
    """Returns a call whose cache key is the organization's own, in each of its formats.

    Organizations that share an account must not share a place in its cache: each would see in its
    counts what another one has sent.
    """
    native = call.native
    fields, body = {**call.fields}, {} if native is None else {**native.fields}
    for form in (fields, body):
        if not is_unset(raw := form.get(_CACHE_KEY, msgspec.Raw())):
            form[_CACHE_KEY] = hash_cache_key(str(organization_id), bytes(raw).decode())
    if native is not None:
        native = replace(native, fields=body)
    return replace(call, fields=fields, native=native)


def _drop_unlisted(
    fields: dict[str, Any], request: InferenceRequest, names: frozenset[str]
) -> frozenset[str]:
    """Removes the fields of these names; returns the names of those that asked for something.

    The gateway itself hides the reasoning from callers who want none.
    """
    unheard = names - {"include_reasoning"}
    for name in names:
        if name == "tools" and request.server_tools.searches:
            # A search is no function: its form says whether the endpoint has one.
            keep_searches(fields)
            unheard -= set() if request.server_tools.has_functions else {name}
        else:
            fields.pop(name, None)
    return name_asked(request.fields, unheard)


def _bound_name(names: Sequence[str], supported: frozenset[str] | None) -> str:
    """Returns the first name of the bound, or another one if the endpoint lists only that."""
    return next((name for name in names if supported is None or name in supported), names[0])
