"""Reads the answers from which parameters are proven, of chats and of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from catalog.dialects.base import Reply

_LOGPROBS: Final = "message.output_text.logprobs"
# The members of a chat that have the same name in a request for a response.
_SAME: Final = ("temperature", "stop", "seed", "top_logprobs", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of an answer that prove parameters; ``tools`` and ``logprobs`` are as in a chat."""

    text: str
    finish: str
    tools: list[dict[str, Any]]
    logprobs: list[dict[str, Any]]
    has_thoughts: bool

    @property
    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            return None

    @property
    def is_cut_off(self) -> bool:
        """Returns whether the answer ended at its bound before it said anything."""
        return self.finish == "length" and not self.text and not self.tools


def read_chat(reply: Reply) -> Answer:
    """Reads the first choice of a chat; a member of another type counts as absent."""
    choices = _objects(_plain(reply.fields.get("choices")))
    choice = choices[0] if choices else {}
    message = _object(choice.get("message"))
    finish = choice.get("finish_reason")
    thoughts = (message.get(name) for name in ("reasoning", "reasoning_content"))
    return Answer(
        text=_text(message.get("content")),
        finish=_text(finish),
        tools=_objects(message.get("tool_calls")),
        logprobs=_objects(_object(choice.get("logprobs")).get("content")),
        has_thoughts=_has_counted(reply) or any(_text(each) for each in thoughts),
    )


def read_response(reply: Reply) -> Answer:
    """Reads the items of a response; a member of another type counts as absent."""
    items = _objects(_plain(reply.fields.get("output")))
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in _objects(item.get("content"))
    ]
    return Answer(
        text="".join(_text(part.get("text")) for part in parts),
        finish=reply.finish_reason or "",
        tools=[
            {"function": {"name": item.get("name"), "arguments": item.get("arguments")}}
            for item in items
            if item.get("type") == "function_call"
        ],
        logprobs=[each for part in parts for each in _objects(part.get("logprobs"))],
        has_thoughts=_has_counted(reply) or any(item.get("type") == "reasoning" for item in items),
    )


def write_response(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request for a response that asks what a chat asks."""
    [message] = chat["messages"]
    content = message["content"]
    if not isinstance(content, str):
        content = [_write_part(part) for part in content]
    body: dict[str, Any] = {"input": [{"role": "user", "content": content}]}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in chat:
            body["max_output_tokens"] = chat[name]
    body |= {name: chat[name] for name in _SAME if name in chat}
    if "tools" in chat:
        # Responses are strict about schemas unless they are told otherwise.
        body["tools"] = [
            {"type": "function", "strict": False, **tool["function"]} for tool in chat["tools"]
        ]
    if "tool_choice" in chat:
        choice = chat["tool_choice"]
        named = isinstance(choice, dict)
        body["tool_choice"] = {"type": "function", **choice["function"]} if named else choice
    if (shape := chat.get("response_format")) is not None:
        wanted = {"type": shape["type"], **shape.get("json_schema", {})}
        body["text"] = {"format": wanted}
    if chat.get("logprobs"):
        body["include"] = [_LOGPROBS]
    if "reasoning_effort" in chat:
        body["reasoning"] = {"effort": chat["reasoning_effort"]}
    return body


def _write_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    return {"type": "input_image", "image_url": part["image_url"]["url"]}


def _has_counted(reply: Reply) -> bool:
    return reply.usage is not None and reply.usage.reasoning > 0


def _plain(value: Any) -> Any:
    """Returns a value whose parts may be raw JSON as plain Python objects."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
