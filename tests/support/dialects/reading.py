"""Dialects by their names, and what they read from answers and streams of chats."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from catalog import dialects
from catalog.capabilities import UNDESCRIBED, Capabilities
from catalog.dialects.base import Chunk, Dialect, Operation, StreamParser


def dialect_of(name: str, capabilities: Capabilities = UNDESCRIBED) -> Dialect:
    found = dialects.get(name, capabilities)
    assert found is not None
    return found


def parse(name: str, answer: Any) -> Any:
    """Returns the reply that an answer becomes; it is bytes, or what is encoded as JSON."""
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return dialect_of(name).parse_reply(Operation.CHAT, data)


def parser_of(name: str, choices: int = 1) -> StreamParser:
    return dialect_of(name).stream_parser(Operation.CHAT, choices)


def read(name: str, data: bytes, choices: int = 1) -> list[Chunk]:
    """Returns the chunks of a whole stream."""
    parser = parser_of(name, choices)
    return [*parser.feed(data), *parser.finish()]


def deltas_of(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk.fields.get("choices", ())]
