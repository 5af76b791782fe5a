"""When a connection is kept, and when it is closed."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop

from config.egress import (
    BadResponse,
    ConnectFailed,
    EgressPolicy,
    OutboundRequest,
    TimedOut,
    TooLarge,
)
from config.egress.client import EgressClient, OutboundResponse
from config.egress.connection import UpstreamConnection
from tests.support.egress import HEADERS, post, silent, through, upstream
from tests.support.machine.collecting import find_objects, without_collector
from tests.support.upstreams.tls import answering, sending, serving


def test_a_finished_answer_releases_its_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    async def run(url: str) -> list[bytes]:
        async with through(policy) as egress_client:
            bodies = []
            for _ in range(3):
                response = await egress_client.send(
                    post(url), first_byte_timeout=20, idle_timeout=20
                )
                bodies.append(b"".join([chunk async for chunk in response.iter_chunks()]))
                response.close()
            return bodies

    with serving(answering(), context) as server:
        assert asyncio.run(run(upstream(server))) == [b"hello"] * 3
        assert (server.connections, len(server.requests)) == (1, 3)


def test_an_answer_without_a_body_releases_its_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    async def run(url: str) -> list[bytes]:
        async with through(policy) as egress_client:
            return [
                await (
                    await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
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
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await response.readany()
            response.close()
            response.close()
            return await asyncio.to_thread(ended.wait, 20)

    with serving(endless, context) as server:
        assert asyncio.run(run(upstream(server))) is True


def test_a_cancelled_request_closes_its_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    arrived, ended = threading.Event(), threading.Event()

    def waiting(line: socket.socket, head: bytes, body: bytes) -> bool:
        arrived.set()
        try:
            return silent(line, head, body)
        finally:
            ended.set()

    async def run(url: str) -> bool:
        async with through(policy) as egress_client:
            sending = asyncio.create_task(
                egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            )
            assert await asyncio.to_thread(arrived.wait, 20)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            return await asyncio.to_thread(ended.wait, 20)

    with serving(waiting, context) as server:
        assert asyncio.run(run(upstream(server))) is True


def drip(line: socket.socket, head: bytes, body: bytes) -> bool:
    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    time.sleep(0.3)
    line.sendall(b"cd")
    return True


async def cancel_in_count(response: OutboundResponse) -> None:
    """Reads the first two bytes of an answer, and is cancelled while they are counted."""
    counting = asyncio.Event()

    async def count(size: int) -> None:
        counting.set()
        await asyncio.sleep(20)

    reading = asyncio.create_task(response.read(count=count))
    await counting.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


def test_a_read_that_was_cancelled_while_it_counted_loses_nothing(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    async def run(url: str) -> bytes | bytearray:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await cancel_in_count(response)
            return await response.read(limit=4)

    with serving(drip, context) as server:
        assert asyncio.run(run(upstream(server))) == b"abcd"


def test_a_repeated_read_waits_for_nothing_beyond_its_limit(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    def stalled(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        return silent(line, head, body)

    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await cancel_in_count(response)
            async with asyncio.timeout(5):
                with pytest.raises(TooLarge):
                    await response.read(limit=1)

    with serving(stalled, context) as server:
        asyncio.run(run(upstream(server)))


def test_a_paused_reader_stops_the_upstream_from_sending(policy: EgressPolicy) -> None:
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
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await asyncio.sleep(0.5)
            stopped = not finished.is_set()
            return stopped, len(await response.read())

    with serving(flood) as server:
        assert asyncio.run(run(upstream(server))) == (True, size)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_waits_for_a_slow_reader_is_noted_until_it_is_read(
    policy: EgressPolicy, run: Callable[[Awaitable[None]], None]
) -> None:
    size = 4 << 20
    body = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (size, b"x" * size)

    async def read(url: str) -> None:
        async with through(replace(policy, max_response_bytes=size)) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            noted: list[int] = []
            is_paused = asyncio.Event()

            def note(count: int) -> None:
                noted.append(count)
                if count:
                    is_paused.set()

            response.watch_unread(note)
            await is_paused.wait()
            first = await response.readany()
            assert len(first) == noted[-1]
            assert noted[-1] > 65_536
            # The first part is in memory until the reader asks for the next one.
            assert 0 not in noted
            is_paused.clear()
            await response.readany()
            assert 0 in noted
            await is_paused.wait()
            assert noted[-1] > 65_536
            response.close()
            assert noted[-1] == 0

    with serving(sending(body)) as server:
        run(read(upstream(server)))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("pause", [0, 0.01], ids=["quick", "slow"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_answer_is_read_whole_after_the_upstream_disconnects(
    policy: EgressPolicy,
    context: ssl.SSLContext,
    run: Callable[[Awaitable[bytes]], bytes],
    pause: float,
    framing: str,
) -> None:
    """The upstream closes without a TLS close_notify alert, as most servers do."""
    body = bytes(range(256)) * 2_400

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


def test_a_request_that_timed_out_is_not_sent_again(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    first = answering()

    def once(line: socket.socket, head: bytes, body: bytes) -> bool:
        return (first if head.startswith(b"GET /1 ") else silent)(line, head, body)

    async def run(base: str) -> None:
        async with through(policy) as egress_client:
            request = OutboundRequest("GET", f"{base}/1", HEADERS)
            response = await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)
            assert await response.read() == b"hello"
            request = OutboundRequest("GET", f"{base}/2", HEADERS)
            with pytest.raises(TimedOut):
                await egress_client.send(request, first_byte_timeout=0.2, idle_timeout=1)

    with serving(once, context) as server:
        asyncio.run(run(upstream(server, "")))
        assert (server.connections, len(server.requests)) == (1, 2)


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_request_on_a_connection_that_the_upstream_has_closed_is_sent_once_more(
    policy: EgressPolicy, context: ssl.SSLContext, is_large: bool, is_reset: bool
) -> None:
    """The upstream closes after its first answer, and after every other request."""
    first = answering()
    body = b"x" * (1_000_000 if is_large else 10)

    def script(line: socket.socket, head: bytes, received: bytes) -> bool:
        if len(server.requests) in (2, 5, 6):
            if is_reset:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            return False
        return first(line, head, received)

    async def run(base: str) -> None:
        async with through(policy) as egress_client:
            for number in range(4):
                request = OutboundRequest("POST", base, HEADERS, body)
                sending = egress_client.send(request, first_byte_timeout=20, idle_timeout=20)
                if number < 3:
                    assert await (await sending).read() == b"hello"
                else:
                    with pytest.raises(ConnectFailed):
                        await sending

    with serving(script, context) as server:
        asyncio.run(run(upstream(server)))
        # The first, the second twice, the third, and the fourth twice without success.
        assert [received for _, received in server.requests] == [body] * 6
        assert server.connections == 3


def test_a_request_on_a_new_connection_is_sent_once(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    async def run(base: str) -> None:
        async with through(policy) as egress_client:
            request = OutboundRequest("POST", base, HEADERS, b"x")
            with pytest.raises(ConnectFailed):
                await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)

    with serving(lambda line, head, body: False, context) as server:
        asyncio.run(run(upstream(server)))
        assert (server.connections, len(server.requests)) == (1, 1)


def test_a_request_whose_answer_has_begun_is_not_sent_again(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    first = answering()

    def script(line: socket.socket, head: bytes, received: bytes) -> bool:
        if len(server.requests) == 1:
            return first(line, head, received)
        line.sendall(b"HTTP/1.1 200 ")
        return False

    async def run(base: str) -> None:
        async with through(policy) as egress_client:
            request = OutboundRequest("POST", base, HEADERS, b"x")
            response = await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)
            assert await response.read() == b"hello"
            with pytest.raises(BadResponse):
                await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)

    with serving(script, context) as server:
        asyncio.run(run(upstream(server)))
        assert len(server.requests) == 2


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
        await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)

    with serving(answering(), context) as server:
        with pytest.raises(ConnectFailed):
            asyncio.run(run(upstream(server)))
        assert server.connections == 0


def test_a_body_in_pieces_arrives_whole_and_keeps_the_connection(
    policy: EgressPolicy, context: ssl.SSLContext
) -> None:
    pieces = [b"head", b"x" * 700_000, b"", memoryview(b"tail of a view")[:4], b""]

    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            for body, rest in ((b"first", pieces), (b"", pieces), (b"alone", ())):
                request = OutboundRequest("POST", url, HEADERS, body, rest)
                response = await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)
                assert response.is_sent
                await response.read()

    joined = b"".join(pieces)
    for runner in (asyncio.run, uvloop.run):
        with serving(answering(), context) as server:
            runner(run(upstream(server)))
            received = [body for _, body in server.requests]
            assert received == [b"first" + joined, joined, b"alone"]
            assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    ],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_failed_answer_frees_its_connection_without_the_collector(
    policy: EgressPolicy, context: ssl.SSLContext, answer: bytes, run: Callable[..., int]
) -> None:
    """A busy worker collects cycles rarely, and a connection with TLS takes 40 KiB."""

    async def fail(egress_client: EgressClient, url: str) -> None:
        try:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await response.read()
        except (ConnectFailed, BadResponse):
            return
        pytest.fail("the answer was accepted")

    async def count_left(url: str) -> int:
        async with through(policy) as egress_client:
            with without_collector():
                others = find_objects(UpstreamConnection)
                for _ in range(3):
                    await fail(egress_client, url)
                until = time.monotonic() + 20
                while find_objects(UpstreamConnection, but=others) and time.monotonic() < until:
                    await asyncio.sleep(0.01)
                return len(find_objects(UpstreamConnection, but=others))

    with serving(sending(answer), context) as server:
        assert run(count_left(upstream(server))) == 0
