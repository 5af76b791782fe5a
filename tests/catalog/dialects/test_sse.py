"""Tests the decoding of server-sent events from arbitrary pieces of bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.shared.sse import EventDecoder, EventTooLarge


def decoded(*chunks: bytes, limit: int = 1_048_576) -> list[bytes]:
    decoder = EventDecoder(limit=limit)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\r\n\ndata: two\n\r\n", [b"one", b"two"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"data: one\ndata\ndata:\n\n", [b"one\n\n"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b": a comment\n\ndata: one\n\n", [b"one"]),
        (b"data: one\n: between\ndata: two\n\n", [b"one\ntwo"]),
        (b"event: chunk\nid: 7\nretry: 10\ndata: one\n\n", [b"one"]),
        (b"event: chunk\n\n", []),
        (b"data : one\n\ndatax: two\n\nDATA: three\n\n", []),
        (b" data: one\n\n", []),
        (b"\n\n\n\ndata: one\n\n\n\n", [b"one"]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: one\n\n", []),
        (b"data: one\n\n\xef\xbb\xbfdata: two\n\n", [b"one"]),
        (b"data: a:b: c\n\n", [b"a:b: c"]),
        (b"data: \xff\x00\n\n", [b"\xff\x00"]),
        (b"data: one\n", []),
        (b"data: one", []),
        (b"", []),
    ],
)
def test_a_stream_decodes_to_its_events(stream: bytes, events: list[bytes]) -> None:
    assert decoded(stream) == events
    assert decoded(*(bytes([byte]) for byte in stream)) == events


def test_a_byte_order_mark_may_be_split() -> None:
    assert decoded(b"\xef", b"", b"\xbb", b"\xbfdata: one\n\n") == [b"one"]


def test_an_incomplete_byte_order_mark_is_kept() -> None:
    assert decoded(b"\xef", b"\xbb", b"x\ndata: one\n\n") == [b"one"]


def test_a_line_feed_after_a_carriage_return_ends_the_same_line() -> None:
    assert decoded(b"data: one\r", b"\ndata: two\r", b"", b"\n\r", b"\n") == [b"one\ntwo"]


def test_a_carriage_return_ends_the_line_immediately() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: one\r\r") == [b"one"]
    assert decoder.is_complete


@pytest.mark.parametrize(
    ("stream", "is_complete"),
    [
        (b"", True),
        (b"data: one\n\n", True),
        (b"data: one\r\n\r", True),
        (b"data: one\n\n\n", True),
        (b"data: one\n", False),
        (b"data: one", False),
        (b"data: one\n\n: com", False),
    ],
)
def test_is_complete_is_false_inside_an_event(stream: bytes, is_complete: bool) -> None:
    decoder = EventDecoder()
    decoder.feed(stream)
    assert decoder.is_complete is is_complete


@pytest.mark.parametrize("prefix", [b"data: ", b"data:"])
@pytest.mark.parametrize("step", [1, 3, 100])
def test_an_event_larger_than_the_limit_is_refused(prefix: bytes, step: int) -> None:
    for size in (15, 16):
        stream = prefix + b"x" * size + b"\n\n"
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        assert decoded(*pieces, limit=16) == [b"x" * size]
    stream = prefix + b"x" * 17 + b"\n\n"
    with pytest.raises(EventTooLarge):
        decoded(*(stream[at : at + step] for at in range(0, len(stream), step)), limit=16)


def test_the_limit_applies_to_all_lines_of_an_event() -> None:
    assert decoded(b"data: 12345678\ndata: 1234567\n\n", limit=16) == [b"12345678\n1234567"]
    with pytest.raises(EventTooLarge):
        decoded(b"data: 12345678\ndata: 12345678\n\n", limit=16)


def test_the_limit_applies_to_empty_lines() -> None:
    assert decoded(b"data\n" * 17, b"\n", limit=16) == [b"\n" * 16]
    with pytest.raises(EventTooLarge):
        decoded(b"data\n" * 18, limit=16)


def test_the_limit_applies_to_an_unfinished_line() -> None:
    with pytest.raises(EventTooLarge):
        decoded(*[b": comment"] * 3, limit=16)


def test_the_limit_applies_to_each_event_separately() -> None:
    assert decoded(b"data: 1234567890\n\n" * 1000, limit=16) == [b"1234567890"] * 1000


@given(
    pieces=st.lists(
        st.sampled_from(
            [b"data: ", b"data:", b"data", b"\n", b"\r", b"\r\n", b"\n\n", b"x", b":", b" "]
            + [b"\xef\xbb\xbf", b"\xef", b"id: 1", b"\xc3\xbc", b"{}"]
        ),
        max_size=40,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_events_do_not_depend_on_the_sizes_of_reads(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    assert decoded(*chunks) == decoded(stream)


@given(
    events=st.lists(
        st.lists(st.binary(max_size=8).filter(lambda b: not {10, 13} & set(b)), min_size=1),
        max_size=6,
    ),
    end=st.sampled_from([b"\n", b"\r", b"\r\n"]),
    size=st.integers(1, 16),
)
def test_decoder_returns_the_encoded_events(
    events: list[list[bytes]], end: bytes, size: int
) -> None:
    stream = b"".join(b"".join(b"data: " + line + end for line in lines) + end for lines in events)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert decoded(*chunks) == [b"\n".join(lines) for lines in events]
