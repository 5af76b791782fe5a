"""The ASGI application of the inference routes.

It runs beside Django in the same process, because a request through Django costs more than all the
work done here. Authentication, errors and models are the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Final, Protocol

import msgspec
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest

from accounts.bearers import require_inference
from billing.rate_limits import RateRule
from config.api.errors import GatewayError, HostNotServed, MethodNotAllowed
from config.live_settings import settings
from config.server import logs
from config.server.bodies import ClientGone, Receive, Scope, Send
from config.server.bulkheads import Occupancy
from config.server.regions import region_of_host
from inference.admission.decide import AdmissionRequest
from inference.admission.recognition import RecognizedKey
from inference.exchange.gateway import CallerStuck, Exchange, Gateway
from inference.exchange.tap import KnownAnswer, Tap, Ways
from inference.exchange.workload import Workload
from inference.faces.audio import SpeechConnection
from inference.faces.connection import CallerLate, Connection
from inference.faces.routes import ROUTES
from inference.requests.parsing import InferenceRequest

logger = logging.getLogger(__name__)

Serve = Callable[[Connection], Awaitable[None]]
# Runs a request with the taps that it has already.
Run = Callable[[AdmissionRequest, Sequence[Tap]], Awaitable[None]]
# Judges a request anew that repeats another one; returns its rate limits, and whether a kept answer
# may be given.
Judge = Callable[[], Awaitable[tuple[Sequence[RateRule], bool]]]

# Both names of the header that asks for routing metadata; the second is the older one.
_METADATA_HEADERS: Final = frozenset(
    (b"x-openrouter-metadata", b"x-openrouter-experimental-metadata")
)
# The headers that tell of the caller, and the lengths of their columns.
_CALLER_HEADERS: Final = {
    b"http-referer": 512, b"x-openrouter-title": 255, b"x-title": 255, b"user-agent": 255
}  # fmt: skip


class WorkerOptions(Protocol):
    """What the requests of a worker may have besides; ``inference/taps/table.py`` has it all."""

    def trace(self, serve: Serve) -> Serve:
        """Returns what serves a request within a span, if there is a tracer."""

    def recognize(self, connection: Connection, key: RecognizedKey) -> None:
        """Reads what the headers of a recognized caller ask for; raises :class:`InvalidRequest`."""

    async def read_files(
        self, connection: Connection, request: InferenceRequest, occupancy: Occupancy
    ) -> InferenceRequest:
        """Returns the request with the text of its PDF files."""

    async def serve_once(
        self, connection: Connection, entry: AdmissionRequest, run: Run, judge: Judge
    ) -> None:
        """Runs a request that has an idempotency key, unless it repeats another one."""

    def open_taps(
        self, connection: Connection, exchange: Exchange, first: Sequence[Tap]
    ) -> Sequence[Tap]:
        """Returns the taps of an admitted request in their order; ``first`` are those it has."""

    def show_figures(self) -> None:
        """Sets the gauges of the queues."""

    async def close(self) -> None:
        """Stores what waits, and closes the connections."""


class Inference:
    """Serves the inference routes with one worker's gateway."""

    def __init__(self, gateway: Gateway, options: WorkerOptions) -> None:
        self._gateway = gateway
        self._options = options
        self._serve = options.trace(self._serve_logged)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves one request, and answers every error in the format of its interface."""
        route = ROUTES[scope["path"]]
        return self._serve(route.face(route.operation, scope, receive, send))

    async def _serve_logged(self, connection: Connection) -> None:
        """Serves a request; its log records have its id."""
        token = logs.request_id.set(connection.request_id)
        try:
            await self._answer(connection)
        except ClientGone:
            pass
        except CallerStuck:
            await connection.abort()
        except GatewayError as error:
            connection.error_type = error.error_type
            if connection.access_entry is not None:
                connection.access_entry.name_field(error)
            if not connection.generation_id:
                self._gateway.watcher.note_refusal(error)
            await connection.respond_error(error)
        except Exception:
            logger.exception("an inference request failed")
            await connection.respond_error(GatewayError())
        finally:
            logs.request_id.reset(token)

    async def _answer(self, connection: Connection) -> None:
        """Recognizes the caller of one request, then reads its body and answers it."""
        host = connection.host()
        if not _is_served(host):
            raise HostNotServed
        if connection.method != "POST":
            raise MethodNotAllowed(headers={"Allow": "POST"})
        # No admission follows a count, or the repeat of a request, so the key is looked up.
        must_be_current = connection.is_count or connection.is_repeatable
        key = await self._gateway.recognizer.recognize(
            connection.digests(), must_be_current=must_be_current
        )
        if key.is_management:
            require_inference(is_management=True)
        connection.mark_recognized()
        self._options.recognize(connection, key)
        connection.caller = key
        connection.presets = self._gateway.presets
        with self._gateway.bulkheads.enter(key.organization_id, key.key_id) as occupancy:
            connection.workload = Workload(
                occupancy, self._gateway.large_work, self._gateway.loop_time
            )
            request = await connection.read_request(occupancy)
            connection.read_patience(is_stream=request.stream)
            if request.reads_pdfs:
                request = await self._options.read_files(connection, request, occupancy)
            if connection.is_count:
                if request.reads_pdfs:
                    # The files have waited for their turn.
                    await self._gateway.recognizer.recognize(
                        connection.digests(), must_be_current=True
                    )
                family = self._gateway.catalog.family_of(request.models)
                count = {"input_tokens": family.estimate(request.text)}
                await connection.respond(200, msgspec.json.encode(count))
                return
            entry = _make_entry(connection, host, request, key)
            if connection.is_repeatable:
                run = partial(self._exchange, connection, key, occupancy)
                judge = partial(self._gateway.judge_repeat, entry)
                await self._options.serve_once(connection, entry, run, judge)
            else:
                await self._exchange(connection, key, occupancy, entry)

    async def _exchange(
        self,
        connection: Connection,
        key: RecognizedKey,
        occupancy: Occupancy,
        entry: AdmissionRequest,
        first: Sequence[Tap] = (),
    ) -> None:
        """Admits and answers a parsed request; settles its generation in every case.

        ``first`` are taps that it has before its admission.
        """
        exchange = await self._gateway.admit(entry, key, occupancy)
        # The content of the entry's own is freed if the content filters wrote another one.
        request = exchange.admission.request
        connection.generation_id = exchange.generation_id
        connection.rate_headers = exchange.rate_headers
        connection.left_out = exchange.attempts.left_out
        if isinstance(connection, SpeechConnection):
            connection.find_sound = lambda: exchange.attempts.sound
        token = logs.generation_id.set(exchange.generation_id)
        taps: Sequence[Tap] = ()
        try:
            taps = self._options.open_taps(connection, exchange, first)
            for tap in taps:
                tap.admitted(exchange)
            if not any(tap.outlives_caller for tap in taps):
                connection.watch_caller()
            await (_stream if request.stream else _reply)(connection, exchange, taps)
        except asyncio.CancelledError:
            if not connection.unwatch_caller():
                raise
            if not connection.is_late:
                raise ClientGone from None
            await self._answer_late(connection, exchange, is_stream=request.stream)
        finally:
            connection.unwatch_caller()
            exchange.settle(asyncio.CancelledError())
            for tap in taps:
                tap.ended(exchange)
            logs.generation_id.reset(token)

    async def _answer_late(
        self, connection: Connection, exchange: Exchange, *, is_stream: bool
    ) -> None:
        """Ends the answer of a request whose own time limit is over; it is settled as cancelled.

        Its caller waits no more, but something between the two may.
        """
        if not connection.has_begun:
            raise CallerLate
        if not is_stream:
            raise CallerStuck
        await exchange.deliver_error(connection.deliver, connection.send_events, CallerLate())
        await connection.end_events()


async def _stream(connection: Connection, exchange: Exchange, taps: Sequence[Tap]) -> None:
    """Streams the answer to an admitted request."""
    connection.begin_comments()
    known = await _find_answer(taps) if taps else None
    if known is None:
        ways = Ways(connection.deliver, connection.send_events, connection.rewrite_reply)
        for tap in taps:
            ways = tap.deliver(ways)
        await exchange.stream(ways.deliver, ways.relay, lambda: connection.has_begun)
    else:
        await connection.send_known(known)
    for tap in taps:
        await tap.reply(None)
    await connection.end_events()


async def _reply(connection: Connection, exchange: Exchange, taps: Sequence[Tap]) -> None:
    """Sends the whole answer to an admitted request."""
    known = await _find_answer(taps) if taps else None
    if known is None:
        ways = Ways(connection.deliver, connection.send_events, connection.rewrite_reply)
        for tap in taps:
            ways = tap.deliver(ways)
        reply = await exchange.reply(ways.rewrite, connection.copies)
    elif known.is_native:
        reply = [known.body]
    else:
        size = len(known.body)
        # The answer in the caller's format is another one.
        connection.workload.reserve(size)
        reply = await connection.workload.run(
            size, connection.rewrite_reply, [known.body], copies=connection.copies
        )
    for tap in taps:
        await tap.reply(reply)
    await connection.respond_pieces(200, reply)


async def _find_answer(taps: Sequence[Tap]) -> KnownAnswer | None:
    for tap in taps:
        if (known := await tap.find_answer()) is not None:
            return known
    return None


def _make_entry(
    connection: Connection,
    host: str,
    request: InferenceRequest,
    key: RecognizedKey,
) -> AdmissionRequest:
    """Returns a parsed request with what its headers say of its caller.

    They are cut to the length of their columns, without the NUL that PostgreSQL refuses.
    """
    told = {
        name: (connection.header(name) or "").replace("\0", "")[: _CALLER_HEADERS[name]]
        for name in connection.header_names & _CALLER_HEADERS.keys()
    }
    asking = connection.header_names & _METADATA_HEADERS
    return AdmissionRequest(
        key.digest,
        request,
        connection.request_id,
        region=region_of_host(host, regions) if (regions := settings.REGION_HOSTS) else None,
        http_referer=told.get(b"http-referer"),
        app_title=told.get(b"x-openrouter-title") or told.get(b"x-title"),
        user_agent=told.get(b"user-agent"),
        is_metadata_wanted="enabled" in map(connection.header, asking),
        wants_cache=connection.wants_cache,
    )


@lru_cache(maxsize=64)
def _is_served(host: str) -> bool:
    """Returns whether Django serves the host; cached, because Django's check is slow."""
    request = HttpRequest()
    request.META["HTTP_HOST"] = host
    try:
        request.get_host()
    except DisallowedHost:
        return False
    return True
