"""The ASGI application of the inference routes.

It runs beside Django in the same process, because a request through Django costs more than all the
work done here. Authentication, errors and models are the same.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache, partial
from typing import Final

import msgspec
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest

from accounts.bearers import require_inference
from config.api.errors import (
    GatewayError,
    HostNotServed,
    MethodNotAllowed,
    RequestTimeout,
    Unavailable,
)
from config.live_settings import settings
from config.server import logs
from config.server.bodies import ClientGone, Receive, Scope, Send
from config.server.bulkheads import Occupancy
from config.server.load.large_work import LargeWork
from config.server.regions import region_of_host
from config.telemetry.tracing import Attributes, Tracer, request_span, tracing
from inference import metrics
from inference.admission.decide import AdmissionRequest
from inference.admission.estimate import estimate_tokens
from inference.admission.recognition import RecognizedKey
from inference.documents.parts import read_files
from inference.exchange.gateway import CallerStuck, Deliver, Exchange, Gateway, Rewrite
from inference.exchange.usage.spans import describe_outcome
from inference.exchange.workload import Workload
from inference.faces.connection import IDEMPOTENCY_KEY, Connection
from inference.faces.routes import ROUTES
from inference.repeats.cache_use import CacheUse
from inference.repeats.caching import read_wish
from inference.repeats.keeper import FirstRequest, Keeper
from inference.repeats.once import Repeats
from inference.requests.operations.server_tools import NO_TOOLS
from inference.requests.parsing import InferenceRequest
from inference.texts.buffers import Loss
from inference.texts.capture import Capture, Subject

logger = logging.getLogger(__name__)

_LATE: Final = (
    "The time limit of the request itself is over: X-Request-Timeout, or the timeout of the SDK. "
    "Allow more time."
)
# How long a request waits for the text of its files, which takes up to 30 seconds of its turn.
_FILES_SECONDS: Final = 60.0
_FILES_WAIT: Final = "Too many PDF files of other requests are being read. Try again shortly."
# Both names of the header that asks for routing metadata; the second is the older one.
_METADATA_HEADERS: Final = (b"x-openrouter-metadata", b"x-openrouter-experimental-metadata")


class Inference:
    """Serves the inference routes with one worker's gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._repeats = Repeats()

    def show_figures(self) -> None:
        """Sets the gauges of the queues of repeated requests."""
        self._repeats.show_figures()

    async def close(self) -> None:
        await self._repeats.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, and answers every error in the format of its interface."""
        route = ROUTES[scope["path"]]
        connection = route.face(route.operation, scope, receive, send)
        if tracing.tracer is None:
            await self._serve_logged(connection)
        else:
            await self._serve_traced(tracing.tracer, connection)

    async def _serve_traced(self, tracer: Tracer, connection: Connection) -> None:
        """Serves a request within a span."""
        attributes: Attributes = {
            "http.request.method": connection.method,
            "url.path": connection.path,
            "causeway.request.id": connection.request_id,
        }
        traceparent = connection.header(b"traceparent")
        span = tracer.start_request(f"POST {connection.path}", traceparent, attributes)
        token = request_span.set(span)
        try:
            await self._serve_logged(connection)
        finally:
            request_span.reset(token)
            tracer.end_request(span, connection.span_attributes, connection.error_type)

    async def _serve_logged(self, connection: Connection) -> None:
        """Serves a request; its log records have its id."""
        token = logs.request_id.set(connection.request_id)
        try:
            await self._serve(connection)
        except ClientGone:
            pass
        except CallerStuck:
            await connection.abort()
        except GatewayError as error:
            connection.error_type = error.error_type
            if not connection.generation_id:
                metrics.count_refused(error.status, error.error_type)
            await connection.respond_error(error)
        except Exception:
            logger.exception("an inference request failed")
            await connection.respond_error(GatewayError())
        finally:
            logs.request_id.reset(token)

    async def _serve(self, connection: Connection) -> None:
        """Recognizes the caller of one request, then reads its body and answers it."""
        host = connection.host()
        if not _is_served(host):
            raise HostNotServed
        if connection.method != "POST":
            raise MethodNotAllowed(headers={"Allow": "POST"})
        is_repeatable = connection.has_header(IDEMPOTENCY_KEY)
        # No admission follows a count, or the repeat of a request, so the key is looked up.
        key = await self._gateway.recognizer.recognize(
            connection.digests(), must_be_current=connection.is_count or is_repeatable
        )
        require_inference(is_management=key.is_management)
        connection.mark_recognized()
        if connection.access_entry is not None:
            connection.access_entry.name_caller(key.organization_id, key.digest)
        idempotency_key = connection.idempotency_key() if is_repeatable else None
        wants_cache = read_wish(connection).is_wanted
        may_cache = key.may_cache if wants_cache is None else wants_cache
        connection.is_digested = is_repeatable or may_cache
        connection.caller = key
        connection.presets = self._gateway.presets
        with self._gateway.bulkheads.enter(key.organization_id, key.key_id) as occupancy:
            connection.workload = Workload(
                occupancy, self._gateway.large_work, self._gateway.loop_time
            )
            request = await connection.read_request(occupancy)
            if request.reads_pdfs:
                request = await _read_files(
                    connection, request, self._gateway.file_reading, occupancy
                )
            connection.read_patience(is_stream=request.stream)
            if connection.is_count:
                count = {"input_tokens": estimate_tokens(request.prompt_bytes)}
                await connection.respond(200, msgspec.json.encode(count))
                return
            entry = _make_entry(connection, host, request, key, wants_cache)
            if idempotency_key is None:
                await self._exchange(connection, key, occupancy, entry)
            else:
                run = partial(self._exchange, connection, key, occupancy)
                await self._repeats.serve_once(connection, idempotency_key, entry, key, run)

    async def _exchange(
        self,
        connection: Connection,
        key: RecognizedKey,
        occupancy: Occupancy,
        entry: AdmissionRequest,
        first: FirstRequest | None = None,
    ) -> None:
        """Admits and answers a parsed request; settles its generation in every case.

        ``first`` is the use of its idempotency key, if it has one.
        """
        request = entry.request
        exchange = await self._gateway.admit(entry, key, occupancy)
        if entry.wants_cache is None:
            key.may_cache = exchange.admission.keeping.is_cached
        connection.generation_id = exchange.generation_id
        connection.rate_headers = exchange.rate_headers
        if (
            request.server_tools is not NO_TOOLS
            or request.has_long_cache
            or request.native is not None
        ):
            connection.name_left_out = exchange.name_left_out
        token = logs.generation_id.set(exchange.generation_id)
        self._repeats.note_retry(connection, exchange)
        capture = self._begin_capture(exchange) if exchange.admission.is_logged else None
        try:
            keeper = None if first is None else self._repeats.keep(connection, exchange, first)
            if keeper is None:
                connection.watch_caller()
            cache = self._repeats.use_cache(connection, exchange)
            if request.stream:
                await _stream(connection, exchange, keeper, cache, capture)
            else:
                await _reply(connection, exchange, keeper, cache, capture)
        except asyncio.CancelledError:
            if not connection.unwatch_caller():
                raise
            if not connection.is_late:
                raise ClientGone from None
            await self._answer_late(connection, exchange, is_stream=entry.request.stream)
        finally:
            connection.unwatch_caller()
            exchange.settle(asyncio.CancelledError())
            if capture is not None:
                self._end_capture(exchange, capture)
            if tracing.tracer is not None:
                _describe(connection, exchange)
            if connection.access_entry is not None:
                connection.access_entry.name_generation(
                    exchange.generation_id, *exchange.attempts.candidate.route.names
                )
            logs.generation_id.reset(token)

    def _begin_capture(self, exchange: Exchange) -> Capture:
        """Begins to copy the input and the output of an exchange, which its workspace logs."""
        admission = exchange.admission
        authority = admission.authority
        subject = Subject(
            exchange.generation_id,
            authority.organization_id,
            authority.workspace_id,
            authority.key_id,
            admission.at,
        )
        return self._gateway.texts.begin(subject, admission.request)

    def _end_capture(self, exchange: Exchange, capture: Capture) -> None:
        """Queues the copies of an exchange that has ended; those of a repeated answer are freed."""
        admission, outcome = exchange.admission, exchange.outcome
        if outcome is not None and outcome.cached_from is not None:
            capture.release()
        elif not admission.is_logged or admission.request is not capture.request:
            capture.drop(Loss.RULES_CHANGED)
        else:
            capture.failure, capture.earlier = exchange.failure, exchange.attempts.failures
            if exchange.attempts.latency_ms is None and capture.failure in capture.earlier[-1:]:
                # No answer began, so the last attempt's error is the one that ended it.
                capture.earlier = capture.earlier[:-1]
            self._gateway.texts.submit(capture)

    async def _answer_late(
        self, connection: Connection, exchange: Exchange, *, is_stream: bool
    ) -> None:
        """Ends the answer of a request whose own time limit is over; it is settled as cancelled.

        Its caller waits no more, but something between the two may.
        """
        if not connection.has_begun:
            raise RequestTimeout(_LATE, headers={"X-Should-Retry": "false"})
        if not is_stream:
            raise CallerStuck
        await exchange.deliver_error(connection.deliver, RequestTimeout(_LATE))
        await connection.end_events()


def _describe(connection: Connection, exchange: Exchange) -> None:
    """Notes for the span of a request what its generation was."""
    assert exchange.outcome is not None
    connection.error_type = exchange.outcome.error_type
    connection.span_attributes = describe_outcome(
        exchange.attempts.candidate,
        connection.operation,
        exchange.organization_id,
        exchange.outcome,
    )


async def _read_files(
    connection: Connection, request: InferenceRequest, threads: LargeWork, occupancy: Occupancy
) -> InferenceRequest:
    """Returns the request with the text of its PDF files; a caller who leaves ends the wait.

    Raises :class:`InvalidRequest` for a file that is not read, and :class:`Unavailable` if other
    files are read for too long.
    """
    try:
        connection.watch_caller()
        async with asyncio.timeout(_FILES_SECONDS):
            read = await threads.run(occupancy.organization_id, read_files, request)
    except TimeoutError:
        raise Unavailable(_FILES_WAIT) from None
    except asyncio.CancelledError:
        if connection.unwatch_caller():
            raise ClientGone from None
        raise
    finally:
        connection.unwatch_caller()
    if (grown := len(read.fields["messages"]) - len(request.fields["messages"])) > 0:
        occupancy.reserve(grown)
    return read


async def _stream(
    connection: Connection,
    exchange: Exchange,
    keeper: Keeper | None,
    cache: CacheUse | None,
    capture: Capture | None,
) -> None:
    """Streams the answer to an admitted request, and keeps it for requests that repeat it."""
    connection.begin_comments()
    kept = None if cache is None else await cache.find()
    if kept is None:
        deliver: Deliver = connection.deliver
        relay: Deliver = connection.send_events
        if cache is not None:
            deliver, relay = cache.deliver, cache.relay
        if capture is not None:
            deliver, relay = capture.tap(deliver, relay)
        await exchange.stream(deliver, relay, lambda: connection.has_begun)
        if cache is not None:
            await cache.keep()
    else:
        await (connection.send_events if kept.is_native else connection.deliver)(kept.body)
    if keeper is not None:
        await keeper.keep_stream()
    await connection.end_events()


async def _reply(
    connection: Connection,
    exchange: Exchange,
    keeper: Keeper | None,
    cache: CacheUse | None,
    capture: Capture | None,
) -> None:
    """Sends the whole answer to an admitted request, which is kept before."""
    kept = None if cache is None else await cache.find()
    if kept is None:
        rewrite: Rewrite = connection.rewrite_reply if cache is None else cache.rewrite
        if capture is not None:
            rewrite = capture.tap_rewrite(rewrite)
        reply = await exchange.reply(rewrite)
        if capture is not None:
            capture.note_reply(reply)
        if cache is not None:
            cache.note_reply(reply)
            await cache.keep()
    elif kept.is_native:
        reply = [kept.body]
    else:
        size = len(kept.body)
        reply = await connection.workload.run(size, connection.rewrite_reply, [kept.body])
    if keeper is not None:
        await keeper.keep_reply(reply)
    await connection.respond_pieces(200, reply)


def _make_entry(
    connection: Connection,
    host: str,
    request: InferenceRequest,
    key: RecognizedKey,
    wants_cache: bool | None,
) -> AdmissionRequest:
    """Returns a parsed request with what its headers say of its caller."""
    return AdmissionRequest(
        key.digest,
        request,
        connection.request_id,
        region=region_of_host(host, settings.REGION_HOSTS),
        http_referer=_clip(connection.header(b"http-referer"), 512),
        app_title=_clip(connection.header(b"x-openrouter-title"), 255),
        user_agent=_clip(connection.header(b"user-agent"), 255),
        is_metadata_wanted="enabled" in map(connection.header, _METADATA_HEADERS),
        wants_cache=wants_cache,
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


def _clip(text: str | None, length: int) -> str | None:
    """Cuts a header to the length of its column, without the NUL that PostgreSQL refuses."""
    return None if text is None else text.replace("\0", "")[:length]
