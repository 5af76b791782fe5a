"""How a client resolves a name, connects and verifies the server."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network

import pytest
import uvloop

from config.egress import (
    NO_REACH,
    AddressRefused,
    BadResponse,
    ConnectFailed,
    EgressError,
    EgressPolicy,
    Reach,
    TLSFailed,
)
from config.egress.client import EgressClient
from config.egress.errors import NameUnknown, TimedOut
from config.egress.fetch import fetch
from config.egress.rules import MOST_ADDRESSES
from tests.support.egress import (
    KEY,
    STRICT,
    Client,
    assert_untouched,
    post,
    through_fetch,
    through_uvloop_client,
    upstream,
)
from tests.support.upstreams.tls import Authority, answering, serving


def test_a_request_keeps_host_and_sni_and_reaches_the_checked_address(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    with serving(answering(b"hello", headers=("X-Answer: yes",)), context) as server:
        url = upstream(server, "/v1/models%2Fa?x=%20y")
        status, headers, body = client(post(url, b'{"a":1}'), policy)
    assert (status, headers["x-answer"], body) == (200, "yes", b"hello")
    assert server.names == ["upstream.test"]
    head, received = server.requests[0]
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/models%2Fa?x=%20y HTTP/1.1"
    assert {line for line in lines[1:] if not line.startswith(("Accept: ", "Connection: "))} == {
        f"Host: upstream.test:{server.port}",
        "User-Agent: Causeway",
        "Accept-Encoding: identity",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        "Content-Length: 7",
    }
    assert received == b'{"a":1}'


def test_an_address_literal_is_dialled_when_its_network_is_allowed(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise AssertionError("a literal has no name to resolve")

    with serving(answering(), context) as server:
        url = f"https://127.0.0.1:{server.port}/v1"
        assert client(post(url), policy, resolve)[2] == b"hello"


def test_an_ipv6_literal_is_dialled_when_its_network_is_allowed(
    client: Client, policy: EgressPolicy, authority: Authority
) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    policy = replace(policy, allowed_networks=(ip_network("::1/128"),))
    with serving(answering(), authority.server_context("::1"), "::1") as server:
        assert client(post(f"https://[::1]:{server.port}/v1"), policy)[2] == b"hello"
        assert f"Host: [::1]:{server.port}" in server.requests[0][0].decode()


def test_addresses_of_the_platform_resolver_are_checked(
    client: Client, canary: socket.socket
) -> None:
    url = f"https://localhost:{canary.getsockname()[1]}"
    with pytest.raises(AddressRefused) as caught:
        if client is not through_fetch:
            asyncio.run(send_with_platform_resolver(url))
        else:
            fetch(post(url), STRICT, 30.0)
    assert caught.value.detail == "loopback"
    assert_untouched(canary)


async def send_with_platform_resolver(url: str) -> None:
    async with EgressClient(STRICT) as egress_client:
        await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)


def test_plain_http_reaches_an_allowed_network(client: Client, policy: EgressPolicy) -> None:
    with serving(answering()) as server:
        assert client(post(upstream(server)), policy)[2] == b"hello"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://upstream.test:8080", "plain HTTP"),
        ("http://upstream.test", "port"),
        ("https://upstream.test:22", "port"),
    ],
)
def test_a_public_name_follows_public_rules_despite_allowed_networks(
    client: Client, policy: EgressPolicy, url: str, reason: str
) -> None:
    with pytest.raises(AddressRefused) as caught:
        client(post(url), policy, lambda host, port: ["8.8.8.8"])
    assert caught.value.detail == reason


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::ffff:127.0.0.1"]],
)
def test_a_name_with_one_refused_address_is_refused(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, answers: list[str]
) -> None:
    with serving(answering(), context) as server:
        with pytest.raises(AddressRefused):
            client(post(upstream(server)), policy, lambda host, port: answers)
        assert server.connections == 0


def test_a_name_that_changes_its_address_never_leads_elsewhere(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    with serving(answering(headers=("Connection: close",)), context) as server:
        with socket.create_server(("127.0.0.2", server.port)) as canary:
            canary.setblocking(False)
            assert client(post(upstream(server)), policy, rebinding)[2] == b"hello"
            assert asked == ["upstream.test"]
            with pytest.raises(AddressRefused):
                client(post(upstream(server)), policy, rebinding)
            assert_untouched(canary)
        assert server.connections == 1


def test_a_client_checks_a_name_again_for_a_new_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve, dns_cache_seconds=0) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await response.read()
            with pytest.raises(AddressRefused):
                await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)

    with serving(answering(headers=("Connection: close",)), context) as server:
        asyncio.run(run(upstream(server)))
        assert server.connections == 1


def test_a_name_without_an_address_fails_to_connect(client: Client) -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolvers: list[Callable[[str, int], list[str]]] = [unknown, lambda host, port: []]
    for resolve in resolvers:
        with pytest.raises(ConnectFailed) as caught:
            client(post("https://upstream.test"), STRICT, resolve)
        assert str(caught.value) == "could not connect: no such name"


def test_a_name_of_too_many_addresses_is_not_connected_to(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    answers = ["127.0.0.1"] * MOST_ADDRESSES
    with serving(answering(headers=("Connection: close",)), context) as server:
        assert client(post(upstream(server)), policy, lambda host, port: answers)[2] == b"hello"
        for many in ([*answers, "127.0.0.1"], answers * 2):
            with pytest.raises(NameUnknown) as caught:
                client(post(upstream(server)), policy, lambda host, port, many=many: many)
            assert str(caught.value) == "could not connect: too many addresses"
            assert caught.value.public == EgressError.public
        assert server.connections == 1


def test_a_resolver_that_hangs_fails_to_connect(policy: EgressPolicy) -> None:
    policy = replace(policy, connect_timeout=0.5)
    released = threading.Event()

    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return ["127.0.0.1"]

    async def run() -> None:
        async with EgressClient(policy, resolve=hang) as egress_client:
            await egress_client.send(post("https://a.test"), first_byte_timeout=5, idle_timeout=5)

    # The limit of the lookup is shorter than that of the whole connection by a tenth, which a busy
    # machine can take up: whichever passes first, the failure is that of an unreachable upstream.
    with pytest.raises((NameUnknown, TimedOut)) as caught:
        asyncio.run(run())
    assert caught.value.is_unreachable
    assert caught.value.public == EgressError.public
    with pytest.raises(ConnectFailed):
        fetch(
            post("https://a.test"),
            policy,
            5.0,
            resolve=lambda host, port: ["127.0.0.1"] if released.wait(5) else [],
        )
    released.set()


def test_a_refused_connection_fails_to_connect(client: Client, policy: EgressPolicy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectFailed):
        client(post(f"https://upstream.test:{port}"), policy)


@pytest.mark.parametrize(
    ("hosts", "fault"),
    [
        (["other.test"], {}),
        (["upstream.test"], {"expired": True}),
        (["upstream.test"], {"self_signed": True}),
        (["127.0.0.1"], {}),
    ],
    ids=["wrong host", "expired", "self-signed", "address instead of name"],
)
def test_a_wrong_certificate_is_refused_before_any_header_is_sent(
    client: Client,
    policy: EgressPolicy,
    authority: Authority,
    hosts: list[str],
    fault: dict[str, bool],
) -> None:
    with serving(answering(), authority.server_context(*hosts, **fault)) as server:
        with pytest.raises(TLSFailed):
            client(post(upstream(server)), policy)
        assert server.requests == []
        assert server.names == ["upstream.test"]


def test_a_certificate_of_an_unknown_authority_is_refused(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    with serving(answering(), context) as server:
        with pytest.raises(TLSFailed):
            client(post(upstream(server)), replace(policy, ca_bundle=None))
        assert server.requests == []


def test_a_server_that_does_not_speak_tls_gets_no_header(
    client: Client, policy: EgressPolicy
) -> None:
    received: list[bytes] = []

    def answer() -> None:
        line, _ = listener.accept()
        with line:
            received.append(line.recv(65536))
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TLSFailed):
            client(post(f"https://upstream.test:{listener.getsockname()[1]}"), policy)
        thread.join(5)
    assert KEY.encode() not in received[0]


async def one(egress_client: EgressClient, url: str, **limits: float) -> bytes:
    response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20, **limits)
    return await response.read()


def test_concurrent_requests_share_one_lookup(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        await asyncio.sleep(0.05)
        return [] if len(asked) == 1 else ["127.0.0.1"]

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve) as egress_client:
            nothing = await asyncio.gather(
                *(one(egress_client, url) for _ in range(5)), return_exceptions=True
            )
            assert {type(problem) for problem in nothing} == {NameUnknown}
            assert (
                await asyncio.gather(*(one(egress_client, url) for _ in range(5))) == [b"hello"] * 5
            )
            assert len(asked) == 2

    with serving(answering(), context) as server:
        uvloop.run(run(upstream(server)))


def hanging(owner: str, count: int) -> list[tuple[str, Reach]]:
    """Returns names that hang, and whose they are: of as many domains, but for the operator's."""
    ends = [f"dead{number}.example" if owner else "dead.example" for number in range(count)]
    return [
        (f"https://a{number}.b{number}.{end}", Reach(owner=owner))
        for number, end in enumerate(ends)
    ]


@pytest.mark.parametrize(
    ("dead", "lookups"),
    [
        # One organization has eight threads, whatever its domains, and so has a domain of the
        # operator's; the ninth name waits.
        (hanging("first", 40), 8),
        (hanging("", 40), 8),
        # All organizations leave a quarter to the operator.
        ([name for owner in "abcde" for name in hanging(owner, 40)], 24),
    ],
    ids=["an organization", "a domain", "organizations"],
)
def test_lookups_that_hang_leave_threads_to_others(
    policy: EgressPolicy,
    context: ssl.SSLContext,
    dead: list[tuple[str, Reach]],
    lookups: int,
) -> None:
    policy = replace(policy, connect_timeout=4)
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if host != "upstream.test":
            await asyncio.Event().wait()
        return ["127.0.0.1"]

    async def ask(client: EgressClient, url: str, reach: Reach) -> bytes:
        response = await client.send(post(url), first_byte_timeout=20, idle_timeout=20, reach=reach)
        return await response.read()

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve) as egress_client:
            # An organization waits for its turn with the operator's name too, and holds it up for
            # nobody else.
            waiting = [(url, reach) for _, reach in dead[:1] if reach.owner]
            *rest, found = await asyncio.gather(
                *(ask(egress_client, *name) for name in [*dead, *waiting, (url, NO_REACH)]),
                return_exceptions=True,
            )
        assert {isinstance(each, ConnectFailed) for each in rest} == {True}
        assert (found, len(asked)) == (b"hello", lookups + 1)

    with serving(answering(), context) as server:
        uvloop.run(run(upstream(server)))


def test_the_last_addresses_are_used_while_a_lookup_hangs(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    limit = 4
    assert limit < policy.connect_timeout / 2
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if host == "dead.test" or len(asked) > 1:
            await asyncio.sleep(60)
        return ["127.0.0.1"]

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve, dns_cache_seconds=0) as egress_client:
            assert await one(egress_client, url) == b"hello"
            dead = asyncio.create_task(
                one(egress_client, "https://dead.test", connect_timeout=limit)
            )
            for _ in range(2):
                assert await one(egress_client, url, connect_timeout=limit) == b"hello"
            with pytest.raises(ConnectFailed):
                await dead
            assert sorted(asked) == ["dead.test", "upstream.test", "upstream.test"]

    with serving(answering(headers=("Connection: close",)), context) as server:
        uvloop.run(run(upstream(server)))


def test_the_next_address_is_tried_when_one_does_not_respond(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    policy = replace(policy, allowed_networks=(ip_network("127.0.0.0/8"),), connect_timeout=5)
    with (
        serving(answering(), context) as server,
        socket.socket() as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        # A socket with a full backlog neither accepts nor refuses a connection.
        full.bind(("127.0.0.2", server.port))
        full.listen(0)
        for line in (first, second):
            line.setblocking(False)
            line.connect_ex(("127.0.0.2", server.port))
        answers = ["127.0.0.2", "127.0.0.1"]
        found = through_uvloop_client(post(upstream(server)), policy, lambda host, port: answers)
    assert found[2] == b"hello"


@pytest.mark.parametrize(
    ("head", "error"),
    [(b"", ConnectFailed), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", BadResponse)],
    ids=["before the headers", "in the body"],
)
def test_the_error_of_a_reset_depends_on_when_it_happens(
    client: Client, policy: EgressPolicy, head: bytes, error: type[EgressError]
) -> None:
    def reset(line: socket.socket, _: bytes, body: bytes) -> bool:
        line.sendall(head)
        time.sleep(0.1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return False

    with serving(reset) as server, pytest.raises(EgressError) as caught:
        client(post(upstream(server)), policy)
    assert isinstance(caught.value, error)
