"""Requests and events of Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

import requests

from catalog.dialects.base import Operation
from inference.requests import parsing
from inference.requests.messages.events import MessageEvents
from inference.requests.messages.request import convert
from tests.support.inference.site import MESSAGES, Site


def asked(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "acme/falcon", "max_tokens": 50, "messages": messages, **fields}


def send(
    site: Site, body: dict[str, Any], *, key: str | None = None, **headers: str
) -> requests.Response:
    """Sends a message; the names of its headers have underscores."""
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    return site.post(body, path=MESSAGES, key=key, headers=sent)


def answered(site: Site, body: dict[str, Any], **options: Any) -> requests.Response:
    """Sends a message that is answered."""
    answer = send(site, body, **options)
    assert answer.status_code == 200, answer.text
    return answer


def refusal(site: Site, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """Sends a message that is refused; returns the error."""
    refused = send(site, body)
    assert refused.status_code == status, refused.text
    error: dict[str, Any] = refused.json()["error"]
    return error


def in_chat(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """Returns the chat request of a Messages request, without the fields that all requests have."""
    body, _ = convert(json.dumps(asked(content, **fields)).encode())
    parsing.parse(Operation.CHAT, body)
    made: dict[str, Any] = json.loads(body)
    assert (made.pop("model"), made.pop("max_tokens")) == ("acme/falcon", 50)
    return made


def messages_of(*turns: tuple[str, Any], **fields: Any) -> list[Any]:
    turned = [{"role": role, "content": content} for role, content in turns]
    messages: list[Any] = in_chat(messages=turned, **fields)["messages"]
    return messages


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


def thought(words: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


def use(call_id: str | None, given: Any = {}, name: str = "look") -> dict[str, Any]:  # noqa: B006
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any = "1", **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **members}


USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 40,
    "total_tokens": 70,
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 5},
    "cost": 0.000092,
    "is_byok": False,
    "cost_details": {"upstream_inference_cost": 0.000092},
}

COUNTED = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 3,
    "cache_read_input_tokens": 20,
    "output_tokens": 40,
    "output_tokens_details": {"thinking_tokens": 5},
    "cost": 0.000092,
    "is_byok": False,
    "cost_details": {"upstream_inference_cost": 0.000092},
}

CLAUDES = {"format": "anthropic-claude-v1"}
# Details of Claude's reasoning in a chat message.
SIGNED_THOUGHT: dict[str, Any] = {
    "type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "index": 0, **CLAUDES,
}  # fmt: skip
SECRET = {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 1, **CLAUDES}

IDENTITY = {"id": "gen-1", "model": "acme/falcon", "provider": "Acme AI"}


def event(delta: dict[str, Any], **choice: Any) -> bytes:
    return raw({"choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]})


def raw(members: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({**IDENTITY, **members}).encode() + b"\n\n"


def ended(reason: str = "stop", native: str | None = None, **members: Any) -> bytes:
    usage = raw({"choices": [], "usage": USAGE, **members})
    last = event({}, finish_reason=reason, native_finish_reason=native or reason)
    return last + usage + b"data: [DONE]\n\n"


def events_of(data: bytes) -> list[Any]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, _, line = block.partition("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def turned(*chat: bytes) -> list[Any]:
    events = MessageEvents("req-1")
    return events_of(b"".join(map(events.feed, chat)))


def call_piece(number: int, arguments: str, **begun: Any) -> bytes:
    name = {"name": begun.pop("name")} if "name" in begun else {}
    call = {"index": number, **begun, "function": {**name, "arguments": arguments}}
    return event({"tool_calls": [call]})


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **piece}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}
