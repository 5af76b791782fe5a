"""Requests and events of OpenAI's Responses API."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from inference.faces.translations import ResponsesConnection
from inference.requests import parsing
from inference.requests.responses.events import ResponseEvents
from inference.requests.responses.reply import render_reply
from inference.requests.responses.request import Translated, to_chat
from tests.support.inference.messages import IDENTITY, USAGE

FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Changes files."}

COUNTED = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 3},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 70,
    "cost": 0.000092,
    "is_byok": False,
    "cost_details": {"upstream_inference_cost": 0.000092},
}


def asked(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": "acme/falcon", "input": content, **fields}


def translated(content: Any = "Hi", **fields: Any) -> Translated:
    """Returns the translation of a request, whose chat request must be a valid one."""
    found = to_chat(json.dumps(asked(content, **fields)).encode())
    parsing.parse(Operation.CHAT, found.chat)
    return found


def in_chat(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """Returns the chat request of a request, without its model."""
    made: dict[str, Any] = json.loads(translated(content, **fields).chat)
    assert made.pop("model") == "acme/falcon"
    return made


def messages_of(*items: Any, **fields: Any) -> list[Any]:
    messages: list[Any] = in_chat([*items], **fields)["messages"]
    return messages


def refused(content: Any = "Hi", **fields: Any) -> dict[str, str]:
    """Returns the wrong fields of a request that is refused, with their problems."""
    with pytest.raises(InvalidRequest) as caught:
        to_chat(json.dumps(asked(content, **fields)).encode())
    assert caught.value.status == 400
    found: dict[str, str] = caught.value.metadata["fields"]
    return found


def call(number: int = 1, **members: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": "get_weather",
        "arguments": "{}",
        **members,
    }


def output(number: int = 1, text: Any = "12 °C") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def replied(message: dict[str, Any], *, asks: Translated | None = None, **choice: Any) -> Any:
    """Returns the response of a whole reply of chat with this message."""
    reply = {
        **IDENTITY,
        "created": 1_780_000_000,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
        "usage": USAGE,
    }
    asks = asks or translated()
    return json.loads(render_reply(json.dumps(reply).encode(), asks.echo, asks.tools))


def translator(asks: Translated | None = None) -> ResponseEvents:
    """Returns what makes the events of an answer to a request."""
    asks = asks or translated()
    return ResponseEvents(asks.echo, asks.tools)


def streamed(*chat: bytes, asks: Translated | None = None) -> list[Any]:
    """Returns the events of a stream of chat, after checks that hold for every stream."""
    return events_of(b"".join(map(translator(asks).feed, chat)))


def hold_back(monkeypatch: pytest.MonkeyPatch, mark: bytes) -> threading.Event:
    """Lets the first delivery of events with a mark wait until its request is over.

    Returns what is set once another delivery was sent.
    """
    send = ResponsesConnection.send_events
    waiting, sent = [mark], threading.Event()

    async def send_events(connection: ResponsesConnection, data: bytes) -> None:
        if waiting and mark in data:
            waiting.clear()
            await asyncio.Event().wait()
        await send(connection, data)
        sent.set()

    monkeypatch.setattr(ResponsesConnection, "send_events", send_events)
    return sent


def events_of(data: bytes) -> list[Any]:
    found = []
    *blocks, end = data.decode().split("\n\n")
    assert end == ""
    for block in blocks:
        if block == "data: [DONE]" or block.startswith(":"):
            continue
        name, _, line = block.partition("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    check_order(found)
    return found


def check_order(events: list[Any]) -> None:
    """Asserts what every client of a stream relies on."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete", "response.failed")
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    begun: list[Any] = []
    ended: dict[int, Any] = {}
    for event in events[2:-1]:
        index = event["output_index"]
        if event["type"] == "response.output_item.added":
            assert index == len(begun)
            begun.append(event["item"])
        assert index < len(begun)
        assert index not in ended
        assert event.get("item_id", begun[index]["id"]) == begun[index]["id"]
        if event["type"] == "response.output_item.done":
            ended[index] = event["item"]
            for name in ("id", "type", "call_id", "name"):
                assert begun[index].get(name) == event["item"].get(name)
    output = events[-1]["response"]["output"]
    assert output == [ended.get(index, item) for index, item in enumerate(output)]
    assert len(output) == len(begun)
    for index in set(range(len(begun))) - set(ended):
        # Only a call that was broken off has no end.
        assert (kinds[-1], output[index]["status"]) == ("response.failed", "incomplete")
        told = [event["type"] for event in events[2:-1] if event["output_index"] == index]
        assert not any(kind.endswith(".done") for kind in told)
        assert output[index]["call_id"] == begun[index]["call_id"]
    assert len({item["id"] for item in begun}) == len(begun)
