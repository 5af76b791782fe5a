"""Timing of streams: the first event, keep-alive comments, and callers that disconnect."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.conf import LazySettings

from config.server.connections import protocol
from inference.faces import connection
from inference.models import Generation, Journal
from inference.settlement import journal
from tests.support import factories
from tests.support.inference.site import CHAT, Site, content_of, events_of

GATES = 7


@pytest.fixture
def priced(site: Site) -> Site:
    site.publish("sim-gated", price=factories.make_price("0.000001", "0.000002"))
    return site


def opened(site: Site, **fields: Any) -> requests.Response:
    return site.post(site.chat_body("one two", stream=True, **fields), stream=True)


@contextmanager
def raw_stream(site: Site, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Yields a connection that has requested a stream and has read nothing of it."""
    address = urlsplit(site.server)
    body = json.dumps(site.chat_body("one two", stream=True)).encode()
    line = socket.socket()
    if receive_buffer is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    line.settimeout(60)
    line.connect((address.hostname, address.port))
    with line:
        line.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: Bearer {site.tenant.api_key}\r\n\r\n".encode()
            + body
        )
        yield line


def test_the_first_event_arrives_before_the_last_is_sent(priced: Site) -> None:
    answer = opened(priced)
    assert answer.status_code == 200
    chunks = answer.iter_content(None)
    [first] = events_of(next(chunks).decode())
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for word in ("You", " said:", " one"):
        priced.upstream.release()
        [event] = events_of(next(chunks).decode())
        assert event["choices"][0]["delta"] == {"content": word}
    assert Generation.objects.get().status == Generation.Status.PENDING
    priced.upstream.release(GATES)
    *_, usage, done = events_of(b"".join(chunks).decode())
    assert (usage["usage"]["total_tokens"], done) == (6, "[DONE]")
    assert priced.settled().status == Generation.Status.COMPLETED


def test_a_stream_has_the_headers_of_an_event_stream(site: Site) -> None:
    site.publish()
    answer = opened(site)
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["X-Generation-Id"].startswith("gen-")
    assert len(answer.headers["X-Request-Id"]) == 16
    assert "Content-Length" not in answer.headers
    assert answer.content


def test_usage_comes_once_at_the_end_with_the_upstreams_other_members(site: Site) -> None:
    site.publish("sim-extra")
    *chunks, usage, done = events_of(opened(site).text)
    assert not any("usage" in chunk for chunk in chunks)
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["timings"]["prompt_n"] == 1
    assert (usage["choices"], done) == ([], "[DONE]")


def test_a_quiet_stream_is_kept_alive_with_comments(priced: Site, settings: LazySettings) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    answer = opened(priced)
    chunks = answer.iter_content(None)
    assert next(chunks).startswith(b"data: {")
    assert next(chunks) == b": CAUSEWAY PROCESSING\n\n"
    assert next(chunks) == b": CAUSEWAY PROCESSING\n\n"
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    priced.upstream.release(GATES)
    text = b"".join(chunks).decode()
    events = [event for event in events_of(text) if event != ": CAUSEWAY PROCESSING"]
    assert content_of(events) == "You said: one two"
    assert events[-1] == "[DONE]"


def test_a_busy_stream_needs_no_comments(site: Site, settings: LazySettings) -> None:
    # The stream lasts longer than the interval; each pause of the upstream is much shorter.
    settings.STREAM_KEEPALIVE_INTERVAL = 1.5
    site.publish("sim-slow:0,0.2")
    answer = site.post(site.chat_body("one two three four five six", stream=True), stream=True)
    assert ": CAUSEWAY" not in answer.text


def test_a_caller_that_leaves_ends_the_upstream_and_pays_for_the_delivered_part(
    priced: Site,
) -> None:
    priced.upstream.release(3)
    answer = opened(priced)
    chunks = answer.iter_content(None)
    seen = ""
    while "one" not in seen:
        seen += next(chunks).decode()
    [request] = priced.dialled()
    left_at = time.monotonic()
    answer.close()
    assert priced.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert request.client_closed_at is not None
    # The upstream sends nothing more: only the disconnect can have closed its connection.
    assert request.client_closed_at > left_at
    row = priced.settled()
    # 40 bytes of messages and "You said: one", at 4 bytes per token.
    assert (row.status, row.is_estimated, row.error_type) == ("cancelled", True, None)
    assert (row.prompt_tokens, row.completion_tokens) == (6, 4)
    assert row.cost_nano == 14_000
    assert [attempt["status"] for attempt in row.attempts] == [200]


def test_a_large_delivery_is_journalled_before_the_interval_ends(
    priced: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_INTERVAL_SECONDS", 60.0)
    time.sleep(1.1)  # the pending heartbeat still uses the old interval
    priced.upstream.release(3)
    words = "x" * 2000, "y" * 2000
    answer = priced.post(priced.chat_body(" ".join(words), stream=True), stream=True)
    chunks = answer.iter_content(None)
    seen = ""
    for word in words:
        while word not in seen:
            seen += next(chunks).decode()
        priced.eventually(lambda: Journal.objects.get().completion_tokens >= 500)
        # Restores the interval; the heartbeat that already waits keeps the long one.
        monkeypatch.undo()
        priced.upstream.release(1)
    priced.eventually(lambda: Journal.objects.get().completion_tokens >= 1000)
    answer.close()
    assert priced.settled().status == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_before_the_first_event_pays_for_the_prompt(
    site: Site, stream: bool
) -> None:
    site.publish("sim-held")
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(
            f"{site.server}{CHAT}",
            json=site.chat_body(stream=stream),
            headers={"Authorization": f"Bearer {site.tenant.api_key}"},
            timeout=1,
        )
    [request] = site.dialled()
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
    row = site.settled()
    assert (row.status, row.cost_nano, row.prompt_tokens) == ("cancelled", 6_000, 6)


def test_a_request_whose_caller_left_does_not_fall_back(site: Site) -> None:
    site.allow_fallback()
    site.own("sim-held")
    site.publish(provider=site.another_provider("backup"))
    with raw_stream(site):
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
    assert site.settled().status == "cancelled"
    assert len(site.dialled()) == 1


def test_a_reset_connection_cancels_the_stream(priced: Site) -> None:
    with raw_stream(priced) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 200 OK")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    [request] = priced.dialled()
    assert priced.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert priced.settled().status == "cancelled"


def test_a_reset_connection_with_pipelined_requests_cancels_the_stream(site: Site) -> None:
    site.publish("sim-endless")
    body = json.dumps(site.chat_body("one two", stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with raw_stream(site) as line:
        line.sendall(head.encode() + body)
        assert line.recv(100).startswith(b"HTTP/1.1 200 OK")
        [request] = site.dialled()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert site.settled().status == "cancelled"


def test_a_caller_that_leaves_after_the_last_event_has_a_completed_generation(site: Site) -> None:
    site.publish("sim-linger", price=factories.make_price("0.000001", "0.000002"))
    with raw_stream(site) as line:
        seen = b""
        while b"data: [DONE]\n\n" not in seen:
            seen += line.recv(1 << 16)
    row = site.settled()
    assert (row.status, row.cost_nano, row.is_estimated) == ("completed", 10_000, False)


def test_an_upstream_that_lingers_does_not_delay_the_caller(site: Site) -> None:
    site.publish("sim-linger")
    assert events_of(opened(site).text)[-1] == "[DONE]"
    [request] = site.dialled()
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)


def test_callers_that_leave_at_any_byte_leave_no_pending_generation(site: Site) -> None:
    site.publish("sim-slow:0,0.01", price=factories.make_price("0.000001", "0.000002"))

    def leave_after(size: int) -> None:
        with raw_stream(site) as line:
            while size > 0 and (data := line.recv(size)):
                size -= len(data)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave_after, [0, 1, 100, 400, 500, 800, 1200, 1600, 1900, 2000] * 3))
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert set(Generation.objects.values_list("status", flat=True)) <= {"cancelled", "completed"}
    assert site.upstream.wait_until(
        lambda: all(each.finished_at or each.client_closed_at for each in site.dialled())
    )


def test_a_slow_caller_slows_the_upstream(site: Site, settings: LazySettings) -> None:
    # Keep-alive comments must not queue behind unsent data.
    settings.STREAM_KEEPALIVE_INTERVAL = 0.02
    site.publish("sim-endless")
    with raw_stream(site, receive_buffer=4096) as line:
        assert line.recv(15) == b"HTTP/1.1 200 OK"
        # A comment may be sent before the upstream is asked.
        site.eventually(lambda: bool(site.dialled()))
        [request] = site.dialled()
        sizes = [-1]
        while sizes[-1] != request.sent_bytes or len(sizes) < 5:
            sizes.append(request.sent_bytes)
            time.sleep(0.1)
            # The kernel's buffers hold less than this (tcp_rmem: 32 MB); the stream is endless.
            assert request.sent_bytes < 100_000_000, "the upstream never pauses"
        # Comments may come before the first event.
        _, _, events = line.recv(100_000).partition(b"data: ")
        assert b": CAUSEWAY" not in events
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert site.settled().status == "cancelled"


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_connection_whose_caller_stops_reading_is_dropped(
    site: Site, is_patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection, protocol):
        monkeypatch.setattr(module, "_STUCK_SECONDS", 0.5)
    size = 12_000_000
    site.publish(f"sim-big:{size}")
    address = urlsplit(site.server)
    body = json.dumps(site.chat_body("one two")).encode()
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.settimeout(60)
        caller.connect((address.hostname, address.port))
        caller.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\nAuthorization: Bearer {site.tenant.api_key}\r\n\r\n".encode()
            + body
        )
        received = len(caller.recv(15))
        assert site.settled().status == "completed"
        if not is_patient:
            time.sleep(2)
        try:
            while data := caller.recv(1 << 20):
                received += len(data)
                # A slow caller keeps reading for longer than the limit of a stuck caller.
                time.sleep(0.002)
        except ConnectionResetError:
            pass
    assert (received > size) is is_patient


def test_a_kept_connection_whose_caller_stops_reading_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second request on the connection does not reset the time limit of the first answer."""
    for module in (connection, protocol):
        monkeypatch.setattr(module, "_STUCK_SECONDS", 0.5)
    size = 12_000_000
    site.publish(f"sim-big:{size}")
    address = urlsplit(site.server)
    body = json.dumps(site.chat_body("one two")).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Authorization: Bearer {site.tenant.api_key}\r\n\r\n"
    )
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.settimeout(60)
        caller.connect((address.hostname, address.port))
        caller.sendall(head.encode() + body)
        received = len(caller.recv(15))
        assert site.settled().status == "completed"
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2)
        try:
            while data := caller.recv(1 << 20):
                received += len(data)
        except ConnectionResetError:
            pass
    assert received < size


def test_a_kept_connection_serves_one_stream_after_another(site: Site) -> None:
    site.publish()
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {site.tenant.api_key}"
        for word in ("first", "second", "third"):
            answer = session.post(
                f"{site.server}{CHAT}", json=site.chat_body(word, stream=True), timeout=60
            )
            assert content_of(events_of(answer.text)) == f"You said: {word}"


def test_the_upstream_idle_timeout_excludes_the_wait_for_a_slow_caller(
    site: Site, settings: LazySettings
) -> None:
    settings.UPSTREAM_IDLE_TIMEOUT = 1
    site.publish("sim-chunks:20000")
    with raw_stream(site, receive_buffer=4096) as line:
        assert line.recv(15) == b"HTTP/1.1 200 OK"
        time.sleep(2)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += line.recv(1 << 20)
    assert b"data: [DONE]\n\n" in data
    assert site.settled().status == "completed"
