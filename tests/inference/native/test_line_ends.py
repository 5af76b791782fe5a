"""Streams for clients that read lines with httpx, which ends a line at more than a line feed."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from catalog.capabilities import NativeFormat
from catalog.models import LanguageModel
from tests.support import factories
from tests.support.inference.messages import delta, start, stop
from tests.support.inference.site import ASKED, CHAT, MESSAGES, RESPONSES, Site
from tests.support.upstreams.recorded import ENDED, STARTED
from tests.support.upstreams.recorded_responses import EVENTS as RESPONSE_EVENTS
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import serving_locally
from tests.support.upstreams.tls import answering

# The characters that JSON need not escape.
WORDS: Final = "one\u0085two\u2028three\u2029fünf „six“"


def read_lines(site: Site, path: str) -> list[dict[str, Any]]:
    """Returns the events of a stream whose lines httpx finds."""
    headers = {"Authorization": f"Bearer {site.tenant.api_key}"}
    body = {"model": site.model.slug, "stream": True, **ASKED[path]}
    url = f"{site.server}{path}"
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
    added = event.get("delta", "")
    if event["type"] == "content_block_delta":
        return str(added["text"])
    return str(added) if event["type"] == "response.output_text.delta" else ""


def publish(site: Site, upstream: Upstream, dialect: str) -> None:
    provider = factories.make_provider("maker", dialect=dialect, base_url=upstream.base_url)
    factories.make_credential(site.tenant, provider)
    site.publish("claude-opus-5", provider=provider)


# A long event is escaped in a thread.
@pytest.mark.parametrize("times", [1, 10_000])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_reader_of_lines_gets_the_text_of_a_translated_or_relayed_stream(
    site: Site, maker: Upstream, path: str, times: int
) -> None:
    maker.events = [
        STARTED,
        start(0, {"type": "text", "text": ""}),
        delta(0, "text_delta", text=WORDS * times),
        stop(0),
        *ENDED,
    ]
    publish(site, maker, "anthropic")
    events = read_lines(site, path)
    assert "".join(map(text_of, events)) == WORDS * times


def test_a_reader_of_lines_gets_the_events_of_relayed_responses(
    site: Site, speaker: Upstream
) -> None:
    first = next(each for each in RESPONSE_EVENTS if each["type"] == "response.output_text.delta")
    speaker.events = [
        {**each, "delta": WORDS} if each is first else each for each in RESPONSE_EVENTS
    ]
    LanguageModel.objects.filter(pk=site.model.pk).update(native_format=NativeFormat.RESPONSES)
    publish(site, speaker, "openai")
    events = read_lines(site, RESPONSES)
    told = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert told[0] == WORDS
    assert events[-1]["type"] == RESPONSE_EVENTS[-1]["type"]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_reader_of_lines_gets_the_text_of_json_of_many_lines(
    site: Site, path: str, end: str
) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": WORDS}}
    reply = {"id": "c", "choices": [choice], "timings": {"prompt_n": 3, "predicted_n": 5}}
    body = json.dumps(reply, indent=1).replace("\n", end).encode()
    with serving_locally(answering(body, headers=("Content-Type: application/json",))) as server:
        site.move(f"https://127.0.0.1:{server.port}/v1")
        site.publish()
        events = read_lines(site, path)
    assert "".join(map(text_of, events)) == WORDS
