"""Events that differ in their choices alone are read in a shorter way, to the same effect."""

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
    parser = stream_parser(Operation.CHAT)
    return [chunk for each in events for chunk in parser.feed(each)]


@pytest.mark.parametrize("after", [{}, {"usage": None}, {"x": {"choices": []}}])
def test_an_event_like_the_one_before_is_its_choices(after: dict[str, Any]) -> None:
    first, second = read(event("a", **after), event("bc", **after))
    assert first.alike is None
    assert first.model == "m"
    assert second.alike == b'[{"index":0,"delta":{"content":"bc"},"finish_reason":null}]'
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
def test_an_event_that_differs_is_read_whole(other: bytes) -> None:
    assert [chunk.alike for chunk in read(event("a"), other)] == [None, None]


def test_usage_is_never_repeated() -> None:
    counted = event("a", usage={"prompt_tokens": 1, "completion_tokens": 1})
    assert [chunk.usage is not None for chunk in read(counted, counted)] == [True, True]
    assert [chunk.alike for chunk in read(counted, counted)] == [None, None]


@pytest.mark.parametrize(
    "broken",
    [
        event("\0").replace(b"\\u0000", b"\xff"),
        event("b").replace(b'"b"', b'"b'),
        event("b").replace(b"[{", b"[[{"),
    ],
)
def test_a_broken_event_is_refused_all_the_same(broken: bytes) -> None:
    with pytest.raises(InvalidStream):
        read(event("a"), broken)


@given(st.lists(st.text(max_size=20), min_size=2, max_size=6))
def test_both_ways_count_the_same_output(texts: list[str]) -> None:
    together = read(*map(event, texts))
    apart = [chunk for text in texts for chunk in read(event(text))]
    assert [c.output_bytes for c in together] == [c.output_bytes for c in apart]
    assert [json.loads(c.alike) for c in together[1:] if c.alike] == [
        json.loads(bytes(c.fields["choices"])) for c in apart[1:]
    ]
