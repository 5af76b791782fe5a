from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from collections.abc import Sequence
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import requests

from config.server.bodies import Message, read_body
from config.server.bulkheads import Bulkheads
from config.server.connections.protocol import MAX_HEADER_BYTES
from endusers.models import EndUser
from tests.support import factories
from tests.support.bulkheads.counters import authorization

KEY = UUID(int=1)


def exchange(server: str, head: bytes, *parts: bytes) -> bytes:
    """Sends raw bytes and returns the whole response."""
    with socket.create_connection(("127.0.0.1", urlsplit(server).port or 80), 10) as connection:
        connection.sendall(head)
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:  # the server refused and closed the connection
                break
        connection.settimeout(60)
        received = b""
        try:
            while data := connection.recv(65_536):
                received += data
        except ConnectionResetError:
            pass
        return received


def body_of(answer: bytes) -> dict[str, object]:
    body: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return body


def test_a_body_of_unknown_length_is_read_completely(server: str) -> None:
    tenant = factories.make_tenant()
    answer = requests.post(
        f"{server}/api/v1/end-users",
        data=iter([b'{"user": ', b'"customer-1"}']),
        headers={
            "Authorization": f"Bearer {tenant.management_key}",
            "Content-Type": "application/json",
        },
        timeout=60,
    )
    assert answer.status_code == 201, answer.text
    assert EndUser.objects.get().user == "customer-1"


@pytest.mark.parametrize("path", ["/api/v1/end-users", "/admin/login/", "/nowhere"])
def test_a_too_large_content_length_is_refused_before_the_body_is_read(
    server: str, path: str
) -> None:
    answer = exchange(
        server,
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n".encode(),
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    if path.startswith("/admin/"):
        assert b"content-type: text/html" in answer.lower()
        assert b"too large" in answer
    else:
        assert body_of(answer)["metadata"] == {"error_type": "payload_too_large"}


def test_a_malformed_body_after_a_wait_for_permission_is_refused_quietly(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = exchange(
        server,
        b"POST /api/v1/end-users HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nno size\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    # The application has had its turn when a later request is answered.
    assert requests.get(f"{server}/healthz", timeout=60).status_code == 200
    assert "the application failed" not in caplog.text


def test_a_body_of_unknown_length_is_bounded(server: str, settings: object) -> None:
    settings.MAX_REQUEST_BYTES = 1000
    answer = exchange(
        server,
        b"POST /api/v1/end-users HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_headers_are_bounded(server: str) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: "
    answer = exchange(server, head, *[b"x" * 65_536] * 64)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    fitting = exchange(server, head, b"x" * (MAX_HEADER_BYTES // 2), b"\r\n\r\n")
    assert fitting.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_only_probes_accept_any_host_name(server: str, path: str) -> None:
    host = {"Host": "10.1.2.3:8000", **authorization()}
    assert requests.get(f"{server}{path}", headers=host, timeout=60).status_code == 200
    posted = requests.post(f"{server}{path}", headers=host, timeout=60)
    assert posted.status_code == 405
    assert posted.headers["Allow"] == "GET, HEAD"
    assert posted.json()["error"]["code"] == 405
    elsewhere = requests.get(f"{server}/api/v1/key", headers=host, timeout=60)
    assert elsewhere.status_code == 400


def read_parts(parts: Sequence[bytes], length: int | None, *, begun: Sequence[bytes] = ()) -> bytes:
    """Reads a body that comes in these parts; checks that it is counted."""

    async def scene() -> bytes:
        left = list(parts)

        async def receive() -> Message:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        with Bulkheads().enter(KEY, KEY) as occupancy:
            body = await read_body(receive, occupancy, length, begun)
            assert occupancy.held == len(body)
        return body

    return asyncio.run(scene())


@pytest.mark.parametrize("is_announced", [False, True])
@pytest.mark.parametrize(
    "parts",
    [[b""], [b"ab"], [b"", b"ab"], [b"a", b"", b"b", b"c"]],
    ids=["empty", "one", "late", "many"],
)
def test_parts_become_a_whole(parts: list[bytes], is_announced: bool) -> None:
    whole = b"".join(parts)
    assert read_parts(parts, len(whole) if is_announced else None) == whole
    assert read_parts(parts, None, begun=[b"x", b"yz"]) == b"xyz" + whole


def test_a_large_body_is_in_memory_once() -> None:
    size, count = 65_536, 100
    parts = (bytes([number]) * size for number in range(count))

    async def scene() -> None:
        left = count

        async def receive() -> Message:
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": next(parts), "more_body": bool(left)}

        with Bulkheads().enter(KEY, KEY) as occupancy:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            body = await read_body(receive, occupancy, size * count)
            assert tracemalloc.get_traced_memory()[1] - before < 1.25 * len(body)

    tracemalloc.start()
    try:
        asyncio.run(scene())
    finally:
        tracemalloc.stop()
