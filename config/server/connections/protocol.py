"""Uvicorn's HTTP/1.1 protocol with bounds on what a caller may send, hold and leave unread.

Uvicorn has none of these:

* Connections have limits: ``connections.table`` says which one makes room for a new one. The
  application calls ``scope["causeway.recognized"]`` once it has found the caller's key.
* A head has :data:`MAX_HEADER_BYTES`, :data:`MAX_HEADERS` and ``REQUEST_HEAD_TIMEOUT``. The parser
  collects headers of any size, in quadratic time on the event loop.
* What is neither head nor body has as many bytes as the body and :data:`MAX_HEADER_BYTES`: the
  sizes and the extensions of chunks, and trailers. Uvicorn appends trailers to the headers, even
  while the application reads these; here they are dropped.
* A body has ``REQUEST_BODY_TIMEOUT``: see :class:`BodyClock`.
* HTTP/1.1 needs exactly one ``Host``.
* A response to a body that was not read reaches the caller: our side ends, and what arrives is
  discarded for a while. Uvicorn closes at once, which resets the connection and takes the response
  back, or reads the whole body.
* A refusal waits for the responses to earlier requests. Uvicorn writes it into them.
* A caller that does not read its response is disconnected: see :class:`UnreadWatch`.
* When a connection with pipelined requests is lost, the request that is being answered is notified.
  Uvicorn notifies the last one.

The overridden methods and the attributes used are private to uvicorn, so pyproject pins its minor
version and ``tests/config/server/test_uvicorn.py`` checks that all of them still exist.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from django.conf import settings
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from config.api.errors import (
    GatewayError,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
)
from config.server.connections.deadlines import BodyClock
from config.server.connections.heads import Fault
from config.server.connections.parser import BoundedParser
from config.server.connections.refusals import Reason, render_refusal
from config.server.connections.table import Pool
from config.server.connections.unread import UnreadWatch
from config.server.readiness import readiness

# Requests that wait on one connection while an earlier one is answered. Each takes memory of about
# 4 KB, however few bytes it has.
MAX_WAITING_REQUESTS: Final = 8
_WAITING_REQUEST_BYTES: Final = 4_096
_SOON: Final = {"Retry-After": "1"}


class HttpProtocol(BoundedParser):
    """Uvicorn's protocol with the bounds that the module names."""

    __slots__ = (
        "_answered",
        "_is_ending",
        "_is_lost",
        "_unread",
        "_waiting_refusal",
        "ends_after_response",
        "ends_at",
        "held_bytes",
        "is_recognized",
        "pools",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_recognized = False
        self.held_bytes = 0
        self.pools: tuple[Pool, ...] = ()
        # A response asked for the end of the connection, which uvicorn must not close itself.
        self.ends_after_response = False
        self._is_ending = False
        self.ends_at = 0.0
        self._waiting_refusal: bytes | None = None
        self._is_lost = False
        self._unread = UnreadWatch(self)
        # The request that is being answered: the first of the pipelined ones without a response.
        self._answered: RequestResponseCycle | None = None

    # The connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._host = self.client[0] if self.client else ""
        reason = self._worker.table.admit(self, self._host)
        if reason is None:
            self._start_head_deadline()
        elif self._worker.may_refuse_another():
            self._worker.refusals.count(reason, self._host)
            self._send_last(render_refusal(_limit_error(reason)))
        else:
            self._worker.refusals.count(reason, self._host)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._unread.end()
        self._stop_deadlines()
        self._worker.table.remove(self)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        self._unread.look()

    def recognize(self) -> None:
        """Notes that the caller is known, so that no stranger takes its place; thread-safe."""
        if self.is_recognized:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a thread of Django
            self.loop.call_soon_threadsafe(self.recognize)
        else:
            self._worker.table.recognize(self)
            self.is_recognized = True
            if self.is_callers_turn():
                self._worker.table.rest(self)

    def is_callers_turn(self) -> bool:
        return self._answered is None or self._answered.response_complete

    def is_responding(self) -> bool:
        cycle = self._answered
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def evict(self, reason: Reason) -> None:
        self._worker.table.remove(self)
        self._stop_deadlines()
        if self._is_lost or self.transport.is_closing():
            return
        self._worker.refusals.count(reason, self._host)
        self._discarded_bytes = 0
        cycle = self._answered
        is_answered = cycle is None or cycle.response_complete
        if cycle is not None and not is_answered:
            cycle.disconnected = True
            cycle.message_event.set()
        if self._is_ending or self.transport.get_write_buffer_size() or self.is_responding():
            self.transport.abort()
            return
        if not (is_answered and self._is_in_head and not self._bodyless_bytes):
            self.transport.write(render_refusal(_limit_error(Reason.CONNECTION_LIMIT)))
        self.transport.close()

    # What arrives

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._discarded_bytes is not None:
            self._discard(len(data))
            return
        if self._has_head_deadline and not self._bodyless_bytes:
            self._start_head_deadline()
        if not self.is_recognized:
            self._worker.table.hold(self, len(data))
        self.parse(data)
        self._await_head()
        self._unread.look()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["causeway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["causeway.recognized"] = self.recognize  # type: ignore[typeddict-unknown-key]
        self.scope["causeway.unread"] = self._unread.count_unread  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_WAITING_REQUESTS:
            message = "Too many requests wait on this connection. Wait for their responses."
            raise Fault(Reason.PIPELINE, TooManyRequests(message, headers=_SOON))
        super().on_headers_complete()
        if readiness.is_draining:
            self.cycle.keep_alive = False
        if self.cycle is not self._answered and not self.is_recognized:
            self._worker.table.hold(self, _WAITING_REQUEST_BYTES)

    # Deadlines

    def expire_body(self) -> None:
        """Refuses a request whose body does not arrive in time."""
        message = (
            "The body of the request did not arrive in time: it has "
            f"{settings.REQUEST_BODY_TIMEOUT:g} seconds, and must not stall."
        )
        self.refuse(Reason.BODY_TIMEOUT, RequestTimeout(message))

    def _stop_deadlines(self) -> None:
        self._worker.heads.stop(self)
        self._worker.endings.stop(self)
        self._has_head_deadline = False

    # Requests and responses

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        self._unread.begin()
        if self.is_recognized:
            self._worker.table.begin(self)
        super()._start_asgi_task(cycle, partial(self._serve, app))

    async def _serve(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        cycle = self._answered
        assert cycle is not None
        if cycle.more_body:
            unread = _UnreadBody(self, cycle)
            receive, send = unread.receive, unread.send
        return await app(scope, receive, send)  # type: ignore[no-any-return]

    def on_response_complete(self) -> None:
        if self._waiting_refusal is not None and not self.pipeline:
            self.server_state.total_requests += 1
            self._send_last(self._waiting_refusal)
        elif self.ends_after_response:
            self.server_state.total_requests += 1
            self._send_last(b"")
        else:
            super().on_response_complete()
            if not self.transport.is_closing():
                self._await_head()
        if self._answered is not None and self._answered.response_complete:
            self._worker.table.rest(self)
        self._unread.look()

    # Refusals

    def refuse(self, reason: Reason, error: GatewayError) -> None:
        """Refuses the arriving request, after the responses to the earlier ones, and ends."""
        if self.transport.is_closing() or self._discarded_bytes is not None:
            return
        self._worker.refusals.count(reason, self._host)
        response = render_refusal(error)
        answered = self._answered
        if not self._is_in_head and self.cycle is not answered:
            self.pipeline.popleft()  # the last one that was added
        elif not self._is_in_head and answered is not None:
            if answered.response_started:
                self.transport.abort()
                return
            answered.disconnected = True
            answered.message_event.set()
            self._send_last(response)
            return
        if answered is None or answered.response_complete:
            self._send_last(response)
        else:
            self._discarded_bytes = 0
            self._waiting_refusal = response

    def _send_last(self, response: bytes) -> None:
        """Sends the last response, ends our side, and discards what still arrives.

        A connection that is closed while bytes of the caller wait in the kernel is reset, and the
        caller loses the response.
        """
        if self.transport.is_closing():
            return
        self.pipeline.clear()
        self._stop_deadlines()
        self._discarded_bytes = self._discarded_bytes or 0
        self._is_ending = True
        if response:
            self.transport.write(response)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._worker.start_ending(self)
        self._worker.table.rest(self)

    def _discard(self, count: int) -> None:
        assert self._discarded_bytes is not None
        self._discarded_bytes += count
        if self._discarded_bytes > self._worker.most_discarded:
            self.transport.abort()
        elif self._is_ending:
            self._worker.continue_ending(self)

    def expire_ending(self) -> None:
        """Closes a connection whose caller is silent after its last response."""
        if self.transport.get_write_buffer_size():
            # The caller still reads; the watch ends the connection if it does not.
            self._worker.start_ending(self)
        else:
            self.transport.abort()

    def end_stuck(self) -> None:
        self._worker.refusals.count(Reason.STUCK, self._host)
        self.transport.abort()


class _UnreadBody:
    """Passes the messages of a request whose body had not arrived when its work began."""

    def __init__(self, protocol: HttpProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._clock = BodyClock(protocol.loop, settings.REQUEST_BODY_TIMEOUT, protocol.expire_body)

    async def receive(self) -> Any:
        """Returns the next message; the clock of the body runs while there is none."""
        cycle = self._cycle
        if not cycle.more_body or cycle.message_event.is_set():
            return await cycle.receive()
        known = self._protocol.body_bytes
        self._clock.start()
        try:
            return await cycle.receive()
        finally:
            self._clock.stop(self._protocol.body_bytes - known)

    async def send(self, message: Any) -> None:
        """Sends a message; a response that begins before the body has arrived is the last one."""
        cycle = self._cycle
        if message["type"] != "http.response.start":
            await cycle.send(message)
            return
        if cycle.more_body:
            cycle.keep_alive = False
        await cycle.send(message)
        if not cycle.keep_alive:
            # Uvicorn would close the connection with the last byte, and so reset it.
            cycle.keep_alive = True
            self._protocol.ends_after_response = True


def _limit_error(reason: Reason) -> GatewayError:
    if reason is Reason.ADDRESS_LIMIT:
        message = "Too many connections from this address. Close some, or try again shortly."
        return TooManyRequests(message, headers=_SOON)
    return Unavailable("Too many connections. Try again shortly.")
