"""A chat stream becomes a stream of message events; errors have Anthropic's types."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.base import InvalidStream
from inference.requests.messages.events import MessageEvents
from inference.requests.messages.reply import render_error
from tests.support.inference.messages import (
    COUNTED,
    USAGE,
    call_piece,
    delta,
    ended,
    event,
    events_of,
    raw,
    start,
    stop,
    text,
    thought,
    turned,
    use,
)

STARTED = {
    "type": "message_start",
    "message": {
        "id": "gen-1",
        "type": "message",
        "role": "assistant",
        "model": "acme/falcon",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
        "provider": "Acme AI",
    },
}


def finish(reason: str) -> list[Any]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": COUNTED,
        },
        {"type": "message_stop"},
    ]


CHAT = (
    event({"role": "assistant", "content": ""})
    + event({"reasoning": "H"})
    + event({"reasoning": "m."})
    + event({"reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0,
                                    "format": "anthropic-claude-v1"}]})
    + event({"content": "Schnee"})
    + event({"content": "stürme."})
    + call_piece(0, "", id="a", name="f")
    + call_piece(0, '{"x":')
    + call_piece(0, "1}")
    + call_piece(1, "{}", id="b", name="g")
    + ended("tool_calls")
)  # fmt: skip

EVENTS = [
    STARTED,
    start(0, thought("", "")),
    delta(0, "thinking_delta", thinking="H"),
    delta(0, "thinking_delta", thinking="m."),
    delta(0, "signature_delta", signature="c2ln"),
    stop(0),
    start(1, text("")),
    delta(1, "text_delta", text="Schnee"),
    delta(1, "text_delta", text="stürme."),
    stop(1),
    start(2, use("a", name="f")),
    delta(2, "input_json_delta", partial_json='{"x":'),
    delta(2, "input_json_delta", partial_json="1}"),
    stop(2),
    start(3, use("b", name="g")),
    delta(3, "input_json_delta", partial_json="{}"),
    stop(3),
    *finish("tool_use"),
]


def test_a_chat_stream_becomes_message_events() -> None:
    assert turned(CHAT) == EVENTS


@given(st.lists(st.integers(0, len(CHAT)), max_size=40))
def test_the_events_do_not_depend_on_how_the_stream_is_split(places: list[int]) -> None:
    cuts = sorted({0, len(CHAT), *places})
    assert turned(*(CHAT[here:there] for here, there in itertools.pairwise(cuts))) == EVENTS


def test_events_are_sent_without_delay() -> None:
    events = MessageEvents("req-1")
    assert [kind["type"] for kind in events_of(events.feed(event({"content": "It "})))] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    assert events_of(events.feed(event({"content": "rains."}))) == [
        delta(0, "text_delta", text="rains.")
    ]
    assert events.feed(event({}, finish_reason="stop")) == b""


def test_interleaved_tool_calls_become_successive_blocks() -> None:
    chat = (
        call_piece(0, "", id="a", name="f"),
        call_piece(1, "", id="b", name="g"),
        call_piece(1, '{"y":'),
        call_piece(0, '{"x":1}'),
        call_piece(1, "2}"),
        event({"content": "Done."}),
        ended("tool_calls"),
    )
    assert turned(*chat)[1:-2] == [
        start(0, use("a", name="f")),
        delta(0, "input_json_delta", partial_json='{"x":1}'),
        stop(0),
        start(1, use("b", name="g")),
        delta(1, "input_json_delta", partial_json='{"y":'),
        delta(1, "input_json_delta", partial_json="2}"),
        stop(1),
        start(2, text("")),
        delta(2, "text_delta", text="Done."),
        stop(2),
    ]


def test_an_empty_reason_does_not_replace_the_one_before_it() -> None:
    chat = (event({}, finish_reason="length"), event({}, finish_reason=""))
    usage = raw({"choices": [], "usage": USAGE})
    assert turned(*chat, usage)[-1]["delta"]["stop_reason"] == "max_tokens"


def test_a_call_without_arguments_ends_with_the_stream() -> None:
    chat = (call_piece(0, "", id="a", name="f"), call_piece(1, "", id="b", name="g"))
    assert turned(*chat, ended("tool_calls"))[1:] == [
        start(0, use("a", name="f")),
        stop(0),
        start(1, use("b", name="g")),
        stop(1),
        *finish("tool_use"),
    ]


ENCRYPTED = {"type": "reasoning.encrypted", "format": "anthropic-claude-v1"}


@pytest.mark.parametrize(
    "piece",
    [
        call_piece(0, "x" * 1_000_000),
        event({"content": "x" * 1_000_000}),
        event({"reasoning_details": [{**ENCRYPTED, "data": "x" * 1_000_000}]}),
    ],
)
def test_pending_events_are_limited_in_size(piece: bytes) -> None:
    begun = call_piece(0, '{"x":', id="a", name="f")
    assert len(turned(begun, *[piece] * 33)) > 1
    with pytest.raises(InvalidStream) as error:
        turned(begun, *[piece] * 34)
    assert str(error.value) == "The tool calls of the stream are too large."


LONG = "x" * 50_000
SOURCE = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": LONG}}


@pytest.mark.parametrize(
    "piece",
    [
        call_piece(0, LONG),
        call_piece(1, "", id=LONG, name="g"),
        event({"content": LONG}),
        event({"annotations": [SOURCE]}),
        event({"reasoning": LONG}),
        event({"reasoning_details": [{**ENCRYPTED, "data": LONG}]}),
    ],
    ids=["arguments", "id", "text", "source", "thought", "data"],
)
def test_what_waits_is_counted_by_its_size(piece: bytes) -> None:
    events = MessageEvents("req_1")
    events.feed(event({"content": LONG}))
    assert events.held == 0
    events.feed(call_piece(0, '{"x":', id="a", name="f"))
    before = events.held
    events.feed(piece)
    assert 50_000 <= events.held - before < 55_000


def test_encrypted_reasoning_becomes_a_separate_block() -> None:
    kind = {"format": "anthropic-claude-v1"}
    details: list[Any] = [
        {"type": "reasoning.text", "text": "Hm.", "index": 0, **kind},
        {"type": "reasoning.text", "signature": "c2ln", "index": 0, **kind},
        {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 1, **kind},
        {"type": "reasoning.summary", "summary": "So.", "index": 2},
    ]
    chat = [event({"reasoning_details": [detail]}) for detail in details]
    assert turned(*chat, ended())[1:-2] == [
        start(0, thought("", "")),
        delta(0, "thinking_delta", thinking="Hm."),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        start(1, {"type": "redacted_thinking", "data": "c2VjcmV0"}),
        stop(1),
        start(2, thought("", "")),
        delta(2, "thinking_delta", thinking="So."),
        stop(2),
    ]


def test_an_error_event_ends_the_stream() -> None:
    error = {"code": 529, "message": "Busy.", "metadata": {"error_type": "provider_overloaded"}}
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    chat = (event({"content": "It "}), raw({"error": error, "choices": [choice]}))
    assert turned(*chat)[3:] == [
        {
            "type": "error",
            "error": {
                "type": "overloaded_error",
                "message": "Busy.",
                "details": {"error_code": "provider_overloaded"},
            },
            "request_id": "req-1",
        }
    ]


def test_a_malformed_event_raises_invalid_stream() -> None:
    with pytest.raises(InvalidStream):
        turned(event({"tool_calls": 5}))
    with pytest.raises(InvalidStream):
        turned(b"data: " + b"x" * 67_200_000)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_render_error_uses_the_error_types_of_anthropic(status: int, kind: str) -> None:
    metadata = {"error_type": "ours", "provider_name": "Acme AI"}
    body = {"error": {"code": status, "message": "No.", "metadata": metadata}, "beside": 1}
    assert render_error(body, "req-1") == {
        "type": "error",
        "error": {
            "type": kind,
            "message": "No.",
            "details": {"error_code": "ours", "provider_name": "Acme AI"},
        },
        "request_id": "req-1",
        "beside": 1,
    }
