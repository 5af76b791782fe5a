"""Recorded exchanges with providers, and the bytes of their streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from config.credentials import Secret
from tests.support.upstreams import clouds

DIRECTORY: Final = Path(__file__).parents[2] / "catalog/dialects/transcripts"

TRANSCRIPTS: Final = {
    str(path.relative_to(DIRECTORY).with_suffix("")): json.loads(path.read_text())
    for path in sorted(DIRECTORY.rglob("*.json"))
}

SECRETS: Final = {
    "anthropic": Secret("sk-ant-0123456789abcdef"),
    "gemini": Secret("AIza0123456789abcdef"),
    "bedrock": Secret(json.dumps(clouds.bedrock_key())),
}

BASES: Final = {
    "anthropic": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
    "bedrock": None,
}


def feed_of(dialect: str, events: list[Any]) -> bytes:
    """The bytes of a stream, in the framing of its provider."""
    if dialect == "bedrock":
        return clouds.event_stream(*events)
    return b"".join(
        (f"event: {event['type']}\n" if dialect in ("anthropic", "responses") else "").encode()
        + b"data: "
        + json.dumps(event, ensure_ascii=False).encode()
        + b"\n\n"
        for event in events
    )
