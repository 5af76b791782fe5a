"""Answers in Anthropic's and OpenAI's own formats are kept for repeated requests as others are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.capabilities import NativeFormat
from catalog.models import LanguageModel
from tests.support.inference.messages import events_of
from tests.support.inference.repeats import cache_status, is_replayed, keep_answers, send
from tests.support.inference.site import MESSAGES, RESPONSES, Site
from tests.support.upstreams.recorded_responses import AGENT, COMPLETED
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


@pytest.mark.parametrize("stream", [False, True])
def test_a_cached_response_has_its_own_metadata_and_costs_nothing(
    site: Site, speaker: Upstream, stream: bool
) -> None:
    LanguageModel.objects.filter(pk=site.model.pk).update(native_format=NativeFormat.RESPONSES)
    site.publish("gpt-5-codex", provider=make_maker(speaker))
    keep_answers(site.tenant)
    asking = {**ON, "X-OpenRouter-Metadata": "enabled"}
    body = {**AGENT, "stream": stream}
    answers = [site.post(body, path=RESPONSES, headers=each) for each in (asking, asking, ON)]
    assert [cache_status(answer) for answer in answers] == ["MISS", "HIT", "HIT"]
    was, again, plain = [read_response(answer.content, stream) for answer in answers]
    costs = dict.fromkeys(was["usage"]["cost_details"], 0)
    free = {**was["usage"], "cost": 0, "cost_details": costs}
    assert free != was["usage"]
    assert again["usage"] == plain["usage"] == free
    [step] = again["openrouter_metadata"]["pipeline"]
    assert step["data"] == {"generation_id": was["id"]}
    assert "openrouter_metadata" not in plain
    assert plain["id"] == answers[2].headers["X-Generation-Id"]
    assert plain["output"] == was["output"]


def read_response(content: bytes, stream: bool) -> dict[str, Any]:
    """Returns the response of an answer; that of a stream stands in its last event alone."""
    if not stream:
        return dict(json.loads(content))
    last = events_of(content.removesuffix(b"data: [DONE]\n\n"))[-1]
    assert last.keys() == COMPLETED.keys()
    return dict(last["response"])
