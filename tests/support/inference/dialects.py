"""Requests and feeds for the dialects that are not OpenAI's."""

from __future__ import annotations

import json
from typing import Any, Final

from catalog import dialects
from catalog.dialects.base import (
    Call,
    Operation,
)
from tests.support.inference.transcripts import BASES, SECRETS

KINDS: Final = ("anthropic", "gemini", "bedrock")

MODELS: Final = {
    "anthropic": "claude-opus-4-8",
    "gemini": "gemini-3.8-flash",
    "bedrock": "us.amazon.nova-lite-v1:0",
}

ASK: Final = [{"role": "user", "content": "hi"}]
TOOL: Final = {"type": "function", "function": {"name": "look"}}

CALLED: Final = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}],
}


def body(
    kind: str,
    /,
    model: str | None = None,
    most: int | None = None,
    is_byok: bool = False,
    **fields: Any,
) -> Any:
    """Returns the provider's request body; ``most`` is the endpoint's token limit."""
    dialect = dialects.get(kind)
    assert dialect is not None
    call = Call(
        operation=Operation.CHAT,
        base_url=BASES[kind],
        model=model or MODELS[kind],
        secret=SECRETS[kind],
        fields={"messages": ASK, **fields},
        max_completion_tokens=most,
        is_byok=is_byok,
    )
    return json.loads(dialect.build(call).body)
