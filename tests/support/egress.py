"""Requests and clients for the tests of outbound connections."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
import uvloop

from config.egress import EgressPolicy, OutboundRequest
from config.egress.client import EgressClient
from config.egress.fetch import fetch
from tests.support.upstreams.tls import Server

KEY = "sk-canary-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
STRICT = EgressPolicy()
# Seconds for an answer that comes: a busy machine may take long. Tests of lateness ask for less.
PATIENCE = 20.0
Answer = tuple[int, Mapping[str, str], bytes]
Client = Callable[..., Answer]


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
    patience: float = PATIENCE,
) -> Answer:
    return asyncio.run(answered(request, policy, resolve, patience))


def through_uvloop_client(
    request: OutboundRequest,
    policy: EgressPolicy,
    resolve: Callable[[str, int], Sequence[str]] = to_loopback,
    patience: float = PATIENCE,
) -> Answer:
    """Sends through uvloop, as `serve` does; its transports differ from the standard library's."""
    return uvloop.run(answered(request, policy, resolve, patience))


async def answered(
    request: OutboundRequest,
    policy: EgressPolicy,
    resolve: Callable[[str, int], Sequence[str]],
    patience: float,
) -> Answer:
    async with EgressClient(policy, resolve=asynchronous(resolve)) as egress_client:
        response = await egress_client.send(
            request, first_byte_timeout=patience, idle_timeout=patience
        )
        return response.status, response.headers, await response.read()


def through_fetch(
    request: OutboundRequest,
    policy: EgressPolicy,
    resolve: Callable[[str, int], Sequence[str]] = to_loopback,
    patience: float = PATIENCE,
) -> Answer:
    return fetch(request, policy, patience, resolve=resolve)


def post(url: str, body: bytes = b"{}", headers: Mapping[str, str] = HEADERS) -> OutboundRequest:
    return OutboundRequest("POST", url, headers, body)


def upstream(server: Server, path: str = "/v1") -> str:
    scheme = "http" if server.context is None else "https"
    return f"{scheme}://upstream.test:{server.port}{path}"


def silent(line: socket.socket, head: bytes, body: bytes) -> bool:
    line.recv(1)
    return False


def through(policy: EgressPolicy) -> EgressClient:
    return EgressClient(policy, resolve=asynchronous(to_loopback))
