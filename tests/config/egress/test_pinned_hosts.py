"""Host names with an address from the operator: it replaces DNS and passes the same checks."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.egress import AddressRefused, OutboundRequest
from config.egress.addresses import EgressPolicy, PinnedHost, parse_pinned_hosts
from config.egress.client import EgressClient
from config.egress.fetch import fetch
from tests.support.settings import read_settings
from tests.support.upstreams.tls import Authority, answering, serving

NAME = "models.example.com"
Client = Callable[[str, EgressPolicy], bytes]


def nowhere(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} was looked up")


async def nowhere_later(host: str, port: int) -> Sequence[str]:
    return nowhere(host, port)


def through_async_client(url: str, policy: EgressPolicy) -> bytes:
    async def run() -> bytes:
        async with EgressClient(policy, resolve=nowhere_later) as egress_client:
            request = OutboundRequest("POST", url, {})
            answer = await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)
            return await answer.read()

    return asyncio.run(run())


def through_fetch(url: str, policy: EgressPolicy) -> bytes:
    return fetch(OutboundRequest("POST", url, {}), policy, 2.0, resolve=nowhere)[2]


@pytest.fixture(params=[through_async_client, through_fetch], ids=["asyncio", "fetch"])
def client(request: pytest.FixtureRequest) -> Client:
    return request.param


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return authority.server_context(NAME)


@pytest.fixture
def policy(authority: Authority) -> EgressPolicy:
    return EgressPolicy(allowed_networks=(ip_network("127.0.0.1/32"),), ca_bundle=authority.bundle)


def test_a_pinned_name_is_dialled_at_its_address_and_keeps_its_name(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    with serving(answering(b"here"), context) as server:
        pinned = replace(policy, hosts={NAME: PinnedHost("127.0.0.1", server.port)})
        assert client(f"https://{NAME}/v1", pinned) == b"here"
    assert server.names == [NAME]
    assert f"\r\nHost: {NAME}\r\n" in server.requests[0][0].decode() + "\r\n"


def test_a_port_in_the_url_overrides_the_pinned_port(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    with serving(answering(b"here"), context) as server:
        pinned = replace(policy, hosts={NAME: PinnedHost("127.0.0.1", 1)})
        assert client(f"https://{NAME}:{server.port}/v1", pinned) == b"here"
    assert server.names == [NAME]


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("10.0.0.1", None),
        ("169.254.169.254", 443),
        ("127.0.0.2", None),
        ("::ffff:127.0.0.1", None),
        ("fd00::1", None),
        ("93.184.215.14", 22),
    ],
)
def test_a_pinned_address_is_checked_like_any_other(
    client: Client, policy: EgressPolicy, address: str, port: int | None
) -> None:
    pinned = replace(policy, hosts={NAME: PinnedHost(address, port)})
    with pytest.raises(AddressRefused):
        client(f"https://{NAME}/v1", pinned)


def test_another_name_is_not_pinned(policy: EgressPolicy) -> None:
    pinned = replace(policy, hosts={NAME: PinnedHost("127.0.0.1", 1)})
    assert pinned.pinned_address(f"x.{NAME}", 443) is None
    assert pinned.pinned_address("example.com", 443) is None
    assert pinned.pinned_address(NAME, 443) == ("127.0.0.1", 1)
    assert pinned.pinned_address(NAME, 8443) == ("127.0.0.1", 8443)
    pinned = replace(policy, hosts={NAME: PinnedHost("::1")})
    assert pinned.pinned_address(NAME, 443) == ("::1", 443)


def test_names_addresses_and_ports_are_parsed() -> None:
    assert parse_pinned_hosts(
        ["a.example=10.1.2.3", "B.Example=10.1.2.3:8443", "c.example=[FD00::1]", "d=[::1]:1"]
    ) == {
        "a.example": PinnedHost("10.1.2.3"),
        "b.example": PinnedHost("10.1.2.3", 8443),
        "c.example": PinnedHost("fd00::1"),
        "d": PinnedHost("::1", 1),
    }


@pytest.mark.parametrize(
    "item",
    [
        "", "a.example", "a.example=", "=10.0.0.1", "a.example=b.example", "10.0.0.1=10.0.0.2",
        "a.example=fd00::1", "a.example=[fd00::1", "a.example=127.1", "a.example=10.0.0.1:",
        "a.example=10.0.0.1:0", "a.example=10.0.0.1:65536", "a.example=10.0.0.1:443x",
        "a..example=10.0.0.1", "*.example=10.0.0.1", "a.example =10.0.0.1",
    ],
)  # fmt: skip
def test_parse_refuses_malformed_items(item: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_pinned_hosts([item])


def test_parse_refuses_a_name_given_twice() -> None:
    with pytest.raises(ValueError, match=r"'a\.example' is given twice"):
        parse_pinned_hosts(["a.example=10.0.0.1", "A.example=10.0.0.2"])


def test_the_setting_is_read_and_a_wrong_value_prevents_the_start() -> None:
    def load(value: str) -> Any:
        return read_settings(UPSTREAM_HOSTS=value)["EGRESS_POLICY"].hosts

    assert load("") == {}
    assert load("a.example=10.0.0.1, b.example=10.0.0.2:8443") == {
        "a.example": PinnedHost(address="10.0.0.1", port=None),
        "b.example": PinnedHost(address="10.0.0.2", port=8443),
    }
    with pytest.raises(ImproperlyConfigured) as refusal:
        load("a.example=10.0.0.1,b.example=c.example")
    assert str(refusal.value) == (
        "UPSTREAM_HOSTS is a comma list of "
        "name=address[:port]: 'b.example=c.example' must give an address for a name."
    )
