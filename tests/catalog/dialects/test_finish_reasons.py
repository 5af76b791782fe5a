"""Tests how native finish reasons are mapped to the words of the interface."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from catalog.dialects import openai
from catalog.dialects.base import Operation
from catalog.dialects.openai.members import normalize_finish_reasons
from catalog.dialects.wholes import join_chat


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("tool_call", "tool_calls"),
        ("TOOL_CALL", "tool_calls"),
        ("function_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("error", "error"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("sensitive", "content_filter"),
        ("content_filter: RECITATION", "content_filter"),
        ("eos", "stop"),
        ("insufficient_system_resource", "error"),
        ("aborted", "error"),
        ("network_error", "error"),
        ("abort", "error"),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", "error"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("something new", "stop"),
    ],
)
def test_a_native_reason_is_mapped_and_kept(native: str, reason: str) -> None:
    raw = msgspec.Raw(msgspec.json.encode([{"index": 0, "finish_reason": native}]))
    choice = {"index": 0, "finish_reason": reason, "native_finish_reason": native}
    choices, *reasons = normalize_finish_reasons(raw)
    assert msgspec.json.decode(msgspec.json.encode(choices)) == [choice]
    assert reasons == [reason, native]


def test_an_existing_native_reason_is_kept() -> None:
    choice = {"finish_reason": "stop", "native_finish_reason": "end_turn"}
    assert normalize_finish_reasons([choice]) == ([choice], "stop", "end_turn")


def test_the_last_reason_of_the_choices_is_returned() -> None:
    choices: list[Any] = [{"finish_reason": "stop"}, {"finish_reason": "length"}, {}]
    assert normalize_finish_reasons(choices)[1:] == ("length", "length")


@pytest.mark.parametrize("raw", [b"null", b"{}", b"[1]", b"[", b'"stop"'])
def test_choices_that_are_not_a_list_of_objects_are_unchanged(raw: bytes) -> None:
    choices = msgspec.Raw(raw)
    assert normalize_finish_reasons(choices) == (choices, None, None)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("native", "given", "reason", "arguments"),
    [
        ("end_turn", "", "tool_calls", "{}"),
        ("stop", "", "tool_calls", "{}"),
        ("tool_call", "", "tool_calls", "{}"),
        ("TOOL_CALL", '{"a":1}', "tool_calls", '{"a":1}'),
        ("length", "", "length", "{}"),
        ("something new", "", "stop", "{}"),
        ("something new", '{"a":1}', "tool_calls", '{"a":1}'),
        ("something new", '{"a":{}', "stop", '{"a":{}'),
        ("abort", "", "error", ""),
        ("insufficient_system_resource", "", "error", ""),
    ],
)
def test_calls_are_called_whole_only_where_the_server_stopped_for_them(
    native: str, given: str, reason: str, arguments: str, is_streamed: bool
) -> None:
    function = {"name": "look", "arguments": given}
    call = {"index": 0, "id": "a", "type": "function", "function": function}
    choice = read_choice({"tool_calls": [call]}, native, is_streamed=is_streamed)
    assert (choice["finish_reason"], choice["native_finish_reason"]) == (reason, native)
    [called] = choice["message"]["tool_calls"]
    assert called["function"] == {"name": "look", "arguments": arguments}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("native", ["tool_calls", "tool_call", "TOOL_CALL", "stop", "something"])
def test_a_text_has_no_reason_of_calls(native: str, is_streamed: bool) -> None:
    choice = read_choice({"content": "Hi"}, native, is_streamed=is_streamed)
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("stop", native)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_in_the_older_member_keeps_its_reason(is_streamed: bool) -> None:
    message = {"content": None, "function_call": {"name": "look", "arguments": "{}"}}
    choice = read_choice(message, "function_call", is_streamed=is_streamed)
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.TEXT])
def test_an_empty_reason_in_an_event_is_none(operation: Operation) -> None:
    """Some SDKs refuse the word, and the last event would hide the reason before it."""
    output = {"delta": {"content": "Hi"}} if operation is Operation.CHAT else {"text": "Hi"}
    events = [
        b"data: %b\n\n"
        % msgspec.json.encode({"choices": [{"index": 0, **output, "finish_reason": reason}]})
        for reason in ("", "", "length", "")
    ]
    parser = openai.stream_parser(operation)
    *chunks, end = parser.feed(b"".join(events) + b"data: [DONE]\n\n")
    read = msgspec.json.decode(msgspec.json.encode([chunk.fields["choices"] for chunk in chunks]))
    given = [None, None, "length", None]
    assert end.is_done
    assert read == [[{"index": 0, **output, "finish_reason": reason}] for reason in given]
    assert [chunk.finish_reason for chunk in chunks] == given


@pytest.mark.parametrize(("content", "reason"), [("Hi", "stop"), ("", None)])
def test_an_empty_reason_of_a_whole_answer_is_none(content: str, reason: str | None) -> None:
    choice = {"index": 0, "message": {"content": content}, "finish_reason": ""}
    read = openai.parse_reply(Operation.CHAT, msgspec.json.encode({"choices": [choice]}))
    [found] = read.fields["choices"]
    assert (found["finish_reason"], read.finish_reason) == (reason, reason)
    assert "native_finish_reason" not in found


def read_choice(message: dict[str, Any], native: str, *, is_streamed: bool) -> dict[str, Any]:
    """Returns the choice of an answer with this message and this finish reason."""
    if is_streamed:
        parser = openai.stream_parser(Operation.CHAT)
        pieces: list[dict[str, Any]] = [
            {"delta": message, "finish_reason": None},
            {"delta": {}, "finish_reason": native},
        ]
        events = [
            b"data: %b\n\n" % msgspec.json.encode({"choices": [{"index": 0, **piece}]})
            for piece in pieces
        ]
        read = join_chat(parser.feed(b"".join(events) + b"data: [DONE]\n\n"))
    else:
        choice = {"index": 0, "message": message, "finish_reason": native}
        read = openai.parse_reply(Operation.CHAT, msgspec.json.encode({"choices": [choice]}))
    choices, *_ = normalize_finish_reasons(read.fields["choices"])
    [found] = choices
    assert isinstance(found, dict)
    return found
