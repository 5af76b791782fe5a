"""What servers send and the SDKs of all faces hold: one row a case, sent as raw bytes over TLS."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pytest

from catalog import dialects
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat
from catalog.dialects.anthropic.native import NO_BLOCK, NO_START
from catalog.dialects.base import InvalidStream, Operation, StreamParser
from catalog.dialects.openai import responses
from catalog.dialects.shared import replies
from catalog.dialects.wholes import join_stream, split_reply
from catalog.models import LanguageModel
from config.credentials import Secret
from tests.support import factories
from tests.support.inference.judges import JUDGES, TOOLS, Held, written
from tests.support.inference.site import OPERATOR_SECRET, Site
from tests.support.ledger import assert_in_order
from tests.support.simulator.protocol import Signal
from tests.support.upstreams.clouds import bedrock_key, event_stream, invoke_stream, stream_head
from tests.support.upstreams.standing import serving_locally

USAGE = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
COUNTED = (30, 4)
ONE = [("get_weather", '{"city":"Oslo"}')]
TWO = [*ONE, ("get_time", '{"zone":"CET"}')]
SAME = [*ONE, ("get_weather", '{"city":"Rome"}')]


def data(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """Returns events as bytes; those that are bytes pass as they are."""
    return (
        b"".join(
            each if isinstance(each, bytes) else b"data: %b\n\n" % json.dumps(each).encode()
            for each in events
        )
        + end
    )


def said(delta: Any, reason: str | None = None, **members: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **members}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [choice]}  # fmt: skip


def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
    return said({"tool_calls": [*pieces]})


def piece(name: str | None, arguments: Any, **members: Any) -> dict[str, Any]:
    function = {} if name is None else {"name": name}
    if arguments is not None:
        function["arguments"] = arguments
    return {**members, "function": function}


def whole(message: dict[str, Any], reason: str | None = "stop", **members: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return json.dumps({"id": "c", "choices": [choice], "usage": USAGE, **members}).encode()


COUNT = {"id": "c", "choices": [], "usage": USAGE}
STOP = said({}, "stop")
HI = [said({"role": "assistant", "content": ""}), said({"content": "Hi "}),
      said({"content": "there"})]  # fmt: skip
OSLO = ['{"city":', '"Oslo"}']
MISTRAL = [{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]},
           {"type": "text", "text": "42"}]  # fmt: skip
CALLED = Held(calls=TWO, finish="tool_calls", usage=COUNTED)
EMPTY_FIRST = Held(calls=[("get_time", "{}"), *ONE], finish="tool_calls", usage=COUNTED)
GREETED = Held(text="Hi there", finish="stop", usage=COUNTED)
THOUGHT = Held(text="42", reasoning="hmm", finish="stop", usage=COUNTED)


STREAM = "text/event-stream"


class Row(NamedTuple):
    answer: bytes
    held: Held
    stream: bool = True
    kind: str = STREAM
    dialect: str = "openai"


def plain(answer: bytes, held: Held) -> Row:
    return Row(answer, held, stream=False, kind="application/json")


def block(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": kind, **members}


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
           "stop_reason": None, "stop_sequence": None,
           "usage": {"input_tokens": 30, "output_tokens": 1}}  # fmt: skip
TEXT_BLOCK = [
    block("content_block_start", index=0, content_block=block("text", text="")),
    block("content_block_delta", index=0, delta=block("text_delta", text="Hi ")),
    block("content_block_delta", index=0, delta=block("text_delta", text="there")),
    block("content_block_stop", index=0),
]
TURN_END = block(
    "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None},
    usage={"output_tokens": 4},
)  # fmt: skip
FULL = {**TURN_END, "usage": {"input_tokens": 30, "output_tokens": 4}}
BEGUN = block("message_start", message=MESSAGE)
MESSAGE_STOP = block("message_stop")


def uses(
    numbers: list[int], ids: list[str | None], called: list[tuple[str, str]] = TWO
) -> list[dict[str, Any]]:
    """Calls as content blocks with these numbers and ids."""
    events = []
    for number, call_id, (name, arguments) in zip(numbers, ids, called, strict=True):
        begun = block("tool_use", id=call_id, name=name, input={})
        delta = block("input_json_delta", partial_json=arguments)
        events += [
            block("content_block_start", index=number, content_block=begun),
            block("content_block_delta", index=number, delta=delta),
            block("content_block_stop", index=number),
        ]
    return events


TOLD = {"usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 4}}


def part(text: str | None, reason: str | None = None) -> dict[str, Any]:
    ends = {} if reason is None else {"finishReason": reason}
    return {"candidates": [{"content": {"parts": [{"text": text}]}, "index": 0, **ends}]}


def function_calls(*ids: str | None) -> dict[str, Any]:
    parts = [
        {"functionCall": {"id": call_id, "name": name, "args": arguments}}
        for call_id, (name, arguments) in zip(ids, TWO, strict=True)
    ]
    return {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}


CONVERSED: list[tuple[str, Any]] = [
    ("messageStart", {"role": "assistant"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hi "}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "there"}}),
    ("messageStop", {"stopReason": "end_turn"}),
]
COUNTED_EVENT = ("metadata", {"usage": {"inputTokens": 30, "outputTokens": 4}})


def tool_uses(
    numbers: list[int], ids: list[str], called: list[tuple[str, str]] = TWO
) -> list[tuple[str, Any]]:
    events = []
    for number, call_id, (name, arguments) in zip(numbers, ids, called, strict=True):
        place, begun = {"contentBlockIndex": number}, {"toolUseId": call_id, "name": name}
        events += [
            ("contentBlockStart", {**place, "start": {"toolUse": begun}}),
            ("contentBlockDelta", {**place, "delta": {"toolUse": {"input": arguments}}}),
        ]
    return events


RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress",
            "error": None, "incomplete_details": None, "model": "m", "output": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
ITEM = {"type": "message", "id": "i", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Hi there", "annotations": []}]}  # fmt: skip
RESPONDED = {**RESPONSE, "status": "completed", "output": [ITEM],
             "usage": {"input_tokens": 30, "output_tokens": 4, "total_tokens": 34}}  # fmt: skip
SPOKEN = [
    block("response.output_item.added", output_index=0, item={**ITEM, "content": []}),
    block("response.content_part.added", output_index=0, content_index=0, item_id="i",
          part={"type": "output_text", "text": "", "annotations": []}),
    *(block("response.output_text.delta", output_index=0, content_index=0, item_id="i", delta=text)
      for text in ("Hi ", "there")),
    block("response.output_item.done", output_index=0, item=ITEM),
]  # fmt: skip


def function_items(numbers: list[int | None]) -> list[dict[str, Any]]:
    events = []
    for number, (name, arguments) in zip(numbers, TWO, strict=True):
        place = {} if number is None else {"output_index": number}
        item = {"type": "function_call", "id": f"f{name}", "call_id": f"c{name}", "name": name,
                "arguments": arguments, "status": "completed"}  # fmt: skip
        kind = "response.function_call_arguments"
        events += [
            block("response.output_item.added", item={**item, "arguments": ""}, **place),
            block(f"{kind}.delta", item_id=item["id"], delta=arguments, **place),
            block(f"{kind}.done", item_id=item["id"], arguments=arguments, **place),
            block("response.output_item.done", item=item, **place),
        ]
    return events


def retold(events: list[dict[str, Any]], *, as_objects: bool = False, **members: Any) -> list[Any]:
    """Returns events whose items have other members."""
    found = []
    for event in events:
        item = {**event.get("item", {}), **members}
        if as_objects and "item" in event:
            item["arguments"] = json.loads(item["arguments"] or "null")
        found.append({**event, "item": item} if "item" in event else event)
    return found


def responded(*events: Any, **members: Any) -> bytes:
    done = [each["item"] for each in events if each["type"].endswith("item.done")]
    whole = {**RESPONDED, "output": done, **members}
    return data(block("response.created", response=RESPONSE), *events,
                block("response.completed", response=whole), end=b"")  # fmt: skip


WHOLE_MESSAGE = json.dumps(
    {**MESSAGE, "content": [block("text", text="Hi there")], "stop_reason": "end_turn",
     "usage": {"input_tokens": 30, "output_tokens": 4}}
).encode()  # fmt: skip

ROWS = {
    "calls all numbered zero": Row(
        data(calls(piece("get_weather", "", index=0, id="a", type="function")),
             *(calls(piece(None, part, index=0)) for part in OSLO),
             calls(piece("get_time", '{"zone":"CET"}', index=0, id="b", type="function")),
             said({}, "tool_calls"), COUNT),
        CALLED),
    "calls of one function all numbered zero": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0, id="a")),
             calls(piece("get_weather", '{"city":"Rome"}', index=0, id="b")), STOP, COUNT),
        Held(calls=SAME, finish="tool_calls", usage=COUNTED)),
    "calls of one function numbered zero without ids": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0)),
             calls(piece("get_weather", '{"city":"Rome"}', index=0)), STOP, COUNT),
        Held(calls=SAME, finish="tool_calls", usage=COUNTED)),
    "calls without numbers": Row(
        data(calls(piece("get_weather", OSLO[0], id="a")), calls(piece(None, OSLO[1])),
             calls(piece("get_time", '{"zone":"CET"}', id="b")), STOP, COUNT), CALLED),
    "calls without numbers in one event": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', id="a"),
                   piece("get_time", '{"zone":"CET"}', id="b")), STOP, COUNT), CALLED),
    "calls without numbers and ids in one event": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}'),
                   piece("get_time", '{"zone":"CET"}')), STOP, COUNT), CALLED),
    "an empty finish reason in each event": Row(
        data(said({"content": "Hi"}, ""),
             said({"tool_calls": [piece("get_weather", "", index=0, id="a")]}, ""),
             *(said({"tool_calls": [piece(None, part, index=0)]}, "") for part in OSLO),
             said({}, "tool_calls"), COUNT),
        Held(text="Hi", calls=ONE, finish="tool_calls", usage=COUNTED)),
    "an empty finish reason in each event of a text": Row(
        data(said({"role": "assistant", "content": "Hi "}, ""), said({"content": "there"}, ""),
             STOP, said({}, ""), COUNT), GREETED),
    "calls numbered from one": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=1, id="a")),
             calls(piece("get_time", "", index=2, id="b")),
             calls(piece(None, '{"zone":"CET"}', index=2)), STOP, COUNT), CALLED),
    "calls whose numbers are texts": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index="0", id="a")),
             calls(piece("get_time", '{"zone":"CET"}', index="1", id="b")), STOP, COUNT), CALLED),
    "calls with ids and names in each piece": Row(
        data(calls(piece("get_weather", OSLO[0], index=0, id="a", type="function")),
             calls(piece("get_weather", OSLO[1], index=0, id="a", type="function")),
             calls(piece("get_time", '{"zone":', index=1, id="b", type="function")),
             calls(piece("get_time", '"CET"}', index=1, id="b", type="function")), STOP, COUNT),
        CALLED),
    "calls with a new id in each piece": Row(
        data(calls(piece("get_weather", OSLO[0], index=0, id="a1")),
             calls(piece(None, OSLO[1], index=0, id="a2")),
             calls(piece("get_time", '{"zone":"CET"}', index=1, id="b1")), STOP, COUNT), CALLED),
    "a name behind its id": Row(
        data(calls(piece("", "", index=0, id="a")),
             calls(piece("get_weather", "".join(OSLO), index=0, id="a")), STOP, COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a name behind its id, alone": Row(
        data(calls(piece("", "", index=0, id="a")),
             calls(piece("get_weather", "".join(OSLO), index=0)), STOP, COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "calls that alternate": Row(
        data(calls(piece("get_weather", "", index=0, id="a"),
                   piece("get_time", "", index=1, id="b")),
             calls(piece(None, OSLO[0], index=0)), calls(piece(None, '{"zone":', index=1)),
             calls(piece(None, OSLO[1], index=0)), calls(piece(None, '"CET"}', index=1)),
             STOP, COUNT), CALLED),
    "calls with arguments as objects": Row(
        data(calls(piece("get_weather", {"city": "Oslo"}, index=0, id="a")),
             calls(piece("get_time", {"zone": "CET"}, index=1, id="b")), STOP, COUNT), CALLED),
    "arguments that begin with an empty object": Row(
        data(calls(piece("get_weather", "{}", index=0, id="a")),
             *(calls(piece(None, part, index=0)) for part in OSLO), STOP, COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a call that its end repeats": Row(
        data(*(calls(piece("get_weather", part, index=0, id="a")) for part in OSLO),
             said({"tool_calls": [piece("get_weather", "".join(OSLO), index=0, id="a")]},
                  "tool_calls"), COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "null as arguments": Row(
        data(calls(piece("get_time", "null", index=0, id="a")), STOP, COUNT),
        Held(calls=[("get_time", "{}")], finish="tool_calls", usage=COUNTED)),
    "plain: arguments that are JSON twice": plain(
        whole({"tool_calls": [piece("get_weather", json.dumps('{"city":"Oslo"}'), id="a")]}),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a call with an empty id": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0, id="")), STOP, COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a call without arguments": Row(
        data(calls(piece("get_time", None, index=0, id="a")), STOP, COUNT),
        Held(calls=[("get_time", "{}")], finish="tool_calls", usage=COUNTED)),
    "a call without arguments before another": Row(
        data(calls(piece("get_time", "", index=0, id="a")),
             calls(piece("get_weather", OSLO[0], index=1, id="b")),
             calls(piece(None, OSLO[1], index=1)), STOP, COUNT), EMPTY_FIRST),
    "a call with an empty object before another": Row(
        data(calls(piece("get_time", "{}", id="a")),
             calls(piece("get_weather", "".join(OSLO), id="b")), STOP, COUNT), EMPTY_FIRST),
    "a call without arguments before another in one event": Row(
        data(calls(piece("get_time", None, index=0, id="a"),
                   piece("get_weather", "".join(OSLO), index=1, id="b")), STOP, COUNT),
        EMPTY_FIRST),
    "calls without arguments in one event": Row(
        data(calls(piece("get_time", None, index=0, id="a"),
                   piece("get_time", None, index=1, id="b")), STOP, COUNT),
        Held(calls=[("get_time", "{}")] * 2, finish="tool_calls", usage=COUNTED)),
    "one call that is no list": Row(
        data(said({"tool_calls": piece("get_time", "{}", id="a")}), STOP, COUNT),
        Held(calls=[("get_time", "{}")], finish="tool_calls", usage=COUNTED)),
    "calls without an end": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0, id="a")), COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a flat call": Row(
        data(calls({"id": "a", "name": "get_weather", "arguments": '{"city":"Oslo"}'}),
             STOP, COUNT), Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "calls under another word for their reason": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0, id="a")),
             said({}, "TOOL_CALL"), COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "plain: calls under a reason that is not known": plain(
        whole({"tool_calls": [piece("get_weather", '{"city":"Oslo"}', id="a")]}, "called"),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "text and no call, but the reason of one": Row(
        data(*HI, said({}, "tool_calls"), COUNT), GREETED),
    "plain: a call that is cut off keeps its reason": plain(
        whole({"tool_calls": [piece("get_weather", '{"city":"Oslo"}', id="a")]}, "length"),
        Held(calls=ONE, finish="length", usage=COUNTED)),
    "a list as content": Row(data(said({"content": MISTRAL}), STOP, COUNT), THOUGHT),
    "a list of texts as content": Row(
        data(said({"content": [block("text", text="Hi "), block("text", text="there")]}),
             STOP, COUNT), GREETED),
    "thoughts in reasoning_content": Row(
        data(said({"reasoning_content": "hm"}), said({"reasoning_content": "m"}),
             said({"content": "42"}), STOP, COUNT), THOUGHT),
    "thoughts in two members": Row(
        data(said({"reasoning_content": "hmm", "reasoning": "hmm"}), said({"content": "42"}),
             STOP, COUNT), THOUGHT),
    "thoughts beside nulls": Row(
        data(*(said({"content": None, "reasoning": text, "tool_calls": None})
               for text in ("h", "m", "m")), said({"content": "42"}), STOP, COUNT), THOUGHT),
    "events without choices": Row(
        data({}, HI[0], b"data: null\n\n", HI[1], b"data:\n\n", b"data: \n\n", HI[2],
             b'event: ping\ndata: {"type": "ping"}\n\n', {"choices": None, "usage": None}, STOP,
             {"usage": USAGE}), GREETED),
    "events without deltas": Row(
        data({"choices": [{"index": 0}]}, *HI, {"choices": [{"index": 0, "delta": None}]},
             {"choices": [{"index": 0, "finish_reason": "stop"}]}, COUNT), GREETED),
    "a whole message after its pieces": Row(
        data(*HI, {**json.loads(whole({"content": "Hi there"})), "object": "chat.completion"}),
        GREETED),
    "a whole message with thoughts after its pieces": Row(
        data(said({"reasoning_content": "hm"}), said({"reasoning_content": "m"}),
             said({"content": "4"}), said({"content": "2"}),
             json.loads(whole({"content": "42", "reasoning_content": "hmm"}))), THOUGHT),
    "a whole message alone": Row(data(json.loads(whole({"content": "Hi there"}))), GREETED),
    "an empty role in each event": Row(
        data(*(said({"role": "", **each["choices"][0]["delta"]}) for each in HI[1:]), STOP, COUNT),
        GREETED),
    "no index of choices": Row(
        data({"choices": [{"delta": {"content": "Hi "}}]},
             {"choices": [{"delta": {"content": "there"}}]},
             {"choices": [{"delta": {}, "finish_reason": "stop"}]}, COUNT), GREETED),
    "plain: a null index": plain(
        whole({"content": "Hi there"}).replace(b'"index": 0', b'"index": null'), GREETED),
    "plain: an index that is a text": plain(
        whole({"content": "Hi there"}).replace(b'"index": 0', b'"index": "0"'), GREETED),
    "no end mark": Row(data(*HI, STOP, COUNT, end=b""), GREETED),
    "no end mark, and usage beside the reason": Row(
        data(*HI, {**STOP, "usage": USAGE}, end=b""), GREETED),
    "no line end": Row(data(*HI, STOP, COUNT, end=b"")[:-2], GREETED),
    "no line end after the mark": Row(data(*HI, STOP, COUNT)[:-2], GREETED),
    "lines that end in CR LF": Row(
        data(*HI, STOP, COUNT).replace(b"\n", b"\r\n"), GREETED),
    "JSON to a streamed request": Row(whole({"content": "Hi there"}), GREETED,
                                      kind="application/json; charset=utf-8"),
    "JSON with calls to a streamed request": Row(
        whole({"content": None, "tool_calls": [
            piece("get_weather", {"city": "Oslo"}), piece("get_time", '{"zone":"CET"}', id="b")]}),
        CALLED, kind="application/json"),
    "JSON with thoughts to a streamed request": Row(
        whole({"content": "42", "reasoning_content": "hmm"}), THOUGHT, kind="application/json"),
    "events to a plain request": Row(data(*HI, STOP, COUNT), GREETED, stream=False),
    "events with calls to a plain request": Row(
        data(calls(piece("get_weather", OSLO[0], id="a")), calls(piece(None, OSLO[1])),
             calls(piece("get_time", '{"zone":"CET"}', id="b")), STOP, COUNT), CALLED,
        stream=False),
    "events with thoughts to a plain request": Row(
        data(said({"reasoning_content": "hm"}), said({"reasoning_content": "m"}),
             said({"content": "4"}), said({"content": "2"}), STOP, COUNT), THOUGHT, stream=False),
    "plain: a list as content": plain(whole({"content": MISTRAL}), THOUGHT),
    "plain: thoughts in reasoning_content": plain(
        whole({"content": "42", "reasoning_content": "hmm"}), THOUGHT),
    "plain: thoughts": plain(whole({"content": "42", "reasoning": "hmm"}), THOUGHT),
    "plain: calls without ids": plain(
        whole({"tool_calls": [piece("get_weather", {"city": "Oslo"}),
                              piece("get_time", '{"zone":"CET"}')]}), CALLED),
    "plain: calls with one id": plain(
        whole({"content": "", "tool_calls": [
            piece("get_weather", '{"city":"Oslo"}', id="a", type="function"),
            piece("get_time", '{"zone":"CET"}', id="a", type="function")]}, None), CALLED),
    "plain: a call without arguments": plain(
        whole({"tool_calls": [piece("get_time", None, id="a")]}, "tool_calls"),
        Held(calls=[("get_time", "{}")], finish="tool_calls", usage=COUNTED)),
    "plain: no finish reason": plain(whole({"content": "Hi there"}, None), GREETED),
    "anthropic: no beginning": Row(
        data(*TEXT_BLOCK, FULL, MESSAGE_STOP), GREETED, dialect="anthropic"),
    "anthropic: blocks that do not begin": Row(
        data(BEGUN, *TEXT_BLOCK[1:], TURN_END, MESSAGE_STOP), GREETED, dialect="anthropic"),
    "anthropic: neither a beginning nor blocks": Row(
        data({"type": "ping"}, *TEXT_BLOCK[1:-1], FULL), GREETED, dialect="anthropic"),
    "anthropic: events without a beginning to a plain request": Row(
        data(*TEXT_BLOCK[1:], FULL, MESSAGE_STOP), GREETED, stream=False, dialect="anthropic"),
    "anthropic: no end mark": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END, end=b""), GREETED, dialect="anthropic"),
    "anthropic: empty events": Row(
        data(BEGUN, b"data:\n\n", *TEXT_BLOCK, b"data: null\n\n", {"type": "ping"}, TURN_END,
             MESSAGE_STOP), GREETED, dialect="anthropic"),
    "anthropic: no line end": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END, end=b'data: {"type": "message_stop"}'), GREETED,
        dialect="anthropic"),
    "anthropic: OpenAI's end mark": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END), GREETED, dialect="anthropic"),
    "anthropic: JSON to a streamed request": Row(
        WHOLE_MESSAGE, GREETED, kind="application/json", dialect="anthropic"),
    "anthropic: JSON without an empty text to a streamed request": Row(
        json.dumps({**MESSAGE, "content": [block("text"), block("text", text="Hi there")],
                    "usage": {"input_tokens": 30, "output_tokens": 4}}).encode(), GREETED,
        kind="application/json", dialect="anthropic"),
    "anthropic: events to a plain request": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END, MESSAGE_STOP), GREETED, stream=False,
        dialect="anthropic"),
    "anthropic: calls all numbered zero": Row(
        data(BEGUN, *uses([0, 0], ["a", "b"]), TURN_END, MESSAGE_STOP), CALLED,
        dialect="anthropic"),
    "anthropic: calls numbered from one, without ids": Row(
        data(BEGUN, *uses([1, 2], ["", None]), TURN_END, MESSAGE_STOP), CALLED,
        dialect="anthropic"),
    "anthropic: calls with one id, to a plain request": Row(
        data(BEGUN, *uses([0, 1], ["a", "a"]), TURN_END, MESSAGE_STOP), CALLED, stream=False,
        dialect="anthropic"),
    "anthropic: a call without arguments whose block does not end": Row(
        data(BEGUN, *uses([0], ["a"], [("get_time", "")])[:-1], *uses([1], ["b"], ONE),
             TURN_END, MESSAGE_STOP), EMPTY_FIRST, dialect="anthropic"),
    "anthropic: a call whose input is a text": Row(
        data(BEGUN, block("content_block_start", index=0, content_block=block(
            "tool_use", id="a", name="get_weather", input='{"city":"Oslo"}')), TURN_END,
             MESSAGE_STOP), Held(calls=ONE, finish="tool_calls", usage=COUNTED),
        dialect="anthropic"),
    "anthropic: nulls, and no reason": Row(
        data(block("message_start", message={**MESSAGE, "content": None}),
             block("content_block_start", index=0, content_block=block("text", text=None)),
             block("content_block_delta", index=0, delta=block("text_delta", text=None)),
             *TEXT_BLOCK[1:], block("message_delta", delta={"stop_reason": None},
                                    usage={"output_tokens": 4}), MESSAGE_STOP),
        GREETED, dialect="anthropic"),
    "anthropic: plain: nulls": plain(
        json.dumps({**MESSAGE, "content": [block("text", text="Hi there"),
                                           block("text", text=None)],
                    "usage": {"input_tokens": 30, "output_tokens": 4}}).encode(),
        Held(text="Hi there", finish="stop", usage=COUNTED))._replace(dialect="anthropic"),
    "anthropic: plain: calls without ids": plain(
        json.dumps({**MESSAGE, "content": [
            block("tool_use", name="get_weather", input='{"city":"Oslo"}'),
            block("tool_use", id="", name="get_time", input={"zone": "CET"})],
                    "usage": {"input_tokens": 30, "output_tokens": 4}}).encode(), CALLED,
    )._replace(dialect="anthropic"),
    "gemini: usage after the end": Row(
        data(part("Hi "), part("there", "STOP"), TOLD, end=b""), GREETED, dialect="gemini"),
    "gemini: a reason in each event": Row(
        data({**part("Hi ", "STOP"), **TOLD}, {**part("there", "STOP"), **TOLD}, end=b""), GREETED,
        dialect="gemini"),
    "gemini: OpenAI's end mark, and empty events": Row(
        data({}, part("Hi "), b"data: null\n\n", {**part("there", "STOP"), **TOLD}), GREETED,
        dialect="gemini"),
    "gemini: nulls": Row(
        data(part(None, ""), part("Hi "), part("there", "FINISH_REASON_UNSPECIFIED"),
             {"candidates": [{"content": {"parts": None}, "index": None, "finishReason": "STOP"}],
              **TOLD}, end=b""), GREETED, dialect="gemini"),
    "gemini: calls with one id": Row(
        data({**function_calls("a", "a"), **TOLD}, end=b""), CALLED, dialect="gemini"),
    "gemini: a list to a streamed request": Row(
        json.dumps([part("Hi "), {**part("there", "STOP"), **TOLD}]).encode(), GREETED,
        kind="application/json; charset=UTF-8", dialect="gemini"),
    "gemini: events to a plain request": Row(
        data(part("Hi "), {**part("there", "STOP"), **TOLD}, end=b""), GREETED, stream=False,
        dialect="gemini"),
    "gemini: JSON with calls to a streamed request": Row(
        json.dumps({**function_calls("", None), **TOLD}).encode(), CALLED, kind="application/json",
        dialect="gemini"),
    "bedrock: no usage event's end": Row(
        event_stream(*CONVERSED[:-1], ("messageStop", {"stopReason": None}), COUNTED_EVENT),
        GREETED, dialect="bedrock"),
    "bedrock: calls all numbered zero, with one id": Row(
        event_stream(*tool_uses([0, 0], ["a", "a"]), CONVERSED[-1], COUNTED_EVENT), CALLED,
        dialect="bedrock"),
    "bedrock: a call without arguments whose block does not end": Row(
        event_stream(*tool_uses([0], ["a"], [("get_time", "")]), *tool_uses([1], ["b"], ONE),
                     CONVERSED[-1], COUNTED_EVENT), EMPTY_FIRST, dialect="bedrock"),
    "bedrock: JSON with calls to a streamed request": Row(
        json.dumps({"output": {"message": {"content": [
            {"text": None}, *({"toolUse": {"name": name, "input": text}} for name, text in TWO)]}},
            "stopReason": None, "usage": {"inputTokens": 30, "outputTokens": 4}}).encode(), CALLED,
        kind="application/json", dialect="bedrock"),
    "responses: an end without the output": Row(
        responded(*SPOKEN, output=[]), GREETED, dialect="responses"),
    "responses: calls all numbered zero": Row(
        responded(*function_items([0, 0])), CALLED, dialect="responses"),
    "responses: calls without numbers": Row(
        responded(*function_items([None, None])), CALLED, dialect="responses"),
    "responses: nulls and empty events": Row(
        data({}, block("response.created", response={**RESPONSE, "output": None, "tools": None}),
             b"data: null\n\n", *SPOKEN, b"data:\n\n", {"type": "ping"},
             block("response.completed", response=RESPONDED)), GREETED, dialect="responses"),
    "responses: counts of chat, and no line end": Row(
        responded(*SPOKEN, usage={**USAGE, "input_tokens": None, "output_tokens": None})[:-1],
        GREETED, dialect="responses"),
    "responses: JSON to a streamed request": Row(
        json.dumps(RESPONDED).encode(), GREETED, kind="application/json", dialect="responses"),
    "responses: JSON with calls to a streamed request": Row(
        json.dumps({**RESPONDED, "output": [each["item"] for each in function_items([0, 1])[3::4]]}
                   ).encode(), CALLED, kind="application/json", dialect="responses"),
    "responses: events to a plain request": Row(
        responded(*SPOKEN, output=[]), GREETED, stream=False, dialect="responses"),
    "responses: plain: no object": plain(
        json.dumps({**RESPONDED, "object": None}).encode(), GREETED)._replace(dialect="responses"),
    "responses: no beginning": Row(
        data(*SPOKEN, block("response.completed", response=RESPONDED), end=b""), GREETED,
        dialect="responses"),
    "responses: calls with one id": Row(
        responded(*retold(function_items([0, 0]), call_id="a")), CALLED, dialect="responses"),
    "responses: calls without ids": Row(
        responded(*retold(function_items([1, 2]), call_id=None)), CALLED, dialect="responses"),
    "responses: arguments as objects": Row(
        responded(*retold(function_items([0, 1]), as_objects=True)), CALLED, dialect="responses"),
    "responses: plain: calls with one id, and objects": plain(
        json.dumps({**RESPONDED, "output": [
            each["item"] for each in retold(function_items([0, 1])[3::4], as_objects=True,
                                            call_id="a")]}).encode(), CALLED
    )._replace(dialect="responses"),
    "responses: plain: a text of chat": plain(
        json.dumps({**RESPONDED, "output": [
            {**ITEM, "content": [{"type": "text", "text": "Hi there"}]}]}).encode(), GREETED
    )._replace(dialect="responses"),
    "responses: plain: a text alone": plain(
        json.dumps({**RESPONDED, "output": [{**ITEM, "content": "Hi there"}]}).encode(), GREETED
    )._replace(dialect="responses"),
}  # fmt: skip


# Rows in which one event begins several calls, whose pieces then come in turn.
IN_TURN = ("calls that alternate", "calls without arguments in one event")


@pytest.mark.parametrize("name", list(ROWS))
def test_each_sdk_holds_the_answer_that_was_sent(
    site: Site, request: pytest.FixtureRequest, name: str
) -> None:
    row = ROWS[name]
    held: dict[str, Held] = {}
    judges = ["responses"] if row.dialect == "responses" else list(JUDGES)
    with serving_locally(written(row.answer, kind=row.kind)) as upstream:
        publish(site, row.dialect, f"https://127.0.0.1:{upstream.port}/v1")
        if row.dialect == "bedrock":
            clouds = request.getfixturevalue("clouds")
            kind = "application/vnd.amazon.eventstream" if row.kind == STREAM else row.kind
            clouds.script = (stream_head(kind) + row.answer, Signal.CLOSE)
        for judge in judges:
            answer = held[judge] = JUDGES[judge](site, stream=row.stream, tools=TOOLS)
            assert len({*answer.ids}) == len(answer.ids) == len(answer.calls)
            assert "" not in answer.ids
            answer.ids = []
            assert max(map(len, answer.pieces), default=0) <= 1
            # Many clients take a call for finished as soon as the next one begins.
            numbers = [*chain.from_iterable(answer.pieces)]
            assert numbers == sorted(numbers) or name in IN_TURN
    assert held == dict.fromkeys(judges, row.held)
    assert_in_order()


def parser_of(kind: str) -> StreamParser:
    dialect = dialects.get(kind)
    assert dialect is not None
    return dialect.stream_parser(Operation.CHAT)


LATE: dict[str, bytes] = {
    "openai": data(
        calls(piece("get_weather", "", index=0, id="a")),
        calls(piece("get_time", "", index=1, id="b")),
        calls(piece(None, OSLO[0], index=0)),
    ),
    "anthropic": data(
        BEGUN, *uses([0], ["a"], [("get_weather", "")])[:1], *uses([1], ["b"], ONE),
        *uses([0], ["a"], ONE)[1:], TURN_END, MESSAGE_STOP,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LATE))
def test_arguments_after_the_end_of_their_call_are_an_error(name: str) -> None:
    """A tool must not run without the arguments that its model gave it."""
    with pytest.raises(InvalidStream, match="got arguments after the next one had begun"):
        parser_of(name).feed(LATE[name])


def test_a_split_event_repeats_nothing() -> None:
    """A lying server must not fill its caller's line with copies of one long member."""
    pieces = [piece("get_time", "{}", index=at, id=str(at)) for at in range(60)]
    event = {**calls(*pieces), "extra": "x" * 10_000, "usage": USAGE}
    chunks = parser_of("openai").feed(data(event, STOP))
    chunks = [each for each in chunks if each.has_choices]
    assert sum("extra" in chunk.fields for chunk in chunks) == 1
    assert ["usage" in chunk.fields for chunk in chunks] == [False] * 118 + [True, False]


NOTED: dict[str, tuple[bytes, bytes, set[str], set[str]]] = {
    "nothing": (data(BEGUN, *uses([0, 1], ["a", "b"]), TURN_END, MESSAGE_STOP), b"", set(), set()),
    "ids": (
        data(BEGUN, *uses([0, 1], ["a", "a"]), TURN_END, MESSAGE_STOP), b"", {replies.CALLS_NAMED},
        {replies.CALLS_NAMED}),
    "no beginning": (
        data(*TEXT_BLOCK[1:], TURN_END, MESSAGE_STOP), b"", set(),
        {NO_START, NO_BLOCK}),
    "a whole answer": (
        b"", json.dumps({**MESSAGE, "content": [block("tool_use", id="a", name="f", input="{}")]}
                        ).encode(), set(), {replies.CALLS_WRITTEN}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NOTED))
def test_what_is_repaired_of_anthropics_format_is_noted(name: str) -> None:
    events, whole, told, told_natively = NOTED[name]
    chat, own = dialects.get("anthropic"), dialects.get_native("anthropic", UNDESCRIBED)
    assert chat is not None
    assert own is not None
    if whole:
        assert own.parse_reply(Operation.CHAT, whole).notes == told_natively
        return
    for dialect, notes in ((chat, told), (own, told_natively)):
        parser = dialect.stream_parser(Operation.CHAT)
        parser.feed(events)
        assert parser.notes == notes


def test_a_block_that_lacks_what_is_empty_is_split() -> None:
    own = dialects.get_native("anthropic", UNDESCRIBED)
    assert own is not None
    thought = block("thinking", signature="c2ln")
    body = json.dumps({**MESSAGE, "content": [thought, block("text", text="Hi")]}).encode()
    chunks = split_reply(own.parse_reply(Operation.CHAT, body), NativeFormat.ANTHROPIC)
    events = [json.loads(each.data.partition(b"data: ")[2]) for each in chunks if each.data]
    begun = [each["content_block"] for each in events if each["type"] == "content_block_start"]
    assert begun == [block("thinking", thinking=""), block("text", text="")]
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert deltas[1] == block("signature_delta", signature="c2ln")


@pytest.mark.parametrize(
    ("calls", "notes"),
    [
        ([{"name": "f", "args": {}}, {"name": "f"}], set()),
        ([{"name": "f", "id": "a"}, {"name": "f", "id": "a"}], {replies.CALLS_NAMED}),
        ([{"name": "f", "args": '{"a":1}'}], {replies.CALLS_WRITTEN}),
        ([{"name": "f", "args": [1]}], {replies.CALLS_WRITTEN}),
    ],
)
def test_what_is_repaired_of_gemini_is_noted(calls: list[Any], notes: set[str]) -> None:
    parts = [{"functionCall": each} for each in calls]
    answer = json.dumps({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    dialect = dialects.get("gemini")
    assert dialect is not None
    whole = dialect.parse_reply(Operation.CHAT, answer.encode())
    parser = dialect.stream_parser(Operation.CHAT)
    streamed = join_stream(parser, b"data: %b\n\n" % answer.encode(), None)
    assert whole.notes == parser.notes == notes
    for reply in (whole, streamed):
        [choice] = json.loads(msgspec.json.encode(reply.fields["choices"]))
        written = [each["function"]["arguments"] for each in choice["message"]["tool_calls"]]
        assert all(isinstance(json.loads(each), dict) for each in written)


NOTED_OF_RESPONSES: dict[str, tuple[bytes, set[str]]] = {
    "nothing": (responded(*function_items([0, 1])), set()),
    "ids": (responded(*retold(function_items([0, 1]), call_id="a")), {replies.CALLS_NAMED}),
    "arguments": (
        responded(*retold(function_items([0, 1]), as_objects=True)), {responses.ARGUMENTS_TYPED}),
    "no beginning": (
        data(*SPOKEN, block("response.completed", response=RESPONDED), end=b""),
        {responses.NO_START}),
    "texts": (
        responded(*retold(SPOKEN, content=[{"type": "text", "text": "Hi there"}])),
        {responses.TEXTS_TYPED}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NOTED_OF_RESPONSES))
def test_what_is_repaired_of_responses_is_noted(name: str) -> None:
    events, notes = NOTED_OF_RESPONSES[name]
    dialect = dialects.get_native("openai", Capabilities(native_format=NativeFormat.RESPONSES))
    assert dialect is not None
    parser = dialect.stream_parser(Operation.CHAT)
    reply = join_stream(parser, events, NativeFormat.RESPONSES)
    assert parser.notes == notes
    assert notes <= reply.notes


CLAUDE = Capabilities(native_format=NativeFormat.ANTHROPIC)
CLOUDY: dict[str, list[dict[str, Any]]] = {
    "text": [BEGUN, *TEXT_BLOCK, TURN_END, MESSAGE_STOP],
    "no beginning": [*TEXT_BLOCK, FULL, MESSAGE_STOP],
    "no block": [BEGUN, *TEXT_BLOCK[1:], TURN_END, MESSAGE_STOP],
    "no end mark": [BEGUN, *TEXT_BLOCK, TURN_END],
    "no reason": [BEGUN, *TEXT_BLOCK, {**TURN_END, "delta": {"stop_reason": None}}, MESSAGE_STOP],
    "empty events": [BEGUN, {}, {"type": "ping"}, *TEXT_BLOCK, {"type": "news"}, TURN_END,
                     MESSAGE_STOP],
    "nulls": [block("message_start", message={**MESSAGE, "content": None}), *TEXT_BLOCK, TURN_END,
              MESSAGE_STOP],
    "calls all numbered zero": [BEGUN, *uses([0, 0], ["a", "b"]), TURN_END, MESSAGE_STOP],
    "calls with one id": [BEGUN, *uses([0, 1], ["a", "a"]), TURN_END, MESSAGE_STOP],
    "calls numbered from one, without ids": [BEGUN, *uses([1, 2], ["", None]), TURN_END,
                                             MESSAGE_STOP],
    "the prompt's count at the end": [
        block("message_start", message={**MESSAGE, "usage": {"input_tokens": 0,
                                                             "output_tokens": 0}}),
        *TEXT_BLOCK, FULL, MESSAGE_STOP],
    "a count that is repeated as zero": [
        BEGUN, *TEXT_BLOCK, {**TURN_END, "usage": {"input_tokens": 0, "output_tokens": 4}},
        MESSAGE_STOP],
}  # fmt: skip


@pytest.mark.parametrize("cloud", ["azure", "bedrock", "vertex"])
@pytest.mark.parametrize("name", list(CLOUDY))
def test_claude_of_a_cloud_is_read_as_tolerantly(name: str, cloud: str) -> None:
    events = CLOUDY[name]
    body = data(*events, end=b"")
    if cloud == "bedrock":
        body = invoke_stream(*events)
    dialect = dialects.get_native(cloud, CLAUDE)
    assert dialect is not None
    parser = dialect.stream_parser(Operation.CHAT)
    reply = join_stream(parser, body, NativeFormat.ANTHROPIC)
    content = json.loads(bytes(reply.fields["content"]))
    calls = [(each["name"], each["input"]) for each in content if each["type"] == "tool_use"]
    text = "".join(each["text"] for each in content if each["type"] == "text")
    assert reply.usage is not None
    assert (reply.usage.prompt, reply.usage.completion) == COUNTED
    is_called = name.startswith("calls")
    assert reply.finish_reason == ("tool_calls" if is_called else "stop")
    assert (text, calls) == (
        ("", [(each, json.loads(arguments)) for each, arguments in TWO])
        if is_called
        else ("Hi there", [])
    )
    ids = [each["id"] for each in content if each["type"] == "tool_use"]
    assert (len({*ids}), "" in ids) == (len(ids), False)


def publish(site: Site, dialect: str, base_url: str) -> None:
    is_bedrock, has_chat = dialect == "bedrock", dialect != "responses"
    provider = factories.make_provider(
        "wire", dialect=dialect if has_chat else "openai",
        base_url=None if is_bedrock else base_url,
        secret=Secret(json.dumps(bedrock_key()) if is_bedrock else OPERATOR_SECRET),
    )  # fmt: skip
    if not has_chat:
        found = LanguageModel.objects.filter(pk=site.model.pk)
        found.update(native_format=NativeFormat.RESPONSES)
    site.publish("m", provider=provider)
