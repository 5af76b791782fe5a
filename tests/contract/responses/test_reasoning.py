"""What providers sign comes back to them through Responses, byte for byte."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.support import factories
from tests.support.contract.answers import WEATHER
from tests.support.contract.clients import answer_to, publish_maker
from tests.support.upstreams.speaking import ANSWERS, EVENTS, Upstream

TOOL: Any = {**WEATHER, "strict": False}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln+/=="}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0+/=="}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Zürich"}}
CONTENT: list[Any] = [SIGNED, REDACTED, {"type": "text", "text": "Let me look."}, CALL]


def as_events(content: list[Any]) -> list[Any]:
    """Returns the events of a stream that has this content."""
    begun, *_ = EVENTS["anthropic"]
    *_, ended, stopped = EVENTS["anthropic"]
    events = [begun]
    for index, block in enumerate(content):
        pieces: list[Any] = []
        start = block
        match block["type"]:
            case "thinking":
                start = {**block, "thinking": "", "signature": ""}
                pieces = [
                    {"type": "thinking_delta", "thinking": "H"},
                    {"type": "thinking_delta", "thinking": "m."},
                    {"type": "signature_delta", "signature": block["signature"]},
                ]
            case "text":
                start = {**block, "text": ""}
                pieces = [{"type": "text_delta", "text": block["text"]}]
            case "tool_use":
                start = {**block, "input": {}}
                pieces = [
                    {"type": "input_json_delta", "partial_json": '{"city": '},
                    {"type": "input_json_delta", "partial_json": '"Zürich"}'},
                ]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [
            {"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces
        ]
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {**ended, "delta": {"stop_reason": "tool_use"}}, stopped]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_signed_and_encrypted_reasoning_comes_back(
    client: openai.OpenAI, maker: Upstream, is_streamed: bool
) -> None:
    publish_maker(maker, factories.make_price())
    maker.answer = {**ANSWERS["anthropic"], "content": CONTENT, "stop_reason": "tool_use"}
    maker.events = as_events(CONTENT)
    wanted: Any = {
        "model": "acme/falcon",
        "tools": [TOOL],
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    answer = answer_to(client, is_streamed, **wanted, input="Hi")
    kinds = [item.type for item in answer.output]
    assert kinds == ["reasoning", "message", "function_call"]
    assert [part.text for part in answer.output[0].summary] == ["Hm."]
    result = {"type": "function_call_output", "call_id": "toolu_1", "output": "12 °C"}
    turns: Any = [{"role": "user", "content": "Hi"}, *answer.output, result]
    client.responses.create(**wanted, input=turns)
    *_, (_, _, second) = maker.seen()
    assert second["messages"][1] == {"role": "assistant", "content": CONTENT}
    assert second["messages"][2]["content"][0]["tool_use_id"] == "toolu_1"
