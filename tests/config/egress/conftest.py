"""A certificate authority, an egress policy and the clients under test."""

import socket
import ssl
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from config.egress import EgressPolicy
from tests.support.egress import Client, through_async_client, through_fetch, through_uvloop_client
from tests.support.upstreams.tls import Authority


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
        connect_timeout=10,
        max_response_bytes=1_000_000,
    )


@pytest.fixture
def canary() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture(
    params=[through_async_client, through_uvloop_client, through_fetch],
    ids=["asyncio", "uvloop", "fetch"],
)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen
