"""Tests the fast path for events that differ only in their choices."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.base import Chunk, InvalidStream, Operation
from catalog.dialects.openai import stream_parser

encode = msgspec.json.Encoder().encode
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def event(content: str, **after: Any) -> bytes:
    choices = [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    body = json.dumps({**HEAD, "choices": choices, **after}, separators=(",", ":"))
    return b"data: " + body.encode() + b"\n\n"


def read(*events: bytes) -> list[Chunk]:
    parser = stream_parser(Operation.CHAT)
    return [chunk for each in events for chunk in parser.feed(each)]


@pytest.mark.parametrize("after", [{}, {"usage": None}, {"x": []}])
def test_an_event_like_the_last_one_yields_only_its_choices(after: dict[str, Any]) -> None:
    first, second = read(event("a", **after), event("bc", **after))
    assert first.repeats == []
    assert first.model == "m"
    assert second.repeated_choices == [
        b'[{"index":0,"delta":{"content":"bc"},"finish_reason":null}]'
    ]
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
    [raw] = chunk.repeated_choices or [encode(chunk.fields["choices"])]
    return json.loads(raw)


@given(st.lists(st.text(max_size=5), min_size=3, max_size=9), st.integers(0, 9))
def test_like_events_in_one_read_make_one_chunk(texts: list[str], other: int) -> None:
    """Inserts a different event; it and the next event are decoded completely."""
    events = [*map(event, texts)]
    events.insert(other + 1, event("", usage={"prompt_tokens": 1, "completion_tokens": 1}))
    apart = read(*events)[1:]
    together = read(events[0], b"".join(events[1:]))[1:]
    assert len(together) <= 5
    assert sum(c.output_bytes for c in together) == sum(c.output_bytes for c in apart)
    assert [
        raw for c in together for raw in c.repeated_choices or [encode(c.fields["choices"])]
    ] == [raw for c in apart for raw in c.repeated_choices or [encode(c.fields["choices"])]]


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
    TEXTS.map(lambda text: {"delta": {"content": text, "reasoning_content": None}}),
    TEXTS.map(lambda text: {"delta": {"reasoning": text, "reasoning_content": text}}),
    TEXTS.map(lambda text: {"delta": {"reasoning": text, "reasoning_content": "x"}}),
    TEXTS.map(lambda text: {"delta": {"reasoning": "", "reasoning_content": text}}),
    TEXTS.map(lambda text: {"delta": {"content": "x", "annotations": [{"content": text}]}}),
    TEXTS.map(lambda text: {"delta": {"content": "x"}, "logprobs": {"text": text}}),
    TEXTS.map(lambda text: {"delta": {"content": [{"type": "text", "text": text}]}}),
    TEXTS.map(lambda text: {"delta": {"content": text, 'a"content': text}}),
    TEXTS.map(lambda text: {"text": text}),
)


@given(st.lists(CHOICES, min_size=2, max_size=14))
def test_all_paths_count_the_same_output(choices: list[dict[str, Any]]) -> None:
    together = read(*map(chunk_of, choices))
    apart = [chunk for choice in choices for chunk in read(chunk_of(choice))]
    assert [c.output_bytes for c in together] == [c.output_bytes for c in apart]
    assert [choices_of(c) for c in together] == [
        json.loads(encode(c.fields["choices"])) for c in apart
    ]


def test_events_without_reasoning_are_split_and_not_parsed() -> None:
    texts = ["one", "two", "three", "four", "five"]
    events = [chunk_of({"delta": {"content": text, "reasoning_content": None}}) for text in texts]
    first, second, rest = read(b"".join(events))
    assert (first.repeats, second.frame, rest.repeats) == (
        [],
        (b"", b""),
        [b"three", b"four", b"five"],
    )
    assert [choices_of(Chunk({}, repeats=[raw]))[0]["delta"] for raw in rest.repeated_choices] == [
        {"content": text, "reasoning_content": None} for text in texts[2:]
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
        event("b").replace(b'"b"', b'"b"},"x":{"delta":{"content":"c"}'),
        event("b").replace(b'"b"', b'["b"]'),
        event("b").replace(b'"b"', b"null"),
    ],
)
def test_text_that_contains_other_json_is_decoded_with_its_choices(other: bytes) -> None:
    third = read(event("a"), event("abc"), other)[2]
    [alone] = read(other)
    assert choices_of(third) == json.loads(encode(alone.fields["choices"]))
    assert third.output_bytes == alone.output_bytes


def test_a_text_that_holds_a_second_choice_ends_the_stream() -> None:
    second = event("b").replace(b'"b"', b'"b"}},{"delta":{"content":"c"')
    with pytest.raises(InvalidStream):
        read(event("a"), event("abc"), second)


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


def flatten(chunks: list[Chunk]) -> tuple[list[Any], int, bool]:
    """Returns the choices of all events in their order, their output and whether the end came."""
    choices = [
        json.loads(raw)
        for chunk in chunks
        if not chunk.is_done
        for raw in (chunk.repeated_choices or [encode(chunk.fields["choices"])])
    ]
    return choices, sum(chunk.output_bytes for chunk in chunks), chunks[-1].is_done


BETWEEN = st.sampled_from([b"", b"", b"", b": comment\n\n", b"event: x\n\n", b"\n", b"\r\n"])


@given(
    st.lists(st.tuples(CHOICES, st.integers(1, 12), BETWEEN), min_size=1, max_size=6),
    st.integers(1, 400),
)
def test_events_in_any_pieces_are_read_like_single_ones(
    runs: list[tuple[dict[str, Any], int, bytes]], step: int
) -> None:
    """Runs of equal and of different events, with comments between, in reads of any length."""
    events = [
        each
        for choice, count, between in runs
        for each in [chunk_of(choice), *[event("plain")] * count, between]
    ]
    events.append(b"data: [DONE]\n\n")
    whole = b"".join(events)
    expected = flatten([c for each in events if each.startswith(b"data") for c in read(each)])
    assert flatten(read(whole)) == expected
    assert flatten(read(*(whole[at : at + step] for at in range(0, len(whole), step)))) == expected


def test_plain_repeats_of_one_read_make_one_chunk() -> None:
    texts = [f"word {number} " for number in range(40)]
    chunks = read(b"".join(map(event, texts)) + b"data: [DONE]\n\n")
    assert [len(chunk.repeats) for chunk in chunks] == [0, 1, 38, 0]
    assert flatten(chunks)[0] == [flatten(read(event(text)))[0][0] for text in texts]
    assert chunks[2].output_bytes == sum(map(len, texts[2:]))


@pytest.mark.parametrize("special", ['"', "\\", "é", "\n", "\x7f"])
def test_a_special_text_among_plain_repeats_is_counted_exactly(special: str) -> None:
    texts = ["a", "b", "cc", f"d{special}", "e"]
    choices, output_bytes, _ = flatten(read(b"".join(map(event, texts))))
    assert [choice[0]["delta"]["content"] for choice in choices] == texts
    assert output_bytes == len("".join(texts).encode())


def test_nothing_after_the_end_mark_is_read() -> None:
    chunks = read(b"".join([event("a"), event("b"), b"data: [DONE]\n\n", event("c"), event("d")]))
    assert (len(chunks), chunks[-1].is_done) == (3, True)


def test_a_fault_after_plain_repeats_leaves_them_pending() -> None:
    parser = stream_parser(Operation.CHAT)
    with pytest.raises(InvalidStream):
        parser.feed(b"".join(map(event, "abcd")) + b"data: {\n\n")
    assert flatten(parser.pending)[1] == 4
