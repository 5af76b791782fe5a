"""Serves the simulated provider of the demo: an OpenAI-compatible API with three models."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from config.clocks.clock import clock
from config.local.certificates import Certificates

# A model with another name behaves like the first.
MODELS: Final = {
    "sim-echo": "repeats the last user message; tokens are words",
    "sim-slow": "the same with pauses, so that a person can watch the words arrive",
    "sim-failing": "refuses with 503",
}
_MAX_WORDS: Final = 256
_FIRST_SECONDS, _NEXT_SECONDS = 0.1, 0.03
_HELLO: Final = "Hello from the simulated upstream. Ask me something and I will repeat it."
_GREETINGS: Final = ("", "hi", "hello", "hey", "test", "ping")


@contextlib.contextmanager
def serve_upstream(
    certificates: Certificates | None, host: str, port: int = 0
) -> Iterator[tuple[str, int]]:
    """Serves in a thread, over TLS if there are certificates; yields the base URL and the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=1024) as listener:
        # Clients that come before the server accepts wait in the backlog.
        server = uvicorn.Server(
            uvicorn.Config(
                _APPLICATION,
                ssl_certfile=certificates.server if certificates else None,
                lifespan="off",
                log_config=None,
                log_level="warning",
                timeout_graceful_shutdown=1,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), name="upstream")
        thread.start()
        port = listener.getsockname()[1]
        # A client cannot call the wildcard address, and no certificate names it.
        name = "localhost" if host in ("", "0.0.0.0", "::") else host
        name = f"[{name}]" if ":" in name else name
        try:
            yield f"{'https' if certificates else 'http'}://{name}:{port}/v1", port
        finally:
            server.should_exit = True
            thread.join()


def _list_models(request: Request) -> Response:
    models = [
        {"id": name, "object": "model", "created": 0, "owned_by": "simulator"} for name in MODELS
    ]
    return JSONResponse({"object": "list", "data": models})


async def _answer_chat(request: Request) -> Response:
    if not request.headers.get("authorization", "").lower().startswith("bearer "):
        return _refuse(401, "Give an API key.", "invalid_request_error")
    try:
        body = json.loads(await request.body())
        model, (words, finish, usage) = str(body["model"]), _answer(body)
    except (ValueError, TypeError, LookupError, AttributeError):
        return _refuse(400, "The request is not valid.", "invalid_request_error")
    if model.startswith("sim-failing"):
        return _refuse(503, "The engine is overloaded.", "overloaded_error")
    first, then = (_FIRST_SECONDS, _NEXT_SECONDS) if model.startswith("sim-slow") else (0.0, 0.0)
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(clock.time()), "model": model}
    if body.get("stream"):
        asks_for_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = _build_events(head, words, finish, usage if asks_for_usage else None)
        return StreamingResponse(_pace(events, first, then), media_type="text/event-stream")
    await asyncio.sleep(first)
    message = {"role": "assistant", "content": "".join(words)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return JSONResponse(head | {"object": "chat.completion", "choices": [choice], "usage": usage})


def _refuse(status: int, message: str, kind: str) -> Response:
    error = {"message": message, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": error}, status)


def _answer(body: dict[str, Any]) -> tuple[list[str], str, dict[str, int]]:
    """Returns the words of the answer, the finish reason and the usage."""
    messages = [(message["role"], _read_text(message["content"])) for message in body["messages"]]
    asked = next((text for role, text in reversed(messages) if role == "user"), "").strip()
    is_greeting = asked.lower().strip(" .!?") in _GREETINGS
    words = (_HELLO if is_greeting else f"You said: {asked}").split()[:_MAX_WORDS]
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or _MAX_WORDS
    finish = "length" if limit < len(words) else "stop"
    words = words[:limit]
    prompt = sum(len(text.split()) for _, text in messages)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": len(words),
        "total_tokens": prompt + len(words),
    }
    return [words[0], *(f" {word}" for word in words[1:])], finish, usage


def _read_text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""


def _build_events(
    head: dict[str, Any], words: list[str], finish: str, usage: dict[str, int] | None
) -> Iterator[str]:
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": word}, None) for word in words]
    for delta, finish_reason in (*deltas, ({}, finish)):
        yield _build_event(head, [{"index": 0, "delta": delta, "finish_reason": finish_reason}])
    if usage is not None:
        yield _build_event(head | {"usage": usage}, [])
    yield "data: [DONE]\n\n"


def _build_event(head: dict[str, Any], choices: list[dict[str, Any]]) -> str:
    chunk = head | {"object": "chat.completion.chunk", "choices": choices}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


async def _pace(events: Iterator[str], first: float, then: float) -> AsyncIterator[str]:
    pause = first
    for event in events:
        await asyncio.sleep(pause)
        yield event
        pause = then


_APPLICATION: Final = Starlette(
    routes=[
        Route("/v1/models", _list_models),
        Route("/v1/chat/completions", _answer_chat, methods=["POST"]),
    ]
)
