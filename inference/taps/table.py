"""The table of options: what a request may have besides, in the order in which its taps are called.

===============  ====================================  ============================================
Option           A request has it if                   It is called
===============  ====================================  ============================================
span             a receiver of traces is set           around the whole request, and at its end
access log       ``ACCESS_LOG`` is set                 when the caller is known, and at the end
PDF text         a message has a PDF file              before the admission
idempotency      it has an ``Idempotency-Key``         around the admission, and for the answer
SDK's retry      an SDK says that it repeats           after the admission
text capture     its workspace logs texts              for the answer, and at the end
response cache   its header or its workspace says so   for the answer, which it may know
===============  ====================================  ============================================

The taps of an admitted request are opened in the order of :meth:`Options.open_taps`. The ways of an
answer pass the last tap first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from catalog.dialects.shared.raw import Piece
from config.server.bulkheads import Bulkheads, Occupancy
from config.telemetry.access_log import AccessEntry
from config.telemetry.tracing import tracing
from inference.admission.decide import AdmissionRequest
from inference.admission.recognition import RecognizedKey
from inference.exchange.gateway import Exchange
from inference.exchange.tap import Tap, Ways
from inference.faces.connection import RETRY_COUNT, Connection
from inference.repeats.caching import CACHE_HEADERS, read_wish
from inference.repeats.once import Judge, Repeats, Run
from inference.requests.parsing import InferenceRequest
from inference.taps.files import FileReader
from inference.taps.spans import RequestSpan, SpanTap
from inference.texts.buffers import Loss
from inference.texts.capture import TextSubject
from inference.texts.writer import TextWriter

Serve = Callable[[Connection], Awaitable[None]]


class AccessTap(Tap):
    """Names in the line of the access log what served the request."""

    def __init__(self, entry: AccessEntry) -> None:
        self._entry = entry

    def ended(self, exchange: Exchange) -> None:
        names = exchange.attempts.candidate.route.names
        self._entry.name_generation(exchange.generation_id, *names)


class CaptureTap(Tap):
    """Copies the texts of one exchange, and queues the copies when it has ended."""

    def __init__(self, texts: TextWriter, exchange: Exchange) -> None:
        admission = exchange.admission
        authority = admission.authority
        subject = TextSubject(
            exchange.generation_id,
            authority.organization_id,
            authority.workspace_id,
            authority.key_id,
            admission.at,
        )
        self._texts = texts
        self._exchange = exchange
        self._capture = texts.begin(subject, admission.request)

    def deliver(self, ways: Ways) -> Ways:
        deliver, relay = self._capture.tap(ways.deliver, ways.relay)
        return Ways(deliver, relay, self._capture.tap_rewrite(ways.rewrite))

    async def reply(self, pieces: list[Piece] | None) -> None:
        outcome = self._exchange.outcome
        if pieces is not None and (outcome is None or outcome.cached_from is None):
            self._capture.note_reply(pieces)

    def ended(self, exchange: Exchange) -> None:
        """Queues the copies; those of a repeated answer are freed."""
        capture, admission, outcome = self._capture, exchange.admission, exchange.outcome
        if outcome is not None and outcome.cached_from is not None:
            capture.release()
        elif not admission.is_logged or admission.request is not capture.request:
            capture.drop(Loss.RULES_CHANGED)
        else:
            capture.failure, capture.earlier = exchange.failure, exchange.attempts.failures
            if exchange.attempts.latency_ms is None and capture.failure in capture.earlier[-1:]:
                # No answer began, so the last attempt's error is the one that ended it.
                capture.earlier = capture.earlier[:-1]
            self._texts.submit(capture)


class Options:
    """The options of a worker's requests, with what they share."""

    def __init__(self, bulkheads: Bulkheads) -> None:
        self._repeats = Repeats()
        self._files = FileReader(bulkheads.count)
        self._texts = TextWriter()

    def show_figures(self) -> None:
        """Sets the gauges of the queues of repeated requests."""
        self._repeats.show_figures()

    async def close(self) -> None:
        """Stores the texts that wait, and closes the connections."""
        self._files.close()
        await self._texts.close()
        await self._repeats.close()

    def trace(self, serve: Serve) -> Serve:
        """Returns what serves a request within a span, if there is a tracer."""
        return serve if tracing.tracer is None else RequestSpan(tracing.tracer, serve)

    def recognize(self, connection: Connection, key: RecognizedKey) -> None:
        """Names the caller in the access log, and reads what the headers ask for.

        The body is digested only for an idempotency key or the response cache. Raises
        :class:`InvalidRequest`.
        """
        if connection.access_entry is not None:
            connection.access_entry.name_caller(key.organization_id, key.digest)
        if connection.is_repeatable:
            connection.idempotency_key()
        may_cache = key.may_cache
        if not connection.header_names.isdisjoint(CACHE_HEADERS):
            connection.wants_cache = read_wish(connection).is_wanted
            may_cache = may_cache if connection.wants_cache is None else connection.wants_cache
        connection.is_digested = connection.is_repeatable or may_cache

    async def read_files(
        self, connection: Connection, request: InferenceRequest, occupancy: Occupancy
    ) -> InferenceRequest:
        """Returns the request with the text of its PDF files; see :class:`FileReader`."""
        return await self._files.read(connection, request, occupancy)

    async def serve_once(
        self, connection: Connection, entry: AdmissionRequest, run: Run, judge: Judge
    ) -> None:
        """Runs the first request with an idempotency key; see :class:`Repeats`."""
        await self._repeats.serve_once(connection, entry, run, judge)

    def open_taps(
        self, connection: Connection, exchange: Exchange, first: Sequence[Tap]
    ) -> Sequence[Tap]:
        """Returns the taps of an admitted request; ``first`` are those that it has before."""
        keeping = exchange.admission.keeping
        taps: list[Tap] = []
        if connection.wants_cache is None:
            connection.caller.may_cache = keeping.is_cached
        if RETRY_COUNT in connection.header_names:
            self._repeats.note_retry(connection, exchange)
        if exchange.admission.is_logged:
            # It waits for nothing: a caller who leaves while the answer is kept has got it.
            taps.append(CaptureTap(self._texts, exchange))
        if keeping.is_cached and connection.digest:
            taps.append(self._repeats.use_cache(connection, exchange))
        taps += first
        if tracing.tracer is not None:
            taps.append(SpanTap(connection))
        if connection.access_entry is not None:
            taps.append(AccessTap(connection.access_entry))
        return taps
