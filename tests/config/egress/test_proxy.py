"""Connections through the operator's proxy: to judged public addresses, by CONNECT."""

from __future__ import annotations

import asyncio
import base64
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_network

import pytest
import uvloop

from config.egress import AddressRefused, ConnectFailed, EgressPolicy, OutboundRequest, Reach
from config.egress.addresses import Proxy, parse_proxy
from config.egress.client import EgressClient
from config.egress.errors import ProxyFailed
from tests.support.egress import PATIENCE, STRICT, asynchronous, post, upstream
from tests.support.upstreams.tls import Authority, Server, answering, serving

PUBLIC = "93.184.216.34"
PROXIED = Reach(is_proxied=True)


class ConnectProxy:
    """A proxy that takes every target to one server, and remembers what it was asked."""

    def __init__(self, port: int, answer: bytes) -> None:
        self.heads: list[str] = []
        self._port, self._answer = port, answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line:
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(4096)
            self.heads.append(head.decode())
            line.sendall(self._answer)
            if b" 200 " in self._answer:
                with socket.create_connection(("127.0.0.1", self._port)) as server:
                    _relay(line, server)


def _relay(line: socket.socket, server: socket.socket) -> None:
    """Passes bytes both ways until one side ends."""
    other = {line: server, server: line}
    with suppress(OSError):
        while True:
            for source in select.select([line, server], [], [])[0]:
                if not (data := source.recv(65_536)):
                    return
                other[source].sendall(data)


@contextmanager
def proxying(
    server: Server, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
) -> Iterator[ConnectProxy]:
    proxy = ConnectProxy(server.port, answer)
    try:
        yield proxy
    finally:
        proxy.listener.close()


@pytest.fixture
def server(authority: Authority) -> Iterator[Server]:
    with serving(answering(b"hello"), authority.server_context("upstream.test")) as running:
        yield running


def send(
    policy: EgressPolicy,
    request: OutboundRequest,
    addresses: Sequence[str] = (PUBLIC,),
    *,
    reach: Reach = PROXIED,
) -> bytes:
    async def run() -> bytes:
        resolve = asynchronous(lambda host, port: addresses)
        async with EgressClient(policy, resolve=resolve) as client:
            response = await client.send(
                request, first_byte_timeout=PATIENCE, idle_timeout=PATIENCE, reach=reach
            )
            return await response.read()

    plain = asyncio.run(run())
    assert uvloop.run(run()) == plain
    return plain


def behind(proxy: ConnectProxy, authority: Authority, login: str = "") -> EgressPolicy:
    return replace(STRICT, proxy=Proxy("127.0.0.1", proxy.port, login), ca_bundle=authority.bundle)


def test_a_proxy_gets_the_judged_address_and_the_server_the_name(
    server: Server, authority: Authority
) -> None:
    login = base64.b64encode(b"us:secret").decode()
    with proxying(server) as proxy:
        policy = behind(proxy, authority, login)
        assert send(policy, post("https://upstream.test/v1")) == b"hello"
    target = f"{PUBLIC}:443"
    assert proxy.heads == 2 * [
        f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {login}\r\n\r\n"
    ]
    assert server.names == ["upstream.test"] * 2
    assert "secret" not in repr(policy)
    assert login not in repr(policy)


def test_private_endpoints_and_own_networks_go_directly(
    server: Server, authority: Authority
) -> None:
    own = Reach(networks=(ip_network("127.0.0.1/32"),), is_proxied=True)
    with proxying(server) as proxy:
        policy = behind(proxy, authority)
        request = post(upstream(server))
        assert send(policy, request, ["127.0.0.1"], reach=own) == b"hello"
        assert send(policy, request, ["127.0.0.1"], reach=own._replace(is_proxied=False))
        allowed = replace(policy, allowed_networks=own.networks)
        assert send(allowed, request, ["127.0.0.1"]) == b"hello"
    assert proxy.heads == []


@pytest.mark.parametrize("addresses", [["10.0.0.5"], [PUBLIC, "169.254.169.254"]])
def test_a_proxy_is_asked_for_no_address_that_is_refused(
    server: Server, authority: Authority, addresses: list[str]
) -> None:
    with proxying(server) as proxy, pytest.raises(AddressRefused):
        send(behind(proxy, authority), post("https://upstream.test/v1"), addresses)
    assert proxy.heads == []
    assert server.connections == 0


@pytest.mark.parametrize(
    ("answer", "status"), [(b"HTTP/1.1 407 Login\r\n\r\n", "407"), (b"220 mail\r\n\r\n", "no HTTP")]
)
def test_the_refusal_of_a_proxy_is_told_to_the_operator(
    server: Server, authority: Authority, answer: bytes, status: str
) -> None:
    with proxying(server, answer) as proxy, pytest.raises(ConnectFailed) as failed:
        send(behind(proxy, authority), post("https://upstream.test/v1"), [PUBLIC, "8.8.8.8"])
    assert str(failed.value) == (
        f"could not connect through EGRESS_PROXY_URL: the proxy answered {status}"
    )
    assert failed.value.public == "The upstream could not be reached."
    # Each address was asked for once.
    assert [head.split(" ")[1] for head in proxy.heads] == [f"{PUBLIC}:443", "8.8.8.8:443"]
    assert server.connections == 0


def test_a_proxy_that_is_away_is_not_taken_for_the_provider(
    server: Server, authority: Authority
) -> None:
    with proxying(server) as proxy:
        policy = behind(proxy, authority)
    with pytest.raises(ProxyFailed) as failed:
        send(policy, post("https://upstream.test/v1"))
    assert failed.value.kind == "refused"
    assert failed.value.detail == "the proxy accepts no connection"


def test_a_proxy_that_is_silent_is_not_taken_for_the_provider(authority: Authority) -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        # A socket with a full backlog neither accepts nor refuses a connection.
        for line in (first, second):
            line.setblocking(False)
            line.connect_ex(full.getsockname())
        policy = replace(
            STRICT,
            proxy=Proxy("127.0.0.1", full.getsockname()[1]),
            ca_bundle=authority.bundle,
            connect_timeout=2,
        )
        with pytest.raises(ProxyFailed) as failed:
            send(policy, post("https://upstream.test/v1"))
    assert failed.value.detail == "the proxy does not answer"
    assert failed.value.public == "The upstream could not be reached."


def test_the_url_of_a_proxy() -> None:
    login = base64.b64encode(b"us er:p@ss").decode()
    assert parse_proxy("") is None
    assert parse_proxy("http://proxy.lan:3128") == Proxy("proxy.lan", 3128)
    assert parse_proxy("http://us%20er:p%40ss@[fd00::1]:8080/") == Proxy("fd00::1", 8080, login)
    for text in ("proxy.lan:3128", "https://proxy.lan:3128", "http://proxy.lan", "http://a:1/x"):
        with pytest.raises(ValueError, match=r"^it must be of the form http://HOST:PORT or "):
            parse_proxy(text)
