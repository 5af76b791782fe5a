"""Time limits and size limits of an answer."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from config.egress import (
    AddressRefused,
    BadResponse,
    ConnectFailed,
    EgressPolicy,
    TimedOut,
    TLSFailed,
    TooLarge,
)
from config.egress.fetch import fetch
from tests.support.egress import Client, post, silent, through, through_fetch, to_loopback, upstream
from tests.support.upstreams.tls import answering, sending, serving

UNREACHABLE = "The upstream could not be reached."


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
        client(post(upstream(server)), policy, patience=0.5)
    assert caught.value.phase == (client_phase if client is not through_fetch else "total")
    assert caught.value.public == "The upstream did not answer in time."


LINES = b"".join(b"X-%02d: %s\r\n" % (number, b"x" * 990) for number in range(70))


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + LINES,
        b"HTTP/1.1 100 Continue\r\n"
        + LINES[: 40 * 998]
        + b"\r\nHTTP/1.1 200 OK\r\n"
        + LINES[: 40 * 998],
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000,
    ],
    ids=["headers", "headers of two answers", "interim answers"],
)
def test_fetch_refuses_a_large_head(
    policy: EgressPolicy, context: ssl.SSLContext, head: bytes
) -> None:
    """The library would keep 6 MB of it, several times, for each of the connections."""
    script = sending(head + b"Content-Length: 0\r\n\r\n")
    with serving(script, context) as server, pytest.raises(BadResponse):
        fetch(post(upstream(server)), policy, 30, resolve=to_loopback)


def test_fetch_takes_a_head_within_the_limit_and_the_body_after_it(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    """The limit ends with the head: sizes of chunks are lines too."""
    body = b"1\r\nx\r\n" * 3_000 + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\n" + LINES[: 60 * 998] + b"Transfer-Encoding: chunked\r\n\r\n"
    with serving(sending(head + body), context) as server:
        status, headers, read = fetch(post(upstream(server)), policy, 30, resolve=to_loopback)
    assert (status, read, headers["X-59"]) == (200, b"x" * 3_000, "x" * 990)


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
        # The whole body would take ten seconds.
        assert time.monotonic() - started < 9
    assert caught.value.phase == "total"


def test_a_caller_can_end_a_dripping_body(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            try:
                async with asyncio.timeout(0.3):
                    await response.read()
            finally:
                response.close()

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with serving(dripping(head), context) as server, pytest.raises(TimeoutError):
        asyncio.run(run(upstream(server)))


def pausing(line: socket.socket, head: bytes, body: bytes) -> bool:
    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
    line.recv(1)
    return False


def test_a_body_that_stops_times_out_as_idle(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> bytes:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=0.3)
            first = await response.readany()
            # Time in which the caller does not read does not count as idle time of the upstream.
            await asyncio.sleep(0.4)
            with pytest.raises(TimedOut) as caught:
                await response.readany()
            assert caught.value.phase == "idle"
            return first

    with serving(pausing, context) as server:
        assert asyncio.run(run(upstream(server))) == b"hello"


def test_a_handshake_without_a_reply_times_out_as_connecting(policy: EgressPolicy) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            await egress_client.send(
                post(url), first_byte_timeout=20, idle_timeout=20, connect_timeout=0.3
            )

    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"https://upstream.test:{mute.getsockname()[1]}"
        with pytest.raises(TimedOut) as caught:
            asyncio.run(run(url))
        assert (caught.value.phase, caught.value.public) == ("connect", UNREACHABLE)
        with pytest.raises(TimedOut) as caught:
            fetch(post(url), policy, 0.3, resolve=to_loopback)
        assert caught.value.phase == "total"


def test_name_address_port_and_tls_errors_share_one_public_message() -> None:
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
def test_a_body_over_the_limit_is_too_large(
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


def test_read_takes_its_own_limit(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str, limit: int) -> bytes:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            return await response.read(limit)

    with serving(answering(b"x" * 1000), context) as server:
        assert asyncio.run(run(upstream(server), 1000)) == b"x" * 1000
        with pytest.raises(TooLarge):
            asyncio.run(run(upstream(server), 999))


@pytest.mark.parametrize("size", [0, 1 << 20, 3 << 20])
def test_a_body_of_any_size_arrives_complete(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, size: int
) -> None:
    body = b"0123456789abcdef" * (size // 16)
    with serving(answering(), context) as server:
        client(post(upstream(server), body), policy)
        assert server.requests[0][1] == body
