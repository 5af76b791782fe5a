"""A small server that lists models and answers chats, as people run them."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from tests.support.upstreams.tls import Script

OLLAMA: Final = [
    {"id": "llama3.2:3b", "object": "model", "created": 1, "owned_by": "library"},
    {"id": "nomic-embed-text:latest", "object": "model", "created": 1, "owned_by": "library"},
]
VLLM: Final = [
    {
        "id": "Qwen/Qwen3-8B",
        "object": "model",
        "created": 1,
        "owned_by": "vllm",
        "root": "Qwen/Qwen3-8B",
        "max_model_len": 40_960,
    }
]
LLAMA_CPP: Final = [
    {
        "id": "qwen2.5-0.5b-instruct-q4_k_m.gguf",
        "object": "model",
        "created": 1,
        "owned_by": "llamacpp",
        "meta": {"n_ctx": 8192, "n_ctx_train": 32_768},
    }
]
CLAUDE: Final = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "White."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 2},
}
CONVERSE: Final = {
    "output": {"message": {"role": "assistant", "content": [{"text": "White."}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 9, "outputTokens": 2, "totalTokens": 11},
}


def answer_models(
    rows: Sequence[Mapping[str, Any]],
    *,
    key: str = "",
    prefix: str = "/v1",
    chats: Mapping[str, tuple[int, Any]] | None = None,
    embeds: Collection[str] = (),
) -> Script:
    """Returns a script that serves a list and chats; everything else is a 404 in HTML.

    With a ``key``, every request needs it. ``chats`` replaces the answers of models by name, and
    ``embeds`` are the models that make vectors.
    """

    def script(line: socket.socket, head: bytes, received: bytes) -> bool:
        lines = head.decode().split("\r\n")
        _, path, _ = lines[0].split(" ")
        given = [each.partition(": ")[2] for each in lines if each.startswith("Authorization: ")]
        if given != ([f"Bearer {key}"] if key else []):
            send(line, 401, {"error": {"message": "Invalid API Key", "type": "auth"}})
        elif path == f"{prefix}/models":
            send(line, 200, {"object": "list", "data": list(rows)})
        elif path == f"{prefix}/chat/completions":
            model = json.loads(received)["model"]
            send(line, *(chats or {}).get(model, (200, completion(model))))
        elif path == f"{prefix}/embeddings" and json.loads(received)["model"] in embeds:
            vector = {"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            send(line, 200, {"object": "list", "data": [vector], "model": "v", "usage": usage})
        else:
            line.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")
        return True

    return script


def send(line: socket.socket, status: int, body: Any) -> None:
    data = json.dumps(body).encode()
    line.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def completion(model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "White."}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    }
