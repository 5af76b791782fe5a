"""Runs a request from admission to settlement.

:class:`Gateway` has the state of a worker, :class:`Exchange` the state of one request.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from accounts.bearers import OrganizationSuspended
from billing.rate_limits import Rate, RateLimited, RateRule
from catalog.dialects.base import InvalidReply, InvalidStream, ProviderFailure, Reply
from catalog.dialects.shared.raw import Piece
from catalog.operations import OPERATIONS
from config.api.errors import GatewayError, Unauthenticated
from config.clocks.clock import clock
from config.egress.client import EgressClient
from config.egress.errors import TooLarge
from config.live_settings import settings
from config.server.batching.waits import Blocked, Suspects
from config.server.bulkheads import Bulkheads, Occupancy
from config.server.load.large_work import LARGE_BYTES, LargeWork
from inference.admission.admit import AdmissionLanes, Repinned
from inference.admission.copies.presets import PresetReader
from inference.admission.decide import Admission, AdmissionRequest, judge_repeat, keep_less
from inference.admission.recognition import RecognizedKey, Recognizer
from inference.admission.replan import replan
from inference.exchange.attempts import Attempts, Stream
from inference.exchange.failures import (
    FAILURES,
    UnconvertedAnswer,
    blame_answer,
    describe_failure,
)
from inference.exchange.rendering import BytesRenderer, NativeRenderer, Renderer, read_reported_cost
from inference.exchange.tally import NO_BILL, Bill, Cost, Ending, Tally
from inference.exchange.tap import Deliver, Rewrite, Watcher
from inference.exchange.workload import LoopTime, Workload
from inference.filters.definitions import Filters
from inference.filters.problems import ContentBlocked, Unscreened
from inference.filters.screening import Screened, bound_scratch, measure, screen
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import Failure
from inference.routing.fairness import judge_estimate
from inference.routing.health import HealthTable
from inference.routing.routes import Candidate, CatalogSnapshot
from inference.settlement.history import History
from inference.settlement.journal import Heartbeat, Progress
from inference.settlement.settle import MOST_COUNT, Settlement, open_lanes
from inference.store import CommitMemory

logger = logging.getLogger(__name__)

MakeWatcher = Callable[[HealthTable, Callable[[], CatalogSnapshot]], Watcher]
# Output of this size, about 256 tokens, is journalled without waiting for the next heartbeat.
_JOURNALLED_BYTES: Final = 1_024
# An upstream whose caller has left is cut off after this time.
_LATE_SECONDS: Final = 2.0
# Longer streams are charged by their prompt and by what was delivered.
_LATE_BYTES: Final = 1_048_576
_FIRST_BYTE: Final = 1
# A generation without output is journalled only after its first second.
_YOUNG_MS: Final = 1000
# How long a finished stream may take to send the end of its HTTP body, so that its connection can
# be kept.
_LINGER_SECONDS: Final = 0.05
# How long a caller may take to receive the event of a failure.
_LAST_EVENT_SECONDS: Final = 5.0
# How long a stopping worker waits until its last settlements are stored.
_DRAIN_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.02
# How long a request beyond a limit of concurrent requests waits for those that have just ended.
_ENDING_SECONDS: Final = 1.0


class CallerStuck(Exception):
    """The caller does not read its stream, and is treated as disconnected."""


class Gateway:
    """Keeps the state of a worker between requests: egress client, stores and batches."""

    def __init__(self, make_watcher: MakeWatcher) -> None:
        self.egress_client = EgressClient(settings.EGRESS_POLICY)
        self.health = HealthTable()
        self.bulkheads = Bulkheads()
        self.recognizer = Recognizer(self.bulkheads.refuse)
        self.presets = PresetReader()
        suspects = Suspects()
        memory = CommitMemory()
        self._admissions = AdmissionLanes(self.health, suspects, memory)
        self.watcher = make_watcher(self.health, lambda: self._admissions.catalog)
        self._settlements = open_lanes(suspects, memory)
        history = History(memory, self._find_running)
        self._heartbeat = Heartbeat(
            self._collect_progress, self.health, self._forget_copies, history
        )
        self._running: set[Exchange] = set()
        # The newest settlement of each organization that is not stored yet.
        self._ending: dict[UUID, asyncio.Future[None]] = {}
        self.large_work = self.bulkheads.large_work
        self.loop_time = LoopTime(lambda: self.bulkheads.is_shared)
        # Threads of their own: content filters may take seconds.
        self._screening = LargeWork("screening", self.bulkheads.count)

    async def open(self) -> None:
        await self.egress_client.__aenter__()
        await self._heartbeat.open()
        self._admissions.start()

    async def close(self) -> None:
        """Waits until everything delivered is settled, then closes the connections.

        What the database does not take for fifteen seconds, the sweeper settles.
        """
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._admissions.drain()
                # Callers whose requests were cancelled may still wait for a last usage.
                while self._running:
                    await asyncio.sleep(_POLL_SECONDS)
                await self._settlements.drain()
        except TimeoutError:
            logger.error(
                "%d generations are left to the sweeper: the database is unavailable, or their "
                "rows are locked",
                len(self._running),
            )
        self.large_work.close()
        self._screening.close()
        await self._heartbeat.close()
        await self.recognizer.close()
        await self.presets.close()
        await self._admissions.close()
        await self._settlements.close()
        await self.egress_client.__aexit__(None, None, None)

    @property
    def catalog(self) -> CatalogSnapshot:
        """The copy of the catalogue that this worker has."""
        return self._admissions.catalog

    async def admit(
        self, request: AdmissionRequest, key: RecognizedKey, occupancy: Occupancy
    ) -> Exchange:
        """Admits a request and returns its exchange; raises :class:`GatewayError`.

        Nothing has been sent to an upstream when this returns or raises.
        """
        if self._settlements.is_full(key.organization_id):
            # What it has used cannot be stored now. It would only use more.
            raise Blocked
        try:
            admission = await self._submit(request, key.organization_id, occupancy)
        except ContentBlocked as exc:
            self.watcher.note_findings([exc.finding])
            self._admissions.count_blocked(exc.finding.guardrail_id)
            raise
        except RateLimited as exc:
            self.watcher.note_limit(exc)
            raise
        except (Unauthenticated, OrganizationSuspended):
            key.doubt()
            raise
        key.confirm()
        if admission.findings:
            self.watcher.note_findings(admission.findings)
        if admission.request.fields is not request.request.fields:
            # Only the request that the content filters rewrote is sent.
            request.request.fields.clear()
        native = request.request.native
        if native is not None and admission.request.native is not native:
            native.fields.clear()
        exchange = Exchange(self, admission, occupancy)
        self._running.add(exchange)
        return exchange

    async def judge_repeat(self, request: AdmissionRequest) -> tuple[list[RateRule], bool]:
        """Judges a request anew that repeats an answered one; see :func:`judge_repeat`."""
        key, _ = await self._admissions.read_key(request.key_digest)
        return judge_repeat(request, key, clock.now())

    async def repin(self, admission: Admission, candidate: Candidate) -> Repinned:
        """Pins the price of the next candidate."""
        return await self._admissions.repin(admission, candidate)

    async def replan(
        self, occupancy: Occupancy, admission: Admission, tried: Collection[Candidate]
    ) -> None:
        """Selects the candidates of an admission again, after a change; see :func:`replan`.

        The request is screened again if its content filters changed. Raises the
        :class:`GatewayError` that would refuse a new request.
        """
        key, catalog = await self._admissions.read_key(admission.key_digest)
        if key.filters != admission.filters:
            screened = await self._screen(key.filters, admission.request, occupancy)
            self.watcher.note_findings(screened.findings)
            admission.filters, admission.request = key.filters, screened.request
            admission.findings = (*admission.findings, *screened.findings)
        keep_less(admission, key)
        replan(admission, key, catalog, self.health, tried)

    def judge_estimate(
        self, candidate: Candidate, request: InferenceRequest, settlement: Settlement
    ) -> None:
        """Sums how the estimate of a prompt compares with what a provider has reported.

        What a server of the caller reports, at a private endpoint or by a credential that names the
        host, says nothing of others.
        """
        usage = settlement.usage
        if usage is None or settlement.is_estimated or settlement.claim is not None:
            return
        route = candidate.route
        if route.is_private or candidate.measured_subject != route.endpoint_id:
            return
        if (judged := judge_estimate(request, route, usage.prompt)) is not None:
            self._admissions.count_tokens(route.endpoint_id, judged)

    def settle(self, exchange: Exchange, settlement: Settlement) -> None:
        """Queues a settlement; it is stored even when nobody waits for it."""
        organization_id = exchange.organization_id
        stored = self._settlements.submit(organization_id, settlement).future
        self._ending[organization_id] = stored

        def forget(_: asyncio.Future[None]) -> None:
            # The heartbeat continues until it is stored, so that the sweeper does not end the
            # generation after an outage of the database.
            self._running.discard(exchange)
            if self._ending.get(organization_id) is stored:
                del self._ending[organization_id]

        stored.add_done_callback(forget)

    def show_figures(self) -> None:
        """Sets the gauges of the worker."""
        self.bulkheads.show_figures()
        self._admissions.show_figures()
        self._settlements.show_figures()

    async def journal(self, *, is_first: bool) -> None:
        """Journals the running generations that delivered much, before the next heartbeat.

        ``is_first`` waits for it, because the output that comes next makes all of a request due.
        """
        if is_first:
            await self._heartbeat.flush()
        else:
            self._heartbeat.flush_now()

    def _forget_copies(self) -> None:
        """Forgets what the worker knows of the database, which is another one than before."""
        self._admissions.forget_copies()
        self.recognizer.forget()

    def _find_running(self) -> set[str]:
        """Returns the generations that are not settled yet."""
        return {exchange.generation_id for exchange in self._running}

    def _collect_progress(self, is_urgent: bool) -> list[Progress]:
        """Returns the progress of running generations.

        ``is_urgent`` leaves out those that delivered little since they were journalled.
        """
        found: list[Progress] = []
        for each in filter(Exchange.is_ahead, self._running) if is_urgent else self._running:
            try:
                progress = each.measure_progress()
            except Exception as exc:
                # The heartbeat is that of all others. The next one has the progress by its bytes.
                each.count_roughly(exc)
                continue
            if progress is not None:
                found.append(progress)
        return found

    async def _submit(
        self, request: AdmissionRequest, organization_id: UUID, occupancy: Occupancy
    ) -> Admission:
        """Queues a request for admission.

        The batch refuses a prompt that takes long to screen with :class:`Unscreened`. It is then
        screened in a thread and queued again with the result. A request beyond a limit of
        concurrent requests is queued once more after those that have just ended.
        """
        settle_abandoned = partial(self._settle_abandoned, occupancy)
        await self._admissions.prepare(request.key_digest)
        may_wait = True
        while True:
            ticket = self._admissions.submit(organization_id, request, settle_abandoned)
            try:
                # A batch that has the ticket continues without its caller, and may store it.
                return await ticket.future
            except asyncio.CancelledError:
                stored = ticket.future
                if not ticket.withdraw() and not stored.cancelled() and not stored.exception():
                    settle_abandoned(stored.result())
                raise
            except RateLimited as exc:
                if not may_wait or exc.rate is not Rate.CONCURRENT_REQUESTS:
                    raise
                may_wait = False
                if not await self._has_ended(organization_id):
                    raise
                continue
            except Unscreened as exc:
                filters = exc.filters
            request = replace(
                request, screened=await self._screen(filters, request.request, occupancy)
            )

    async def _has_ended(self, organization_id: UUID) -> bool:
        """Waits until the last request that an organization ended is settled, if there is one.

        A request counts as running until it is settled, which is after its answer. A client that
        sends one request after another would be refused for that time.
        """
        ending = self._ending.get(organization_id)
        if ending is None:
            return False
        await asyncio.wait([ending], timeout=_ENDING_SECONDS)
        return ending.done()

    async def _screen(
        self, filters: Filters, request: InferenceRequest, occupancy: Occupancy
    ) -> Screened:
        """Screens a request in a thread, and counts the bytes that redactions add to it."""
        size = measure(request)
        room = max(settings.MAX_REQUEST_BYTES - size, 0)
        scratch = bound_scratch(filters, size, room)
        owner = occupancy.organization_id
        screened = await self._screening.run(owner, screen, filters, request, room, scratch=scratch)
        occupancy.reserve(screened.growth)
        return screened

    def _settle_abandoned(self, occupancy: Occupancy, admission: Admission) -> None:
        """Settles a generation that was stored after its caller had left."""
        Exchange(self, admission, occupancy).settle(asyncio.CancelledError())


class Exchange:
    """Serves one admitted request, and settles it exactly once."""

    def __init__(self, gateway: Gateway, admission: Admission, occupancy: Occupancy) -> None:
        self.generation_id = admission.generation_id
        self.admission = admission
        # How the generation ended and what it cost, and its error; ``None`` while it runs.
        self.outcome: Settlement | None = None
        self.failure: Failure | None = None
        # What is left of the caller's rate limits.
        self.rate_headers = admission.rate_headers
        self.organization_id = admission.authority.organization_id
        self.occupancy = occupancy
        self._gateway, self._request = gateway, admission.request
        self._tally = Tally(admission.request, settings.BYOK_FEE_PERCENT, admission.at)
        self._workload = Workload(occupancy, gateway.large_work, gateway.loop_time)
        self.attempts = Attempts(
            admission,
            egress_client=gateway.egress_client,
            health=gateway.health,
            repin=gateway.repin,
            replan=partial(gateway.replan, occupancy),
            workload=self._workload,
            watcher=gateway.watcher,
        )
        # The output from which the progress is journalled without waiting for a heartbeat: the
        # first bytes of a speech, or much text.
        is_bytes = OPERATIONS[admission.request.operation].is_bytes
        self._urgent_bytes = _FIRST_BYTE if is_bytes else _JOURNALLED_BYTES
        self._is_delivering = False
        self._is_reported = False
        # Renders the stream, once there is one.
        self._stream_renderer: Renderer | None = None

    @property
    def is_stream(self) -> bool:
        return self._request.stream

    @property
    def has_failed_choice(self) -> bool:
        """Whether any choice of the answer has ended in an error."""
        return self._tally.has_failed_choice

    async def reply(self, rewrite: Rewrite, copies: int = 0) -> list[Piece]:
        """Returns the pieces of a whole reply and settles; raises :class:`GatewayError`.

        ``rewrite`` puts the body into the format of the caller's interface, for which it takes
        ``copies`` of it. It raises :class:`GatewayError` when that format cannot express it.
        """
        error: BaseException | None = None
        try:
            reply = await self.attempts.first_success(self.attempts.fetch_reply)
            renderer, metadata = self._renderer(), self.attempts.metadata()
            try:
                pieces = await self._workload.run(
                    reply.size, _render_reply, renderer, reply, metadata, rewrite, copies=copies
                )
            except Exception as exc:
                # The caller's interface may be unable to express the answer.
                raise self.attempts.explain(blame_answer(exc, InvalidReply)) from None
            if copies:
                self.attempts.forget_answer()
            return pieces
        except BaseException as exc:
            error = exc
            await self._drain(exc)
            raise
        finally:
            self.attempts.close()
            self.settle(error)
            if error is not None:
                # The error's traceback refers to this frame: a cycle, which would keep the request.
                error = None
                self._forget_request()

    async def stream(self, deliver: Deliver, relay: Deliver, has_begun: Callable[[], bool]) -> None:
        """Hands the events of a stream to ``deliver`` as they arrive, and settles.

        Events that have the caller's own format are handed to ``relay`` instead.
        ``has_begun`` says whether the caller has the status 200. An error before is raised. A later
        one becomes the last event; it is raised too if the answer is bytes. A cancelled task and a
        caller who takes no events (:class:`CallerStuck`) end the call; the output is settled.
        """
        attempts = self.attempts
        error: BaseException | None = None
        try:
            try:
                stream = await attempts.first_success(attempts.open_stream)
            except GatewayError as exc:
                if not has_begun():
                    raise
                error = exc
                await self.deliver_error(deliver, relay, exc)
                return
            if self.occupancy.held > LARGE_BYTES:
                self._free_request()
            renderer = self._stream_renderer = self._renderer()
            try:
                async with asyncio.timeout(attempts.attempt_deadline - time.monotonic()):
                    await self._relay(stream, renderer, relay if renderer.is_native else deliver)
            except FAILURES as exc:
                # ``deliver`` may raise an error of its own when its format cannot express an event.
                # A timeout during a delivery means that the caller does not read.
                if self._is_delivering and isinstance(exc, TimeoutError):
                    raise CallerStuck from None
                error = attempts.break_off(exc)
                await self.deliver_error(deliver, relay, error)
        except BaseException as exc:
            error = exc
            await self._drain(exc)
            raise
        finally:
            attempts.close()
            self.settle(error)
            if error is not None:
                error = None
                self._forget_request()

    def _forget_request(self) -> None:
        """Frees the body: cycles of a failed request live until the next full collection."""
        with suppress(Exception):  # which the heartbeat, or the settlement, reports
            self._tally.estimate()  # measures the prompt for the last heartbeats
        self.attempts.forget_request()
        # The same one, unless content filters changed meanwhile.
        self._request.forget()

    def _free_request(self) -> None:
        """Frees a large request body, which no other candidate needs once a stream has begun.

        A long stream with a long prompt then takes nothing of the organization's buffers.
        """
        self._forget_request()
        self.occupancy.release_all()

    async def _drain(self, error: BaseException) -> None:
        """Waits for the usage of a request that its caller has left; for a short time."""
        if isinstance(error, asyncio.CancelledError | CallerStuck) and self.outcome is None:
            renderer = self._stream_renderer
            await drain(
                self.attempts,
                self._tally,
                is_stream=self._request.stream,
                has_preview=renderer is not None and renderer.has_preview,
            )

    async def _relay(self, stream: Stream, renderer: Renderer, deliver: Deliver) -> None:
        """Reads the upstream up to its end mark, and delivers the events of each read together.

        The last events, the usage and the end mark go together too: each delivery is a system call.
        """
        reader, chunks = stream.reader, stream.first_chunks
        fault: Exception | None = None
        while True:
            try:
                events = await self._workload.run(
                    reader.event_bytes, renderer.render_chunks, chunks
                )
            except Exception as exc:
                raise blame_answer(exc, InvalidStream) from None
            if fault is None and chunks and chunks[-1].is_done:
                break
            if events:
                if self.is_ahead():
                    await self._gateway.journal(is_first=self._urgent_bytes == _FIRST_BYTE)
                self._is_delivering = True
                await deliver(events)
                self._is_delivering = False
                renderer.delivered = renderer.rendered
            if fault is not None:
                raise fault
            try:
                read = await reader.read()
            except (InvalidStream, ProviderFailure) as exc:
                chunks, fault = reader.pending, exc
                continue
            if read is not None:
                chunks = read
            elif not (chunks := reader.finish()):
                raise InvalidStream("The stream ended without its end mark.")
        tokens = 0 if self._tally.usage is None else self._tally.count().usage.completion
        self.attempts.report_end(tokens, is_unmarked=chunks[-1].is_unmarked)
        self._is_delivering = True
        if last := events + renderer.render_end(self.attempts.metadata()):
            await deliver(last)
        # The caller has received everything, so a later disconnect is not a cancellation.
        self.settle()
        reader.response.close(linger=_LINGER_SECONDS)

    async def deliver_error(self, deliver: Deliver, relay: Deliver, error: GatewayError) -> None:
        """Delivers an error as the last event; raises it if the answer has no place for it."""
        renderer = self._stream_renderer or self._renderer()
        if not renderer.has_errors:
            try:
                raise error from None
            finally:
                # The traceback leads to this frame.
                del error
        event = renderer.render_error_event(error, self.attempts.metadata())
        await _deliver_last(relay if renderer.has_own_errors else deliver, event)

    def settle(self, error: BaseException | None = None, *, cached_from: str | None = None) -> None:
        """Settles the generation; every call after the first does nothing.

        ``cached_from`` is the generation whose kept answer was given, which is free.
        """
        if self.outcome is not None:
            return
        attempts, tally = self.attempts, self._tally
        if attempts.probe is not None:
            attempts.release_probe()
        if error is None:
            ending = Ending.COMPLETED
        elif isinstance(error, asyncio.CancelledError | CallerStuck):
            ending = Ending.CANCELLED
        else:
            ending = Ending.FAILED
            self.failure = describe_failure(error)
        # Nobody but its caller chose an interface that cannot have the answer.
        due = Ending.COMPLETED if isinstance(error, UnconvertedAnswer) else ending
        item, is_sent = attempts.item, attempts.is_sent
        try:
            bill = NO_BILL
            if not cached_from:
                bill = tally.bill(due, item.candidate, item.max_tokens, is_sent=is_sent)
        except Exception as exc:
            # What is not settled runs for ever.
            bill = self._bill_roughly(due, exc)
        if (usage := bill.usage) is not None:
            attempts.count_usage(usage.prompt + usage.completion)
        self.outcome = Settlement(
            generation_id=self.generation_id,
            status=ending,
            usage=usage,
            is_estimated=bill.is_estimated,
            cost_nano=bill.cost.credits_nano,
            upstream_cost_nano=bill.cost.upstream_nano,
            reported_cost_nano=tally.reported_cost_nano,
            finish_reason=tally.finish_reason,
            native_finish_reason=tally.native_finish_reason,
            upstream_id=tally.upstream_id,
            upstream_model=tally.upstream_model,
            error_type=error.error_type if isinstance(error, GatewayError) else None,
            attempts=attempts.records,
            latency_ms=attempts.latency_ms,
            duration_ms=attempts.elapsed_ms,
            claim=bill.claim,
            cached_from=cached_from,
            retry_of=self.admission.retry_of,
        )
        self._gateway.settle(self, self.outcome)
        self._gateway.watcher.note_end(
            self.organization_id, attempts.candidate, self._request, self.outcome, error
        )
        if self._request.text_counts is not None:
            self._gateway.judge_estimate(attempts.candidate, self._request, self.outcome)

    def _bill_roughly(self, ending: Ending, error: Exception) -> Bill:
        """Returns the bill by bytes; the hold where the price cannot be told either."""
        item, is_sent = self.attempts.item, self.attempts.is_sent
        self.count_roughly(error)
        try:
            return self._tally.bill(ending, item.candidate, item.max_tokens, is_sent=is_sent)
        except Exception as exc:
            self.count_roughly(exc)
        if ending is Ending.FAILED and not self.is_stream:
            return NO_BILL
        upstream_nano = item.upstream_nano if item.candidate.is_byok else item.credits_nano
        return self._tally.bill_most(Cost(item.credits_nano, upstream_nano))

    def is_ahead(self) -> bool:
        """Returns whether the generation delivered much since its progress was journalled."""
        return self._tally.output_bytes >= self._urgent_bytes

    def measure_progress(self) -> Progress | None:
        """Returns the progress to journal; ``None`` in the first second without output."""
        output_bytes = self._tally.output_bytes
        if not output_bytes and self.attempts.elapsed_ms < _YOUNG_MS:
            return None
        self._urgent_bytes = output_bytes + _JOURNALLED_BYTES
        estimate = self._tally.estimate()
        tokens = estimate.prompt, estimate.completion if output_bytes else 0
        prompt, completion = [min(max(each, 0), MOST_COUNT) for each in tokens]
        units = self._tally.find_units(estimate)
        return Progress(self.generation_id, prompt, completion, units)

    def count_roughly(self, error: Exception) -> None:
        """Reports, once, that the generation cannot be measured; its bytes count from now on.

        The text of the error stays out of the log: it may repeat a prompt.
        """
        self._tally.count_roughly()
        if self._is_reported:
            return
        self._is_reported = True
        logger.error(
            "the generation %s cannot be measured, so its bytes count (%s)\n%s",
            self.generation_id,
            type(error).__name__,
            "".join(traceback.format_tb(error.__traceback__)),
        )

    def _renderer(self) -> Renderer:
        """Returns the renderer of what the present candidate answers."""
        # Changed content filters may have changed the request, and taken its native form.
        request, tally, item = self.admission.request, self._tally, self.attempts.item
        tally.allow(item.candidate, item.max_tokens)
        if (native := item.candidate.native_of(request)) is not None:
            return NativeRenderer(request, self.generation_id, item.candidate, tally, native)
        kind = BytesRenderer if OPERATIONS[request.operation].is_bytes else Renderer
        return kind(request, self.generation_id, item.candidate, tally)


def _render_reply(
    renderer: Renderer, reply: Reply, metadata: dict[str, Any], rewrite: Rewrite
) -> list[Piece]:
    pieces = renderer.render_reply(reply, metadata)
    return pieces if renderer.is_native else rewrite(pieces)


async def _deliver_last(deliver: Deliver, event: bytes) -> None:
    """Delivers the event of a failure; raises :class:`CallerStuck` after five seconds."""
    try:
        async with asyncio.timeout(_LAST_EVENT_SECONDS):
            await deliver(event)
    except TimeoutError:
        raise CallerStuck from None


async def drain(attempts: Attempts, tally: Tally, *, is_stream: bool, has_preview: bool) -> None:
    """Reads what the upstream still sends, only for its usage, for at most two seconds.

    Leaving early must not be cheaper than staying, and the provider bills what it produced. The
    request keeps its place among those of its organization meanwhile, which bounds the number of
    answers that nobody reads. A second cancellation, as of a worker that must stop now, ends the
    wait. The code that calls this closes the response and settles.

    An upstream that fails, or refuses the request, before anything was delivered is free, as it is
    for a caller who stays. ``has_preview`` says that the caller has a picture that is not finished.
    """
    tally.allow(attempts.candidate, attempts.item.max_tokens)
    if attempts.is_sent and not tally.has_last_usage:
        is_working = await _read_rest(attempts, tally, is_stream=is_stream)
        if has_preview:
            tally.add_preview(is_coming=is_working)
    tally.reported_cost_nano = read_reported_cost(tally)


async def _read_rest(attempts: Attempts, tally: Tally, *, is_stream: bool) -> bool:
    """Takes the usage of what still comes; returns whether the upstream still works then."""
    is_working = True
    try:
        with suppress(TimeoutError, TooLarge):
            async with asyncio.timeout(_LATE_SECONDS):
                if is_stream:
                    await _drain_stream(attempts, tally)
                else:
                    tally.add_unseen(await attempts.receive_late_reply())
            is_working = False
    except FAILURES:
        is_working = False
        _discard_failure(attempts, tally)
    if attempts.has_refusal:
        # The time was over before the refusal could be read.
        _discard_failure(attempts, tally)
    return is_working


def _discard_failure(attempts: Attempts, tally: Tally) -> None:
    """Makes a failed answer free, unless something of it was delivered or counted."""
    if not tally.output_bytes and (tally.usage is None or tally.is_blank(tally.usage)):
        attempts.discard()


async def _drain_stream(attempts: Attempts, tally: Tally) -> None:
    async with aclosing(attempts.receive_late_parts(_LATE_BYTES)) as parts:
        async for part in parts:
            tally.add_unseen(part)
