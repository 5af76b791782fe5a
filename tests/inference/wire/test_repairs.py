"""What servers send and the SDKs of all faces hold: one row a case, sent as raw bytes over TLS."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from config.credentials import Secret
from config.local.certificates import ensure_certificates
from tests.support import factories
from tests.support.inference.judges import JUDGES, TOOLS, Held, written
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.upstreams.tls import serving

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
GREETED = Held(text="Hi there", finish="stop", usage=COUNTED)
THOUGHT = Held(text="42", reasoning="hmm", finish="stop", usage=COUNTED)


class Row(NamedTuple):
    answer: bytes
    held: Held
    stream: bool = True
    kind: str = "text/event-stream"
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
BEGUN = block("message_start", message=MESSAGE)
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
    "calls that alternate": Row(
        data(calls(piece("get_weather", "", index=0, id="a"),
                   piece("get_time", "", index=1, id="b")),
             calls(piece(None, OSLO[0], index=0)), calls(piece(None, '{"zone":', index=1)),
             calls(piece(None, OSLO[1], index=0)), calls(piece(None, '"CET"}', index=1)),
             STOP, COUNT), CALLED),
    "calls with arguments as objects": Row(
        data(calls(piece("get_weather", {"city": "Oslo"}, index=0, id="a")),
             calls(piece("get_time", {"zone": "CET"}, index=1, id="b")), STOP, COUNT), CALLED),
    "a call with an empty id": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0, id="")), STOP, COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a call without arguments": Row(
        data(calls(piece("get_time", None, index=0, id="a")), STOP, COUNT),
        Held(calls=[("get_time", "{}")], finish="tool_calls", usage=COUNTED)),
    "one call that is no list": Row(
        data(said({"tool_calls": piece("get_time", "{}", id="a")}), STOP, COUNT),
        Held(calls=[("get_time", "{}")], finish="tool_calls", usage=COUNTED)),
    "calls without an end": Row(
        data(calls(piece("get_weather", '{"city":"Oslo"}', index=0, id="a")), COUNT),
        Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
    "a flat call": Row(
        data(calls({"id": "a", "name": "get_weather", "arguments": '{"city":"Oslo"}'}),
             STOP, COUNT), Held(calls=ONE, finish="tool_calls", usage=COUNTED)),
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
    "no index of choices": Row(
        data({"choices": [{"delta": {"content": "Hi "}}]},
             {"choices": [{"delta": {"content": "there"}}]},
             {"choices": [{"delta": {}, "finish_reason": "stop"}]}, COUNT), GREETED),
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
    "anthropic: no end mark": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END, end=b""), GREETED, dialect="anthropic"),
    "anthropic: empty events": Row(
        data(BEGUN, b"data:\n\n", *TEXT_BLOCK, b"data: null\n\n", {"type": "ping"}, TURN_END,
             {"type": "message_stop"}), GREETED, dialect="anthropic"),
    "anthropic: no line end": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END, end=b'data: {"type": "message_stop"}'), GREETED,
        dialect="anthropic"),
    "anthropic: OpenAI's end mark": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END), GREETED, dialect="anthropic"),
    "anthropic: JSON to a streamed request": Row(
        WHOLE_MESSAGE, GREETED, kind="application/json", dialect="anthropic"),
    "anthropic: events to a plain request": Row(
        data(BEGUN, *TEXT_BLOCK, TURN_END, {"type": "message_stop"}), GREETED, stream=False,
        dialect="anthropic"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ROWS))
def test_each_sdk_holds_the_answer_that_was_sent(site: Site, name: str) -> None:
    row = ROWS[name]
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    held: dict[str, Held] = {}
    ids: set[str] = set()
    with serving(written(row.answer, kind=row.kind), context) as upstream:
        provider = factories.make_provider(
            "wire", dialect=row.dialect, base_url=f"https://127.0.0.1:{upstream.port}/v1"
        )
        provider.set_credential(Secret("operator-credential-0123456789"))
        site.publish("m", provider=provider, price=factories.make_price("0.000001", "0.000002"))
        for judge, ask in JUDGES.items():
            answer = held[judge] = ask(site, stream=row.stream, tools=TOOLS)
            assert len({*answer.ids}) == len(answer.ids) == len(answer.calls)
            assert "" not in answer.ids
            ids.update(answer.ids)
            answer.ids = []
    assert held == dict.fromkeys(JUDGES, row.held)
    assert_in_order()
