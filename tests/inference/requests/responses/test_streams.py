"""Streams of chat as events of a response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.dialects.base import InvalidStream
from inference.requests.responses.events import DONE
from inference.requests.responses.request import Translated, to_chat
from tests.support.inference.messages import USAGE, call_piece, ended, event, raw
from tests.support.inference.responses import (
    COUNTED,
    CUSTOM,
    FUNCTION,
    asked,
    messages_of,
    streamed,
    translated,
    translator,
)

SIGNED = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}


def kinds(events: list[Any]) -> list[str]:
    """Returns the types of the events between the beginning and the end."""
    return [each["type"].removeprefix("response.") for each in events[2:-1]]


def final(events: list[Any]) -> Any:
    return events[-1]["response"]


def test_a_text_has_all_events_in_order() -> None:
    events = streamed(event({"content": "It "}), event({"content": "rains."}), ended())
    assert kinds(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    created, in_progress = events[0]["response"], events[1]["response"]
    assert created == in_progress
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    place = {"item_id": "msg_1_1", "output_index": 0, "content_index": 0}
    assert events[4] == {
        "type": "response.output_text.delta",
        **place,
        "delta": "It ",
        "logprobs": [],
        "sequence_number": 4,
    }
    part = {"type": "output_text", "text": "It rains.", "annotations": [], "logprobs": []}
    assert events[6]["text"] == "It rains."
    assert events[7]["part"] == part
    message = {
        "id": "msg_1_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    assert final(events)["output"] == [message]
    assert (final(events)["status"], final(events)["usage"]) == ("completed", COUNTED)


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.1, "bytes": [1], "top_logprobs": []}


def test_a_token_that_is_half_of_a_character_has_its_probability() -> None:
    half, other, word = map(token, ("half", "other", "word"))
    thought = {"reasoning": "Hm", "content": ""}
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    deltas: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"content": ""}, half),
        ({"content": "é"}, other),
        ({"content": ""}, half),
        ({"content": None}, word),
        ({"content": "a"}, word),
        # What is no text has none here.
        (thought, word),
        ({"content": ""}, word),
        ({"content": "", "tool_calls": [call]}, word),
    ]
    chat = [event(delta, logprobs={"content": [each]}) for delta, each in deltas]
    events = streamed(*chat, ended("tool_calls"))
    told = [each for each in events if each["type"] == "response.output_text.delta"]
    assert [(each["delta"], each["logprobs"]) for each in told] == [
        ("é", [half, other]),
        ("", [half]),
        ("a", [word]),
    ]
    [part] = final(events)["output"][0]["content"]
    assert (part["text"], part["logprobs"]) == ("éa", [half, other, half, word])
    events = streamed(chat[0], event(thought), event({"content": "a"}), ended())
    assert final(events)["output"][1]["content"][0]["logprobs"] == []


def test_the_stream_ends_with_its_mark() -> None:
    data = translator().feed(event({"content": "a"}) + ended())
    assert data.endswith(b"\n\n" + DONE)
    assert data.count(b"[DONE]") == 1


@pytest.mark.parametrize(
    "piece",
    [
        event({"content": "x" * 50_000}),
        event({"reasoning": "x" * 50_000}),
        call_piece(0, "x" * 50_000, id="a", name="f"),
        call_piece(0, "", id="x" * 50_000, name="f"),
    ],
    ids=["text", "thought", "arguments", "id"],
)
def test_the_output_is_counted_by_its_size(piece: bytes) -> None:
    events = translator()
    events.feed(piece)
    assert 50_000 <= events.held < 51_000


def test_line_ends_of_a_request_do_not_end_its_events() -> None:
    asks = to_chat(json.dumps(asked(tools=[CUSTOM]), indent=2).encode())
    events = streamed(event({"content": "a"}), ended(), asks=asks)
    assert [each["response"]["tools"] for each in events[:2]] == [[CUSTOM], [CUSTOM]]


def test_bytes_may_be_split_anywhere() -> None:
    chat = event({"content": "Zürich"}) + call_piece(0, "{}", id="c1", name="f") + ended()
    pieces = [chat[at : at + 1] for at in range(len(chat))]
    assert [each["type"] for each in streamed(*pieces)] == [each["type"] for each in streamed(chat)]


def test_reasoning_text_and_calls_take_turns() -> None:
    events = streamed(
        event({"reasoning_details": [{**SIGNED, "text": "H"}]}),
        event({"reasoning_details": [{**SIGNED, "text": "m."}]}),
        event({"reasoning_details": [{**SIGNED, "signature": "c2ln"}]}),
        event({"content": "Let me look."}),
        event({"reasoning_details": [{**SIGNED, "index": 1, "text": "So.", "signature": "cw"}]}),
        call_piece(0, '{"a"', id="c1", name="get_weather"),
        call_piece(0, ": 1}"),
        call_piece(1, "{}", id="c2", name="get_weather"),
        ended("tool_calls"),
    )
    items = final(events)["output"]
    assert [item["type"] for item in items] == [
        "reasoning", "message", "reasoning", "function_call", "function_call",
    ]  # fmt: skip
    assert [item["summary"][0]["text"] for item in items if "summary" in item] == ["Hm.", "So."]
    assert [item["arguments"] for item in items[3:]] == ['{"a": 1}', "{}"]
    assert kinds(events)[:7] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    [back] = messages_of(*items)
    assert back["content"] == "Let me look."
    assert back["reasoning_details"] == [
        {**SIGNED, "text": "Hm.", "signature": "c2ln"},
        {**SIGNED, "index": 1, "text": "So.", "signature": "cw"},
    ]


def test_encrypted_reasoning_is_an_item_without_a_summary() -> None:
    detail = {"type": "reasoning.encrypted", "data": "c2VjcmV0", "format": "x", "index": 0}
    events = streamed(event({"reasoning_details": [detail]}), event({"content": "a"}), ended())
    assert kinds(events)[:2] == ["output_item.added", "output_item.done"]
    assert events[2]["item"]["encrypted_content"] is None
    [back] = messages_of(*final(events)["output"])
    assert back["reasoning_details"] == [detail]


def test_calls_may_alternate() -> None:
    events = streamed(
        call_piece(0, '{"a"', id="c1", name="f"),
        call_piece(1, '{"b"', id="c2", name="f"),
        call_piece(0, ": 1}"),
        call_piece(1, ": 2}"),
        ended("tool_calls"),
    )
    assert [item["arguments"] for item in final(events)["output"]] == ['{"a": 1}', '{"b": 2}']


def test_a_complete_call_ends_when_the_next_one_begins() -> None:
    events = streamed(
        call_piece(0, '{"a": 1}', id="c1", name="f"),
        call_piece(1, "{}", id="c2", name="f"),
        ended("tool_calls"),
    )
    assert kinds(events) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ] * 2  # fmt: skip


def test_a_call_without_arguments_gets_an_empty_object() -> None:
    events = streamed(call_piece(0, "", id="c1", name="f"), ended("tool_calls"))
    assert events[3]["delta"] == "{}"
    assert final(events)["output"][0]["arguments"] == "{}"


def tools() -> Translated:
    return translated(tools=[FUNCTION, CUSTOM, {"type": "local_shell"}])


def test_the_input_of_a_custom_tool_is_told_whole() -> None:
    events = streamed(
        call_piece(0, '{"inp', id="c1", name="apply_patch"),
        call_piece(0, 'ut": "*** Begin\\n"}'),
        ended("tool_calls"),
        asks=tools(),
    )
    assert kinds(events) == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert events[3]["delta"] == events[4]["input"] == "*** Begin\n"


def test_the_call_of_a_shell_begins_when_it_is_complete() -> None:
    events = streamed(
        call_piece(0, '{"command"', id="c1", name="local_shell"),
        call_piece(1, "{}", id="c2", name="get_weather"),
        call_piece(0, ': ["ls"]}'),
        ended("tool_calls"),
        asks=tools(),
    )
    weather, shell = final(events)["output"]
    assert weather["type"] == "function_call"
    assert shell["action"]["command"] == ["ls"]


def test_refusals_and_sources_have_events_of_their_own() -> None:
    source = {"type": "url_citation", "url_citation": {"url": "https://x.example", "title": "X"}}
    events = streamed(
        event({"content": "It rains."}),
        event({"annotations": [source]}),
        event({"refusal": "N"}),
        event({"refusal": "o."}),
        ended(),
    )
    assert kinds(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.done",
        "content_part.done",
        "content_part.added",
        "refusal.delta",
        "refusal.delta",
        "refusal.done",
        "content_part.done",
        "output_item.done",
    ]
    text, refusal = final(events)["output"][0]["content"]
    assert text["annotations"][0]["url"] == "https://x.example"
    assert refusal == {"type": "refusal", "refusal": "No."}


@pytest.mark.parametrize("place", ["data:image/png;base64,", "https://pictures.example/"])
def test_a_picture_is_an_item_between_two_messages(place: str) -> None:
    image = {"type": "image_url", "image_url": {"url": f"{place}aGk="}}
    events = streamed(
        event({"content": "a"}), event({"images": [image]}), event({"content": "b"}), ended()
    )
    types = [item["type"] for item in final(events)["output"]]
    assert types == ["message", "image_generation_call", "message"]
    result = f"{place}aGk=".removeprefix("data:image/png;base64,")
    assert final(events)["output"][1]["result"] == result


@pytest.mark.parametrize(
    ("reason", "details"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_early_end_is_incomplete(reason: str, details: str) -> None:
    events = streamed(event({"content": "It"}), ended(reason))
    assert events[-1]["type"] == "response.incomplete"
    assert final(events)["incomplete_details"] == {"reason": details}
    assert final(events)["output"][0]["status"] == "incomplete"
    assert final(events)["usage"] == COUNTED


def test_an_empty_reason_does_not_replace_the_one_before_it() -> None:
    chat = (event({}, finish_reason="length"), event({}, finish_reason=""))
    events = streamed(*chat, raw({"choices": [], "usage": USAGE}))
    assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(
    ("status", "metadata", "code"),
    [
        (502, {}, "server_error"),
        (504, {}, "server_error"),
        (429, {}, "rate_limit_exceeded"),
        (529, {}, "server_is_overloaded"),
        (503, {}, "server_is_overloaded"),
        (402, {}, "insufficient_quota"),
        (400, {}, "invalid_prompt"),
        (400, {"provider_code": "context_length_exceeded"}, "context_length_exceeded"),
        (400, {"error_type": "context_length_exceeded"}, "context_length_exceeded"),
    ],
)
def test_a_failure_ends_the_stream_inside_an_item(
    status: int, metadata: dict[str, Any], code: str
) -> None:
    error = {"code": status, "message": "It broke.", "metadata": metadata}
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    events = streamed(event({"content": "It"}), raw({"error": error, "choices": [choice]}))
    assert events[-1]["type"] == "response.failed"
    assert final(events)["status"] == "failed"
    assert final(events)["error"] == {"code": code, "message": "It broke.", "metadata": metadata}
    assert final(events)["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("name", "member"),
    [("get_weather", "arguments"), ("apply_patch", "input"), ("local_shell", None)],
)
@pytest.mark.parametrize("arguments", ["", '{"a"', '{"command": ["ls"]}'])
@pytest.mark.parametrize("is_told", [False, True])
def test_a_call_that_was_broken_off_has_no_end(
    name: str, member: str | None, arguments: str, is_told: bool
) -> None:
    """A caller must run no call of an answer that failed, with arguments that nobody wrote."""
    error = {"code": 502, "message": "It broke.", "metadata": {}}
    end = ended("error", "boom") if is_told else raw({"error": error, "choices": []})
    events = streamed(call_piece(0, arguments, id="c1", name=name), end, asks=tools())
    assert not [kind for kind in kinds(events) if kind.endswith(".done")]
    output = final(events)["output"]
    told = [] if member is None else [("incomplete", arguments)]
    assert [(item["status"], item[member]) for item in output if member] == told
    assert len(output) == len(told)


def test_calls_before_the_one_that_was_broken_off_keep_their_ends() -> None:
    error = {"code": 502, "message": "It broke.", "metadata": {}}
    events = streamed(
        call_piece(0, '{"a"', id="c1", name="f"),
        call_piece(1, "{}", id="c2", name="f"),
        call_piece(2, "", id="c3", name="f"),
        raw({"error": error, "choices": []}),
    )
    done = [each["item"]["call_id"] for each in events if each["type"].endswith("item.done")]
    assert done == ["c2"]
    items = [(item["status"], item["arguments"]) for item in final(events)["output"]]
    assert items == [("incomplete", '{"a"'), ("completed", "{}"), ("incomplete", "")]


def test_an_answer_that_ended_in_an_error_fails() -> None:
    events = streamed(event({"content": "It"}), ended("error", "boom"))
    assert events[-1]["type"] == "response.failed"
    assert final(events)["error"]["code"] == "server_error"
    assert final(events)["usage"] == COUNTED


def test_an_empty_answer_is_complete() -> None:
    events = streamed(event({"content": ""}), ended())
    assert (len(events), final(events)["output"]) == (3, [])


def test_metadata_of_the_route_is_passed_on() -> None:
    events = streamed(event({"content": "a"}), ended(openrouter_metadata={"attempt": 1}))
    assert final(events)["openrouter_metadata"] == {"attempt": 1}


def test_what_follows_the_end_is_ignored() -> None:
    data = event({"content": "a"}) + ended()
    assert len(streamed(data + event({"content": "late"}))) == len(streamed(data))


def test_output_beyond_the_bound_breaks_the_stream() -> None:
    events = translator()
    events.feed(event({"content": "x" * 33_554_432}))
    with pytest.raises(InvalidStream):
        events.feed(event({"content": "x"}))
    error = {"code": 502, "message": "It broke.", "metadata": {}}
    assert b"response.failed" in events.feed(raw({"error": error, "choices": []}))


@pytest.mark.parametrize("data", [b"data: 5\n\n", b'data: {"choices": 5}\n\n', b"data: {\n\n"])
def test_malformed_events_break_the_stream(data: bytes) -> None:
    with pytest.raises(InvalidStream):
        translator().feed(data)


def test_the_events_are_json_of_one_line() -> None:
    events = translator(translated(instructions="a\nb"))
    data = events.feed(event({"content": "a\nb"}) + ended())
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            json.loads(line.removeprefix(b"data: "))
