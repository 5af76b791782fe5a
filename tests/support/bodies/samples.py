"""A plain body for each inference route."""

from __future__ import annotations

import base64
import struct
from typing import Any

from catalog.dialects.base import Operation

EDITS = "/api/v1/images/edits"
MESSAGES = [{"role": "user", "content": "one"}]


def make_wav(seconds: float = 0.1, rate: int = 16_000) -> bytes:
    """Returns silence with samples of two bytes."""
    data = bytes(int(seconds * rate) * 2)
    head = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


BODIES: dict[str, tuple[Operation, dict[str, Any]]] = {
    "/api/v1/chat/completions": (Operation.CHAT, {"messages": MESSAGES, "max_tokens": 16}),
    "/api/v1/messages": (Operation.CHAT, {"messages": MESSAGES, "max_tokens": 16}),
    "/api/v1/responses": (Operation.CHAT, {"input": "one", "max_output_tokens": 16}),
    "/api/v1/completions": (Operation.TEXT, {"prompt": "one", "max_tokens": 16}),
    "/api/v1/embeddings": (Operation.EMBEDDINGS, {"input": "one"}),
    "/api/v1/rerank": (Operation.RERANK, {"query": "one", "documents": ["one", "two"]}),
    "/api/v1/audio/speech": (Operation.SPEECH, {"input": "one", "voice": "alloy"}),
    "/api/v1/audio/transcriptions": (
        Operation.TRANSCRIPTION,
        {"input_audio": {"data": base64.b64encode(make_wav()).decode(), "format": "wav"}},
    ),
    "/api/v1/images": (Operation.IMAGES, {"prompt": "one"}),
    "/api/v1/images/generations": (Operation.IMAGES, {"prompt": "one"}),
    EDITS: (Operation.IMAGES, {"prompt": "one"}),
}
