"""Parsers tell how much of a stream they keep: an unfinished event, and what waits for others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from catalog.dialects import openai
from catalog.dialects.base import Operation, StreamParser
from catalog.dialects.bedrock.invoke import InvokeFrames
from catalog.dialects.shared.reasoning import HiddenThoughts, hide_reasoning, open_thoughts
from catalog.dialects.shared.sse import EventDecoder
from catalog.dialects.wholes import RenamingParser
from tests.support.dialects.reading import parser_of
from tests.support.inference.transcripts import feed_of
from tests.support.upstreams import clouds

SIZE = 50_000
TEXT = "x" * SIZE
# What stands around it, and what the pieces take besides.
BESIDE = 1_000


def is_about(held: int, size: int) -> bool:
    return size <= held < size + BESIDE


def event(**fields: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(fields).encode()


def parsers() -> Iterator[tuple[str, StreamParser]]:
    yield from ((kind, parser_of(kind)) for kind in ("anthropic", "gemini", "bedrock"))
    yield "chat", openai.stream_parser(Operation.CHAT)
    yield "renaming", RenamingParser(openai.stream_parser(Operation.CHAT), {"a_b": "a.b"})
    yield "images", openai.stream_parser(Operation.IMAGES)
    yield "speech", openai.stream_parser(Operation.SPEECH)
    yield "responses", openai.native.stream_parser(Operation.CHAT)


@pytest.mark.parametrize(("kind", "parser"), [*parsers()], ids=[kind for kind, _ in parsers()])
def test_an_unfinished_event_is_held(kind: str, parser: StreamParser) -> None:
    assert parser.held == 0
    data = clouds.event_stream(("news", {"text": TEXT})) if kind == "bedrock" else event(text=TEXT)
    parser.feed(data[: SIZE // 2])
    assert is_about(parser.held, SIZE // 2)
    parser.feed(data[SIZE // 2 : -1])
    assert is_about(parser.held, SIZE)


def test_an_event_of_claude_at_bedrock_is_held_until_its_end() -> None:
    frames, data = InvokeFrames(), clouds.invoke_stream({"type": "ping", "padding": TEXT})
    assert [*frames.feed(data[:-1])] == []
    assert frames.held == len(data) - 1
    [whole] = frames.feed(data[-1:])
    assert json.loads(whole)["padding"] == TEXT
    assert frames.held == 0


def test_each_piece_of_an_event_takes_more_than_its_bytes() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: ab\n" * 1_000) == []
    assert 50_000 < decoder.held < 100_000
    [whole] = decoder.feed(b"\n: an unfinished comment")
    assert len(whole) == 2_999
    assert is_about(decoder.held, 0)


def test_the_items_of_a_response_are_held_for_its_end() -> None:
    parser = openai.native.stream_parser(Operation.CHAT)
    item = {"type": "message", "content": [{"type": "output_text", "text": TEXT}]}
    begun = {"output_index": 0, "item": {"type": "message", "content": []}}
    assert parser.feed(event(type="response.output_item.added", **begun))
    parser.feed(event(type="response.output_item.done", output_index=0, item=item, padding=TEXT))
    assert is_about(parser.held, SIZE)


def test_the_text_of_gemini_is_held_for_its_sources() -> None:
    parser = parser_of("gemini")
    for _ in range(2):
        candidate = {"content": {"parts": [{"text": TEXT}]}}
        assert parser.feed(feed_of("gemini", [{"candidates": [candidate]}]))
    assert is_about(parser.held, 2 * SIZE)


def test_the_sources_of_claude_are_held_until_their_block_ends() -> None:
    parser = parser_of("anthropic")
    source = {"url": "https://a.example", "title": "A", "cited_text": TEXT}
    cited = {"type": "citations_delta", "citation": source}
    begun = {"type": "content_block_start", "content_block": {"type": "text", "text": "a"}}
    events = [{**begun, "index": 0}, {"type": "content_block_delta", "index": 0, "delta": cited}]
    assert parser.feed(feed_of("anthropic", events))
    assert is_about(parser.held, SIZE)
    assert parser.feed(feed_of("anthropic", [{"type": "content_block_stop", "index": 0}]))
    assert parser.held == 0


def test_a_call_is_held_until_its_name_comes() -> None:
    parser = openai.stream_parser(Operation.CHAT)
    for function, size in (({"arguments": TEXT}, SIZE), ({"name": "look"}, None)):
        call = {"index": 0, "id": "a", "function": function}
        assert parser.feed(event(choices=[{"index": 0, "delta": {"tool_calls": [call]}}]))
        assert parser.held == 0 if size is None else is_about(parser.held, size)


def test_a_hidden_thought_waits_for_its_end_or_for_many_characters() -> None:
    thoughts = HiddenThoughts()

    def hide(delta: dict[str, str]) -> list[Any]:
        raw = msgspec.Raw(json.dumps([{"index": 0, "delta": delta}]).encode())
        [choice] = json.loads(msgspec.json.encode(hide_reasoning(raw, thoughts)))
        assert not {"reasoning", "thinking"} & choice["delta"].keys()
        found: list[Any] = choice["delta"].get("reasoning_details", [])
        return found

    for waiting in (5_000, 10_000, 15_000):
        assert hide({"reasoning": "é" * 5_000}) == []
        assert thoughts.waiting == waiting
    [first] = hide({"reasoning": "é" * 5_000})
    assert (thoughts.waiting, hide({"reasoning": "So"})) == (0, [])
    [second] = hide({"content": "Hi"})
    assert thoughts.waiting == 0
    assert [each.keys() for each in (first, second)] == [{"type", "data", "format", "index"}] * 2
    message = {"role": "assistant", "reasoning_details": [first, second]}
    [opened] = json.loads(bytes(open_thoughts(msgspec.Raw(json.dumps([message]).encode()))))
    assert [each["text"] for each in opened["reasoning_details"]] == ["é" * 20_000, "So"]
