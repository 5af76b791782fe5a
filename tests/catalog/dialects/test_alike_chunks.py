"""Tests the fast path for events that differ only in their choices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.base import Chunk, InvalidStream, Operation
from catalog.dialects.openai import stream_parser

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def event(content: str, **after: Any) -> bytes:
    choices = [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    body = json.dumps({**HEAD, "choices": choices, **after}, separators=(",", ":"))
    return b"data: " + body.encode() + b"\n\n"


def read(*events: bytes) -> list[Chunk]:
    parser = stream_parser(Operation.CHAT, 2)
    return [chunk for each in events for chunk in parser.feed(each)]


@pytest.mark.parametrize("after", [{}, {"usage": None}, {"x": []}])
def test_an_event_like_the_last_one_yields_only_its_choices(after: dict[str, Any]) -> None:
    first, second = read(event("a", **after), event("bc", **after))
    assert first.repeats == []
    assert first.model == "m"
    assert second.repeats == [b'[{"index":0,"delta":{"content":"bc"},"finish_reason":null}]']
    assert (second.fields, second.output_bytes, second.has_choices) == ({}, 2, True)


@pytest.mark.parametrize(
    "other",
    [
        event("b", created=2),
        event("b", usage={"prompt_tokens": 1, "completion_tokens": 1}),
        event("b").replace(b"chatcmpl-1", b"chatcmpl-2"),
        event("b").replace(b"null}]", b'"stop"}]'),
        event("b").replace(b'"delta"', b'\ndata: "delta"'),
    ],
)
def test_a_different_event_is_decoded_completely(other: bytes) -> None:
    assert [chunk.repeats for chunk in read(event("a"), other)] == [[], []]


@pytest.mark.parametrize("twice", [b'"choices":[],"id"', b'"x":{"choices":[]},"id"'])
def test_an_event_with_two_choices_members_is_decoded_completely(twice: bytes) -> None:
    """Checks that the last ``choices`` of the event are used."""
    chunks = read(*(event(text).replace(b'"id"', twice) for text in ("a", "b")))
    assert [chunk.repeats for chunk in chunks] == [[], []]
    assert [choices_of(chunk)[0]["delta"]["content"] for chunk in chunks] == ["a", "b"]


def test_an_event_with_usage_is_decoded_completely() -> None:
    counted = event("a", usage={"prompt_tokens": 1, "completion_tokens": 1})
    assert [chunk.usage is not None for chunk in read(counted, counted)] == [True, True]
    assert [chunk.repeats for chunk in read(counted, counted)] == [[], []]


@pytest.mark.parametrize(
    "broken",
    [
        event("\0").replace(b"\\u0000", b"\xff"),
        event("b").replace(b'"b"', b'"b'),
        event("b").replace(b"[{", b"[[{"),
    ],
)
def test_a_malformed_event_after_a_like_event_is_refused(broken: bytes) -> None:
    with pytest.raises(InvalidStream):
        read(event("a"), broken)


def choices_of(chunk: Chunk) -> Any:
    [raw] = chunk.repeats or [bytes(chunk.fields["choices"])]
    return json.loads(raw)


@given(st.lists(st.text(max_size=5), min_size=3, max_size=9), st.integers(0, 9))
def test_like_events_in_one_read_make_one_chunk(texts: list[str], other: int) -> None:
    """Inserts a different event; it and the next event are decoded completely."""
    events = [*map(event, texts)]
    events.insert(other + 1, event("", usage={"prompt_tokens": 1, "completion_tokens": 1}))
    apart = read(*events)[1:]
    together = read(events[0], b"".join(events[1:]))[1:]
    assert len(together) <= 4
    assert sum(c.output_bytes for c in together) == sum(c.output_bytes for c in apart)
    assert [raw for c in together for raw in c.repeats or [bytes(c.fields["choices"])]] == [
        raw for c in apart for raw in c.repeats or [bytes(c.fields["choices"])]
    ]


def chunk_of(choice: dict[str, Any], **after: Any) -> bytes:
    body = {**HEAD, "choices": [{"index": 0, **choice, "finish_reason": None}], **after}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"', "\\", '\\"', 'a","b":"c', '"}}]', "\u2028", "é", "\n\n", "data: x", '"content": "x"']
)
CHOICES = st.one_of(
    TEXTS.map(lambda text: {"delta": {"content": text}}),
    TEXTS.map(lambda text: {"delta": {"role": "assistant", "content": text, "refusal": None}}),
    TEXTS.map(lambda text: {"delta": {"content": "", "reasoning": text}}),
    TEXTS.map(lambda text: {"delta": {"reasoning_content": text, "content": None}}),
    TEXTS.map(lambda text: {"delta": {"reasoning": text, "reasoning_content": text}}),
    TEXTS.map(lambda text: {"delta": {"reasoning": text, "reasoning_content": "x"}}),
    TEXTS.map(lambda text: {"delta": {"reasoning": "", "reasoning_content": text}}),
    TEXTS.map(lambda text: {"delta": {"content": "x", "annotations": [{"content": text}]}}),
    TEXTS.map(lambda text: {"delta": {"content": "x"}, "logprobs": {"text": text}}),
    TEXTS.map(lambda text: {"delta": {"tool_calls": [{"function": {"arguments": text}}]}}),
    TEXTS.map(lambda text: {"delta": {"content": text, 'a"content': text}}),
    TEXTS.map(lambda text: {"text": text}),
)


@given(st.lists(CHOICES, min_size=2, max_size=14))
def test_all_paths_count_the_same_output(choices: list[dict[str, Any]]) -> None:
    together = read(*map(chunk_of, choices))
    apart = [chunk for choice in choices for chunk in read(chunk_of(choice))]
    assert [c.output_bytes for c in together] == [c.output_bytes for c in apart]
    assert [choices_of(c) for c in together] == [
        json.loads(bytes(c.fields["choices"])) for c in apart
    ]


@pytest.mark.parametrize("text", ["b", "", '"', "é\u2028\U0001f600", "\\u0041\t"])
def test_an_event_that_differs_only_in_its_text_is_read_correctly(text: str) -> None:
    """Checks the third event, which the parser reads with the layout of the second."""
    third = read(event("a"), event("abc"), event(text))[2]
    assert choices_of(third)[0]["delta"]["content"] == text
    assert third.output_bytes == len(text.encode())


@pytest.mark.parametrize(
    "other",
    [
        event("b").replace(b'"b"', b'"b","x":"y"'),
        event("b").replace(b'"b"', b'"b"}},{"delta":{"content":"c"'),
        event("b").replace(b'"b"', b'["b"]'),
        event("b").replace(b'"b"', b"null"),
    ],
)
def test_text_that_contains_other_json_is_decoded_with_its_choices(other: bytes) -> None:
    third = read(event("a"), event("abc"), other)[2]
    [alone] = read(other)
    assert choices_of(third) == json.loads(bytes(alone.fields["choices"]))
    assert third.output_bytes == alone.output_bytes


@pytest.mark.parametrize(
    "broken",
    [
        event("\0").replace(b"\\u0000", b"\xff"),
        event("b").replace(b'"b"', b'"b'),
        event("b").replace(b'"b"', b'"b""'),
        event("b").replace(b'"b"', b'"b\\"'),
        event("b").replace(b'"b"', b'"'),
    ],
)
def test_malformed_text_after_like_events_is_refused(broken: bytes) -> None:
    with pytest.raises(InvalidStream):
        read(event("a"), event("abc"), broken)
