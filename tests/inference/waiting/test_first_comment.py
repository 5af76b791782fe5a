"""What a caller gets before the first event of a stream: comments, and errors behind them."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from django.conf import LazySettings

from accounts.models import ApiKey
from inference.faces.connection import Keepalive
from inference.models import Generation
from tests.support import factories
from tests.support.inference.site import (
    ASKED,
    CHAT,
    COMMENT,
    MESSAGES,
    RESPONSES,
    TEXT,
    Site,
    blocks_of,
)
from tests.support.ledger import assert_in_order

IMAGES = "/api/v1/images/generations"
SPEECH = "/api/v1/audio/speech"
STREAMED = [*ASKED, IMAGES]


def serve(site: Site, behaviour: str, path: str = CHAT, **fields: Any) -> None:
    if path == IMAGES:
        site.produce("image")
    site.publish(behaviour, **fields)


def ask(site: Site, path: str = CHAT, **options: Any) -> requests.Response:
    asked = {"prompt": "one two"} if path == IMAGES else ASKED[path]
    body = {"model": site.model.slug, "stream": True, **asked}
    return site.post(body, path=path, stream=True, **options)


def has_end(path: str, event: str) -> bool:
    """Returns whether an event is the last one of a whole stream."""
    return ('"message_stop"' if path == MESSAGES else "[DONE]") in event


def read_rest(site: Site, blocks: Iterator[str], settings: LazySettings) -> list[str]:
    """Reads a comment, lets the upstream answer, and returns the events."""
    assert [next(blocks), next(blocks)] == [COMMENT, COMMENT]
    assert Generation.objects.get().status == Generation.Status.PENDING
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    site.upstream.release()
    return [block for block in blocks if not block.startswith(":")]


@pytest.mark.parametrize("path", STREAMED)
def test_comments_come_before_the_first_event(
    quick: Site, settings: LazySettings, path: str
) -> None:
    serve(quick, "sim-held", path)
    answer = ask(quick, path)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = read_rest(quick, blocks_of(answer), settings)
    assert has_end(path, events[-1])
    row = quick.settled()
    assert (row.pk, row.status) == (answer.headers["X-Generation-Id"], "completed")
    assert row.cost_nano
    assert_in_order()


def find_error(path: str, event: str) -> tuple[Any, str, Any]:
    """Returns the code, the message and the type of the error that a last event tells."""
    data = json.loads(event.partition("data: ")[2])
    if path == MESSAGES:
        assert event.startswith("event: error\n")
        assert data["type"] == "error"
        return data["error"].get("code"), data["error"]["message"], data["error"]["type"]
    if path == RESPONSES:
        assert data["type"] == "response.failed"
        return data["response"]["error"]["code"], data["response"]["error"]["message"], None
    error = data["error"]
    if path == IMAGES:
        assert data["type"] == "error"
    else:
        assert data["choices"][0]["finish_reason"] == "error"
        assert data["id"] == Generation.objects.get().pk
    return error["code"], error["message"], error["metadata"]["error_type"]


@pytest.mark.parametrize(
    ("path", "code", "kind"),
    [
        (CHAT, 503, "provider_overloaded"),
        (TEXT, 503, "provider_overloaded"),
        (MESSAGES, None, "overloaded_error"),
        (RESPONSES, "server_is_overloaded", None),
        (IMAGES, "503", "provider_overloaded"),
    ],
)
def test_an_error_behind_a_comment_is_an_event_of_the_face(
    quick: Site, settings: LazySettings, path: str, code: Any, kind: str | None
) -> None:
    serve(quick, "sim-held-status:503", path)
    answer = ask(quick, path)
    assert answer.status_code == 200
    events = read_rest(quick, blocks_of(answer), settings)
    if path == RESPONSES:
        names = [event.partition("\n")[0] for event in events]
        assert names == [
            "event: response.created",
            "event: response.in_progress",
            "event: response.failed",
        ]
    else:
        assert len(events) == 1
    found = find_error(path, events[-1])
    assert (found[0], found[2]) == (code, kind)
    assert found[1] == "The upstream provider is overloaded."
    row = quick.settled()
    assert (row.status, row.error_type) == ("failed", "provider_overloaded")
    assert (row.cost_nano, row.prompt_tokens) == (0, None)
    assert_in_order()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_the_status_is_real_until_the_first_comment(site: Site, path: str) -> None:
    serve(site, "sim-status:503", path)
    answer = ask(site, path)
    assert answer.status_code == 503
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_fallback_goes_on_behind_the_comments(
    quick: Site, settings: LazySettings, path: str
) -> None:
    serve(quick, "sim-held-status:503", path, price=factories.make_price("0", "0"))
    serve(quick, "sim-echo", path, provider=quick.another_provider("second"))
    answer = ask(quick, path, headers={"X-OpenRouter-Metadata": "enabled"})
    events = read_rest(quick, blocks_of(answer), settings)
    assert has_end(path, events[-1])
    told = [event for event in events if '"openrouter_metadata"' in event]
    attempts = json.loads(told[-1].partition("data: ")[2])
    attempts = attempts.get("response", attempts)["openrouter_metadata"]["attempts"]
    assert [attempt["status"] for attempt in attempts] == [503, 200]
    row = quick.settled()
    assert (row.status, len(row.attempts)) == ("completed", 2)
    assert_in_order()


def test_a_change_between_two_attempts_is_told_behind_the_comments(
    quick: Site, settings: LazySettings
) -> None:
    serve(quick, "sim-held-status:503", price=factories.make_price("0", "0"))
    serve(quick, "sim-echo", provider=quick.another_provider("second"))
    blocks = blocks_of(ask(quick))
    assert next(blocks) == COMMENT
    ApiKey.objects.get(is_management=False).revoke()
    [event] = read_rest(quick, blocks, settings)
    assert find_error(CHAT, event)[0] == 401
    assert len(quick.dialled()) == 1


def test_a_caller_who_leaves_during_the_wait_pays_for_the_prompt(quick: Site) -> None:
    serve(quick, "sim-stall")
    with ask(quick) as answer:
        assert next(blocks_of(answer)) == COMMENT
        # A comment may be sent before the upstream is asked.
        assert quick.upstream.wait_until(lambda: len(quick.dialled()) == 1)
    row = quick.settled()
    assert (row.status, row.is_estimated, row.completion_tokens) == ("cancelled", True, 0)
    assert row.cost_nano == row.prompt_tokens * 1000
    assert_in_order()


def test_speech_stays_silent_and_keeps_its_status(quick: Site) -> None:
    quick.produce("speech")
    quick.publish("sim-stall", total_timeout=1)
    refused = quick.post({"model": quick.model.slug, "input": "one two"}, path=SPEECH)
    assert refused.status_code == 504
    assert refused.headers["Content-Type"] == "application/json"


def test_no_comments_come_when_the_operator_wants_none(site: Site, settings: LazySettings) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0
    serve(site, "sim-slow:0.4")
    answer = ask(site, headers={"x-stainless-read-timeout": "1"})
    assert not any(block.startswith(":") for block in blocks_of(answer))


@pytest.mark.parametrize("name", ["x-stainless-read-timeout", "x-stainless-timeout"])
def test_a_client_that_bears_less_silence_gets_comments_sooner(site: Site, name: str) -> None:
    serve(site, "sim-held")
    began = time.monotonic()
    blocks = blocks_of(ask(site, headers={name: "1"}))
    assert next(blocks) == COMMENT
    # The operator's own interval is ten seconds.
    assert time.monotonic() - began < 9
    site.upstream.release()
    assert list(blocks)[-1] == "data: [DONE]"
    assert site.settled().status == "completed"


def test_a_message_is_kept_alive_with_its_own_events_once_it_has_begun(
    quick: Site, settings: LazySettings
) -> None:
    serve(quick, "sim-gated", MESSAGES)
    blocks = blocks_of(ask(quick, MESSAGES))
    while not next(blocks).startswith("event: message_start"):
        pass
    while not (block := next(blocks)).startswith("event: ping"):
        assert not block.startswith(":")
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    quick.upstream.release(10)
    assert "message_stop" in list(blocks)[-1]


class Quiet:
    """A stream with its keepalive, each of which refers to the other."""

    def __init__(self) -> None:
        self.keepalive = Keepalive(self.send, 60)

    async def send(self) -> None:
        """Sends nothing."""


def test_a_stopped_keepalive_frees_its_stream_without_the_collector() -> None:
    """A busy worker collects cycles rarely, and a stream refers to all of its request."""

    async def is_freed() -> bool:
        stream = Quiet()
        stream.keepalive.stop()
        left = weakref.ref(stream)
        del stream
        return left() is None

    gc.disable()
    try:
        assert asyncio.run(is_freed())
    finally:
        gc.enable()
