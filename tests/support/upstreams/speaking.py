"""An upstream that speaks Anthropic's, Gemini's or OpenAI's chat, or OpenAI's Responses."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.inference.transcripts import feed_of
from tests.support.upstreams.tls import Server

BASES: Final = {
    "anthropic": "/v1", "responses": "/v1", "openai": "/v1", "gemini": "/v1beta",
}  # fmt: skip

PATHS: Final = {
    "anthropic": ("/v1/messages", "/v1/messages"),
    "responses": ("/v1/responses", "/v1/responses"),
    "openai": ("/v1/chat/completions", "/v1/chat/completions"),
    "gemini": (
        "/v1beta/models/gemini-3.8-flash:generateContent",
        "/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
    ),
}

ANSWERS: Final[dict[str, Any]] = {
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-6",
        "content": [{"type": "text", "text": "It rains."}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 20,
            "cache_creation_input_tokens": 0,
            "output_tokens": 40,
        },
    },
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "It rains."}]},
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 30,
            "cachedContentTokenCount": 20,
            "candidatesTokenCount": 25,
            "thoughtsTokenCount": 15,
        },
        "modelVersion": "gemini-3.8-flash",
        "responseId": "r-1",
    },
}

EVENTS: Final[dict[str, list[Any]]] = {
    "anthropic": [
        {
            "type": "message_start",
            "message": {**ANSWERS["anthropic"], "content": [], "stop_reason": None},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It "}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "rains."},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 40},
        },
        {"type": "message_stop"},
    ],
    "gemini": [
        {
            "candidates": [{"content": {"parts": [{"text": "It "}]}, "index": 0}],
            "usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 1},
            "modelVersion": "gemini-3.8-flash",
            "responseId": "r-1",
        },
        {
            **ANSWERS["gemini"],
            "candidates": [
                {"content": {"parts": [{"text": "rains."}]}, "finishReason": "STOP", "index": 0}
            ],
        },
    ],
}


@dataclass
class Upstream:
    """A local server that answers like the provider, or as it is told to.

    ``answer`` may be a function of the body, which returns a status and an answer. ``missing`` are
    bytes that it promises and never sends. ``pause`` are bytes before which it waits for an event.
    """

    kind: str
    server: Server | None = None
    status: str = "200 OK"
    answer: Any = None
    events: list[Any] = field(default_factory=list)
    missing: int = 0
    pause: tuple[bytes, threading.Event] | None = None

    def __call__(self, line: socket.socket, head: bytes, received: bytes) -> bool:
        is_stream = self.requested(head)[0] == PATHS[self.kind][1] and (
            self.kind == "gemini" or bool(json.loads(received).get("stream"))
        )
        status, answer = self.status, self.answer
        if callable(answer):
            status, answer = answer(json.loads(received))
        content_type, body = "application/json", json.dumps(answer).encode()
        if is_stream and status == "200 OK":
            content_type, body = "text/event-stream", feed_of(self.kind, self.events)
            body += b"data: [DONE]\n\n" if self.kind == "openai" else b""
        line.sendall(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body) + self.missing}\r\n\r\n".encode()
        )
        if self.pause is not None:
            mark, is_over = self.pause
            first, found, rest = body.partition(mark)
            line.sendall(first)
            assert found, mark
            assert is_over.wait(60)
            body = found + rest
        line.sendall(body)
        return True

    @property
    def base_url(self) -> str:
        assert self.server is not None
        return f"https://localhost:{self.server.port}{BASES[self.kind]}"

    def requested(self, head: bytes) -> tuple[str, dict[str, str]]:
        start, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return start.split(" ")[1], {name.lower(): value for name, value in pairs}

    def seen(self) -> list[tuple[str, dict[str, str], Any]]:
        assert self.server is not None
        return [(*self.requested(head), json.loads(body)) for head, body in self.server.requests]
