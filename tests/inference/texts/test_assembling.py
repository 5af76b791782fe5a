"""Answers of providers that break their format: what can be read of them is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from catalog.capabilities import NativeFormat
from inference.texts.assembling import READERS, Assembler
from tests.support.inference.site import Site
from tests.support.texts.logged import read_content
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering

_CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
_MESSAGE = {"content": [{"text": "t"}], "reasoning": "r", "refusal": "n", "tool_calls": [_CALL]}
_ITEM = {"type": "message", "content": [{"text": "t"}], "name": "f", "call_id": "c", "input": "i"}
# What each format has, which every value of _WRONG replaces at every place.
_EVENTS: Any = {
    None: [
        {"choices": [{"index": 0, "text": "t", "delta": _MESSAGE}]},
        {"choices": [{"index": 0, "reasoning": "r", "message": _MESSAGE}]},
    ],
    NativeFormat.ANTHROPIC: [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"text": "t", "name": "f", "id": "c", "input": {"a": 1}},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"text": "t", "thinking": "r", "partial_json": "{}"},
        },
        {"content": [{"text": "t", "thinking": "r", "name": "f", "id": "c", "input": {}}]},
    ],
    NativeFormat.RESPONSES: [
        {"type": "response.output_text.delta", "output_index": 0, "delta": "t"},
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "r"},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"},
        {"type": "response.output_item.added", "output_index": 0, "item": _ITEM},
        {"output": [_ITEM, {"type": "reasoning", "summary": [{"text": "r"}]}]},
    ],
}
_WRONG: Any = (None, True, -1, 1.5, 10**30, "a", [], {}, [[]], [{}], ["a"], {"a": []})


def break_each_value(value: Any) -> Iterator[Any]:
    """Yields a value with each of its parts replaced by each wrong one."""
    yield from _WRONG
    if isinstance(value, dict):
        for name, part in value.items():
            for broken in break_each_value(part):
                yield {**value, name: broken}
    elif isinstance(value, list):
        for place, part in enumerate(value):
            for broken in break_each_value(part):
                yield [*value[:place], broken, *value[place + 1 :]]


@pytest.mark.parametrize("native", READERS)
def test_any_json_is_read(native: NativeFormat | None) -> None:
    for whole in _EVENTS[native]:
        for fields in break_each_value(whole):
            assembler = Assembler(native)
            body = json.dumps(fields).encode()
            assembler.feed(b"data: %s\n\n" % body)
            assembler.feed_reply(body)
            assert msgspec.json.encode(assembler.output.describe())


@pytest.mark.parametrize(
    ("native", "fields"),
    [
        (None, {"choices": [{"delta": {"tool_calls": [{"index": [], "id": "a"}]}}]}),
        (
            NativeFormat.ANTHROPIC,
            {"type": "content_block_delta", "index": {}, "delta": {"text": "a"}},
        ),
        (
            NativeFormat.RESPONSES,
            {"type": "response.output_text.delta", "output_index": [], "delta": "a"},
        ),
    ],
)
def test_an_index_that_is_no_number_is_the_first(
    native: NativeFormat | None, fields: dict[str, Any]
) -> None:
    assembler = Assembler(native)
    assembler.feed(b"data: %s\n\n" % json.dumps(fields).encode())
    output = assembler.output.describe()
    assert "a" in (output["completion"], output.get("tool_calls", [{}])[0].get("id"))


def test_the_places_of_an_answer_are_bounded() -> None:
    assembler = Assembler(None)
    for index in range(300):
        choice = {"index": index, "delta": {"content": "a"}}
        assembler.feed(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
    completion = assembler.output.describe()["completion"]
    assert completion.split("\n\n") == ["a"] * 256
    assert assembler.output.is_truncated


def test_an_event_that_is_not_complete_counts() -> None:
    assembler = Assembler(None)
    assembler.feed(b'data: {"choices": []}\ndata: "more')
    assert assembler.size == len(b' {"choices": []}') + len(b'data: "more')


def test_a_provider_that_breaks_the_format_fails_no_logged_request(logged: Site) -> None:
    call = {"index": ["first"], "id": "call", "function": {"name": "look_up", "arguments": "{}"}}
    deltas = [{"content": "Hi"}, {"tool_calls": [call]}, {"content": " there"}]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events = [{"id": "a", "model": "m", "choices": [choice]} for choice in choices]
    # So many that a part of them is read while the stream runs.
    lines = [json.dumps(each).encode() for each in events * 300]
    body = b"".join(b"data: %s\n\n" % line for line in (*lines, b"[DONE]"))
    script = answering(body, headers=("Content-Type: text/event-stream",))
    with standing_in(logged.provider, script):
        logged.publish("m")
        answer = logged.chat(stream=True)
    assert answer.status_code == 200
    assert '"error"' not in answer.text
    content = read_content(logged, answer)
    assert content["error"] is None
    assert content["output"]["completion"] == "Hi there" * 300
