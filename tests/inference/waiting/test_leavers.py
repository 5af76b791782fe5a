"""What is read of an answer whose caller has left, for its usage alone."""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from inference.models import Generation
from tests.support.bodies.lines import dial, post_bytes
from tests.support.inference.endings import notice
from tests.support.inference.pictures import PNG
from tests.support.inference.site import ASKED, CHAT, Site
from tests.support.ledger import assert_in_order
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering

USAGE = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6, "cost": 0.25}
MESSAGE = {"role": "assistant", "content": "You said: one two"}


@contextmanager
def answering_late(
    site: Site, body: Any, kind: str = "application/json"
) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Serves the provider's answer; yields an event that says that it was asked, and one to set."""
    asked, may_answer = threading.Event(), threading.Event()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = answering(data, headers=(f"Content-Type: {kind}",))

    def answer_late(line: socket.socket, head: bytes, received: bytes) -> bool:
        asked.set()
        assert may_answer.wait(60)
        return answer(line, head, received)

    with standing_in(site.provider, answer_late):
        yield asked, may_answer


def leave(
    site: Site, path: str, late: tuple[threading.Event, threading.Event], **fields: Any
) -> None:
    """Asks, leaves once the upstream was asked, and lets it answer."""
    asked, may_answer = late
    with dial(site, post_bytes(site, {"model": site.model.slug, **fields}, path=path)):
        assert asked.wait(60)
    notice(site)
    may_answer.set()


def make_picture(size: int) -> dict[str, str]:
    return {"b64_json": b64encode(PNG + bytes(size)).decode()}


def leave_a_picture(site: Site, picture: dict[str, str], **fields: Any) -> Generation:
    """Asks for a picture that comes in one JSON object, and leaves."""
    site.produce("image")
    site.publish()
    usage = {"input_tokens": 2, "output_tokens": 4, "total_tokens": 6}
    with answering_late(site, {"created": 1, "data": [picture], "usage": usage}) as late:
        leave(site, "/api/v1/images/generations", late, prompt="one two", **fields)
        return site.settled()


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_cost_that_the_provider_reports_is_kept(site: Site, is_stream: bool) -> None:
    """Some servers answer a streamed request with JSON too."""
    choices = [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]
    site.publish()
    with answering_late(site, {"choices": choices, "usage": USAGE}) as late:
        leave(site, CHAT, late, stream=is_stream, **ASKED[CHAT])
        row = site.settled()
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("cancelled", 2, 4)
    assert (row.is_estimated, row.reported_cost_nano) == (False, 250_000_000)
    assert_in_order()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("size", [1_000_000, 3_000_000])
def test_a_large_picture_keeps_its_usage(site: Site, size: int, is_stream: bool) -> None:
    row = leave_a_picture(site, make_picture(size), stream=is_stream)
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("cancelled", 2, 4)
    assert row.is_estimated is False
    assert_in_order()


def test_a_picture_beyond_the_budget_is_estimated_and_not_free(site: Site, settings: Any) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 1_500_000
    row = leave_a_picture(site, make_picture(3_000_000))
    assert (row.status, row.is_estimated) == ("cancelled", True)
    assert row.cost_nano
    assert_in_order()


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_picture_that_no_event_can_have_is_free_in_a_stream(site: Site, is_stream: bool) -> None:
    """A caller who stays gets an error for its URL there."""
    row = leave_a_picture(site, {"url": "https://pictures.example/1.png"}, stream=is_stream)
    assert (row.status, row.cost_nano == 0) == ("cancelled", is_stream)
    assert_in_order()


def test_an_event_beyond_the_budget_is_estimated_and_not_free(site: Site, settings: Any) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 100_000
    site.publish()
    event = b"data: " + b"x" * 300_000
    with answering_late(site, event, "text/event-stream") as late:
        leave(site, CHAT, late, stream=True, **ASKED[CHAT])
        row = site.settled()
    assert (row.status, row.is_estimated) == ("cancelled", True)
    assert row.cost_nano
    assert_in_order()
