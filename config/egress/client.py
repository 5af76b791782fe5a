"""The asynchronous client: names to judged connections, kept alive, and their answers."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import aiohappyeyeballs
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from config.egress import rules
from config.egress.addresses import EgressPolicy, is_address
from config.egress.connection import Connection
from config.egress.errors import (
    ConnectFailed,
    EgressError,
    TimedOut,
    TLSFailed,
    TooLarge,
    UnsendableRequest,
)
from config.egress.rules import OutboundRequest

AsyncResolve = Callable[[str, int], Awaitable[Sequence[str]]]
Origin = tuple[str, str, int]

# Shorter than what common servers keep an idle connection for, or a little longer.
_KEPT_SECONDS: Final = 15.0
# How many names and addresses are remembered at most.
_NAMES: Final = 4096
# How long an address may stay silent before the next one is tried beside it (RFC 8305, section 5).
_NEXT_ADDRESS_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Target:
    """Is where a URL leads: whom to dial, and what to ask for there."""

    origin: Origin
    path: str
    authority: str

    def head(self, request: OutboundRequest) -> bytes:
        """Return the request line and the headers, which were checked."""
        headers = {**rules.DEFAULT_HEADERS, **request.headers}
        lines = [f"{request.method} {self.path} HTTP/1.1\r\nHost: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if request.body or request.method != "GET":
            lines.append(f"Content-Length: {len(request.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _Names:
    """Resolves names, each once for all who wait, and remembers the answers for a while.

    A lookup that hangs cannot be ended: whoever asks again waits for the same one, so that it takes
    one thread and no more. Meanwhile the last good answer serves, which is judged like any other.
    """

    def __init__(self, resolve: AsyncResolve, *, limit: float, kept_seconds: float) -> None:
        self._resolve = resolve
        self._limit = limit
        self._kept_seconds = kept_seconds
        self._lookups: dict[tuple[str, int], asyncio.Task[Sequence[str]]] = {}
        self._last: dict[tuple[str, int], Sequence[str]] = {}

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name, not judged; none where it has none or nobody answers."""
        key = (host, port)
        if (lookup := self._lookups.get(key)) is None:
            lookup = self._lookups[key] = asyncio.create_task(self._look_up(host, port))
            lookup.add_done_callback(partial(self._remember, key))
        try:
            async with asyncio.timeout(self._limit):
                return await asyncio.shield(lookup)
        except TimeoutError:
            return self._last.get(key, ())

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        try:
            return await self._resolve(host, port)
        except (OSError, UnicodeError):
            return ()

    def _remember(self, key: tuple[str, int], lookup: asyncio.Task[Sequence[str]]) -> None:
        if lookup.cancelled() or lookup.exception() or not lookup.result():
            del self._lookups[key]
        else:
            if len(self._last) >= _NAMES:
                self._last.clear()
            self._last[key] = lookup.result()
            lookup.get_loop().call_later(self._kept_seconds, self._lookups.pop, key)


class EgressClient:
    """Sends requests over kept-alive connections; owned by one event loop, used as a context.

    Every connection goes to an address that is judged when it is dialled. `resolve` replaces the
    platform's resolver. Answers are remembered for `dns_cache_seconds`, which spares a burst of
    new connections one lookup each.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        resolve: AsyncResolve | None = None,
        dns_cache_seconds: float = 10.0,
    ) -> None:
        self._policy = policy
        self._names = _Names(
            resolve or self._resolve_in_thread,
            # Shorter than the limit of the whole connection, so that a dead name server is told
            # from a dead host.
            limit=policy.connect_timeout * 0.9,
            kept_seconds=dns_cache_seconds,
        )
        self._tls = rules.tls_context(policy.ca_bundle)
        self._targets: dict[str, _Target] = {}
        self._connections: set[Connection] = set()
        self._idle: dict[Origin, list[Connection]] = {}
        self._is_open = False
        # Lookups that hang must starve nobody else's threads: neither the loop's default
        # executor nor uvloop's four.
        self._threads = ThreadPoolExecutor(32, thread_name_prefix="dns")

    async def __aenter__(self) -> Self:
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        self._tidying = self._loop.call_later(_KEPT_SECONDS, self._tidy)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_open = False
        self._tidying.cancel()
        for connection in tuple(self._connections):
            connection.abort()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def send(
        self,
        request: OutboundRequest,
        *,
        first_byte_timeout: float,
        idle_timeout: float,
        connect_timeout: float | None = None,
    ) -> OutboundResponse:
        """Send a request and return when the headers of its answer are there.

        Seconds each: `connect_timeout` (default: the policy's) for name, connection and
        handshake; `first_byte_timeout` from there to the end of the answer's headers, dripped or
        not; `idle_timeout` for every later wait. A total deadline is the caller's. Raises
        `EgressError` alone. A request that fails on a kept-alive connection is not repeated:
        nobody knows whether the upstream began on it.
        """
        if not self._is_open:
            raise ConnectFailed("the client is closed")
        if not rules.are_sendable(request.headers):
            raise UnsendableRequest
        target = self._targets.get(request.url) or self._target(request.url)
        connection = self._kept(target.origin) or await self._dial(
            target.origin, connect_timeout or self._policy.connect_timeout
        )
        limit = self._loop.call_later(first_byte_timeout, connection.expire, "first byte")
        try:
            connection.send(target.head(request), request.body)
            await connection.answered()
        except BaseException:
            connection.abort()
            raise
        finally:
            limit.cancel()
        refused = rules.check_head(connection.status, connection.headers.get("content-encoding"))
        if refused is not None:
            connection.abort()
            raise refused
        return OutboundResponse(
            connection,
            idle_timeout,
            self._policy.max_response_bytes,
            partial(self._keep, target.origin),
        )

    def _target(self, text: str) -> _Target:
        if len(self._targets) >= _NAMES:
            self._targets.clear()
        base = rules.vet(text, self._policy)
        rest = text.removeprefix(base.text)
        target = self._targets[text] = _Target(
            origin=(base.scheme, base.host, base.port),
            path=rest if rest.startswith("/") else f"/{rest}",
            authority=base.text.removeprefix(f"{base.scheme}://"),
        )
        return target

    def _kept(self, origin: Origin) -> Connection | None:
        """Return the connection that was used last, if one is left."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and time.monotonic() - connection.idle_since < _KEPT_SECONDS:
                return connection
            connection.abort()
        return None

    def _keep(self, origin: Origin, connection: Connection) -> None:
        """Take back the connection of a finished answer."""
        if self._is_open and connection.is_reusable:
            connection.idle_since = time.monotonic()
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    def _tidy(self) -> None:
        """Close what nobody has used for long, and forget what was closed."""
        long_ago = time.monotonic() - _KEPT_SECONDS
        for origin, idle in tuple(self._idle.items()):
            for connection in idle:
                if connection.idle_since < long_ago:
                    connection.abort()
            self._idle[origin] = [connection for connection in idle if connection.is_open]
            if not self._idle[origin]:
                del self._idle[origin]
        self._tidying = self._loop.call_later(_KEPT_SECONDS, self._tidy)

    async def _dial(self, origin: Origin, seconds: float) -> Connection:
        """Return a new connection to a judged address of the origin."""
        problem: EgressError
        try:
            async with asyncio.timeout(seconds):
                return await self._connected(*origin)
        except EgressError as exc:
            problem = type(exc)(*exc.args)
        except TimeoutError:
            problem = TimedOut("connect")
        except ssl.SSLError:
            problem = TLSFailed()
        except (OSError, RuntimeError):
            problem = ConnectFailed()
        # Raised outside the handlers: no cause, no context and no library frame stays with it.
        raise problem

    async def _connected(self, scheme: str, host: str, port: int) -> Connection:
        addresses: Sequence[str]
        if (pinned := self._policy.pinned(host, port)) is not None:
            addresses, port = [pinned[0]], pinned[1]
        elif is_address(host):
            addresses = [host]
        else:
            addresses = await self._names.addresses(host, port)
        is_plain = scheme == "http"
        line = await aiohappyeyeballs.start_connection(
            [
                (
                    socket.AF_INET6 if ":" in address else socket.AF_INET,
                    socket.SOCK_STREAM,
                    socket.IPPROTO_TCP,
                    "",
                    (address, port),
                )
                for address in rules.judge(addresses, self._policy, port, plain=is_plain)
            ],
            happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
            loop=self._loop,
        )
        try:
            _, connection = await self._loop.create_connection(
                partial(Connection, self._connections.discard),
                sock=line,
                ssl=None if is_plain else self._tls,
                server_hostname=None if is_plain else host,
            )
        except BaseException:
            line.close()
            raise
        if connection.is_open:
            self._connections.add(connection)
        return connection

    async def _resolve_in_thread(self, host: str, port: int) -> Sequence[str]:
        return await self._loop.run_in_executor(self._threads, rules.system_addresses, host, port)


class Headers(Mapping[str, str]):
    """Is the headers of an answer, whose names have no case."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@dataclass(frozen=True, slots=True)
class Peer:
    """Is the other end of a connection: its address, and SHA-256 of its certificate's key."""

    address: str | None
    certificate_key: str | None


def _key_fingerprint(certificate: bytes) -> str:
    key = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


class OutboundResponse:
    """Is an answer whose headers are there: `status`, case-insensitive `headers`, and the body.

    At most about 128 KiB wait in memory: a reader that stops, stops the upstream. Reading to the
    end gives the connection back for reuse; `close()` before the end closes it.
    """

    __slots__ = (
        "_connection",
        "_idle_timeout",
        "_keep",
        "_limit",
        "_since",
        "_timer",
        "headers",
        "status",
    )

    def __init__(
        self,
        connection: Connection,
        idle_timeout: float,
        limit: int,
        keep: Callable[[Connection], None],
    ) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = Headers(connection.headers)
        self._connection: Connection | None = connection
        self._idle_timeout = idle_timeout
        self._limit = limit
        self._keep = keep
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> Peer:
        """Tell who answers, as far as the open connection knows."""
        address = tls = None
        if self._connection is not None:
            address = self._connection.transport.get_extra_info("peername")
            tls = self._connection.transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return Peer(
            address=str(address[0]) if address else None,
            certificate_key=None if certificate is None else _key_fingerprint(certificate),
        )

    async def readany(self) -> bytes:
        """Return what has arrived, waiting for at least one byte; b"" at the end.

        Raises `BadResponse`, `TimedOut` ("idle") and `TooLarge` (past the policy's bound).
        """
        connection = self._connection
        if connection is None:
            return b""
        if not connection.has_news:
            await self._news(connection)
        if data := connection.take():
            self._limit -= len(data)
            if self._limit >= 0:
                return data
            self.close()
            raise TooLarge
        self.close()
        if connection.is_complete:
            return b""
        assert connection.problem is not None
        raise connection.problem

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives. Raises like `readany`."""
        while chunk := await self.readany():
            yield chunk

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole body. Raises like `readany`, `TooLarge` past `limit` bytes."""
        if limit is not None:
            self._limit = min(self._limit, limit)
        chunks = []
        while chunk := await self.readany():
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self, *, linger: float = 0) -> None:
        """End the exchange; idempotent and immediate. An unfinished body closes the connection.

        With `linger` it has so many seconds to finish in the background, read by nobody: for an
        upstream that has said everything but the end mark of HTTP.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if connection.is_complete:
            self._keep(connection)
        elif linger and connection.problem is None:
            connection.linger(linger, self._keep)
        else:
            connection.abort()

    async def _news(self, connection: Connection) -> None:
        if self._timer is None:
            self._timer = _later(self._idle_timeout, self._check_idle)
        self._since = time.monotonic()
        try:
            while not connection.has_news:
                await connection.wait()
        finally:
            self._since = None

    def _check_idle(self) -> None:
        # One timer per answer, not one per chunk: it looks back when it fires, and sets itself
        # again only while somebody waits, so that a forgotten answer is not kept alive by it.
        self._timer = None
        if self._since is None or self._connection is None:
            return
        left = self._since + self._idle_timeout - time.monotonic()
        if left <= 0:
            self._connection.expire("idle")
        else:
            self._timer = _later(left, self._check_idle)


def _later(seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, callback)
