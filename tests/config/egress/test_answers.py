"""Answers of an upstream that the egress client refuses, and the error for each."""

import asyncio
import socket
import ssl
import threading
import time

import pytest
import uvloop

from config.egress import BadResponse, ConnectFailed, EgressError, EgressPolicy, RedirectRefused
from config.egress.errors import Compressed
from tests.support.egress import (
    Client,
    assert_untouched,
    post,
    through,
    through_async_client,
    through_uvloop_client,
    upstream,
)
from tests.support.upstreams.tls import answering, sending, serving


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
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", Compressed),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", BadResponse),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
         BadResponse),
    ],
    ids=[
        "nothing", "no status line", "short body", "cut between chunks", "bad chunk size",
        "long header", "many headers", "gzip", "brotli", "upgrade",
    ],
)  # fmt: skip
def test_each_kind_of_broken_answer_has_its_own_error(
    client: Client,
    policy: EgressPolicy,
    context: ssl.SSLContext,
    answer: bytes,
    error: type[EgressError],
) -> None:
    with serving(sending(answer), context) as server, pytest.raises(EgressError) as caught:
        client(post(upstream(server)), policy)
    assert isinstance(caught.value, error)


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
        "two answers", "surplus", "surplus after none", "length and chunks", "two lengths",
        "negative length", "coded chunks", "coded", "blank before the colon", "bare line feeds",
        "NUL in a header", "long chunk", "long trailer", "interim answers without end",
        "another protocol",
    ],
)  # fmt: skip
def test_an_answer_with_an_ambiguous_end_is_refused(
    async_client: Client, policy: EgressPolicy, answer: bytes
) -> None:
    with serving(sending(answer)) as server, pytest.raises(BadResponse):
        async_client(post(upstream(server)), policy)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_an_answer_does_not_depend_on_how_it_is_split_into_packets(
    policy: EgressPolicy, size: int
) -> None:
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
    """Returns the bodies of two requests by one client, with a pause after each answer."""
    async with through(policy) as egress_client:
        bodies = []
        for _ in range(2):
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            bodies.append(await response.read())
            await asyncio.sleep(0.2)
        return bodies


def test_bytes_sent_after_an_answer_never_answer_the_next_request(policy: EgressPolicy) -> None:
    """The upstream sends a forged second answer on a connection that is kept for reuse."""
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
def test_a_connection_that_is_not_kept_is_not_reused(policy: EgressPolicy, answer: bytes) -> None:
    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(answer)
        return answer != HELLO

    with serving(script) as server:
        assert uvloop.run(twice(policy, upstream(server))) == [b"hello", b"hello"]
        assert (server.connections, len(server.requests)) == (2, 2)


def test_an_unread_answer_does_not_disturb_the_next_request(policy: EgressPolicy) -> None:
    """The answer is complete but larger than the read buffer, so reading had been paused."""

    async def run(url: str) -> bytes:
        async with through(policy) as egress_client:
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            await asyncio.sleep(0.2)
            response.close()
            response = await egress_client.send(post(url), first_byte_timeout=20, idle_timeout=20)
            return await response.read()

    body = b"x" * 100_000
    with serving(answering(body)) as server:
        assert uvloop.run(run(upstream(server))) == body
        assert len(server.requests) == 2


def test_a_refusal_during_an_upload_is_returned_as_the_answer(policy: EgressPolicy) -> None:
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


def test_close_lingers_to_keep_the_connection_of_a_late_answer(
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
                response = await egress_client.send(request, first_byte_timeout=20, idle_timeout=20)
                assert await response.readany() == b"hello"
                response.close(linger=0.2)
                assert await response.readany() == b""
                await asyncio.sleep(0.3)
                assert server.connections == connections

    with serving(script, context) as server:
        uvloop.run(run(upstream(server, "")))
