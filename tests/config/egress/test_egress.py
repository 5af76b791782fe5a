import ast
import asyncio
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from config import egress
from config.egress import (
    AddressRefused,
    BadResponse,
    ConnectFailed,
    EgressClient,
    EgressError,
    EgressPolicy,
    InvalidURL,
    OutboundRequest,
    OutboundResponse,
    RedirectRefused,
    TimedOut,
    TLSFailed,
    TooLarge,
    UnsendableRequest,
    fetch,
    parse_base_url,
    refusal,
)
from tests.support.tls import Authority, Server, answering, sending, serving

KEY = "sk-canary-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
STRICT = EgressPolicy()
UNREACHABLE = "The upstream could not be reached."

Answer = tuple[int, Mapping[str, str], bytes]
Client = Callable[..., Answer]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return authority.server_context("upstream.test", "127.0.0.1")


@pytest.fixture
def policy(authority: Authority) -> EgressPolicy:
    return EgressPolicy(
        allowed_networks=(ip_network("127.0.0.1/32"),),
        ca_bundle=authority.bundle,
        connect_timeout=0.5,
        max_response_bytes=1_000_000,
    )


@pytest.fixture
def canary() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def assert_untouched(listener: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        listener.accept()


def to_loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def asynchronous(
    resolve: Callable[[str, int], Sequence[str]],
) -> Callable[..., Awaitable[list[str]]]:
    async def resolve_later(host: str, port: int) -> list[str]:
        return list(resolve(host, port))

    return resolve_later


def through_async_client(
    request: OutboundRequest,
    policy: EgressPolicy,
    resolve: Callable[[str, int], Sequence[str]] = to_loopback,
) -> Answer:
    return asyncio.run(_answered(request, policy, resolve))


def through_uvloop_client(
    request: OutboundRequest,
    policy: EgressPolicy,
    resolve: Callable[[str, int], Sequence[str]] = to_loopback,
) -> Answer:
    """What `serve` runs on, whose transports are not those of the standard library."""
    return uvloop.run(_answered(request, policy, resolve))


async def _answered(
    request: OutboundRequest, policy: EgressPolicy, resolve: Callable[[str, int], Sequence[str]]
) -> Answer:
    async with EgressClient(policy, resolve=asynchronous(resolve)) as egress_client:
        response = await egress_client.send(request, first_byte_timeout=0.5, idle_timeout=0.5)
        return response.status, response.headers, await response.read()


def through_fetch(
    request: OutboundRequest,
    policy: EgressPolicy,
    resolve: Callable[[str, int], Sequence[str]] = to_loopback,
) -> Answer:
    return fetch(request, policy, 1.0, resolve=resolve)


@pytest.fixture(
    params=[through_async_client, through_uvloop_client, through_fetch],
    ids=["asyncio", "uvloop", "fetch"],
)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


def post(url: str, body: bytes = b"{}", headers: Mapping[str, str] = HEADERS) -> OutboundRequest:
    return OutboundRequest("POST", url, headers, body)


def upstream(server: Server, path: str = "/v1") -> str:
    scheme = "http" if server.context is None else "https"
    return f"{scheme}://upstream.test:{server.port}{path}"


VISIBLE = "the URL may hold visible ASCII characters only, and no backslash"
ABSOLUTE = "this is not an absolute URL"
SCHEME = "the URL must begin with https://"
USER = "the URL must not hold a user name or a password"
QUERY = "the URL must have neither a query nor a fragment"
HOST = "the host of the URL is not valid"
NAME = "the host of the URL is not a valid name"
NUMBER = "the host of the URL is neither a name nor a dotted IPv4"
SIX = "the host of the URL is not a valid IPv6 address"
PORT = "the port of the URL must be a number from 1 to 65535"
PLACE = "the address or the port of the URL is not allowed"
CHARACTER = "the path of the URL holds a character that is not allowed"
ESCAPE = "the path of the URL holds an escape that is not allowed"
SEGMENT = "the path of the URL must not hold empty or dot segments"
LENGTH = "the URL must be text of at most 2048 characters"

# CANARY stands for the port of a listener on loopback, which must never see a connection.
DANGEROUS = [
    ("https://127.0.0.1:CANARY", PLACE),
    ("https://127.0.0.1:CANARY/v1", PLACE),
    ("https://127.1:CANARY", NUMBER),
    ("https://127.0.1:CANARY", NUMBER),
    ("https://0:CANARY", NUMBER),
    ("https://2130706433:CANARY", NUMBER),
    ("https://017700000001:CANARY", NUMBER),
    ("https://0177.0.0.1:CANARY", NUMBER),
    ("https://127.0.0.01:CANARY", NUMBER),
    ("https://0x7f000001:CANARY", NUMBER),
    ("https://0X7F000001:CANARY", NUMBER),
    ("https://0x7f.0.0.1:CANARY", NUMBER),
    ("https://127.0.0.0x1:CANARY", NUMBER),
    ("https://0x:CANARY", NUMBER),
    ("https://upstream.1:CANARY", NUMBER),
    ("https://127.0.0.1.:CANARY", NAME),
    ("https://localhost.:CANARY", NAME),
    ("https://127.0.0.1%00:CANARY", NAME),
    ("https://127%2e0%2e0%2e1:CANARY", NAME),
    ("https://local_host:CANARY", NAME),
    ("https://-localhost:CANARY", NAME),
    ("https://:CANARY", NAME),
    ("https://１２７.0.0.1:CANARY", VISIBLE),
    ("https://127。0。0。1:CANARY", VISIBLE),
    ("https://ⓛocalhost:CANARY", VISIBLE),
    ("https://127.0.0.1\t:CANARY", VISIBLE),
    ("https://127.0.0.1:CANARY\n", VISIBLE),
    (" https://127.0.0.1:CANARY", VISIBLE),
    ("https://example.com\r\nHost: localhost:CANARY", VISIBLE),
    ("https://example.com\\@127.0.0.1:CANARY", VISIBLE),
    ("https:\\\\127.0.0.1:CANARY", VISIBLE),
    ("https://127.0.0.1\x00.example.com:CANARY", VISIBLE),
    ("https://example.com@127.0.0.1:CANARY", USER),
    ("https://user:password@127.0.0.1:CANARY", USER),
    ("https://127.0.0.1:CANARY#@example.com", QUERY),
    ("https://127.0.0.1:CANARY?x=1", QUERY),
    ("https:127.0.0.1:CANARY", ABSOLUTE),
    ("https:/127.0.0.1:CANARY", ABSOLUTE),
    ("//127.0.0.1:CANARY", ABSOLUTE),
    ("127.0.0.1:CANARY", ABSOLUTE),
    ("", ABSOLUTE),
    ("http://127.0.0.1:CANARY", SCHEME),
    ("http://localhost:CANARY", SCHEME),
    ("ftp://127.0.0.1:CANARY", SCHEME),
    ("file:///etc/passwd", SCHEME),
    ("gopher://127.0.0.1:CANARY/_x", SCHEME),
    ("unix://localhost/run/x", SCHEME),
    ("https://[::1]:CANARY", PLACE),
    ("https://[0:0:0:0:0:0:0:1]:CANARY", PLACE),
    ("https://[::]:CANARY", PLACE),
    ("https://[::ffff:127.0.0.1]:CANARY", PLACE),
    ("https://[::ffff:7f00:1]:CANARY", PLACE),
    ("https://[::127.0.0.1]:CANARY", PLACE),
    ("https://[::ffff:0:127.0.0.1]:CANARY", PLACE),
    ("https://[64:ff9b::127.0.0.1]:CANARY", PLACE),
    ("https://[2002:7f00:1::]:CANARY", PLACE),
    ("https://[fe80::1%lo]:CANARY", HOST),
    ("https://[fe80::1%25lo]:CANARY", HOST),
    ("https://[127.0.0.1]:CANARY", SIX),
    ("https://[]:CANARY", SIX),
    ("https://[::1:CANARY", HOST),
    ("https://[::1]x:CANARY", HOST),
    ("https://127.0.0.1:CANARY:443", PORT),
    ("https://localhost:", PORT),
    ("https://localhost:0", PORT),
    ("https://localhost:0443", PORT),
    ("https://localhost:65536", PORT),
    ("https://localhost:+443", PORT),
    ("https://localhost:22", PLACE),
    ("https://localhost:80", PLACE),
    ("https://localhost:6379", PLACE),
    ("https://8.8.8.8:25", PLACE),
    ("https://localhost:CANARY/../x", SEGMENT),
    ("https://localhost:CANARY/a/.", SEGMENT),
    ("https://localhost:CANARY/%2e%2E/x", SEGMENT),
    ("https://localhost:CANARY//x", SEGMENT),
    ("https://localhost:CANARY/a%2fb", ESCAPE),
    ("https://localhost:CANARY/a%0d%0ab", ESCAPE),
    ("https://localhost:CANARY/a%252e", ESCAPE),
    ("https://localhost:CANARY/a%5c", ESCAPE),
    ("https://localhost:CANARY/a%zz", CHARACTER),
    ('https://localhost:CANARY/"', CHARACTER),
    ("https://localhost:CANARY/" + "a" * 2048, LENGTH),
]


@pytest.mark.parametrize(("spelling", "message"), DANGEROUS)
def test_a_dangerous_spelling_is_refused_before_any_connection(
    spelling: str, message: str, canary: socket.socket
) -> None:
    url = spelling.replace("CANARY", str(canary.getsockname()[1]))
    with pytest.raises(InvalidURL) as caught:
        parse_base_url(url, policy=STRICT)
    assert str(caught.value) == message
    assert_untouched(canary)


@pytest.mark.parametrize(
    "spelling", [spelling for spelling, message in DANGEROUS if message not in (QUERY, ESCAPE)]
)
def test_neither_client_dials_a_dangerous_spelling(
    spelling: str, client: Client, canary: socket.socket
) -> None:
    url = spelling.replace("CANARY", str(canary.getsockname()[1]))
    with pytest.raises(AddressRefused):
        client(post(url), STRICT)
    assert_untouched(canary)


REFUSED = [
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("10.0.0.1", "private"),
    ("100.64.0.1", "carrier-grade NAT"),
    ("100.100.100.200", "carrier-grade NAT"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("168.63.129.16", "metadata"),
    ("169.254.169.254", "link-local"),
    ("169.254.170.2", "link-local"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.0.0.192", "protocol assignments"),
    ("192.0.2.1", "documentation"),
    ("192.31.196.1", "AS112"),
    ("192.52.193.1", "AMT relay"),
    ("192.88.99.1", "6to4 relay"),
    ("192.168.0.1", "private"),
    ("192.175.48.1", "AS112"),
    ("198.18.0.1", "benchmarking"),
    ("198.19.255.255", "benchmarking"),
    ("198.51.100.1", "documentation"),
    ("203.0.113.1", "documentation"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.250", "multicast"),
    ("240.0.0.1", "reserved or broadcast"),
    ("255.255.255.255", "reserved or broadcast"),
    ("::", "IPv4 inside IPv6"),
    ("::1", "loopback"),
    ("::7f00:1", "IPv4 inside IPv6"),
    ("::ffff:8.8.8.8", "IPv4-mapped"),
    ("::ffff:0:8.8.8.8", "IPv4-translated"),
    ("64:ff9b::808:808", "NAT64"),
    ("64:ff9b:1::808:808", "NAT64"),
    ("100::1", "not global unicast"),
    ("2001::1", "Teredo"),
    ("2001:2::1", "protocol assignments"),
    ("2001:10::1", "protocol assignments"),
    ("2001:20::1", "protocol assignments"),
    ("2001:db8::1", "documentation"),
    ("2002:808:808::1", "6to4"),
    ("2620:4f:8000::1", "AS112"),
    ("3ffe::1", "returned"),
    ("3fff::1", "documentation"),
    ("2606:4700::5efe:808:808", "IPv4 inside IPv6"),
    ("2606:4700::200:5efe:808:808", "IPv4 inside IPv6"),
    ("4000::1", "not global unicast"),
    ("5f00::1", "not global unicast"),
    ("fc00::1", "not global unicast"),
    ("fd00:ec2::254", "not global unicast"),
    ("fe80::1", "not global unicast"),
    ("fe80::1%1", "scoped address"),
    ("fec0::1", "not global unicast"),
    ("ff02::1", "multicast"),
    ("2606:4700::1111%1", "scoped address"),
    ("127.1", "not an address"),
    ("０.0.0.0", "not an address"),
    ("", "not an address"),
]


@pytest.mark.parametrize(("address", "reason"), REFUSED)
def test_an_address_outside_the_public_network_is_refused(
    address: str, reason: str, canary: socket.socket
) -> None:
    port = canary.getsockname()[1]
    assert refusal(address, STRICT, port) == reason
    assert refusal(address, STRICT, 443) == reason


@pytest.mark.parametrize(("address", "reason"), REFUSED)
def test_a_name_with_a_refused_address_is_not_dialled(
    address: str, reason: str, client: Client, canary: socket.socket
) -> None:
    url = f"https://upstream.test:{canary.getsockname()[1]}"
    with pytest.raises(AddressRefused) as caught:
        client(post(url), STRICT, lambda host, port: [address])
    assert caught.value.detail == reason
    assert_untouched(canary)


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "192.0.1.1", "2606:4700::1111"])
def test_a_public_address_is_admitted_on_the_ports_of_the_policy(address: str) -> None:
    ports = [22, 80, 443, 444, 1023, 1024, 3306, 5432, 6379, 8443, 65535, 65536, 0]
    admitted = [port for port in ports if refusal(address, STRICT, port) is None]
    assert admitted == [443, 1024, 8443, 65535]
    assert refusal(address, STRICT, 443, plain=True) == "plain HTTP"


def test_an_allowed_network_admits_its_own_addresses_alone_on_any_port() -> None:
    policy = EgressPolicy(allowed_networks=(ip_network("10.1.0.0/16"), ip_network("fd00::/64")))
    assert refusal("10.1.2.3", policy, 22) is None
    assert refusal("10.1.2.3", policy, 80, plain=True) is None
    assert refusal("fd00::5", policy, 6379) is None
    assert refusal("10.2.0.1", policy, 443) == "private"
    assert refusal("fd00:0:0:1::5", policy, 443) == "not global unicast"
    assert refusal("8.8.8.8", policy, 22) == "port"
    assert refusal("8.8.8.8", policy, 443, plain=True) == "plain HTTP"
    assert refusal("10.1.2.3", policy, 0) == "port"


def test_allowing_everything_still_refuses_what_carries_another_address() -> None:
    policy = EgressPolicy(allowed_networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    still = [address for address, _ in REFUSED if refusal(address, policy, 443)]
    assert still == [
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::7f00:1",
        "::ffff:8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b::808:808",
        "64:ff9b:1::808:808",
        "2001::1",
        "2002:808:808::1",
        "2606:4700::5efe:808:808",
        "2606:4700::200:5efe:808:808",
        "fe80::1%1",
        "ff02::1",
        "2606:4700::1111%1",
        "127.1",
        "０.0.0.0",
        "",
    ]


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("https://Api.Example.COM", "https://api.example.com"),
        ("HTTPS://api.example.com:443/", "https://api.example.com"),
        ("https://api.example.com:8443/v1/", "https://api.example.com:8443/v1"),
        ("https://api.example.com/V1/%7euser/%c3%a9", "https://api.example.com/V1/~user/%C3%A9"),
        ("https://localhost:8443", "https://localhost:8443"),
        ("https://metadata.google.internal", "https://metadata.google.internal"),
        ("https://printer.local/v1", "https://printer.local/v1"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("https://8.8.8.8", "https://8.8.8.8"),
        ("https://[2606:4700:0::1111]:8443/v1", "https://[2606:4700::1111]:8443/v1"),
        ("https://1password.example.a1", "https://1password.example.a1"),
    ],
)
def test_parse_returns_the_canonical_form(typed: str, canonical: str) -> None:
    assert parse_base_url(typed, policy=STRICT).text == canonical


def test_parse_admits_plain_http_and_other_ports_for_allowed_networks_only() -> None:
    policy = EgressPolicy(allowed_networks=(ip_network("10.0.0.0/8"),))
    assert parse_base_url("http://10.0.0.1/", policy=policy, require_https=False).port == 80
    assert parse_base_url("https://10.0.0.1:22", policy=policy).text == "https://10.0.0.1:22"
    assert parse_base_url("https://name.test:22", policy=policy).text == "https://name.test:22"
    for url in ("http://8.8.8.8", "https://8.8.8.8:22", "https://192.168.0.1"):
        with pytest.raises(InvalidURL, match=PLACE):
            parse_base_url(url, policy=policy, require_https=False)
    with pytest.raises(InvalidURL, match=SCHEME):
        parse_base_url("http://10.0.0.1", policy=policy)
    with pytest.raises(InvalidURL, match=PLACE):
        parse_base_url("http://name.test", policy=STRICT, require_https=False)


@pytest.mark.parametrize("value", [None, 5, b"https://example.com", ["https://example.com"]])
def test_parse_refuses_what_is_not_text(value: object) -> None:
    with pytest.raises(InvalidURL, match=LENGTH):
        parse_base_url(value, policy=STRICT)  # type: ignore[arg-type]


def test_a_joined_path_cannot_grow_into_the_host() -> None:
    base = parse_base_url("https://example.com/v1", policy=STRICT)
    assert base.join("/chat/completions?a=b") == "https://example.com/v1/chat/completions?a=b"
    with pytest.raises(InvalidURL, match="the path must begin with a slash"):
        base.join(".evil.test/x")


near_urls = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["https://", "HTTPS://", "http://", "https:/", ""]),
    st.one_of(
        st.sampled_from(["a.test", "8.8.8.8", "[2606:4700::1]", "127.1", "A-b.C"]), st.text("a1.-")
    ),
    st.sampled_from(["", ":443", ":8443", ":22", ":", ":080"]),
    st.text("/aZ%2eE5fF.~@:\\ ?#", max_size=12),
)


@settings(deadline=None)
@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1")), near_urls))
def test_parse_refuses_or_returns_what_parses_to_itself(text: str) -> None:
    for policy in (STRICT, EgressPolicy(allowed_networks=(ip_network("0.0.0.0/0"),))):
        try:
            base = parse_base_url(text, policy=policy, require_https=False)
        except InvalidURL:
            continue
        assert parse_base_url(base.text, policy=policy, require_https=False) == base
        assert base.text.isascii()


def test_a_request_keeps_host_and_server_name_and_reaches_the_judged_address(
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


def test_the_platform_resolver_is_judged_too(client: Client, canary: socket.socket) -> None:
    url = f"https://localhost:{canary.getsockname()[1]}"
    with pytest.raises(AddressRefused) as caught:
        if client is not through_fetch:
            asyncio.run(send_with_platform_resolver(url))
        else:
            fetch(post(url), STRICT, 1.0)
    assert caught.value.detail == "loopback"
    assert_untouched(canary)


async def send_with_platform_resolver(url: str) -> None:
    async with EgressClient(STRICT) as egress_client:
        await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)


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
def test_a_name_outside_the_allowed_networks_keeps_the_rules_of_the_public_network(
    client: Client, policy: EgressPolicy, url: str, reason: str
) -> None:
    with pytest.raises(AddressRefused) as caught:
        client(post(url), policy, lambda host, port: ["8.8.8.8"])
    assert caught.value.detail == reason


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::ffff:127.0.0.1"]],
)
def test_mixed_answers_are_refused_whole(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, answers: list[str]
) -> None:
    with serving(answering(), context) as server:
        with pytest.raises(AddressRefused):
            client(post(upstream(server)), policy, lambda host, port: answers)
        assert server.connections == 0


def test_a_name_that_changes_its_answer_never_leads_elsewhere(
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


def test_one_client_judges_a_name_again_for_a_new_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve, dns_cache_seconds=0) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            await response.read()
            with pytest.raises(AddressRefused):
                await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)

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


def test_a_resolver_that_hangs_fails_to_connect(policy: EgressPolicy) -> None:
    released = threading.Event()

    async def hang(host: str, port: int) -> list[str]:
        await asyncio.sleep(5)
        return ["127.0.0.1"]

    async def run() -> None:
        async with EgressClient(policy, resolve=hang) as egress_client:
            await egress_client.send(post("https://a.test"), first_byte_timeout=5, idle_timeout=5)

    with pytest.raises(ConnectFailed):
        asyncio.run(run())
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
def test_a_wrong_certificate_ends_before_any_header_is_sent(
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


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 T", "308 P", "300 M"])
def test_a_redirect_is_not_followed(
    client: Client,
    policy: EgressPolicy,
    context: ssl.SSLContext,
    status: str,
    canary: socket.socket,
) -> None:
    location = f"Location: https://127.0.0.1:{canary.getsockname()[1]}/"
    with serving(answering(b"", status, (location,)), context) as server:
        with pytest.raises(RedirectRefused):
            client(post(upstream(server)), policy)
        assert len(server.requests) == 1
    assert_untouched(canary)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ConnectFailed),
        (b"nonsense\r\n\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", BadResponse),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", BadResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", BadResponse),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            BadResponse,
        ),
    ],
    ids=[
        "nothing",
        "no status line",
        "short body",
        "cut between chunks",
        "bad chunk size",
        "long header",
        "many headers",
        "gzip",
        "brotli",
        "upgrade",
    ],
)
def test_a_broken_answer_has_its_own_error(
    client: Client,
    policy: EgressPolicy,
    context: ssl.SSLContext,
    answer: bytes,
    error: type[EgressError],
) -> None:
    with serving(sending(answer), context) as server, pytest.raises(EgressError) as caught:
        client(post(upstream(server)), policy)
    assert type(caught.value) is error


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    "async_client", [through_async_client, through_uvloop_client], ids=["asyncio", "uvloop"]
)
@pytest.mark.parametrize(
    "answer",
    [
        HELLO + HELLO,
        HELLO + b"surplus",
        b"HTTP/1.1 204 No Content\r\n\r\nsurplus",
        CHUNKED + b"Content-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nhello",
        CHUNKED + b"\r\n5\r\nhelloX\r\n0\r\n\r\n",
        CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 50_000 + HELLO,
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=[
        "two answers",
        "surplus",
        "surplus after none",
        "length and chunks",
        "two lengths",
        "negative length",
        "coded chunks",
        "coded",
        "blank before the colon",
        "bare line feeds",
        "NUL in a header",
        "long chunk",
        "long trailer",
        "interim answers without end",
        "another protocol",
    ],
)
def test_an_answer_whose_end_is_in_doubt_is_refused(
    async_client: Client, policy: EgressPolicy, answer: bytes
) -> None:
    with serving(sending(answer)) as server, pytest.raises(BadResponse):
        async_client(post(upstream(server)), policy)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_an_answer_is_the_same_however_it_is_cut(policy: EgressPolicy, size: int) -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"X-A: 1\r\nx-a: 2\r\nX-B:\r\n\r\n"
        b"5;name=value\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nX-Trailer: 3\r\n\r\n"
    )

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(answer), size):
            line.sendall(answer[start : start + size])
            time.sleep(0.0005)
        return True

    with serving(script) as server:
        status, headers, body = through_uvloop_client(post(upstream(server)), policy)
    assert (status, dict(headers), body) == (
        200,
        {"transfer-encoding": "chunked", "x-a": "1, 2", "x-b": ""},
        b"hello world",
    )


async def twice(policy: EgressPolicy, url: str) -> list[bytes]:
    """Returns two answers to one client; the upstream may misbehave in the pause between them."""
    async with through(policy) as egress_client:
        bodies = []
        for _ in range(2):
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            bodies.append(await response.read())
            await asyncio.sleep(0.2)
        return bodies


def test_what_an_upstream_says_unasked_is_no_answer(policy: EgressPolicy) -> None:
    """A forged answer waits on the kept connection for the next request, of somebody else."""
    forged = HELLO.replace(b"hello", b"FALSE")

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(HELLO)
        time.sleep(0.05)
        line.sendall(forged)
        return True

    with serving(script) as server:
        assert uvloop.run(twice(policy, upstream(server))) == [b"hello", b"hello"]
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        HELLO,
    ],
    ids=["close", "HTTP/1.0", "closed while idle"],
)
def test_a_connection_that_is_not_kept_is_not_used_again(
    policy: EgressPolicy, answer: bytes
) -> None:
    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(answer)
        return answer != HELLO

    with serving(script) as server:
        assert uvloop.run(twice(policy, upstream(server))) == [b"hello", b"hello"]
        assert (server.connections, len(server.requests)) == (2, 2)


def test_an_answer_that_nobody_reads_spoils_nobody_elses(policy: EgressPolicy) -> None:
    """It is whole, and larger than what waits for a reader: reading was stopped behind it."""

    async def run(url: str) -> bytes:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            await asyncio.sleep(0.2)
            response.close()
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            return await response.read()

    body = b"x" * 100_000
    with serving(answering(body)) as server:
        assert uvloop.run(run(upstream(server))) == body
        assert len(server.requests) == 2


def test_a_refusal_in_the_middle_of_an_upload_is_an_answer(policy: EgressPolicy) -> None:
    refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig"

    def refuse() -> None:
        line, _ = listener.accept()
        with line:
            line.recv(1000)
            line.sendall(refusal)
            time.sleep(0.5)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"http://upstream.test:{listener.getsockname()[1]}"
        status, _, body = through_uvloop_client(post(url, b"x" * (32 << 20)), policy)
        thread.join(5)
    assert (status, body) == (413, b"big")


def test_a_connection_that_is_closed_at_once_fails_to_connect(
    client: Client, policy: EgressPolicy
) -> None:
    def hang_up() -> None:
        for _ in range(20):
            line, _ = listener.accept()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            line.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"http://upstream.test:{listener.getsockname()[1]}"
        for _ in range(20):
            with pytest.raises(ConnectFailed):
                client(post(url), policy)
        thread.join(5)


def test_an_upstream_that_ends_late_keeps_its_connection_and_its_reader_free(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(CHUNKED + b"\r\n5\r\nhello\r\n")
        time.sleep(0.05 if b"/late " in head else 1)
        line.sendall(b"3\r\nend\r\n0\r\n\r\n")
        return True

    async def run(base: str) -> None:
        async with through(policy) as egress_client:
            for path, connections in (("/late", 1), ("/late", 1), ("/never", 1), ("/late", 2)):
                request = post(f"{base}{path}")
                response = await egress_client.send(request, first_byte_timeout=1, idle_timeout=1)
                assert await response.readany() == b"hello"
                response.close(linger=0.2)
                assert await response.readany() == b""
                await asyncio.sleep(0.3)
                assert server.connections == connections

    with serving(script, context) as server:
        uvloop.run(run(upstream(server, "")))


def test_a_name_is_looked_up_once_for_all_who_wait(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        await asyncio.sleep(0.05)
        return [] if len(asked) == 1 else ["127.0.0.1"]

    async def one(egress_client: EgressClient, url: str) -> bytes:
        response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
        return await response.read()

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve) as egress_client:
            nothing = await asyncio.gather(
                *(one(egress_client, url) for _ in range(5)), return_exceptions=True
            )
            assert {type(problem) for problem in nothing} == {ConnectFailed}
            assert (
                await asyncio.gather(*(one(egress_client, url) for _ in range(5))) == [b"hello"] * 5
            )
            assert len(asked) == 2

    with serving(answering(), context) as server:
        uvloop.run(run(upstream(server)))


def test_a_lookup_that_hangs_takes_one_thread_and_the_last_answer_serves(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if host == "dead.test" or len(asked) > 1:
            await asyncio.sleep(60)
        return ["127.0.0.1"]

    async def one(egress_client: EgressClient, url: str) -> bytes:
        response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
        return await response.read()

    async def run(url: str) -> None:
        async with EgressClient(policy, resolve=resolve, dns_cache_seconds=0) as egress_client:
            assert await one(egress_client, url) == b"hello"
            for _ in range(3):
                with pytest.raises(ConnectFailed):
                    await one(egress_client, "https://dead.test")
                assert await one(egress_client, url) == b"hello"
            assert asked == ["upstream.test", "dead.test", "upstream.test"]

    with serving(answering(headers=("Connection: close",)), context) as server:
        uvloop.run(run(upstream(server)))


def test_an_address_that_is_silent_gives_way_to_the_next(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    policy = replace(policy, allowed_networks=(ip_network("127.0.0.0/8"),), connect_timeout=5)
    with (
        serving(answering(), context) as server,
        socket.socket() as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        # A full backlog takes no connection and refuses none.
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
def test_a_reset_is_told_by_its_moment(
    client: Client, policy: EgressPolicy, head: bytes, error: type[EgressError]
) -> None:
    def reset(line: socket.socket, _: bytes, body: bytes) -> bool:
        line.sendall(head)
        time.sleep(0.1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return False

    with serving(reset) as server, pytest.raises(EgressError) as caught:
        client(post(upstream(server)), policy)
    assert type(caught.value) is error


def silent(line: socket.socket, head: bytes, body: bytes) -> bool:
    line.recv(1)
    return False


def dripping(first: bytes) -> Callable[[socket.socket, bytes, bytes], bool]:
    def drip(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(first)
        for _ in range(200):
            line.sendall(b"x")
            time.sleep(0.05)
        return False

    return drip


@pytest.mark.parametrize(
    ("script", "client_phase"),
    [
        (silent, "first byte"),
        (dripping(b"HTTP/1.1 200 OK\r\nX: "), "first byte"),
        (dripping(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: "), "first byte"),
    ],
    ids=["silent", "headers drip", "drip after an interim answer"],
)
def test_a_late_answer_times_out(
    client: Client,
    policy: EgressPolicy,
    context: ssl.SSLContext,
    script: Callable[[socket.socket, bytes, bytes], bool],
    client_phase: str,
) -> None:
    with serving(script, context) as server, pytest.raises(TimedOut) as caught:
        client(post(upstream(server)), policy)
    assert caught.value.phase == (client_phase if client is not through_fetch else "total")
    assert caught.value.public == "The upstream did not answer in time."


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
    ids=["known length", "until the end"],
)
def test_fetch_ends_a_dripping_body_at_its_deadline(
    policy: EgressPolicy, context: ssl.SSLContext, head: bytes
) -> None:
    with serving(dripping(head), context) as server:
        started = time.monotonic()
        with pytest.raises(TimedOut) as caught:
            fetch(post(upstream(server)), policy, 0.5, resolve=to_loopback)
        assert round(time.monotonic() - started, 0) in (0, 1)
    assert caught.value.phase == "total"


def test_a_caller_can_end_a_dripping_body(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            try:
                async with asyncio.timeout(0.3):
                    await response.read()
            finally:
                response.close()

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with serving(dripping(head), context) as server, pytest.raises(TimeoutError):
        asyncio.run(run(upstream(server)))


def through(policy: EgressPolicy) -> EgressClient:
    return EgressClient(policy, resolve=asynchronous(to_loopback))


def pausing(line: socket.socket, head: bytes, body: bytes) -> bool:
    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
    line.recv(1)
    return False


def test_a_body_that_stops_times_out_as_idle(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> bytes:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=5, idle_timeout=0.3)
            first = await response.readany()
            # The time a caller spends elsewhere is not the upstream's.
            await asyncio.sleep(0.4)
            with pytest.raises(TimedOut) as caught:
                await response.readany()
            assert caught.value.phase == "idle"
            return first

    with serving(pausing, context) as server:
        assert asyncio.run(run(upstream(server))) == b"hello"


def test_a_handshake_that_never_comes_times_out_as_connecting(policy: EgressPolicy) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            await egress_client.send(
                post(url), first_byte_timeout=5, idle_timeout=5, connect_timeout=0.3
            )

    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"https://upstream.test:{mute.getsockname()[1]}"
        with pytest.raises(TimedOut) as caught:
            asyncio.run(run(url))
        assert (caught.value.phase, caught.value.public) == ("connect", UNREACHABLE)
        with pytest.raises(TimedOut) as caught:
            fetch(post(url), policy, 0.3, resolve=to_loopback)
        assert caught.value.phase == "total"


def test_name_address_port_and_tls_problems_share_their_public_words() -> None:
    errors = [AddressRefused("port"), ConnectFailed(), TLSFailed(), TimedOut("connect")]
    assert {error.public for error in errors} == {UNREACHABLE}


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
    ids=["known length", "until the end"],
)
def test_a_body_past_the_limit_is_too_large(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, head: bytes
) -> None:
    with serving(sending(head + b"x" * 1001), context) as server:
        policy = replace(policy, max_response_bytes=1000)
        with pytest.raises(TooLarge):
            client(post(upstream(server)), policy)
        policy = replace(policy, max_response_bytes=1001)
        assert client(post(upstream(server)), policy)[2] == b"x" * 1001


def test_an_endless_body_is_too_large(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    def endless(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            line.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")

    with serving(endless, context) as server, pytest.raises(TooLarge):
        client(post(upstream(server)), policy)


def test_read_has_a_limit_of_its_own(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str, limit: int) -> bytes:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            return await response.read(limit)

    with serving(answering(b"x" * 1000), context) as server:
        assert asyncio.run(run(upstream(server), 1000)) == b"x" * 1000
        with pytest.raises(TooLarge):
            asyncio.run(run(upstream(server), 999))


@pytest.mark.parametrize("size", [0, 1 << 20, 3 << 20])
def test_a_body_of_any_size_arrives_whole(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, size: int
) -> None:
    body = b"0123456789abcdef" * (size // 16)
    with serving(answering(), context) as server:
        client(post(upstream(server), body), policy)
        assert server.requests[0][1] == body


def test_a_finished_answer_gives_its_connection_back(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    async def run(url: str) -> list[bytes]:
        async with through(policy) as egress_client:
            bodies = []
            for _ in range(3):
                response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
                bodies.append(b"".join([chunk async for chunk in response.iter_chunks()]))
                response.close()
            return bodies

    with serving(answering(), context) as server:
        assert asyncio.run(run(upstream(server))) == [b"hello"] * 3
        assert (server.connections, len(server.requests)) == (1, 3)


def test_an_answer_without_a_body_gives_its_connection_back(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    async def run(url: str) -> list[bytes]:
        async with through(policy) as egress_client:
            return [
                await (
                    await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
                ).read()
                for _ in range(2)
            ]

    def nothing(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        return True

    with serving(nothing, context) as server:
        assert asyncio.run(run(upstream(server))) == [b"", b""]
        assert server.connections == 1


def test_close_ends_an_unfinished_answer_within_a_second(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    ended = threading.Event()

    def endless(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                line.sendall(b"1\r\nx\r\n")
                time.sleep(0.02)
        finally:
            ended.set()

    async def run(url: str) -> bool:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            await response.readany()
            response.close()
            response.close()
            return await asyncio.to_thread(ended.wait, 1)

    with serving(endless, context) as server:
        assert asyncio.run(run(upstream(server))) is True


def test_a_cancelled_request_closes_its_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    ended = threading.Event()

    def waiting(line: socket.socket, head: bytes, body: bytes) -> bool:
        try:
            return silent(line, head, body)
        finally:
            ended.set()

    async def run(url: str) -> bool:
        async with through(policy) as egress_client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await egress_client.send(post(url), first_byte_timeout=5, idle_timeout=5)
            return await asyncio.to_thread(ended.wait, 1)

    with serving(waiting, context) as server:
        assert asyncio.run(run(upstream(server))) is True


def test_a_reader_that_stops_stops_the_upstream(policy: EgressPolicy) -> None:
    finished = threading.Event()
    size = 64 << 20

    def flood(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(64):
            line.sendall(b"x" * (1 << 20))
        finished.set()
        return False

    async def run(url: str) -> tuple[bool, int]:
        async with through(replace(policy, max_response_bytes=size)) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
            await asyncio.sleep(0.5)
            stopped = not finished.is_set()
            return stopped, len(await response.read())

    with serving(flood) as server:
        assert asyncio.run(run(upstream(server))) == (True, size)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("pause", [0, 0.01], ids=["quick", "slow"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_upstream_that_hangs_up_before_all_is_read_loses_nothing(
    policy: EgressPolicy,
    context: ssl.SSLContext,
    run: Callable[[Awaitable[bytes]], bytes],
    pause: float,
    framing: str,
) -> None:
    """Without the farewell of TLS, which few servers say."""
    body = bytes(range(256)) * 10_000

    def answer(line: socket.socket, head: bytes, sent: bytes) -> bool:
        if framing == "length":
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return False
        line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 5_000):
            piece = body[start : start + 5_000]
            line.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        line.sendall(b"0\r\n\r\n")
        return False

    async def read(url: str) -> bytes:
        parts = []
        async with through(replace(policy, max_response_bytes=1 << 30)) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=5, idle_timeout=5)
            while part := await response.readany():
                parts.append(part)
                await asyncio.sleep(pause)
        return b"".join(parts)

    with serving(answer, context) as server:
        for _ in range(3):
            assert run(read(upstream(server))) == body


def test_environment_proxies_and_netrc_are_ignored(
    client: Client,
    policy: EgressPolicy,
    context: ssl.SSLContext,
    canary: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    proxy = f"http://127.0.0.1:{canary.getsockname()[1]}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine upstream.test login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(answering(), context) as server:
        assert client(post(upstream(server), headers={}), policy)[2] == b"hello"
        assert b"authorization" not in server.requests[0][0].lower()
    assert_untouched(canary)


def test_cookies_are_not_kept(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            for _ in range(2):
                response = await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)
                await response.read()

    with serving(answering(headers=("Set-Cookie: a=b",)), context) as server:
        asyncio.run(run(upstream(server)))
        assert b"cookie" not in server.requests[1][0].lower()


@pytest.mark.parametrize(
    "value",
    [f"Bearer {KEY}\r\nX: y", f"Bearer {KEY}\n", f"Bearer {KEY}\x00", f"{KEY}\ud800", f"{KEY}é"],
)
def test_a_header_that_cannot_be_sent_is_not_sent(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, value: str
) -> None:
    with serving(answering(), context) as server:
        with pytest.raises(UnsendableRequest) as caught:
            client(post(upstream(server), headers={"Authorization": value}), policy)
        assert server.requests == []
    assert_no_secret(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 2_000_000,
        f"HTTP/1.1 200 OK\r\nX-Echo: {KEY}\r\nContent-Encoding: {KEY}\r\n\r\n".encode(),
        f"{KEY}\r\n\r\n".encode(),
        None,
    ],
)
def test_an_error_holds_no_credential(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, answer: bytes | None
) -> None:
    script = silent if answer is None else sending(answer)
    with serving(script, context) as server, pytest.raises(EgressError) as caught:
        client(post(upstream(server), f'{{"key":"{KEY}"}}'.encode()), policy)
    assert_no_secret(caught.value)


def assert_no_secret(error: EgressError) -> None:
    assert (error.__cause__, error.__context__) == (None, None)
    seen = [str(error), repr(error), repr(error.args), error.public]
    seen += traceback.format_exception(error)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(str(Path(egress.__file__).parent)):
            seen += [repr(value) for value in frame.f_locals.values()]
    assert not [text for text in seen if KEY in text]


def test_a_request_does_not_show_its_headers_or_body() -> None:
    request = post("https://example.com", b"prompt")
    assert repr(request) == "OutboundRequest(method='POST', url='https://example.com')"


def test_a_late_answer_is_not_asked_for_again(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    first = answering()

    def once(line: socket.socket, head: bytes, body: bytes) -> bool:
        return (first if head.startswith(b"GET /1 ") else silent)(line, head, body)

    async def run(base: str) -> None:
        async with through(policy) as egress_client:
            request = OutboundRequest("GET", f"{base}/1", HEADERS)
            response = await egress_client.send(request, first_byte_timeout=1, idle_timeout=1)
            assert await response.read() == b"hello"
            request = OutboundRequest("GET", f"{base}/2", HEADERS)
            with pytest.raises(TimedOut):
                await egress_client.send(request, first_byte_timeout=0.2, idle_timeout=1)

    with serving(once, context) as server:
        asyncio.run(run(upstream(server, "")))
        assert (server.connections, len(server.requests)) == (1, 2)


def test_many_requests_share_one_client(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def one(egress_client: EgressClient, url: str) -> bytes:
        response: OutboundResponse = await egress_client.send(
            post(url), first_byte_timeout=5, idle_timeout=5, connect_timeout=5
        )
        return await response.read()

    async def run(url: str) -> list[bytes]:
        async with through(policy) as egress_client:
            return await asyncio.gather(*(one(egress_client, url) for _ in range(50)))

    with serving(answering(), context) as server:
        assert asyncio.run(run(upstream(server))) == [b"hello"] * 50
        assert len(server.requests) == 50


def test_a_closed_client_sends_nothing(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            pass
        await egress_client.send(post(url), first_byte_timeout=1, idle_timeout=1)

    with serving(answering(), context) as server:
        with pytest.raises(ConnectFailed):
            asyncio.run(run(upstream(server)))
        assert server.connections == 0


CLIENTS = {
    "aiohappyeyeballs",
    "aiohttp",
    "ftplib",
    "http.client",
    "httpx",
    "requests",
    "smtplib",
    "urllib.request",
    "urllib3",
    "websockets",
}
# Beside the egress_client: what runs next to the gateway in demo and tests.
EXEMPT = {"config/local/postgres.py", "config/local/simulator/server.py"}
APPS = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def test_no_other_module_opens_connections() -> None:
    root = Path(__file__).parents[3]
    found = []
    for path in sorted(path for app in APPS for path in (root / app).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name in EXEMPT or name.startswith("config/egress/"):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {module for node in nodes for module in imported(node)}
        calls = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        forbidden = {"open_connection", "create_connection", "getaddrinfo"}
        if "socket" in modules:  # a module may bind a socket, but not connect one
            forbidden |= {"connect", "connect_ex", "sendto"}
            found += [f"{name}: {module}" for module in modules if module.startswith("socket.")]
        found += [f"{name}: {call}" for call in calls & forbidden]
        found += [
            f"{name}: {module}"
            for module in modules
            if any(module == client or module.startswith(f"{client}.") for client in CLIENTS)
        ]
    assert found == []
