"""A chat reply becomes a message."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

from catalog.dialects import openai, vertex
from catalog.dialects.base import Call, InvalidReply, Operation
from config.api.errors import UpstreamError
from config.credentials import Secret
from inference.requests.messages.reply import render_reply
from tests.support.inference.messages import (
    COUNTED,
    IDENTITY,
    SECRET,
    SIGNED_THOUGHT,
    USAGE,
    call_piece,
    delta,
    ended,
    event,
    messages_of,
    start,
    text,
    thought,
    turned,
    use,
)
from tests.support.upstreams import clouds


def answer(message: dict[str, Any], stops: Sequence[str] = (), **choice: Any) -> Any:
    choice = {"index": 0, "message": message, "finish_reason": "stop", **choice}
    body = {**IDENTITY, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return json.loads(render_reply(json.dumps(body).encode(), stops))


def test_a_chat_reply_becomes_a_message() -> None:
    assert answer({"role": "assistant", "content": "It rains."}) == {
        "id": "gen-1",
        "type": "message",
        "role": "assistant",
        "model": "acme/falcon",
        "content": [text("It rains.")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": COUNTED,
        "provider": "Acme AI",
    }


@pytest.mark.parametrize(
    ("choice", "stop"),
    [
        ({"finish_reason": "stop"}, ("end_turn", None)),
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "tool_calls"}, ("tool_use", None)),
        ({"finish_reason": "content_filter"}, ("refusal", None)),
        ({"finish_reason": None}, ("end_turn", None)),
        ({"native_finish_reason": "stop_sequence"}, ("stop_sequence", None)),
        (
            {
                "finish_reason": "length",
                "native_finish_reason": "model_context_window_exceeded",
            },
            ("model_context_window_exceeded", None),
        ),
        ({"native_finish_reason": ["stop_sequence"]}, ("end_turn", None)),
        ({"stop_reason": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": "length", "stop_reason": "END"}, ("max_tokens", None)),
    ],
)
def test_the_finish_reason_becomes_a_stop_reason(
    choice: dict[str, Any], stop: tuple[str, str | None]
) -> None:
    found = answer({"content": "It rains."}, **choice)
    assert (found["stop_reason"], found["stop_sequence"]) == stop


@pytest.mark.parametrize(
    ("choice", "stops", "sequence"),
    [
        ({"native_finish_reason": "stop_sequence"}, ["END"], "END"),
        ({"native_finish_reason": "stop_sequence"}, ["END", "X"], None),
        ({"native_finish_reason": "model_context_window_exceeded"}, ["END"], None),
        ({"matched_stop": "X"}, ["END", "X"], "X"),
        ({"matched_stop": "<|im_end|>"}, ["END"], None),
        ({"matched_stop": 2}, ["END"], None),
        ({"matched_stop": "END", "finish_reason": "length"}, ["END"], None),
    ],
)
def test_a_stop_sequence_is_told_where_it_is_known(
    choice: dict[str, Any], stops: list[str], sequence: str | None
) -> None:
    found = answer({"content": "It rains."}, stops, **choice)
    assert found["stop_sequence"] == sequence


# The signature of thoughts that nobody signed.
UNSIGNED = "causeway:" + base64.urlsafe_b64encode(b'{"format":"unknown"}').decode()


def called(arguments: Any, call_id: str | None = "a") -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_a_reply_with_tool_calls_has_the_stop_reason_tool_use() -> None:
    message = {"content": None, "tool_calls": [called('{"city":"Zürich"}')]}
    found = answer(message, finish_reason="tool_calls")
    assert found["content"] == [use("a", {"city": "Zürich"}, "get_weather")]
    assert found["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [("", {}), ("{}", {}), ('{"a":', {"arguments": '{"a":'}), ("[1]", {"arguments": "[1]"})],
)
def test_tool_arguments_become_an_object(arguments: Any, given: dict[str, Any]) -> None:
    [block] = answer({"tool_calls": [called(arguments)]})["content"]
    assert (block["id"], block["input"]) == ("a", given)


@pytest.mark.parametrize(
    ("said", "blocks"),
    [
        ({"reasoning": "Hm.", "content": "Yes."}, [thought("Hm.", UNSIGNED), text("Yes.")]),
        ({"reasoning": "Hm.", "refusal": "No."}, [thought("Hm.", UNSIGNED), text("No.")]),
        (
            {"reasoning": "Hm.", "reasoning_details": [SIGNED_THOUGHT, SECRET], "content": ""},
            [thought("Hm.", "c2ln"), {"type": "redacted_thinking", "data": "c2VjcmV0"}],
        ),
        ({"content": "", "reasoning_details": [{"index": "x"}, 5]}, []),
    ],
)
def test_thinking_blocks_come_first(said: dict[str, Any], blocks: list[Any]) -> None:
    assert answer(said)["content"] == blocks


@pytest.mark.parametrize(
    "secret",
    [
        {"type": "reasoning.encrypted", "data": "c2VjcmV0", "id": "a"},
        {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln"},
    ],
)
def test_reasoning_details_survive_the_round_trip(secret: dict[str, Any]) -> None:
    detail = {**secret, "format": "google-gemini-v1", "index": 0}
    blocks = answer({"content": "", "reasoning_details": [detail]})["content"]
    [message] = messages_of(("assistant", blocks))
    assert message["reasoning_details"] == [detail]


SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


@pytest.mark.parametrize("listed", [None, frozenset(("tools",))])
def test_the_signature_of_a_tool_call_is_sent_back_to_its_provider(
    listed: frozenset[str] | None,
) -> None:
    calls = [{**called("{}", "a"), **SIGNED}, called("{}", "b"), {**called("{}", "c"), **SIGNED}]
    whole = answer({"content": "Let me look.", "tool_calls": calls})["content"]
    kinds = ["text", "redacted_thinking", "tool_use", "tool_use", "redacted_thinking", "tool_use"]
    assert [block["type"] for block in whole] == kinds
    pieces = [
        call_piece(0, "{", id="a", name="f", **SIGNED),
        call_piece(0, "}", **SIGNED),
        call_piece(1, "{}", id="b", name="f"),
        call_piece(2, "{}", id="c", name="f", **SIGNED),
    ]
    streamed = turned(event({"content": "Let me look."}), *pieces, ended("tool_calls"))
    begun = [one["content_block"] for one in streamed if one["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == kinds
    assert [block for block in begun if "data" in block] == [
        block for block in whole if "data" in block
    ]
    [message] = messages_of(("assistant", whole))
    credential = Secret(json.dumps(clouds.vertex()))
    made = vertex.build(
        Call(
            Operation.CHAT,
            None,
            "google/gemini-3-pro",
            credential,
            {"messages": [message]},
            supported_parameters=listed,
        )
    )
    sent = json.loads(made.body or b"")["messages"][0]
    assert ("reasoning_details" in sent) is (listed is None)
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [
        SIGNED["extra_content"], None, SIGNED["extra_content"]
    ]  # fmt: skip


def test_a_signature_is_not_sent_to_another_provider() -> None:
    [message] = messages_of(
        ("assistant", answer({"tool_calls": [{**called("{}"), **SIGNED}]})["content"])
    )
    made = openai.build(
        Call(
            Operation.CHAT,
            "https://x.test/v1",
            "m",
            Secret("k"),
            {"messages": [message]},
            supported_parameters=frozenset(("tools",)),
        )
    )
    assert json.loads(made.body or b"")["messages"][:1] == [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        ]}
    ]  # fmt: skip


def test_a_reply_that_ended_in_an_error_raises_upstream_error() -> None:
    with pytest.raises(UpstreamError) as error:
        answer(
            {"content": ""}, finish_reason="error", native_finish_reason="MALFORMED_FUNCTION_CALL"
        )
    assert error.value.message == "The upstream provider ended the answer with an error."
    assert error.value.metadata == {"provider_code": "MALFORMED_FUNCTION_CALL"}


def test_a_stream_that_ended_in_an_error_ends_in_an_error_event() -> None:
    assert turned(event({"content": "It "}), ended("error", native="OTHER"))[1:] == [
        start(0, text("")),
        delta(0, "text_delta", text="It "),
        {
            "type": "error",
            "error": {
                "type": "api_error",
                "message": "The upstream provider ended the answer with an error.",
                "details": {"error_code": "provider_unavailable", "provider_code": "OTHER"},
            },
            "request_id": "req-1",
        },
    ]


@pytest.mark.parametrize("signature", ["causeway:", "causeway:é", "causeway:bm8="])
def test_an_undecodable_causeway_signature_is_kept_as_a_signature(signature: str) -> None:
    [message] = messages_of(("assistant", [thought("Hm.", signature)]))
    assert message["reasoning_details"][0]["signature"] == signature


def test_a_malformed_choice_is_refused() -> None:
    with pytest.raises(InvalidReply):
        answer({"tool_calls": 5})
