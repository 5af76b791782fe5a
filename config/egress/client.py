"""The asynchronous client: it resolves names, checks addresses and keeps connections alive."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar, overload
from weakref import WeakValueDictionary

import aiohappyeyeballs

from config.egress import rules
from config.egress.addresses import NO_REACH, EgressPolicy, Proxy, Reach, is_address
from config.egress.connection import UpstreamConnection, copy_problem
from config.egress.errors import (
    ConnectFailed,
    ConnectionLost,
    EgressError,
    ProxyFailed,
    TimedOut,
    TLSFailed,
    TooLarge,
    UnsendableRequest,
)
from config.egress.rules import OutboundRequest

AsyncResolve = Callable[[str, int], Awaitable[Sequence[str]]]
# Scheme, host and port, and whose connections these are: what one may reach, another may not.
Origin = tuple[str, str, int, Reach]
Default = TypeVar("Default")

# Shorter than, or close to, the time for which common servers keep an idle connection.
_KEPT_SECONDS: Final = 15.0
# The maximum number of remembered URLs and names.
_MAX_REMEMBERED: Final = 4096
# A lookup that hangs cannot be stopped, and whoever chose the name may let it hang. So the names of
# one organization take a quarter of the threads at most. Those of all organizations leave a quarter
# to the operator, whose names under one domain take no more either.
_THREADS: Final = 32
_THREADS_OF_ALL_OWNERS: Final = 24
_THREADS_OF_ONE: Final = 8
# The wait for one address before the next one is tried in parallel (RFC 8305, section 5).
_NEXT_ADDRESS_SECONDS: Final = 0.25
_PROXY_HEAD_BYTES: Final = 16 * 1024
# The part of a connection's time within which a proxy accepts: the rest is for what it connects to.
_PROXY_SHARE: Final = 0.5
_PROXY_ANSWER: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


@dataclass(frozen=True, slots=True)
class _Target:
    """The parts of a checked URL: the origin to connect to, and the path to request there."""

    origin: Origin
    path: str
    authority: str

    def head(self, request: OutboundRequest) -> bytes:
        """Returns the request line and the headers, which were checked before."""
        headers = {**rules.DEFAULT_HEADERS, **request.headers}
        lines = [f"{request.method} {self.path} HTTP/1.1\r\nHost: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if request.body or request.method != "GET":
            length = len(request.body) + sum(map(len, request.rest))
            lines.append(f"Content-Length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _Name(NamedTuple):
    """A name to look up for its owner, who waits for no lookup of another one."""

    host: str
    port: int
    owner: str = ""


class _Resolver:
    """Resolves each name once for all callers that wait, and caches the addresses for a while.

    A lookup that hangs cannot be stopped, so later callers wait for the same lookup, which takes
    only one thread, and few lookups of one owner run at once.
    """

    def __init__(self, resolve: AsyncResolve, *, kept_seconds: float) -> None:
        self._resolve = resolve
        self._kept_seconds = kept_seconds
        self._lookups: dict[_Name, asyncio.Task[Sequence[str]]] = {}
        self._last: dict[_Name, Sequence[str]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._turns_of_owners = asyncio.Semaphore(_THREADS_OF_ALL_OWNERS)

    async def addresses(self, name: _Name, seconds: float) -> Sequence[str]:
        """Returns the unchecked addresses of a name; none if the lookup failed.

        `seconds` is the limit of the whole connection. After almost half of it, a caller gets the
        last known addresses: the rest is for connecting. Without these it waits nine tenths, so
        that errors distinguish a name server that does not answer from a host that does not.
        """
        if (lookup := self._lookups.get(name)) is None:
            lookup = self._lookups[name] = asyncio.create_task(self._look_up(name))
            lookup.add_done_callback(partial(self._remember, name))
        last = self._last.get(name, ())
        try:
            async with asyncio.timeout(seconds * (0.45 if last else 0.9)):
                return await asyncio.shield(lookup)
        except TimeoutError:
            return last

    async def _look_up(self, name: _Name) -> Sequence[str]:
        whose = name.owner or ".".join(name.host.rstrip(".").rsplit(".", 2)[-2:])
        turns = self._turns.setdefault(whose, asyncio.Semaphore(_THREADS_OF_ONE))
        try:
            async with turns, self._turns_of_owners if name.owner else nullcontext():
                # One too many is remembered, so that the name is refused, and not all of them.
                return (await self._resolve(name.host, name.port))[: rules.MOST_ADDRESSES + 1]
        except (OSError, UnicodeError):
            return ()

    def _remember(self, name: _Name, lookup: asyncio.Task[Sequence[str]]) -> None:
        if lookup.cancelled() or lookup.exception() or not lookup.result():
            del self._lookups[name]
        else:
            if len(self._last) >= _MAX_REMEMBERED:
                self._last.clear()
            self._last[name] = lookup.result()
            lookup.get_loop().call_later(self._kept_seconds, self._lookups.pop, name)


class EgressClient:
    """Sends requests over kept-alive connections; a context manager that one event loop owns.

    Every connection goes to an address that is checked when the connection is made. `resolve`
    replaces the platform's resolver. Addresses are cached for `dns_cache_seconds`, so that a burst
    of new connections shares one lookup.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        resolve: AsyncResolve | None = None,
        dns_cache_seconds: float = 10.0,
    ) -> None:
        self._policy = policy
        self._resolver = _Resolver(
            resolve or self._resolve_in_thread, kept_seconds=dns_cache_seconds
        )
        self._tls = rules.tls_context(policy.ca_bundle)
        self._targets: dict[tuple[str, Reach], _Target] = {}
        self._connections: set[UpstreamConnection] = set()
        self._idle: dict[Origin, list[UpstreamConnection]] = {}
        self._is_open = False
        # Lookups that hang must not use up other threads: neither those of the loop's default
        # executor nor the four of uvloop.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dns")

    async def __aenter__(self) -> Self:
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        self._idle_timer = self._loop.call_later(_KEPT_SECONDS, self._close_idle)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_open = False
        self._idle_timer.cancel()
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
        reach: Reach = NO_REACH,
    ) -> OutboundResponse:
        """Sends a request and returns when the headers of the response have arrived.

        The limits and the errors are those of `start` and of `OutboundResponse.receive_head`.
        """
        response = await self.start(
            request, idle_timeout=idle_timeout, connect_timeout=connect_timeout, reach=reach
        )
        try:
            await response.receive_head(first_byte_timeout)
        except BaseException:
            response.close()
            raise
        return response

    async def start(
        self,
        request: OutboundRequest,
        *,
        idle_timeout: float,
        connect_timeout: float | None = None,
        deadline: float = math.inf,
        reach: Reach = NO_REACH,
    ) -> OutboundResponse:
        """Begins to send a request and returns its response, whose headers are still to come.

        `reach` is what the owner of the URL may reach besides; its connections are never shared
        with an owner of another one. The limits are in seconds: `connect_timeout` (default: the
        policy's) for name resolution, connection and handshake; `idle_timeout` for every wait for a
        part of the body. No wait lasts longer than until `deadline`, a time of `time.monotonic`.
        Raises only `EgressError`. A request that meets a kept-alive connection which the upstream
        closes before any byte of an answer is sent once more, on a new one: most often the upstream
        has closed it before it read the request.
        """
        if not self._is_open:
            raise ConnectFailed("the client is closed")
        if not rules.are_valid_headers(request.headers):
            raise UnsendableRequest
        target = self._targets.get((request.url, reach)) or self._parse_target(request.url, reach)
        seconds = connect_timeout or self._policy.connect_timeout
        dial = partial(self._send_on_new, target, request, seconds, deadline)
        if (connection := self._take_idle(target.origin)) is None:
            connection, send_again = await dial(), None
        else:
            connection.send(target.head(request), request.body, request.rest)
            send_again = dial
        return OutboundResponse(
            connection,
            idle_timeout,
            deadline,
            self._policy.max_response_bytes,
            partial(self._keep_idle, target.origin),
            send_again,
        )

    async def _send_on_new(
        self, target: _Target, request: OutboundRequest, seconds: float, deadline: float
    ) -> UpstreamConnection:
        """Begins to send a request on a new connection."""
        left = min(seconds, deadline - time.monotonic())
        connection = await self._open_connection(target.origin, left)
        connection.send(target.head(request), request.body, request.rest)
        return connection

    def _parse_target(self, text: str, reach: Reach) -> _Target:
        if len(self._targets) >= _MAX_REMEMBERED:
            self._targets.clear()
        base = rules.check_url(text, self._policy.extend(reach))
        rest = text.removeprefix(base.text)
        target = self._targets[text, reach] = _Target(
            origin=(base.scheme, base.host, base.port, reach),
            path=rest if rest.startswith("/") else f"/{rest}",
            authority=base.text.removeprefix(f"{base.scheme}://"),
        )
        return target

    def _take_idle(self, origin: Origin) -> UpstreamConnection | None:
        """Returns the idle connection of the origin that was used last, or `None`."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and time.monotonic() - connection.idle_since < _KEPT_SECONDS:
                return connection
            connection.abort()
        return None

    def _keep_idle(self, origin: Origin, connection: UpstreamConnection) -> None:
        """Keeps the connection of a finished response, or closes it when it cannot be reused."""
        if self._is_open and connection.is_reusable:
            connection.idle_since = time.monotonic()
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    def _close_idle(self) -> None:
        """Closes connections that were idle for long, and removes closed ones."""
        long_ago = time.monotonic() - _KEPT_SECONDS
        for origin, idle in tuple(self._idle.items()):
            for connection in idle:
                if connection.idle_since < long_ago:
                    connection.abort()
            self._idle[origin] = [connection for connection in idle if connection.is_open]
            if not self._idle[origin]:
                del self._idle[origin]
        self._idle_timer = self._loop.call_later(_KEPT_SECONDS, self._close_idle)

    async def _open_connection(self, origin: Origin, seconds: float) -> UpstreamConnection:
        """Returns a new connection to an allowed address of the origin. Raises `EgressError`."""
        problem: EgressError
        try:
            async with asyncio.timeout(seconds):
                return await self._connect(*origin, seconds)
        except EgressError as exc:
            problem = type(exc)(*exc.args)
        except TimeoutError:
            problem = TimedOut("connect")
        except ssl.SSLError as exc:
            problem = TLSFailed(rules.describe_tls(exc))
        except (OSError, RuntimeError):
            problem = ConnectFailed()
        # Raised outside the handlers, so that it has no cause, no context and no library frame.
        try:
            raise problem
        finally:
            # The traceback leads to this frame.
            del problem

    async def _connect(
        self, scheme: str, host: str, port: int, reach: Reach, seconds: float
    ) -> UpstreamConnection:
        """Connects to the allowed address that answers first; tries them a short time apart."""
        policy = self._policy.extend(reach)
        addresses: Sequence[str]
        if (pinned := policy.pinned_address(host, port)) is not None:
            addresses, port = [pinned[0]], pinned[1]
        elif is_address(host):
            addresses = [host]
        else:
            addresses = await self._resolver.addresses(_Name(host, port, reach.owner), seconds)
        is_plain = scheme == "http"
        checked = rules.check_addresses(addresses, policy, port, plain=is_plain)
        proxy = policy.proxy if reach.is_proxied else None
        if proxy is not None and not any(map(policy.is_own, checked)):
            connected_socket = await self._dial_through(proxy, checked, port, seconds)
        else:
            connected_socket = await self._dial(checked, port)
        try:
            _, connection = await self._loop.create_connection(
                partial(UpstreamConnection, self._connections.discard),
                sock=connected_socket,
                ssl=None if is_plain else self._tls_of(policy),
                server_hostname=None if is_plain else host,
            )
        except BaseException:
            connected_socket.close()
            raise
        if connection.is_open:
            self._connections.add(connection)
        return connection

    async def _dial(self, addresses: Sequence[str], port: int) -> socket.socket:
        """Returns a connection to the address that answers first."""
        return await aiohappyeyeballs.start_connection(
            [
                (
                    socket.AF_INET6 if ":" in address else socket.AF_INET,
                    socket.SOCK_STREAM,
                    socket.IPPROTO_TCP,
                    "",
                    (address, port),
                )
                for address in addresses
            ],
            happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
            loop=self._loop,
        )

    async def _dial_through(
        self, proxy: Proxy, addresses: Sequence[str], port: int, seconds: float
    ) -> socket.socket:
        """Returns a connection to one of the judged addresses, which the operator's proxy makes.

        The proxy is told the address and not the name, which it could resolve to another one.
        """
        hosts: Sequence[str] = [proxy.host]
        if not is_address(proxy.host):
            hosts = await self._resolver.addresses(_Name(proxy.host, proxy.port), seconds)
        if not hosts:
            raise ProxyFailed("the name of the proxy has no address")
        answer = ""
        for address in addresses:
            try:
                async with asyncio.timeout(seconds * _PROXY_SHARE):
                    line = await self._dial(hosts, proxy.port)
            except TimeoutError:
                raise ProxyFailed("the proxy does not answer") from None
            except OSError:
                raise ProxyFailed("the proxy accepts no connection") from None
            try:
                answer = await self._ask_proxy(line, proxy, address, port)
            except BaseException:
                line.close()
                raise
            if answer == "200":
                return line
            line.close()
        raise ProxyFailed(f"the proxy answered {answer or 'no HTTP'}")

    async def _ask_proxy(self, line: socket.socket, proxy: Proxy, address: str, port: int) -> str:
        """Returns the status with which a proxy answers; empty if it is no HTTP."""
        target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        login = f"Proxy-Authorization: Basic {proxy.login}\r\n" if proxy.login else ""
        request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n"
        await self._loop.sock_sendall(line, request.encode("ascii"))
        head = b""
        # The server at the other end says nothing first, so nothing of it is read here.
        while b"\r\n\r\n" not in head and len(head) < _PROXY_HEAD_BYTES:
            if not (data := await self._loop.sock_recv(line, _PROXY_HEAD_BYTES)):
                break
            head += data
        found = _PROXY_ANSWER.match(head)
        return found[1].decode() if found else ""

    def _tls_of(self, policy: EgressPolicy) -> ssl.SSLContext:
        if not policy.authorities:
            return self._tls
        return rules.tls_context(policy.ca_bundle, policy.authorities)

    async def _resolve_in_thread(self, host: str, port: int) -> Sequence[str]:
        return await self._loop.run_in_executor(
            self._threads, rules.resolve_with_system, host, port
        )


class Headers(dict[str, str]):
    """The headers of a response by their names in lower case; a name in any case finds them."""

    __slots__ = ()

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    @overload
    def get(self, name: str, default: None = None, /) -> str | None: ...

    @overload
    def get(self, name: str, default: Default, /) -> str | Default: ...

    def get(self, name: str, default: Any = None, /) -> Any:
        return super().get(name.lower(), default)


_NO_HEADERS: Final = Headers({})


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection: its address, and its certificate in DER."""

    address: str | None
    certificate: bytes | None


class OutboundResponse:
    """The response to a request: `status`, case-insensitive `headers`, and the body.

    The headers are known once `receive_head` has returned. When the reader pauses, reading from the
    upstream pauses with at most 320 KiB in memory. Reading to the end returns the
    connection for reuse; `close()` before the end closes it.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_deadline",
        "_keep",
        "_limit",
        "_send_again",
        "_was_sent",
        "headers",
        "idle_timeout",
        "status",
    )

    def __init__(
        self,
        connection: UpstreamConnection,
        idle_timeout: float,
        deadline: float,
        limit: int,
        keep: Callable[[UpstreamConnection], None],
        send_again: Callable[[], Awaitable[UpstreamConnection]] | None,
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = _NO_HEADERS
        self._connection: UpstreamConnection | None = connection
        # The longest wait for a part of the body; a reader may change it between two parts.
        self.idle_timeout = idle_timeout
        self._deadline = deadline
        self._limit = limit
        self._keep = keep
        # Sends the request on a new connection, if this one was kept alive.
        self._send_again = send_again
        self._body: bytes | bytearray = b""
        self._was_sent = False

    @property
    def is_sent(self) -> bool:
        """Returns whether the upstream may act on the request: `Connection.is_sent`."""
        return self._was_sent if self._connection is None else self._connection.is_sent

    async def receive_head(self, timeout: float) -> None:
        """Sends the rest of the request and returns when the response's headers have arrived.

        `timeout` is in seconds. Raises `EgressError`. A call that was cancelled may be repeated.
        """
        connection = self._connection
        if connection is None:
            raise ConnectFailed("the response is closed")
        send_again, is_lost = self._send_again, False
        try:
            await connection.receive_head(timeout, self._deadline)
        except ConnectionLost:
            if send_again is None:
                raise
            is_lost = True
        # The request is not held any longer than it may be needed.
        self._send_again = None
        if is_lost and send_again is not None:
            connection = self._connection = await send_again()
            await connection.receive_head(timeout, self._deadline)
        refused = rules.find_head_problem(
            connection.status, connection.headers.get("content-encoding")
        )
        if refused is not None:
            raise refused
        self.status = connection.status
        self.headers = Headers(connection.headers)

    @property
    def peer(self) -> Peer:
        """Returns the other end of the connection; its fields are `None` after the end."""
        address = tls = None
        if self._connection is not None:
            address = self._connection.transport.get_extra_info("peername")
            tls = self._connection.transport.get_extra_info("ssl_object")
        return Peer(
            address=str(address[0]) if address else None,
            certificate=None if tls is None else tls.getpeercert(binary_form=True),
        )

    async def readany(self) -> bytes:
        """Waits for at least one byte and returns the bytes that have arrived; b"" at the end.

        Raises `BadResponse`, `TimedOut` ("idle") and `TooLarge` (beyond the policy's limit).
        """
        connection = self._connection
        if connection is None:
            return b""
        if not connection.has_news:
            await connection.wait_for_news(self.idle_timeout, self._deadline)
        if data := connection.take_body():
            self._limit -= len(data)
            if self._limit >= 0:
                return data
            self.close()
            raise TooLarge
        self.close()
        if connection.is_complete:
            return b""
        raise copy_problem(connection)

    def watch_unread(self, note: Callable[[int], None]) -> None:
        """Calls `note` with the bytes that wait while the upstream is paused; with 0 at the end."""
        connection = self._connection
        if connection is not None:
            connection.note_unread = note
            if connection.unread:
                note(connection.unread)

    def take_spent(self) -> float:
        """Returns the seconds that parsing HTTP took since the last call."""
        connection = self._connection
        if connection is None:
            return 0.0
        spent, connection.spent = connection.spent, 0.0
        return spent

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Yields the body as it arrives. Raises the errors of `readany`."""
        while chunk := await self.readany():
            yield chunk

    async def read(
        self,
        limit: int | None = None,
        count: Callable[[int], Awaitable[None]] | None = None,
    ) -> bytes | bytearray:
        """Returns the whole body. Raises as `readany` does, and `TooLarge` beyond `limit` bytes.

        `count` is called with the size of each part; reading ends with the error that it raises. A
        call that was cancelled may be repeated: it returns what the first call had read too. A body
        of many parts grows in place and is never joined, which would take twice its size.
        """
        if limit is not None:
            self._limit = min(self._limit, limit - len(self._body))
            if self._limit < 0:
                # The first call had read more; nothing is waited for.
                self.close()
                raise TooLarge
        while part := await self.readany():
            if self._body:
                if not isinstance(self._body, bytearray):
                    self._body = bytearray(self._body)
                self._body += part
            else:
                self._body = part
            # The part is kept first, because a cancellation may end the call here too.
            if count is not None:
                await count(len(part))
        body, self._body = self._body, b""
        return body

    def close(self, *, linger: float = 0) -> None:
        """Ends the exchange at once; idempotent. An unfinished body closes the connection.

        `linger` gives the body this number of seconds to end in the background, unread. It is for
        an upstream that has sent everything except the end mark of HTTP.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._was_sent = connection.is_sent
        if (note := connection.note_unread) is not None:
            connection.note_unread = None
            if connection.unread:
                note(0)
        if connection.is_complete:
            self._keep(connection)
        elif linger and connection.problem is None:
            connection.linger(linger, self._keep)
        else:
            connection.abort()
