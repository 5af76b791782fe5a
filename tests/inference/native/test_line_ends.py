"""Streams for clients that read lines with httpx, which ends a line at more than a line feed."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from catalog.capabilities import NativeFormat
from catalog.models import LanguageModel
from tests.support import factories
from tests.support.inference.site import Site
from tests.support.upstreams.recorded import ENDED, STARTED
from tests.support.upstreams.recorded_responses import EVENTS as RESPONSE_EVENTS
from tests.support.upstreams.speaking import Upstream

# The characters that JSON need not escape.
WORDS: Final = "one\u0085two\u2028three\u2029fünf „six“"
QUESTION: Final = {"role": "user", "content": "Hi"}
FACES: Final[dict[str, dict[str, Any]]] = {
    "chat/completions": {"messages": [QUESTION]},
    "messages": {"messages": [QUESTION], "max_tokens": 10},
    "responses": {"input": "Hi"},
}


def read_lines(site: Site, face: str) -> list[dict[str, Any]]:
    """Returns the events of a stream whose lines httpx finds."""
    headers = {"Authorization": f"Bearer {site.tenant.api_key}"}
    body = {"model": site.model.slug, "stream": True, **FACES[face]}
    url = f"{site.server}/api/v1/{face}"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        lines = list(answer.iter_lines())
    for line in lines:
        assert not line or line.startswith(("data: ", "event: ", ": "))
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [json.loads(each) for each in data]


def text_of(event: dict[str, Any]) -> str:
    """Returns the piece of text that an event of any of the interfaces adds."""
    if "choices" in event:
        return "".join(each["delta"].get("content") or "" for each in event["choices"])
    delta = event.get("delta", "")
    if event["type"] == "content_block_delta":
        return str(delta["text"])
    return str(delta) if event["type"] == "response.output_text.delta" else ""


def publish(site: Site, upstream: Upstream, dialect: str) -> None:
    provider = factories.make_provider("maker", dialect=dialect, base_url=upstream.base_url)
    factories.make_credential(site.tenant, provider)
    site.publish("claude-opus-5", provider=provider)


# A long event is escaped in a thread.
@pytest.mark.parametrize("times", [1, 10_000])
@pytest.mark.parametrize("face", FACES)
def test_a_reader_of_lines_gets_the_text_of_a_translated_or_relayed_stream(
    site: Site, maker: Upstream, face: str, times: int
) -> None:
    maker.events = [
        STARTED,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": WORDS * times},
        },
        {"type": "content_block_stop", "index": 0},
        *ENDED,
    ]
    publish(site, maker, "anthropic")
    events = read_lines(site, face)
    assert "".join(map(text_of, events)) == WORDS * times


def test_a_reader_of_lines_gets_the_events_of_relayed_responses(
    site: Site, speaker: Upstream
) -> None:
    delta = next(each for each in RESPONSE_EVENTS if each["type"] == "response.output_text.delta")
    speaker.events = [
        {**each, "delta": WORDS} if each is delta else each for each in RESPONSE_EVENTS
    ]
    LanguageModel.objects.filter(pk=site.model.pk).update(native_format=NativeFormat.RESPONSES)
    publish(site, speaker, "openai")
    events = read_lines(site, "responses")
    told = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert told[0] == WORDS
    assert events[-1]["type"] == RESPONSE_EVENTS[-1]["type"]
