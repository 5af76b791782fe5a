"""The synchronous client of the control plane: one exchange on a connection of its own."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, cast

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from config.egress import rules
from config.egress.addresses import BaseURL, EgressPolicy, is_address
from config.egress.errors import (
    BadResponse,
    ConnectFailed,
    EgressError,
    TimedOut,
    TLSFailed,
    TooLarge,
    UnsendableRequest,
)
from config.egress.rules import OutboundRequest

Resolve = Callable[[str, int], Sequence[str]]


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
        for address in rules.judge(addresses, policy, port, plain=base.scheme == "http"):
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
            context = rules.tls_context(policy.ca_bundle)
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
        if not rules.are_sendable(request.headers):
            raise UnsendableRequest
        base = rules.vet(request.url, policy)
        with _Exchange(base, policy, total_timeout, resolve or rules.system_addresses) as exchange:
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
        headers={**rules.DEFAULT_HEADERS, **request.headers},
        data=request.body or None,
    ).prepare()
    response = None
    try:
        response = adapter.send(prepared, stream=True, timeout=exchange.remaining())
        refused = rules.check_head(response.status_code, response.headers.get("Content-Encoding"))
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
