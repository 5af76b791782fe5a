"""The access log: one line for each request, which a thread writes.

A line has neither texts nor keys nor the query of the address. The event loop only puts it aside,
and hands over what has gathered a few times a second: to wake a thread for each request would cost
more than the line. A disk that is full, or a reader that has stopped, delays no request. Lines that
cannot be written are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from config.api.errors import GatewayError
from config.clocks.clock import clock
from config.server.logs import mask
from config.telemetry.drops import DROPPED

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ENTRY: Final = "causeway.access"
_WAITING: Final = 10_000
_TOGETHER: Final = 500
_LOG_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 2.0
_REOPEN_SECONDS: Final = 1.0
# So much of the public hash of a key tells it from the others of an organization.
_HASH_CHARACTERS: Final = 12
# The longest path that is logged; no route has a longer one.
_PATH_CHARACTERS: Final = 256
_STANDARD_OUTPUT: Final = "-"
# Standard error, beside the other lines of the log and in their format.
LOG: Final = "on"
_STANDARD_ERROR: Final = 2
_GATHER_SECONDS: Final = 0.1
_dropped: Final = DROPPED.labels("access_log")


class AccessEntry(msgspec.Struct, omit_defaults=True):
    """A line of the log. What is not known of a request is left out.

    ``time`` is in seconds since the epoch until the line is written.
    """

    time: float | str
    method: str
    path: str
    status: int = 0
    bytes: int = 0
    milliseconds: float = 0.0
    first_byte_ms: float | None = None
    request_id: str | None = None
    organization: str | None = None
    key: str | None = None
    model: str | None = None
    provider: str | None = None
    generation_id: str | None = None
    field: str | None = None

    def name_caller(self, organization_id: object, public_hash: str) -> None:
        """Adds who calls."""
        self.organization = str(organization_id)
        self.key = public_hash[:_HASH_CHARACTERS]

    def name_generation(self, generation_id: str, model: str, provider: str) -> None:
        """Adds what served the request."""
        self.generation_id = generation_id
        self.model = model
        self.provider = provider

    def name_field(self, error: GatewayError) -> None:
        """Adds the field for which the request was refused, if the error names one."""
        self.field = next(iter(error.metadata.get("fields", ())), None)

    def finish(self) -> None:
        """Writes out the time, and makes what the caller wrote fit to be one line of text."""
        self.time = format_time(float(self.time))
        self.path = _clean_path(self.path)
        if self.field is not None:
            # An unknown field has any name.
            self.field = _clean(self.field)


def _clean(text: str) -> str:
    """Returns a text without what looks like a secret, and with escapes for control characters."""
    text = mask(text)
    return text if text.isprintable() else ascii(text)[1:-1]


# Most requests have one of a few paths.
_clean_path: Final = lru_cache(maxsize=256)(_clean)


def write_json(entry: AccessEntry) -> bytes:
    """Returns a line as an object."""
    return msgspec.json.encode(entry)


def write_text(entry: AccessEntry) -> bytes:
    """Returns a line as the log writes others: the facts first, then the names."""
    names = ("organization", "model", "field", "request_id", "generation_id")
    named = [f"{name}={value}" for name in names if (value := getattr(entry, name)) is not None]
    head = f"{entry.time} INFO access {entry.method} {entry.path} {entry.status}"
    return " ".join((head, f"{entry.milliseconds} ms", *named)).encode()


class AccessLog:
    """Writes the lines of a process to a file, or to standard output, in a thread of its own."""

    def __init__(self, target: str, *, is_text: bool = False) -> None:
        """Stores the target: a path, ``-`` for standard output, or ``on`` for the log."""
        self._target = target
        self._write = write_text if is_text else write_json
        # It costs a tenth of a bounded queue, which takes a lock of Python's for each part.
        self._waiting: queue.SimpleQueue[list[AccessEntry]] = queue.SimpleQueue()
        # How many lines each of the two threads has passed on.
        self._put = self._taken = 0
        self._descriptor: int | None = None
        self._checked_at = 0.0
        self._logged_at = -_LOG_SECONDS
        self._thread: threading.Thread | None = None

    def write(self, entries: list[AccessEntry]) -> None:
        """Puts lines aside; drops those beyond the 10,000 that may wait."""
        if self._thread is None:
            # A process that is forked has no threads, so the first line starts it.
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._thread.start()
        free = _WAITING - (self._put - self._taken)
        if len(entries) > free:
            _dropped.inc(len(entries) - free)
            entries = entries[:free]
        if entries:
            self._put += len(entries)
            self._waiting.put(entries)

    def close(self) -> None:
        """Writes what waits, if that takes no longer than two seconds."""
        if self._thread is None or self._put - self._taken >= _WAITING:
            return
        self._waiting.put([])
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while entries := self._waiting.get():
            for start in range(0, len(entries), _TOGETHER):
                part = entries[start : start + _TOGETHER]
                for entry in part:
                    entry.finish()
                self._store(b"\n".join(map(self._write, part)) + b"\n", len(part))
                self._taken += len(part)

    def _store(self, text: bytes, lines: int) -> None:
        """Writes whole lines; drops them if that fails."""
        try:
            descriptor = self._open()
            while text:
                text = text[os.write(descriptor, text) :]
        except OSError as exc:
            _dropped.inc(lines)
            self._close()
            now = time.monotonic()
            if now >= self._logged_at + _LOG_SECONDS:
                self._logged_at = now
                logger.error("the access log cannot be written: %s", exc.strerror)

    def _open(self) -> int:
        """Returns the file; opens it again when it was moved away, as programs do that rotate."""
        if self._target == LOG:
            return _STANDARD_ERROR
        if self._target == _STANDARD_OUTPUT:
            return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
        now = time.monotonic()
        if self._descriptor is not None and now >= self._checked_at + _REOPEN_SECONDS:
            self._checked_at = now
            if not self._is_present(self._descriptor):
                self._close()
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._target, flags, 0o640)
        return self._descriptor

    def _is_present(self, descriptor: int) -> bool:
        try:
            found, opened = os.stat(self._target), os.fstat(descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class AccessLogMiddleware:
    """Logs each request of an ASGI application when it ends."""

    def __init__(self, application: Any, log: AccessLog) -> None:
        self._application = application
        self._log = log
        self._gathered: list[AccessEntry] = []

    def _put(self, entry: AccessEntry) -> None:
        self._gathered.append(entry)
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._hand_over)

    def _hand_over(self) -> None:
        entries, self._gathered = self._gathered, []
        self._log.write(entries)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            if scope["type"] == "lifespan":
                if self._gathered:
                    self._hand_over()
                self._log.close()
            return
        began = time.perf_counter()
        entry = scope[ENTRY] = AccessEntry(
            clock.time(), scope["method"], scope["path"][:_PATH_CHARACTERS]
        )

        def note_and_send(message: MutableMapping[str, Any]) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                for name, value in message.get("headers", ()):
                    if name.lower() == b"x-request-id":
                        entry.request_id = value.decode("latin-1")
            elif message["type"] == "http.response.body" and (body := message.get("body")):
                if entry.first_byte_ms is None:
                    entry.first_byte_ms = _measure(began)
                entry.bytes += len(body)
            return send(message)

        try:
            await self._application(scope, receive, note_and_send)
        finally:
            entry.milliseconds = _measure(began)
            self._put(entry)


def format_time(seconds: float) -> str:
    """Returns a time with milliseconds and zone."""
    second, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{_format_second(second)}.{milliseconds:03}+00:00"


@lru_cache(maxsize=2)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


def _measure(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
