"""Answers in Anthropic's own format are kept for repeated requests as others are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.inference.messages import events_of
from tests.support.inference.repeats import cache_status, is_replayed, keep_answers, send
from tests.support.inference.site import MESSAGES, Site
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import make_maker

ON = {"X-OpenRouter-Cache": "true"}


@pytest.fixture
def body(site: Site, maker: Upstream) -> dict[str, Any]:
    """A request to a model that is served in Anthropic's format."""
    site.publish("claude-opus-5", provider=make_maker(maker))
    keep_answers(site.tenant)
    return site.chat_body(max_tokens=100)


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeat_gets_the_very_bytes(site: Site, body: dict[str, Any], stream: bool) -> None:
    body["stream"] = stream
    first, again = send(site, body, path=MESSAGES), send(site, body, path=MESSAGES)
    assert first.status_code == 200, first.text
    assert (is_replayed(again), again.content) == (True, first.content)
    other = send(site, body, path=MESSAGES, headers={"anthropic-beta": "more-2026-01-01"})
    assert other.status_code == 422


@pytest.mark.parametrize("stream", [False, True])
def test_a_cached_answer_has_its_own_id_and_costs_nothing(
    site: Site, body: dict[str, Any], stream: bool
) -> None:
    body["stream"] = stream
    first = site.post(body, path=MESSAGES, headers=ON)
    again = site.post(body, path=MESSAGES, headers=ON)
    assert (first.status_code, cache_status(first)) == (200, "MISS"), first.text
    assert cache_status(again) == "HIT"
    was, is_ = first.headers["X-Generation-Id"], again.headers["X-Generation-Id"]
    expected = first.text.replace(was, is_)
    if stream:
        told, expected_events = events_of(again.content), events_of(expected.encode())
        assert told[:-2] == expected_events[:-2]
        assert told[-1] == expected_events[-1]
        assert told[-2]["usage"]["cost"] == 0 < expected_events[-2]["usage"]["cost"]
    else:
        message = again.json()
        assert (message["id"], message["content"]) == (is_, first.json()["content"])
        assert message["usage"]["cost"] == 0 < first.json()["usage"]["cost"]
