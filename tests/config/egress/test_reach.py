"""What one provider or organization may reach besides the policy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from config.egress import NO_REACH, AddressRefused, EgressPolicy, OutboundRequest, Reach, TLSFailed
from config.egress.addresses import parse_network
from config.egress.client import EgressClient
from config.egress.rules import InvalidAuthorities, read_authorities
from tests.support.egress import PATIENCE, post, upstream
from tests.support.upstreams.tls import Authority, Server, answering, serving

LOOPBACK = Reach(networks=(ip_network("127.0.0.1/32"),))


async def ask(client: EgressClient, request: OutboundRequest, reach: Reach) -> bytes:
    response = await client.send(
        request, first_byte_timeout=PATIENCE, idle_timeout=PATIENCE, reach=reach
    )
    return await response.read()


def keep_alive(server: Server) -> OutboundRequest:
    return OutboundRequest("GET", f"http://127.0.0.1:{server.port}/v1/models", {})


def test_a_network_is_allowed_to_its_owner_alone() -> None:
    async def run(server: Server) -> None:
        async with EgressClient(EgressPolicy()) as client:
            assert await ask(client, keep_alive(server), LOOPBACK) == b"hello"
            # The connection is kept, and the target is remembered; neither is for another owner.
            for other in (NO_REACH, Reach(networks=(ip_network("10.0.0.0/8"),))):
                with pytest.raises(AddressRefused):
                    await ask(client, keep_alive(server), other)
            assert await ask(client, keep_alive(server), LOOPBACK) == b"hello"

    with serving(answering(b"hello"), None) as server:
        asyncio.run(run(server))
    assert len(server.requests) == 2


def test_an_allowed_network_switches_off_no_other_rule() -> None:
    everything = Reach(networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))

    async def run() -> None:
        async with EgressClient(EgressPolicy()) as client:
            for host in ("0.0.0.0", "[::ffff:127.0.0.1]", "224.0.0.1"):
                request = OutboundRequest("GET", f"http://{host}:8000/v1", {})
                with pytest.raises(AddressRefused):
                    await ask(client, request, everything)

    asyncio.run(run())


def test_an_authority_is_trusted_for_its_owner_alone(authority: Authority) -> None:
    own = LOOPBACK._replace(authorities=Path(authority.bundle).read_text())
    context = authority.server_context("upstream.test", "127.0.0.1")

    async def run(server: Server) -> None:
        async with EgressClient(EgressPolicy()) as client:
            request = replace(post(upstream(server)), url=f"https://127.0.0.1:{server.port}/v1")
            with pytest.raises(TLSFailed):
                await ask(client, request, LOOPBACK)
            assert await ask(client, request, own) == b"hello"
            with pytest.raises(TLSFailed):
                await ask(client, request, LOOPBACK)

    with serving(answering(b"hello"), context) as server:
        asyncio.run(run(server))
    assert len(server.requests) == 1


def test_authorities_are_read_without_the_text_around_them(authority: Authority) -> None:
    pem = Path(authority.bundle).read_text().strip()
    assert read_authorities(f"# our authority\n{pem}\nbye") == pem
    assert read_authorities(f"{pem}\n{pem}") == f"{pem}\n{pem}"


@pytest.mark.parametrize(
    "text",
    ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"],
    ids=["empty", "text", "broken"],
)
def test_a_text_without_certificates_is_refused(text: str) -> None:
    with pytest.raises(InvalidAuthorities, match="-----BEGIN CERTIFICATE-----"):
        read_authorities(text)


def test_a_network_is_an_address_or_a_prefix() -> None:
    assert parse_network("10.0.0.5") == ip_network("10.0.0.5/32")
    assert parse_network("fd00::/8") == ip_network("fd00::/8")
    for text in ("10.0.0.5/8", "gpu.lan", "", "10.0.0"):
        with pytest.raises(ValueError, match=f"^{text!r} is no network: write an address"):
            parse_network(text)
