"""Timing of streams: the first event, keep-alive comments, and callers that disconnect."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import requests
from django.conf import LazySettings

from config.asgi import application
from config.server.connections import cycle, protocol
from inference.models import Generation, Journal
from tests.support.bodies.lines import dial, post_bytes
from tests.support.inference.endings import read_until
from tests.support.inference.site import CHAT, Site, content_of, events_of

GATES = 7


@pytest.fixture
def gated(site: Site) -> Site:
    site.publish("sim-gated")
    return site


def opened(site: Site, **fields: Any) -> requests.Response:
    return site.post(site.chat_body("one two", stream=True, **fields), stream=True)


def raw_stream(
    site: Site, receive_buffer: int | None = None, *, stream: bool = True
) -> AbstractContextManager[socket.socket]:
    """A connection that has asked, and has read nothing of the answer."""
    return dial(site, post_bytes(site, site.chat_body("one two", stream=stream)), receive_buffer)


def assert_upstream_left(site: Site) -> None:
    """Asserts that the only request to the upstream is given up."""
    [request] = site.dialled()
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)


def reset_when_closed(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_the_first_event_arrives_before_the_last_is_sent(gated: Site) -> None:
    answer = opened(gated)
    assert answer.status_code == 200
    chunks = answer.iter_content(None)
    [first] = events_of(next(chunks).decode())
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for word in ("You", " said:", " one"):
        gated.upstream.release()
        [event] = events_of(next(chunks).decode())
        assert event["choices"][0]["delta"] == {"content": word}
    assert Generation.objects.get().status == Generation.Status.PENDING
    gated.upstream.release(GATES)
    *_, usage, done = events_of(b"".join(chunks).decode())
    assert (usage["usage"]["total_tokens"], done) == (6, "[DONE]")
    assert gated.settled().status == Generation.Status.COMPLETED


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


def test_a_quiet_stream_is_kept_alive_with_comments(gated: Site, settings: LazySettings) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    answer = opened(gated)
    chunks = answer.iter_content(None)
    # Comments may come before the first event.
    assert next(chunk for chunk in chunks if chunk[:1] != b":").startswith(b"data: {")
    assert next(chunks) == b": CAUSEWAY PROCESSING\n\n"
    assert next(chunks) == b": CAUSEWAY PROCESSING\n\n"
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    gated.upstream.release(GATES)
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
    gated: Site,
) -> None:
    gated.upstream.release(3)
    answer = opened(gated)
    chunks = answer.iter_content(None)
    seen = ""
    while "one" not in seen:
        seen += next(chunks).decode()
    [request] = gated.dialled()
    left_at = time.monotonic()
    answer.close()
    assert gated.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert request.client_closed_at is not None
    # The upstream sends nothing more: only the disconnect can have closed its connection.
    assert request.client_closed_at > left_at
    row = gated.settled()
    # 40 bytes of messages and "You said: one", at 4 bytes per token.
    assert (row.status, row.is_estimated, row.error_type) == ("cancelled", True, None)
    assert (row.prompt_tokens, row.completion_tokens) == (6, 4)
    assert row.cost_nano == 14_000
    assert [attempt["status"] for attempt in row.attempts] == [200]


@pytest.fixture
def _rare_heartbeats(site: Site) -> Iterator[None]:
    """Lets the service beat once a minute; the wait that has begun ends at once, each time."""
    heartbeat = application._gateway._heartbeat
    loop = heartbeat._task.get_loop()
    heartbeat.interval_seconds = 60.0
    loop.call_soon_threadsafe(heartbeat.flush_now)
    yield
    del heartbeat.interval_seconds
    loop.call_soon_threadsafe(heartbeat.flush_now)


@pytest.mark.usefixtures("_rare_heartbeats")
def test_a_large_delivery_is_journalled_before_the_interval_ends(gated: Site) -> None:
    gated.upstream.release(3)
    words = "x" * 2000, "y" * 2000
    answer = gated.post(gated.chat_body(" ".join(words), stream=True), stream=True)
    chunks = answer.iter_content(None)
    seen = ""
    for word in words:
        while word not in seen:
            seen += next(chunks).decode()
        gated.eventually(lambda: Journal.objects.get().completion_tokens >= 500)
        gated.upstream.release(1)
    gated.eventually(lambda: Journal.objects.get().completion_tokens >= 1000)
    answer.close()
    assert gated.settled().status == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_before_the_first_event_pays_for_the_prompt(
    site: Site, stream: bool
) -> None:
    site.publish("sim-held")
    with raw_stream(site, stream=stream):
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
    assert_upstream_left(site)
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


def test_a_reset_connection_cancels_the_stream(gated: Site) -> None:
    with raw_stream(gated) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 200 OK")
        reset_when_closed(line)
    assert_upstream_left(gated)
    assert gated.settled().status == "cancelled"


def test_a_reset_connection_with_pipelined_requests_cancels_the_stream(site: Site) -> None:
    site.publish("sim-endless")
    with raw_stream(site) as line:
        key = f"Authorization: Bearer {site.tenant.api_key}\r\n".encode()
        keyless = post_bytes(site, site.chat_body("one two", stream=True)).replace(key, b"")
        line.sendall(keyless)
        assert line.recv(100).startswith(b"HTTP/1.1 200 OK")
        assert len(site.dialled()) == 1
        reset_when_closed(line)
    assert_upstream_left(site)
    assert site.settled().status == "cancelled"


def test_a_caller_that_leaves_after_the_last_event_has_a_completed_generation(site: Site) -> None:
    site.publish("sim-linger")
    with raw_stream(site) as line:
        read_until(line, b"data: [DONE]\n\n")
    row = site.settled()
    assert (row.status, row.cost_nano, row.is_estimated) == ("completed", 10_000, False)


def test_an_upstream_that_lingers_does_not_delay_the_caller(site: Site) -> None:
    site.publish("sim-linger")
    assert events_of(opened(site).text)[-1] == "[DONE]"
    assert_upstream_left(site)


def test_callers_that_leave_at_any_byte_leave_no_pending_generation(site: Site) -> None:
    site.publish("sim-slow:0,0.01")

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
    assert_upstream_left(site)
    assert site.settled().status == "cancelled"


BIG = 12_000_000


@pytest.fixture
def impatient(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with a big answer that soon drops a caller who stops reading."""
    for module in (cycle, protocol):
        monkeypatch.setattr(module, "_STUCK_SECONDS", 0.5)
    site.publish(f"sim-big:{BIG}")
    return site


def count_received(caller: socket.socket, pause: float = 0) -> int:
    """Reads until the connection ends, and returns how much came."""
    received = 0
    try:
        while data := caller.recv(1 << 20):
            received += len(data)
            time.sleep(pause)
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_connection_whose_caller_stops_reading_is_dropped(
    impatient: Site, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    asked = post_bytes(impatient, impatient.chat_body("one two"), "Connection: close")
    if is_patient:
        for module in (cycle, protocol):
            monkeypatch.setattr(module, "_STUCK_SECONDS", 2.0)
    with ThreadPoolExecutor(1) as pool, dial(impatient, asked, receive_buffer=4096) as caller:
        received = len(caller.recv(15))
        # A slow caller keeps reading for longer than the limit of a stuck caller.
        reading = pool.submit(count_received, caller, pause=0.002) if is_patient else None
        assert impatient.settled().status == "completed"
        if reading is None:
            time.sleep(2)
            reading = pool.submit(count_received, caller)
        received += reading.result()
    assert (received > BIG) is is_patient


def test_a_kept_connection_whose_caller_stops_reading_is_dropped(impatient: Site) -> None:
    """A second request on the connection does not reset the time limit of the first answer."""
    asked = post_bytes(impatient, impatient.chat_body("one two"))
    with dial(impatient, asked, receive_buffer=4096) as caller:
        received = len(caller.recv(15))
        assert impatient.settled().status == "completed"
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2)
        received += count_received(caller)
    assert received < BIG


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
