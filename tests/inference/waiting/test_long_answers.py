"""Answers that take minutes, by a clock that the tests move; and once for real."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from inference.models import Generation
from tests.support import factories
from tests.support.inference.moving import Moving, serve_with_moving_clock
from tests.support.inference.site import (
    ASKED,
    CHAT,
    COMMENT,
    MESSAGES,
    RESPONSES,
    Site,
    blocks_of,
)
from tests.support.ledger import assert_in_order
from tests.support.processes import environment, serve

PING = 'event: ping\ndata: {"type":"ping"}'
WORDS = "You said: one two"
NO_ANSWER = "The upstream provider did not answer in time."
FACES = [CHAT, MESSAGES, RESPONSES]


@pytest.fixture(scope="module")
def _moving(django_db_setup: None, django_db_blocker: Any) -> Iterator[Moving]:
    with django_db_blocker.unblock(), serve_with_moving_clock(environment()) as moving:
        yield moving


@pytest.fixture
def moving(site: Site, _moving: Moving) -> Moving:
    """The service of the site, with a clock that the test moves."""
    site.server = _moving.address
    return _moving


def ask(site: Site, path: str, **fields: Any) -> requests.Response:
    body = {"model": site.model.slug, **ASKED[path], **fields}
    return site.post(body, path=path, timeout=120, stream=True)


def find_text(path: str, body: Any) -> str:
    """Returns the text of a whole answer, or of the events of a stream."""
    if isinstance(body, dict):
        if path == CHAT:
            return str(body["choices"][0]["message"]["content"])
        return str(
            (body["content"] if path == MESSAGES else body["output"][0]["content"])[0]["text"]
        )
    events = [
        json.loads(data) for block in body if (data := block.partition("data: ")[2]).startswith("{")
    ]
    if path == CHAT:
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)
    if path == RESPONSES:
        return find_text(path, events[-1]["response"])
    return "".join(
        event["delta"].get("text", "") for event in events if "index" in event and "delta" in event
    )


def assert_paid(site: Site) -> None:
    row = site.settled()
    cost = 2 * 1000 + 4 * 2000
    assert (row.status, row.cost_nano, row.is_estimated) == ("completed", cost, False)
    assert_in_order()


@pytest.mark.parametrize("path", FACES)
def test_a_plain_answer_after_90_seconds(site: Site, moving: Moving, path: str) -> None:
    site.publish("sim-held")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, site, path)
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
        for _ in range(9):
            moving.advance(10)
        assert Generation.objects.get().status == Generation.Status.PENDING
        site.upstream.release()
        body = answer.result().json()
    assert find_text(path, body) == WORDS
    assert_paid(site)


@pytest.mark.parametrize("path", FACES)
def test_a_first_event_after_90_seconds(site: Site, moving: Moving, path: str) -> None:
    site.publish("sim-held")
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(ask, site, path, stream=True)
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
        moving.advance(10)
        blocks = blocks_of(begun.result())
    assert next(blocks) == COMMENT
    for _ in range(8):
        moving.advance(10)
        assert next(blocks) == COMMENT
    site.upstream.release()
    assert find_text(path, list(blocks)) == WORDS
    assert_paid(site)


@pytest.mark.parametrize(
    ("path", "comment"), [(CHAT, COMMENT), (MESSAGES, PING), (RESPONSES, COMMENT)]
)
def test_90_seconds_of_silence(site: Site, moving: Moving, path: str, comment: str) -> None:
    site.publish("sim-gated")
    blocks = blocks_of(ask(site, path, stream=True))
    seen = [next(blocks)]
    for _ in range(9):
        moving.advance(10)
        while (block := next(blocks)) != comment:
            seen.append(block)
    site.upstream.release(10)
    assert find_text(path, seen + list(blocks)) == WORDS
    assert_paid(site)


@pytest.mark.parametrize(
    ("behaviour", "stream", "seconds"),
    [("sim-stall", False, 900), ("sim-stall", True, 600), ("sim-stall-stream", True, 600)],
)
def test_the_limits_of_the_operator_end_what_takes_longer(
    site: Site, moving: Moving, behaviour: str, stream: bool, seconds: int
) -> None:
    site.publish(behaviour)
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(ask, site, CHAT, stream=stream)
        answer = pool.submit(lambda: begun.result().text)
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 1)
        if behaviour == "sim-stall-stream":
            # The silence begins after the first event, which the caller has with the head.
            begun.result()
        # The event loop takes a turn in which the wait begins, before the clock moves.
        moving.advance(0)
        for _ in range(seconds // 50 - 1):
            moving.advance(50)
        assert Generation.objects.get().status == Generation.Status.PENDING
        moving.advance(50)
        assert NO_ANSWER in answer.result()
    assert site.settled().error_type == "timeout"
    assert_in_order()


@pytest.mark.skipif(
    "CAUSEWAY_LONG_ANSWERS" not in os.environ, reason="CAUSEWAY_LONG_ANSWERS is not set"
)
def test_90_seconds_for_real(site: Site) -> None:
    """Plain, before the first event, and of silence, all at a time, at the settings' defaults."""
    site.publish("sim-held")
    later = factories.make_model("acme/later", context_length=None)
    site.publish("sim-gated", model=later)
    with serve() as served, ThreadPoolExecutor(3) as pool:
        site.server = served.address
        plain = pool.submit(lambda: ask(site, CHAT).json())
        first = pool.submit(lambda: list(blocks_of(ask(site, CHAT, stream=True))))
        silent = pool.submit(
            lambda: list(blocks_of(ask(site, CHAT, stream=True, model="acme/later")))
        )
        assert site.upstream.wait_until(lambda: len(site.dialled()) == 3)
        time.sleep(90)
        assert not any(answer.done() for answer in (plain, first, silent))
        site.upstream.release(20)
        assert find_text(CHAT, plain.result()) == WORDS
        for answer in (first, silent):
            assert find_text(CHAT, answer.result()) == WORDS
            assert answer.result().count(COMMENT) >= 8
        site.eventually(lambda: Generation.objects.filter(status="completed").count() == 3)
    assert_in_order()
