"""An upstream of OpenAI's format that plays a model by a script: it calls tools, then answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.inference.transcripts import feed_of
from tests.support.upstreams.tls import Server

# Returns the message of an answer for the body of a request.
Act = Callable[[Any], dict[str, Any]]

_USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def calling(name: str, number: int = 0, **arguments: Any) -> dict[str, Any]:
    """Returns a message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def cutting(name: str, arguments: str) -> dict[str, Any]:
    """Returns a message whose call of a tool has a part of its arguments alone."""
    message = calling(name)
    message["tool_calls"][0]["function"]["arguments"] = arguments
    return message


def are_whole(request: Any) -> bool:
    """Returns whether a history has calls, and the arguments of each are an object."""
    calls = [call for each in request["messages"] for call in each.get("tool_calls") or ()]
    written = [json.loads(call["function"]["arguments"]) for call in calls]
    return bool(written) and all(isinstance(each, dict) for each in written)


def saying(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@dataclass
class Actor:
    """A local server whose answers come from ``act``; ``bodies`` are the requests that it got."""

    act: Act
    server: Server | None = None
    bodies: list[Any] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        assert self.server is not None
        return f"https://localhost:{self.server.port}/v1"

    def __call__(self, line: socket.socket, head: bytes, received: bytes) -> bool:
        request = json.loads(received)
        self.bodies.append(request)
        message = self.act(request)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        frame = {"id": "chatcmpl-1", "created": 1_780_000_000, "model": request["model"]}
        if request.get("stream"):
            content_type, body = "text/event-stream", self._stream(frame, message, reason)
        else:
            choice = {"index": 0, "message": message, "finish_reason": reason}
            reply = {**frame, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
            content_type, body = "application/json", json.dumps(reply).encode()
        line.sendall(
            f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return True

    def _stream(self, frame: dict[str, Any], message: dict[str, Any], reason: str) -> bytes:
        calls = [
            {"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))
        ]
        delta = {**message, "tool_calls": calls} if calls else message
        frame = {**frame, "object": "chat.completion.chunk"}
        choices: list[list[Any]] = [
            [{"index": 0, "delta": delta, "finish_reason": None}],
            [{"index": 0, "delta": {}, "finish_reason": reason}],
        ]
        events = [{**frame, "choices": each} for each in choices]
        events.append({**frame, "choices": [], "usage": _USAGE})
        return feed_of("openai", events) + b"data: [DONE]\n\n"
