"""Serves the simulated upstream: an OpenAI-compatible API over TLS that misbehaves on request.

Imports nothing else of the project: the simulator stands for another company's server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Self

from config.local.certificates import Certificates
from tests.support.simulator.audio import AUDIO_BEHAVIOURS, AUDIO_KINDS, read_form
from tests.support.simulator.behaviours import BEHAVIOURS, find_behaviour
from tests.support.simulator.pictures import PICTURES, parse_form
from tests.support.simulator.protocol import (
    WRITE_BYTES,
    Request,
    Script,
    Signal,
    Step,
    encode_json,
    error_reply,
    http_response,
    insert_request_id,
)

MAX_REQUEST_BYTES = 64 * 1024 * 1024
_ROUTES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/audio/speech": "speech",
    "/v1/audio/transcriptions": "transcription",
    "/v1/rerank": "rerank",
    "/v1/images/generations": "images",
    "/v1/images/edits": "images",
}


class _Connection(asyncio.Protocol):
    """One client's connection: parses requests and performs the steps of their answers."""

    transport: asyncio.Transport

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.number = simulator._count_connection()
        self.buffer = bytearray()
        self.request: Request | None = None
        self.steps: Iterator[Step] = iter(())
        self.timer: asyncio.Handle | None = None
        self.paused = self.waits_for_drain = self.leaving = self.told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.simulator._add_connection(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._start_request()

    def eof_received(self) -> None:
        self._client_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_closed()
        self.leaving = True
        self.simulator._remove_connection(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.waits_for_drain:
            self.waits_for_drain = False
            self.advance()

    def _client_closed(self) -> None:
        if self.timer:
            self.timer.cancel()
        if self.request is not None and not self.leaving:
            self.leaving = True
            self.request.client_closed_at = time.monotonic()
            self.simulator._notify_waiters()
            self.transport.abort()

    def _start_request(self) -> None:
        if self.request is not None or self.leaving:
            return
        try:
            request = self._parse()
        except (ValueError, IndexError):
            self._leave(error_reply(400))
            return
        if request is None:
            return
        self.request, self.told_to_continue = request, False
        self.steps = iter(self.simulator._answer(request))
        self.advance()

    def _parse(self) -> Request | None:
        """Takes the next request from the buffer; returns ``None`` while bytes are missing."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or len(self.buffer) > MAX_REQUEST_BYTES:
            if len(self.buffer) > WRITE_BYTES:
                raise ValueError("the request is too large")
            return None
        first, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
        method, path, _version = first.split(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        start = end + 4
        if "expect" in headers and not self.told_to_continue:
            self.told_to_continue = True
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while True:
                line_end = self.buffer.find(b"\r\n", start)
                if line_end < 0:
                    return None
                size = int(self.buffer[start:line_end].split(b";")[0], 16)
                start = line_end + 2 + size + 2
                if len(self.buffer) < start:
                    return None
                if size == 0:
                    break
                parts.append(self.buffer[line_end + 2 : start - 2])
            raw = b"".join(parts)
        else:
            stop = start + int(headers.get("content-length", 0))
            if len(self.buffer) < stop:
                return None
            raw, start = bytes(self.buffer[start:stop]), stop
        del self.buffer[:start]
        return Request(method, path, headers, raw, self.number, time.monotonic())

    def advance(self) -> None:
        """Performs steps until one must wait; joins adjacent bytes into one write."""
        if self.leaving or self.request is None:
            return
        pending: list[bytes] = []
        size = 0
        for step in self.steps:
            if isinstance(step, bytes):
                pending.append(step)
                size += len(step)
                if size >= WRITE_BYTES:
                    self._write(pending)
                    if self.paused:
                        self.waits_for_drain = True
                    else:
                        # Other connections get a turn between two writes of an endless answer.
                        self.timer = self.simulator.loop.call_soon(self.advance)
                    return
                continue
            self._write(pending)
            if isinstance(step, float | int):
                self.timer = self.simulator.loop.call_later(step, self.advance)
                return
            if step is Signal.GATE and self.simulator._pass_gate(self):
                pending, size = [], 0
                continue
            if step is Signal.RESET:
                # A linger time of zero makes close() send RST instead of FIN.
                linger = struct.pack("ii", 1, 0)
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self._leave(abort=True)
            elif step is Signal.CLOSE:
                self._leave()
            return
        self._write(pending)
        request, self.request = self.request, None
        request.finished_at = time.monotonic()
        self.simulator._notify_waiters()
        if request.headers.get("connection", "").lower() == "close":
            self._leave()
        elif self.buffer:
            self.simulator.loop.call_soon(self._start_request)

    def _write(self, pending: list[bytes]) -> None:
        if pending and self.request:
            data = insert_request_id(b"".join(pending), self.request)
            self.request.sent_bytes += len(data)
            self.transport.write(data)

    def _leave(self, last: bytes = b"", *, abort: bool = False) -> None:
        self.leaving = True
        if self.request:
            self.request.finished_at = time.monotonic()
            self.simulator._notify_waiters()
        if abort:
            self.transport.abort()
            return
        if last:
            self.transport.write(last)
        self.transport.close()


class Simulator:
    """The server and the requests that it received; public members may be used from any thread.

    `keys` are the accepted API keys; by default every key that does not start with `bad`. `admit`
    replaces that check: it returns the kind of a request, or the status of a refusal.
    `models_status` is the status of `GET /models`. `remember` bounds `requests`.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        certificates: Certificates | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: bool = True,
        keys: set[str] | None = None,
        admit: Callable[[Request], str | int] | None = None,
        models_status: int = 200,
        remember: int = 1000,
    ) -> None:
        if tls and certificates is None:
            raise ValueError("certificates are needed unless tls=False")
        self.certificates = certificates if tls else None
        self.host, self.port = host, port
        self.keys, self.models_status = keys, models_status
        self.is_keyless = False
        """Whether a request with a key is refused, and one without is answered."""
        self.admit = admit
        self.connections = 0
        """The number of accepted TCP connections, including failed TLS handshakes."""
        self.handshakes = 0
        """The number of connections that completed the TLS handshake."""
        self.total_requests = 0
        self._requests: deque[Request] = deque(maxlen=remember)
        self._counts: Counter[str] = Counter()
        self._open: set[_Connection] = set()
        self._gate: deque[_Connection] = deque()
        self._permits = 0
        self._news = threading.Condition()
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        # A client cannot call the wildcard address, and no certificate names it.
        host = "localhost" if self.host in ("", "0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificates else 'http'}://{host}:{self.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """The latest requests, oldest first."""
        with self._news:
            return list(self._requests)

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 30.0) -> bool:
        """Blocks until the condition holds, and returns False after the timeout."""
        with self._news:
            return self._news.wait_for(condition, timeout)

    def release(self, count: int = 1) -> None:
        """Lets `count` gated steps pass: waiting ones first, then the next ones to arrive."""
        self.loop.call_soon_threadsafe(self._release, count)

    def clear(self) -> None:
        """Clears requests, counters, unused releases and those who wait for one, between two tests.

        A busy machine may not have counted the last releases yet, so they are waited for.
        """
        is_clear = threading.Event()
        self.loop.call_soon_threadsafe(self._clear_gate, is_clear)
        assert is_clear.wait(60), "the simulator hangs"
        with self._news:
            self._requests.clear()
            self._counts.clear()
            self.connections = self.handshakes = self.total_requests = 0

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        context = self.certificates.server_context() if self.certificates else None
        self._server = await self.loop.create_server(
            lambda: _Connection(self),
            self.host,
            self.port,
            ssl=context,
            backlog=1024,
            ssl_shutdown_timeout=1 if context else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._open):
            connection._leave(abort=True)
        while self._open:
            await asyncio.sleep(0.001)

    @contextlib.contextmanager
    def run_in_thread(self) -> Iterator[Self]:
        """Serves in a new thread with its own event loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="simulator", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.start(), loop).result(10)
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    def _answer(self, request: Request) -> Script:
        """Records the request and chooses the steps of its answer."""
        path = request.path.partition("?")[0]
        content_type = request.headers.get("content-type", "")
        with contextlib.suppress(ValueError, LookupError):
            if content_type.startswith("multipart/") and path.endswith("/edits"):
                request.body = parse_form(content_type, request.raw)
            elif content_type.startswith("multipart/"):
                request.body = read_form(request)
            else:
                request.body = json.loads(request.raw) if request.raw else None
        model = request.body.get("model") if isinstance(request.body, dict) else None
        with self._news:
            self.total_requests += 1
            request.id = self.total_requests
            if isinstance(model, str):
                self._counts[model] += 1
                request.nth = self._counts[model]
            self._requests.append(request)
            self._news.notify_all()
        if self.admit is not None:
            admitted = self.admit(request)
            if isinstance(admitted, int):
                return (error_reply(admitted),)
            request.kind = admitted
        elif not self._knows_key(request):
            return (error_reply(401),)
        if request.method == "GET" and path == "/v1/models":
            if self.models_status != 200:
                return (error_reply(self.models_status),)
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "simulator"}
                      for name in BEHAVIOURS]  # fmt: skip
            return (http_response(200, encode_json({"object": "list", "data": models})),)
        request.kind = request.kind or _ROUTES.get(path, "")
        if not request.kind:
            return (error_reply(404, message=f"Unknown path {path}", code=None),)
        if request.method != "POST":
            return (error_reply(405),)
        if not isinstance(model, str):
            return (error_reply(400),)
        name, request.option = find_behaviour(model)
        behave = BEHAVIOURS[name][1] if name in BEHAVIOURS else None
        if request.kind in AUDIO_KINDS:
            behave = AUDIO_BEHAVIOURS.get(name, behave)
        if request.kind == "images" and name in PICTURES:
            behave = PICTURES[name][1]
        if behave is None:
            return (error_reply(404),)
        try:
            steps = iter(behave(request))
            return itertools.chain((next(steps),), steps)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as exc:
            # A behaviour reads its option and the body in its first step.
            return (error_reply(400, message=f"The simulator cannot use this request: {exc!r}"),)

    def _knows_key(self, request: Request) -> bool:
        if self.is_keyless:
            return "authorization" not in request.headers
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        known = key in self.keys if self.keys is not None else key and not key.startswith("bad")
        return scheme.lower() == "bearer" and bool(known)

    def _count_connection(self) -> int:
        with self._news:
            self.connections += 1
            self._news.notify_all()
            return self.connections

    def _add_connection(self, connection: _Connection) -> None:
        with self._news:
            self.handshakes += 1
            self._open.add(connection)
            self._news.notify_all()

    def _remove_connection(self, connection: _Connection) -> None:
        with self._news:
            self._open.discard(connection)
            self._news.notify_all()

    def _notify_waiters(self) -> None:
        with self._news:
            self._news.notify_all()

    def _pass_gate(self, connection: _Connection) -> bool:
        if self._permits:
            self._permits -= 1
            return True
        self._gate.append(connection)
        return False

    def _clear_gate(self, is_clear: threading.Event) -> None:
        self._permits = 0
        self._gate.clear()
        is_clear.set()

    def _release(self, count: int) -> None:
        for _ in range(count):
            while self._gate and self._gate[0].leaving:
                self._gate.popleft()
            if self._gate:
                self._gate.popleft().advance()
            else:
                self._permits += 1
