"""URLs and addresses that an egress policy admits or refuses."""

import socket
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.egress import EgressError, EgressPolicy, InvalidURL, find_refusal, parse_base_url
from tests.support.egress import STRICT, Client, assert_untouched, post

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
POLICY = "refused by the egress policy"


# CANARY stands for the port of a listener on loopback, which must never see a connection.
DANGEROUS = [
    (spelling, message)
    for message, spellings in {
        PLACE: (
            "https://127.0.0.1:CANARY", "https://127.0.0.1:CANARY/v1", "https://[::1]:CANARY",
            "https://[0:0:0:0:0:0:0:1]:CANARY", "https://[::]:CANARY",
            "https://[::ffff:127.0.0.1]:CANARY", "https://[::ffff:7f00:1]:CANARY",
            "https://[::127.0.0.1]:CANARY", "https://[::ffff:0:127.0.0.1]:CANARY",
            "https://[64:ff9b::127.0.0.1]:CANARY", "https://[2002:7f00:1::]:CANARY",
            "https://localhost:22", "https://localhost:80", "https://localhost:6379",
            "https://8.8.8.8:25",
        ),
        NUMBER: (
            "https://127.1:CANARY", "https://127.0.1:CANARY", "https://0:CANARY",
            "https://2130706433:CANARY", "https://017700000001:CANARY", "https://0177.0.0.1:CANARY",
            "https://127.0.0.01:CANARY", "https://0x7f000001:CANARY", "https://0X7F000001:CANARY",
            "https://0x7f.0.0.1:CANARY", "https://127.0.0.0x1:CANARY", "https://0x:CANARY",
            "https://upstream.1:CANARY",
        ),
        NAME: (
            "https://127.0.0.1.:CANARY", "https://localhost.:CANARY", "https://127.0.0.1%00:CANARY",
            "https://127%2e0%2e0%2e1:CANARY", "https://local_host:CANARY",
            "https://-localhost:CANARY", "https://:CANARY",
        ),
        VISIBLE: (
            "https://１２７.0.0.1:CANARY", "https://127。0。0。1:CANARY", "https://ⓛocalhost:CANARY",
            "https://127.0.0.1\t:CANARY", "https://127.0.0.1:CANARY\n", " https://127.0.0.1:CANARY",
            "https://example.com\r\nHost: localhost:CANARY",
            "https://example.com\\@127.0.0.1:CANARY", "https:\\\\127.0.0.1:CANARY",
            "https://127.0.0.1\x00.example.com:CANARY",
        ),
        USER: ("https://example.com@127.0.0.1:CANARY", "https://user:password@127.0.0.1:CANARY"),
        QUERY: ("https://127.0.0.1:CANARY#@example.com", "https://127.0.0.1:CANARY?x=1"),
        ABSOLUTE: (
            "https:127.0.0.1:CANARY", "https:/127.0.0.1:CANARY", "//127.0.0.1:CANARY",
            "127.0.0.1:CANARY", "",
        ),
        SCHEME: (
            "http://127.0.0.1:CANARY", "http://localhost:CANARY", "ftp://127.0.0.1:CANARY",
            "file:///etc/passwd", "gopher://127.0.0.1:CANARY/_x", "unix://localhost/run/x",
        ),
        HOST: (
            "https://[fe80::1%lo]:CANARY", "https://[fe80::1%25lo]:CANARY", "https://[::1:CANARY",
            "https://[::1]x:CANARY",
        ),
        SIX: ("https://[127.0.0.1]:CANARY", "https://[]:CANARY"),
        PORT: (
            "https://127.0.0.1:CANARY:443", "https://localhost:", "https://localhost:0",
            "https://localhost:0443", "https://localhost:65536", "https://localhost:+443",
        ),
        SEGMENT: (
            "https://localhost:CANARY/../x", "https://localhost:CANARY/a/.",
            "https://localhost:CANARY/%2e%2E/x", "https://localhost:CANARY//x",
        ),
        ESCAPE: (
            "https://localhost:CANARY/a%2fb", "https://localhost:CANARY/a%0d%0ab",
            "https://localhost:CANARY/a%252e", "https://localhost:CANARY/a%5c",
        ),
        CHARACTER: ("https://localhost:CANARY/a%zz", 'https://localhost:CANARY/"'),
        LENGTH: ("https://localhost:CANARY/" + "a" * 2048,),
    }.items()
    for spelling in spellings
]  # fmt: skip


@pytest.mark.parametrize(("spelling", "message"), DANGEROUS)
def test_a_dangerous_spelling_is_refused_before_any_connection(
    spelling: str, message: str, canary: socket.socket
) -> None:
    url = spelling.replace("CANARY", str(canary.getsockname()[1]))
    with pytest.raises(InvalidURL) as caught:
        parse_base_url(url, policy=STRICT)
    assert str(caught.value) == message
    assert_untouched(canary)


def send(client: Client, url: str, address: str = "127.0.0.1") -> str:
    """Returns what a client says that sends to a URL whose host has this address."""
    try:
        return f"answered: {client(post(url), STRICT, lambda host, port: [address])}"
    except EgressError as exc:
        return str(exc)


def test_neither_client_dials_a_dangerous_spelling(client: Client, canary: socket.socket) -> None:
    port = str(canary.getsockname()[1])
    spellings = [spelling for spelling, message in DANGEROUS if message not in (QUERY, ESCAPE)]
    said = {spelling: send(client, spelling.replace("CANARY", port)) for spelling in spellings}
    # The address is refused where only the path is wrong.
    refusals = (f"{POLICY}: URL", f"{POLICY}: loopback")
    assert [row for row in said.items() if row[1] not in refusals] == []
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
    assert find_refusal(address, STRICT, port) == reason
    assert find_refusal(address, STRICT, 443) == reason


def test_a_name_with_a_refused_address_is_not_dialled(
    client: Client, canary: socket.socket
) -> None:
    url = f"https://upstream.test:{canary.getsockname()[1]}"
    said = {address: send(client, url, address) for address, _ in REFUSED}
    assert said == {address: f"{POLICY}: {reason}" for address, reason in REFUSED}
    assert_untouched(canary)


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "192.0.1.1", "2606:4700::1111"])
def test_a_public_address_is_admitted_on_the_ports_of_the_policy(address: str) -> None:
    ports = [22, 80, 443, 444, 1023, 1024, 3306, 5432, 6379, 8443, 65535, 65536, 0]
    admitted = [port for port in ports if find_refusal(address, STRICT, port) is None]
    assert admitted == [443, 1024, 8443, 65535]
    assert find_refusal(address, STRICT, 443, plain=True) == "plain HTTP"


def test_an_allowed_network_admits_only_its_own_addresses_on_any_port() -> None:
    policy = EgressPolicy(allowed_networks=(ip_network("10.1.0.0/16"), ip_network("fd00::/64")))
    assert find_refusal("10.1.2.3", policy, 22) is None
    assert find_refusal("10.1.2.3", policy, 80, plain=True) is None
    assert find_refusal("fd00::5", policy, 6379) is None
    assert find_refusal("10.2.0.1", policy, 443) == "private"
    assert find_refusal("fd00:0:0:1::5", policy, 443) == "not global unicast"
    assert find_refusal("8.8.8.8", policy, 22) == "port"
    assert find_refusal("8.8.8.8", policy, 443, plain=True) == "plain HTTP"
    assert find_refusal("10.1.2.3", policy, 0) == "port"


def test_allowing_every_network_still_refuses_embedded_addresses() -> None:
    policy = EgressPolicy(allowed_networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    still = [address for address, _ in REFUSED if find_refusal(address, policy, 443)]
    assert still == [
        "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::7f00:1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::808:808",
        "64:ff9b:1::808:808", "2001::1", "2002:808:808::1", "2606:4700::5efe:808:808",
        "2606:4700::200:5efe:808:808", "fe80::1%1", "ff02::1", "2606:4700::1111%1", "127.1",
        "０.0.0.0", "",
    ]  # fmt: skip


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


def test_parse_admits_plain_http_and_other_ports_only_for_allowed_networks() -> None:
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
def test_parse_refuses_values_other_than_text(value: object) -> None:
    with pytest.raises(InvalidURL, match=LENGTH):
        parse_base_url(value, policy=STRICT)  # type: ignore[arg-type]


def test_join_refuses_a_path_that_would_extend_the_host() -> None:
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
def test_parsing_the_parsed_form_returns_it_unchanged(text: str) -> None:
    for policy in (STRICT, EgressPolicy(allowed_networks=(ip_network("0.0.0.0/0"),))):
        try:
            base = parse_base_url(text, policy=policy, require_https=False)
        except InvalidURL:
            continue
        assert parse_base_url(base.text, policy=policy, require_https=False) == base
        assert base.text.isascii()
