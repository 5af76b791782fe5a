"""HTTP/1.1 with bounds on what a caller may send, hold and leave unread.

httptools parses, and ``cycle`` speaks ASGI to the application. The bounds:

* Connections have limits: ``connections.table`` says which one makes room for a new one. The
  application calls ``scope["causeway.cycle"].recognize()`` once it has found the caller's key.
* A head has :data:`MAX_HEADER_BYTES`, :data:`MAX_HEADERS` and ``REQUEST_HEAD_TIMEOUT``. The parser
  collects headers of any size, in quadratic time on the event loop.
* What is neither head nor body has as many bytes as the body and :data:`MAX_HEADER_BYTES`: the
  sizes and the extensions of chunks, and trailers, which are dropped.
* A body has ``REQUEST_BODY_TIMEOUT``: see :class:`BodyClock`.
* HTTP/1.1 needs exactly one ``Host``.
* A response to a body that was not read reaches the caller: our side ends, and what arrives is
  discarded for a while. To close at once would reset the connection and take the response back.
* A refusal waits for the responses to earlier requests.
* A caller that does not read its response is disconnected: see :class:`UnreadWatch`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from django.conf import settings
from uvicorn import Config

from config.api.errors import (
    GatewayError,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
)
from config.server.connections.cycle import Cycle
from config.server.connections.deadlines import BodyClock
from config.server.connections.parser import BoundedParser, Fault
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
    """One connection of a caller, within the bounds that the module names.

    Uvicorn's server makes it, and calls :meth:`shutdown`.
    """

    __slots__ = (
        "_answered", "_application", "_is_ending", "_is_lost", "_pipeline", "_unread",
        "_waiting_refusal", "ends_at", "held_bytes", "is_recognized", "notes", "pools",
    )  # fmt: skip

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._application = config.loaded_app
        self.is_recognized = False
        self.held_bytes = 0
        self.pools: tuple[Pool, ...] = ()
        self.notes: dict[str, Any] = {}
        self._is_ending = False
        self.ends_at = 0.0
        self._waiting_refusal: bytes | None = None
        self._is_lost = False
        self._unread = UnreadWatch(self)
        # The request that is being answered, and those that arrived after it.
        self._answered: Cycle | None = None
        self._pipeline: deque[tuple[Cycle, dict[str, Any]]] = deque()

    # The connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.server_state.connections.add(self)  # type: ignore[arg-type]
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
        self.server_state.connections.discard(self)
        self._unread.end()
        self.stop_deadlines()
        self._worker.table.remove(self)
        if self._answered is not None:
            self._answered.disconnect()
        self.flow.resume_writing()
        # All of these lead back to this object: without them it is freed at once.
        self._parser = self._cycle = self._answered = None
        self._pipeline.clear()

    def shutdown(self) -> None:
        """Ends the connection after the requests that have arrived."""
        if self._cycle is None or self._cycle.response_complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False
        self._unread.look()

    def count_unread(self) -> int:
        return self._unread.count_unread()

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
        self.stop_deadlines()
        if self._is_lost or self.transport.is_closing():
            return
        self._worker.refusals.count(reason, self._host)
        self._discarded_bytes = 0
        cycle = self._answered
        is_answered = cycle is None or cycle.response_complete
        if cycle is not None:
            cycle.disconnect()
        if self._is_ending or self.transport.get_write_buffer_size() or self.is_responding():
            self.transport.abort()
            return
        if not (is_answered and self._is_in_head and not self._bodyless_bytes):
            self.transport.write(render_refusal(_limit_error(Reason.CONNECTION_LIMIT)))
        self.transport.close()

    # Incoming data

    def data_received(self, data: bytes) -> None:
        self._worker.resting.stop(self)
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

    def on_headers_complete(self) -> None:
        if len(self._pipeline) >= MAX_WAITING_REQUESTS:
            message = "Too many requests wait on this connection. Wait for their responses."
            raise Fault(Reason.PIPELINE, TooManyRequests(message, headers=_SOON))
        scope = self.read_head()
        is_kept = scope["http_version"] != "1.0" and self._parser.should_keep_alive()
        cycle = self._cycle = scope["causeway.cycle"] = Cycle(
            self,
            method=scope["method"],
            keep_alive=is_kept and not readiness.is_draining,
            expects_continue=self._expects_continue,
        )
        if self.is_callers_turn():
            self._serve(cycle, scope)
        else:
            self.flow.pause_reading()
            self._pipeline.append((cycle, scope))
            if not self.is_recognized:
                self._worker.table.hold(self, _WAITING_REQUEST_BYTES)

    # Deadlines

    def expire_body(self) -> None:
        """Refuses a request whose body does not arrive in time."""
        message = (
            "The body of the request did not arrive in time: it has "
            f"{settings.REQUEST_BODY_TIMEOUT:g} seconds, and must not stall."
        )
        self.refuse(Reason.BODY_TIMEOUT, RequestTimeout(message))

    def stop_deadlines(self) -> None:
        super().stop_deadlines()
        self._worker.endings.stop(self)

    def make_body_clock(self) -> BodyClock:
        return BodyClock(self.loop, settings.REQUEST_BODY_TIMEOUT, self.expire_body)

    # Requests and responses

    def _serve(self, cycle: Cycle, scope: dict[str, Any]) -> None:
        self._answered = cycle
        self._unread.begin()
        if self.is_recognized:
            self._worker.table.begin(self)
        cycle.start(self._application, scope)

    def end_response(self, cycle: Cycle) -> None:
        """Begins to answer the next request, waits for one, or ends the connection."""
        self.server_state.total_requests += 1
        if not cycle.keep_alive:
            if cycle.is_unread:
                self._send_last(b"")
            else:
                self.transport.close()
        elif self._waiting_refusal is not None and not self._pipeline:
            self._send_last(self._waiting_refusal)
        elif not self.transport.is_closing():
            self.flow.resume_reading()
            if self._pipeline:
                self._serve(*self._pipeline.popleft())
            else:
                self._worker.resting.start(self)
            self._await_head()
        if self.is_callers_turn():
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
        if not self._is_in_head and self._cycle is not answered:
            self._pipeline.pop()
        elif not self._is_in_head and answered is not None:
            if answered.response_started:
                self.transport.abort()
                return
            answered.disconnect()
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
        self._pipeline.clear()
        self.stop_deadlines()
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


def _limit_error(reason: Reason) -> GatewayError:
    if reason is Reason.ADDRESS_LIMIT:
        message = "Too many connections from this address. Close some, or try again shortly."
        return TooManyRequests(message, headers=_SOON)
    return Unavailable("Too many connections. Try again shortly.")
