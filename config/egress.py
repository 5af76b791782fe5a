"""Opens every connection to the network outside: one URL grammar, one address policy, two clients.

The order never changes: parse the URL with our own ASCII grammar, resolve its name once, judge
every answer, connect to a judged address, and only then speak TLS with the original name. There
is no second resolution, so a name whose answers change between check and use gains nothing.

`Door` is the asynchronous client of the data plane and of validation, `fetch` the synchronous one
of the control plane. Both follow no redirect, read neither proxy variables nor `.netrc`, ask for
an uncompressed body and bound what they read. They raise `EgressError` alone, in our own words:
an HTTP library can print a bearer key in its error, so no library exception leaves this module,
neither as text nor as a cause.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Self, cast

import aiohttp
import certifi
import requests
import urllib3
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.hdrs import CONTENT_ENCODING
from aiohttp.http_exceptions import HttpProcessingError
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from yarl import URL

from config.addresses import (
    BaseURL,
    EgressPolicy,
    InvalidURL,
    is_address,
    parse_base_url,
    parse_target,
    refusal,
)

__all__ = [
    "AddressRefused",
    "BadResponse",
    "BaseURL",
    "ConnectFailed",
    "Door",
    "EgressError",
    "EgressPolicy",
    "InvalidURL",
    "OutboundRequest",
    "OutboundResponse",
    "Peer",
    "RedirectRefused",
    "TLSFailed",
    "TimedOut",
    "TooLarge",
    "UnsendableRequest",
    "fetch",
    "parse_base_url",
    "refusal",
]

Resolve = Callable[[str, int], Sequence[str]]
AsyncResolve = Callable[[str, int], Awaitable[Sequence[str]]]

USER_AGENT = "Causeway"
DEFAULT_HEADERS = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}


class EgressError(Exception):
    """Tells why an exchange failed. `str()` is for our logs, `public` for everybody else.

    Neither holds a word that came from a library or from the other side. Name, address, port and
    TLS problems share one public sentence: telling them apart would map an internal network.
    """

    text = "the exchange failed"
    public = "The upstream could not be reached."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


class AddressRefused(EgressError):
    """The policy refuses the URL, an address behind its name, or the port; nothing was dialled."""

    text = "refused by the egress policy"


class ConnectFailed(EgressError):
    """No answer began: no such name, refused, unreachable, or closed before the headers."""

    text = "could not connect"


class TLSFailed(EgressError):
    """The certificate or the handshake is wrong; no request header was sent."""

    text = "TLS failed"


class TimedOut(EgressError):
    """A time limit passed; `phase` is "connect", "first byte", "idle" or "total"."""

    text = "timed out"

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase
        if phase != "connect":
            self.public = "The upstream did not answer in time."


class TooLarge(EgressError):
    """The body is longer than allowed."""

    text = "the answer is too large"
    public = "The upstream's answer is too large."


class RedirectRefused(EgressError):
    """The answer is a redirect; none is followed."""

    text = "the answer is a redirect"
    public = "The upstream answered with a redirect."


class BadResponse(EgressError):
    """The answer breaks HTTP, ends early, or is compressed though nobody asked for it."""

    text = "the answer is not usable HTTP"
    public = "The upstream's answer is invalid."


class UnsendableRequest(EgressError):
    """A header holds a control character or one outside ASCII; nothing was sent."""

    text = "the request cannot be sent"
    public = "The request cannot be sent to the upstream."


def _judge(
    addresses: Sequence[str], policy: EgressPolicy, port: int, *, plain: bool
) -> Sequence[str]:
    """Return the addresses when each of them may be dialled; one refused answer refuses all."""
    if not addresses:
        raise ConnectFailed("no such name")
    for address in addresses:
        if reason := refusal(address, policy, port, plain=plain):
            raise AddressRefused(reason)
    return addresses


def _vet(text: str, policy: EgressPolicy) -> BaseURL:
    try:
        return parse_target(text, policy=policy)
    except InvalidURL:
        raise AddressRefused("URL") from None


@dataclass(slots=True)
class OutboundRequest:
    """Is one request; headers and body stay out of its `repr`, and so out of every traceback."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


@lru_cache(maxsize=4)
def _tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """Return the one context per bundle: reading the authorities takes tens of milliseconds."""
    context = ssl.create_default_context()
    # Some Python builds look for the system's authorities where there are none.
    context.load_verify_locations(certifi.where())
    if ca_bundle is not None:
        context.load_verify_locations(ca_bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _system_addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    # A sockaddr with a scope id has it beside the address: put it back, to be refused.
    return [
        f"{address[0]}%{address[3]}" if len(address) == 4 and address[3] else str(address[0])
        for _, _, _, _, address in found
    ]


def _check_headers(headers: Mapping[str, str]) -> None:
    # The libraries differ in what they let through: a NUL, a lone surrogate, Latin-1 or UTF-8.
    text = "".join(headers) + "".join(headers.values())
    if not (text.isascii() and text.isprintable()):
        raise UnsendableRequest()


def _check_head(status: int, encoding: str | None) -> EgressError | None:
    if 300 <= status < 400:
        return RedirectRefused()
    if status < 200:
        return BadResponse("interim status")
    if encoding and encoding.lower() != "identity":
        return BadResponse("compressed")
    return None


class _Wait:
    """Bounds the time from a connection, new or reused, to the end of the answer's headers.

    Half the price of `asyncio.timeout`, and it holds for an upload that nobody reads and for
    headers that drip.
    """

    __slots__ = ("expired", "handle", "seconds", "transport")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expired = False
        self.handle: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def expire(self, transport: asyncio.Transport | None) -> None:
        self.expired = True
        if transport is not None:
            transport.abort()


_waiting: ContextVar[_Wait] = ContextVar("waiting")


class _RefusedDial(OSError):
    """Is what aiohttp's dialling loop can carry: it loses everything but OSError on the way."""


class _Protocol(ResponseHandler):
    """Closes at once what is not kept.

    A TLS transport's own `close` waits up to thirty seconds for the other side's farewell, and
    an upstream that goes on talking must not be paid for listening.
    """

    def close(self) -> None:
        self.abort()


class _Connector(aiohttp.TCPConnector):
    """Starts the wait for the first byte when a connection is there, new or reused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_Protocol, loop=self._loop))

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        wait = _waiting.get()
        if wait.handle is not None:  # aiohttp repeats an idempotent request once
            wait.handle.cancel()
            if wait.expired:
                raise aiohttp.ServerTimeoutError()
        connection = await super().connect(req, traces, timeout)
        wait.transport = connection.transport
        wait.handle = self._loop.call_later(wait.seconds, wait.expire, connection.transport)
        return connection


class _Resolver(AbstractResolver):
    """Resolves once, within a time limit, and returns judged addresses only."""

    def __init__(self, policy: EgressPolicy, resolve: AsyncResolve, *, plain: bool) -> None:
        self._policy = policy
        self._resolve = resolve
        self._plain = plain

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses: Sequence[str]
        if (pinned := self._policy.pinned(host, port)) is not None:
            addresses, port = [pinned[0]], pinned[1]
        else:
            try:
                # Shorter than the limit of the whole connection, so that a dead name server
                # is told from a dead host.
                async with asyncio.timeout(self._policy.connect_timeout * 0.9):
                    addresses = await self._resolve(host, port)
            except (OSError, UnicodeError):
                raise ConnectFailed("no such name") from None
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in _judge(addresses, self._policy, port, plain=self._plain)
        ]

    async def close(self) -> None:
        return None


class Door:
    """Sends requests over kept-alive connections; owned by one event loop, used as a context.

    Every connection goes to an address that was judged when its name was resolved and again when
    it is dialled (address literals never meet a resolver). `resolve` replaces the platform's
    resolver. Answers are remembered for `dns_cache_seconds`, which spares a burst of new
    connections one lookup each.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        resolve: AsyncResolve | None = None,
        dns_cache_seconds: float = 10.0,
    ) -> None:
        self._policy = policy
        self._resolve = resolve or self._resolve_in_thread
        self._dns_cache_seconds = dns_cache_seconds
        self._tls = _tls_context(policy.ca_bundle)
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._targets: dict[str, tuple[aiohttp.ClientSession, URL]] = {}
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        # Lookups that hang must starve nobody else's threads: neither the loop's default
        # executor nor uvloop's four.
        self._threads = ThreadPoolExecutor(32, thread_name_prefix="dns")

    async def __aenter__(self) -> Self:
        # One pool per scheme: a socket factory is not told the scheme, and plain HTTP
        # is bound to the allowed networks.
        self._sessions = {"https": self._session(False), "http": self._session(True)}
        return self

    async def __aexit__(self, *exc: object) -> None:
        for session in self._sessions.values():
            await session.close()
        self._targets.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _resolve_in_thread(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _system_addresses, host, port)

    def _session(self, plain: bool) -> aiohttp.ClientSession:
        connector = _Connector(
            resolver=_Resolver(self._policy, self._resolve, plain=plain),
            socket_factory=partial(self._open_socket, plain),
            ssl=self._tls,
            use_dns_cache=self._dns_cache_seconds > 0,
            ttl_dns_cache=self._dns_cache_seconds,
            limit=0,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=DEFAULT_HEADERS,
            trust_env=False,
            auto_decompress=False,
            read_bufsize=64 * 1024,
            max_line_size=16 * 1024,
            max_field_size=16 * 1024,
        )

    def _open_socket(self, plain: bool, info: tuple[Any, ...]) -> socket.socket:
        """Judge the very socket address that is about to be dialled."""
        family, kind, protocol, _, (address, port, *rest) = info
        if rest and rest[-1]:
            raise _RefusedDial("scoped address")
        if reason := refusal(address, self._policy, port, plain=plain):
            raise _RefusedDial(reason)
        return socket.socket(family, kind, protocol)

    def _target(self, text: str) -> tuple[aiohttp.ClientSession, URL]:
        if len(self._targets) >= 4096:
            self._targets.clear()
        session = self._sessions[_vet(text, self._policy).scheme]
        target = self._targets[text] = (session, URL(text, encoded=True))
        return target

    def _timeout(self, seconds: float) -> aiohttp.ClientTimeout:
        if len(self._timeouts) >= 64:
            self._timeouts.clear()
        timeout = self._timeouts[seconds] = aiohttp.ClientTimeout(
            total=None, connect=seconds, ceil_threshold=float("inf")
        )
        return timeout

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
        `EgressError` alone. A request that fails on a kept-alive connection is not repeated
        unless its method is idempotent.
        """
        problem: EgressError
        wait = _Wait(first_byte_timeout)
        token = _waiting.set(wait)
        try:
            _check_headers(request.headers)
            session, url = self._targets.get(request.url) or self._target(request.url)
            seconds = connect_timeout or self._policy.connect_timeout
            response = await session.request(
                request.method,
                url,
                headers=request.headers,
                data=_payload(request.body),
                allow_redirects=False,
                timeout=self._timeouts.get(seconds) or self._timeout(seconds),
            )
            refused = _check_head(response.status, response.headers.get(CONTENT_ENCODING))
            if refused is None:
                return OutboundResponse(
                    response, idle_timeout, self._policy.max_response_bytes, wait.transport
                )
            response.close()
            del response  # it knows the headers of both sides, and this frame is in the traceback
            problem = refused
        except EgressError as exc:
            problem = type(exc)(*exc.args)
        except (aiohttp.ClientError, OSError, ValueError, TypeError, RuntimeError) as exc:
            problem = TimedOut("first byte") if wait.expired else _sending_problem(exc)
        finally:
            _waiting.reset(token)
            if wait.handle is not None:
                wait.handle.cancel()
                # A cycle left to the garbage collector cost 4 µs a request.
                wait.handle = None
        # Raised outside the handlers: no cause, no context and no library frame stays with it.
        try:
            raise problem
        finally:
            del problem


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    # Bytes are written in one piece; beyond a megabyte that would stall the loop, and aiohttp
    # warns.
    if len(body) > 1 << 20:
        return io.BytesIO(body)
    return body or None


def _sending_problem(exc: Exception) -> EgressError:
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return TimedOut("connect")
    if isinstance(exc, aiohttp.ClientSSLError):
        return TLSFailed()
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, _RefusedDial):
        return AddressRefused(str(exc.os_error))
    if isinstance(exc, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return BadResponse()
    if isinstance(exc, aiohttp.ClientConnectorError):
        return ConnectFailed()
    if isinstance(exc, aiohttp.ServerDisconnectedError | OSError):
        return ConnectFailed("closed before the answer")
    if isinstance(exc, ValueError | TypeError):
        return UnsendableRequest()
    return ConnectFailed("the client is closed")


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
        "_content",
        "_expired",
        "_idle_timeout",
        "_limit",
        "_read",
        "_response",
        "_since",
        "_timer",
        "_transport",
        "headers",
        "status",
    )

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        idle_timeout: float,
        limit: int,
        transport: asyncio.Transport | None,
    ) -> None:
        self._transport = transport
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._content = response.content
        self._idle_timeout = idle_timeout
        self._limit = limit
        self._read = 0
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def peer(self) -> Peer:
        """Tell who answered, as far as the connection knows."""
        address = tls = None
        if self._transport is not None:
            address = self._transport.get_extra_info("peername")
            tls = self._transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return Peer(
            address=str(address[0]) if address else None,
            certificate_key=None if certificate is None else _key_fingerprint(certificate),
        )

    async def readany(self) -> bytes:
        """Return what has arrived, waiting for at least one byte; b"" at the end.

        Raises `BadResponse`, `TimedOut` ("idle") and `TooLarge` (past the policy's bound).
        """
        problem: EgressError
        try:
            if self._timer is None and not self._content.is_eof():
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._idle_timeout, self._check_idle)
            self._since = time.monotonic()
            chunk = await self._content.readany()
            self._since = None
            self._read += len(chunk)
            if self._read <= self._limit:
                if not chunk:
                    self.close()
                return chunk
            problem = TooLarge()
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError):
            problem = TimedOut("idle") if self._expired else BadResponse("ended early")
        finally:
            self._since = None
        self.close()
        try:
            raise problem
        finally:
            del problem

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives. Raises like `readany`."""
        while chunk := await self.readany():
            yield chunk

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole body. Raises like `readany`, `TooLarge` past `limit` bytes."""
        if limit is not None:
            self._limit = min(self._limit, limit)
        content = self._content
        if content.is_eof() and content.total_bytes <= self._limit:
            self.close()
            return content.read_nowait()  # most answers came with their headers
        chunks = []
        while chunk := await self.readany():
            chunks.append(chunk)
            if self._content.at_eof():
                self.close()
                break
        return b"".join(chunks)

    def close(self) -> None:
        """End the exchange; idempotent and immediate. An unfinished body closes the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._response.closed:
            self._response.close()

    def _check_idle(self) -> None:
        # One timer per answer, not one per chunk: it looks back when it fires, and sets itself
        # again only while somebody waits, so that a forgotten answer is not kept alive by it.
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._idle_timeout - time.monotonic()
        if left <= 0:
            self._expired = True
            self._response.close()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left, self._check_idle)


class _Exchange:
    """Bounds one synchronous exchange: dials judged addresses, and cuts the line at the deadline.

    Socket timeouts are per read: a peer that sends one byte a second never meets them. So a
    thread shuts the connection down, through a duplicate, because wrapping a socket in TLS takes
    its descriptor away.
    """

    def __init__(
        self, base: BaseURL, policy: EgressPolicy, seconds: float, resolve: Resolve
    ) -> None:
        self._base = base
        self._policy = policy
        self._resolve = resolve
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self.expired = False
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._line is not None:
                self._line.close()
                self._line = None

    def remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            if self._line is not None:
                with suppress(OSError):
                    self._line.shutdown(socket.SHUT_RDWR)

    def _addresses(self) -> Sequence[str]:
        future: Future[Sequence[str]] = Future()

        def look_up() -> None:
            try:
                future.set_result(self._resolve(self._base.host, self._base.port))
            except Exception as exc:  # handed to the waiting thread, which knows what to do
                future.set_exception(exc)

        # A platform lookup cannot be interrupted, only left behind.
        threading.Thread(target=look_up, daemon=True).start()
        try:
            return future.result(min(self._policy.connect_timeout, self.remaining()))
        except (OSError, UnicodeError):
            raise ConnectFailed("no such name") from None

    def dial(self) -> socket.socket:
        """Return a connection to the first judged address that answers."""
        base, policy = self._base, self._policy
        addresses: Sequence[str]
        port = base.port
        if (pinned := policy.pinned(base.host, port)) is not None:
            addresses, port = [pinned[0]], pinned[1]
        else:
            addresses = [base.host] if is_address(base.host) else self._addresses()
        for address in _judge(addresses, policy, port, plain=base.scheme == "http"):
            seconds = min(policy.connect_timeout, self.remaining())
            try:
                line = socket.create_connection((address, port), seconds)
            except OSError:
                continue
            with self._lock:
                self._line = line.dup()
            if self.expired:
                line.close()
                raise TimedOut("total")
            return line
        raise ConnectFailed()


class _PinnedHTTP(HTTPConnection):
    """Connects where the exchange says; Host, SNI and certificate keep the original name."""

    exchange: _Exchange

    def _new_conn(self) -> socket.socket:
        return self.exchange.dial()


class _PinnedHTTPS(HTTPSConnection):
    """Is `_PinnedHTTP` with TLS, which urllib3 keeps in a separate branch of its classes."""

    exchange: _Exchange

    def _new_conn(self) -> socket.socket:
        return self.exchange.dial()


class _PinnedAdapter(HTTPAdapter):
    """Gives requests a pool of one connection, which the exchange dials."""

    def __init__(self, base: BaseURL, policy: EgressPolicy, exchange: _Exchange) -> None:
        super().__init__()
        attributes = {"exchange": exchange}
        self._pool: urllib3.HTTPConnectionPool
        if base.scheme == "https":
            context = _tls_context(policy.ca_bundle)
            self._pool = urllib3.HTTPSConnectionPool(base.host, base.port, ssl_context=context)
            self._pool.ConnectionCls = cast(Any, type("_HTTPS", (_PinnedHTTPS,), attributes))
        else:
            self._pool = urllib3.HTTPConnectionPool(base.host, base.port)
            self._pool.ConnectionCls = cast(Any, type("_HTTP", (_PinnedHTTP,), attributes))

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        return self._pool

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Leave the context alone: it verifies already, and knows the operator's bundle."""

    def close(self) -> None:
        self._pool.close()
        super().close()


def fetch(
    request: OutboundRequest,
    policy: EgressPolicy,
    total_timeout: float,
    *,
    resolve: Resolve | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Exchange one request for (status, case-insensitive headers, body), within `total_timeout`.

    The limit, in seconds, covers everything from the name to the last byte. The connection is
    not kept. Raises `EgressError` alone.
    """
    problem: EgressError
    try:
        _check_headers(request.headers)
        base = _vet(request.url, policy)
        with _Exchange(base, policy, total_timeout, resolve or _system_addresses) as exchange:
            try:
                return _fetch(request, _PinnedAdapter(base, policy, exchange), exchange, policy)
            except EgressError as exc:
                problem = type(exc)(*exc.args)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as exc:
                problem = _fetching_problem(exc)
            except (OSError, http.client.HTTPException):
                problem = BadResponse()
            except (ValueError, TypeError):
                problem = UnsendableRequest()
            if exchange.expired:
                problem = TimedOut("total")
    except EgressError as exc:
        problem = type(exc)(*exc.args)
    except TypeError:
        problem = UnsendableRequest()
    try:
        raise problem
    finally:
        del problem


def _fetch(
    request: OutboundRequest, adapter: _PinnedAdapter, exchange: _Exchange, policy: EgressPolicy
) -> tuple[int, Mapping[str, str], bytes]:
    # The adapter without a session: no redirects, cookies, environment or .netrc to switch off.
    prepared = requests.Request(
        request.method,
        request.url,
        headers={**DEFAULT_HEADERS, **request.headers},
        data=request.body or None,
    ).prepare()
    response = None
    try:
        response = adapter.send(prepared, stream=True, timeout=exchange.remaining())
        refused = _check_head(response.status_code, response.headers.get("Content-Encoding"))
        if refused is not None:
            raise refused
        body = bytearray()
        while chunk := response.raw.read1(64 * 1024, decode_content=False):
            body += chunk
            if len(body) > policy.max_response_bytes:
                raise TooLarge()
        if exchange.expired:
            raise TimedOut("total")  # a body without a length ends like this too
        return response.status_code, response.headers, bytes(body)
    finally:
        if response is not None:
            response.close()
        adapter.close()


def _fetching_problem(exc: Exception) -> EgressError:
    if isinstance(exc, requests.exceptions.SSLError):
        return TLSFailed()
    if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError):
        return TimedOut("total")
    if isinstance(exc, urllib3.exceptions.HTTPError):
        return BadResponse("ended early")
    if isinstance(exc, requests.exceptions.InvalidHeader):
        return UnsendableRequest()
    if isinstance(exc, requests.ConnectionError):
        inner = exc.args[0].args if exc.args and isinstance(exc.args[0], Exception) else ()
        broken = any(isinstance(part, http.client.HTTPException) for part in inner)
        if broken and not any(isinstance(part, ConnectionError) for part in inner):
            return BadResponse()
        return ConnectFailed("closed before the answer")
    return BadResponse()
