"""The synchronous client of the control plane: each request has a connection of its own."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, BinaryIO, Final, Self, cast

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from config.egress import rules
from config.egress.addresses import BaseURL, EgressPolicy, is_address
from config.egress.errors import (
    BadResponse,
    ConnectFailed,
    ConnectionLost,
    EgressError,
    EndedEarly,
    NameUnknown,
    TimedOut,
    TLSFailed,
    TooLarge,
    UnsendableRequest,
)
from config.egress.rules import OutboundRequest

# The same as that of the client of the data plane.
_HEAD_BYTES: Final = 64 * 1024

Resolve = Callable[[str, int], Sequence[str]]


class _Connector:
    """Opens the connection of one request, to an allowed address, and ends it at a deadline.

    Socket timeouts apply to each read: a peer that sends one byte a second never reaches them. So a
    timer thread shuts the connection down. It needs a duplicate of the socket, because wrapping a
    socket in TLS takes its descriptor away.
    """

    def __init__(
        self, base: BaseURL, policy: EgressPolicy, seconds: float, resolve: Resolve
    ) -> None:
        self._base = base
        self._policy = policy
        self._resolve = resolve
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._duplicate: socket.socket | None = None
        self.is_expired = False
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._duplicate is not None:
                self._duplicate.close()
                self._duplicate = None

    def remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def _expire(self) -> None:
        with self._lock:
            self.is_expired = True
            if self._duplicate is not None:
                with suppress(OSError):
                    self._duplicate.shutdown(socket.SHUT_RDWR)

    def _resolve_name(self) -> Sequence[str]:
        """Returns the unchecked addresses of the host, within the connect timeout."""
        future: Future[Sequence[str]] = Future()

        def look_up() -> None:
            try:
                future.set_result(self._resolve(self._base.host, self._base.port))
            except Exception as exc:  # the waiting thread handles it
                future.set_exception(exc)

        # The platform's resolver cannot be interrupted, so it continues in a daemon thread.
        threading.Thread(target=look_up, daemon=True).start()
        try:
            return future.result(min(self._policy.connect_timeout, self.remaining()))
        except (OSError, UnicodeError):
            raise NameUnknown("no such name") from None

    def connect(self) -> socket.socket:
        """Returns a connection to the first allowed address that accepts one."""
        base, policy = self._base, self._policy
        addresses: Sequence[str]
        port = base.port
        if (pinned := policy.pinned_address(base.host, port)) is not None:
            addresses, port = [pinned[0]], pinned[1]
        else:
            addresses = [base.host] if is_address(base.host) else self._resolve_name()
        for address in rules.check_addresses(addresses, policy, port, plain=base.scheme == "http"):
            seconds = min(policy.connect_timeout, self.remaining())
            try:
                connection = socket.create_connection((address, port), seconds)
            except OSError:
                continue
            with self._lock:
                self._duplicate = connection.dup()
            if self.is_expired:
                connection.close()
                raise TimedOut("total")
            return connection
        raise ConnectFailed()


class _Head:
    """The stream of an answer while its head is read: refuses a head that is too large.

    The library bounds each line and the number of lines, so that it takes 6 MB, and keeps them
    several times. Informational responses before the answer count too.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._remaining = _HEAD_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(size)
        self._remaining -= len(line)
        if self._remaining < 0:
            raise http.client.HTTPException("the head is too large")
        return line

    def close(self) -> None:
        self._stream.close()


class _Response(http.client.HTTPResponse):
    """An answer whose head is bounded."""

    def begin(self) -> None:
        stream = self.fp
        self.fp = cast(Any, _Head(stream))
        try:
            super().begin()
        finally:
            # It is closed already if there is no body.
            if not self.isclosed():
                self.fp = stream


class _PinnedHTTP(HTTPConnection):
    """Connects to the checked address; Host, SNI and certificate check use the original name."""

    connector: _Connector
    response_class = _Response

    def _new_conn(self) -> socket.socket:
        return self.connector.connect()


class _PinnedHTTPS(HTTPSConnection):
    """The same as `_PinnedHTTP` with TLS, for which urllib3 has separate classes."""

    connector: _Connector
    response_class = _Response

    def _new_conn(self) -> socket.socket:
        return self.connector.connect()


class _PinnedAdapter(HTTPAdapter):
    """Gives requests a pool of one connection, which `_Connector` opens."""

    def __init__(self, base: BaseURL, policy: EgressPolicy, connector: _Connector) -> None:
        super().__init__()
        attributes = {"connector": connector}
        self._pool: urllib3.HTTPConnectionPool
        if base.scheme == "https":
            context = rules.tls_context(policy.ca_bundle, policy.authorities)
            self._pool = urllib3.HTTPSConnectionPool(base.host, base.port, ssl_context=context)
            self._pool.ConnectionCls = cast(Any, type("_HTTPS", (_PinnedHTTPS,), attributes))
        else:
            self._pool = urllib3.HTTPConnectionPool(base.host, base.port)
            self._pool.ConnectionCls = cast(Any, type("_HTTP", (_PinnedHTTP,), attributes))

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        return self._pool

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Keeps the context, which verifies already and trusts the operator's bundle."""

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
    """Sends a request and returns its status, case-insensitive headers and body.

    `total_timeout`, in seconds, covers everything from the name resolution to the last byte. The
    connection is not kept. Raises only `EgressError`.
    """
    problem: EgressError
    try:
        if not rules.are_valid_headers(request.headers):
            raise UnsendableRequest
        base = rules.check_url(request.url, policy)
        with _Connector(
            base, policy, total_timeout, resolve or rules.resolve_with_system
        ) as connector:
            try:
                return _exchange_once(
                    request, _PinnedAdapter(base, policy, connector), connector, policy
                )
            except EgressError as exc:
                problem = type(exc)(*exc.args)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as exc:
                problem = _map_error(exc)
            except (OSError, http.client.HTTPException):
                problem = BadResponse()
            except (ValueError, TypeError):
                problem = UnsendableRequest()
            if connector.is_expired:
                problem = TimedOut("total")
    except EgressError as exc:
        problem = type(exc)(*exc.args)
    except TypeError:
        problem = UnsendableRequest()
    try:
        raise problem
    finally:
        del problem


def _exchange_once(
    request: OutboundRequest,
    adapter: _PinnedAdapter,
    connector: _Connector,
    policy: EgressPolicy,
) -> tuple[int, Mapping[str, str], bytes]:
    """Sends the request and reads the whole response, within the deadline."""
    # The adapter is used without a session, so there are no redirects, cookies or proxy variables,
    # and no .netrc.
    prepared = requests.Request(
        request.method,
        request.url,
        headers={**rules.DEFAULT_HEADERS, **request.headers},
        data=b"".join((request.body, *request.rest)) or None,
    ).prepare()
    response = None
    try:
        response = adapter.send(prepared, stream=True, timeout=connector.remaining())
        refused = rules.find_head_problem(
            response.status_code, response.headers.get("Content-Encoding")
        )
        if refused is not None:
            raise refused
        body = bytearray()
        while chunk := response.raw.read1(64 * 1024, decode_content=False):
            body += chunk
            if len(body) > policy.max_response_bytes:
                raise TooLarge()
        if connector.is_expired:
            raise TimedOut("total")  # without a length, the shutdown looks like the end of the body
        return response.status_code, response.headers, bytes(body)
    finally:
        if response is not None:
            response.close()
        adapter.close()


def _map_error(exc: Exception) -> EgressError:
    """Maps an error of a library to ours; drops its text, which may contain a key."""
    if isinstance(exc, requests.exceptions.SSLError):
        return TLSFailed()
    if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError):
        return TimedOut("total")
    if isinstance(exc, urllib3.exceptions.HTTPError):
        return EndedEarly("ended early")
    if isinstance(exc, requests.exceptions.InvalidHeader):
        return UnsendableRequest()
    if isinstance(exc, requests.ConnectionError):
        inner = exc.args[0].args if exc.args and isinstance(exc.args[0], Exception) else ()
        is_malformed = any(isinstance(part, http.client.HTTPException) for part in inner)
        if is_malformed and not any(isinstance(part, ConnectionError) for part in inner):
            return BadResponse()
        return ConnectionLost("closed before the answer")
    return BadResponse()
