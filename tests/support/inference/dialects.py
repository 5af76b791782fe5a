"""Requests and feeds for the dialects, and the bodies that targets get of a conversation."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from catalog import dialects
from catalog.abilities import read_abilities
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat, ThinkingControl
from catalog.dialects.base import Call, Operation
from config.credentials import Secret
from inference.requests.parsing import InferenceRequest
from tests.support.inference.transcripts import BASES, SECRETS
from tests.support.upstreams import clouds

KINDS: Final = ("anthropic", "gemini", "bedrock")

MODELS: Final = {
    "anthropic": "claude-opus-4-8",
    "gemini": "gemini-3.8-flash",
    "bedrock": "us.amazon.nova-lite-v1:0",
}

_CLAUDE: Final = Capabilities(native_format=NativeFormat.ANTHROPIC)
_OLD_CLAUDE: Final = msgspec.structs.replace(_CLAUDE, thinking=ThinkingControl.BUDGET)
# The capabilities that the rows of these models have; a part of the name suffices.
_ROWS: Final = {
    "claude-3-7": msgspec.structs.replace(_OLD_CLAUDE, combines_sampling=True),
    "claude-haiku-4-5": _OLD_CLAUDE,
    "claude-sonnet-4-2025": _OLD_CLAUDE,
    "claude-opus-4-1": _OLD_CLAUDE,
    "claude-sonnet-5-5": msgspec.structs.replace(_CLAUDE, thinks_between_tools=True),
    "claude": _CLAUDE,
    "gemini-2.5": Capabilities(thinking=ThinkingControl.BUDGET),
}

ASK: Final = [{"role": "user", "content": "hi"}]
TOOL: Final = {"type": "function", "function": {"name": "look"}}

CALLED: Final = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}],
}


def capabilities_of(model: str) -> Capabilities:
    """Returns the capabilities of the row that a test means by this name."""
    return next((found for name, found in _ROWS.items() if name in model), UNDESCRIBED)


def body(
    kind: str,
    /,
    model: str | None = None,
    most: int | None = None,
    is_byok: bool = False,
    capabilities: Capabilities | None = None,
    keeps_lifetimes: bool = True,
    most_searches: int = 10,
    **fields: Any,
) -> Any:
    """Returns the provider's request body; ``most`` is the endpoint's token limit.

    Without ``capabilities``, the model has those of its row.
    """
    model = model or MODELS[kind]
    dialect = dialects.get(kind)
    assert dialect is not None
    call = Call(
        operation=Operation.CHAT,
        base_url=BASES[kind],
        model=model,
        secret=SECRETS[kind],
        fields={"messages": ASK, **fields},
        max_completion_tokens=most,
        is_byok=is_byok,
        keeps_lifetimes=keeps_lifetimes,
        most_searches=most_searches,
        capabilities=capabilities_of(model) if capabilities is None else capabilities,
    )
    return json.loads(dialect.build(call).body)


FUNCTION: Final = {"name": "look", "parameters": {"type": "object", "properties": {}}}
LOOK: Final = {"type": "function", "function": FUNCTION}
MISTRAL: Final = Capabilities(has_short_call_ids=True)


def call_of(call_id: str, arguments: str = "{}", name: str = "look") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def turns(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [*calls]},
        *({"role": "tool", "tool_call_id": each["id"], "content": "1"} for each in calls),
    ]


def body_of(
    dialect: str,
    capabilities: Capabilities = UNDESCRIBED,
    abilities: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """Returns the body that a dialect sends for a chat with these fields."""
    raws = {
        name: msgspec.Raw(json.dumps(value).encode())
        for name, value in {"messages": [{"role": "user", "content": "Hi"}], **fields}.items()
    }
    found = dialects.get(dialect, capabilities)
    stated = read_abilities(abilities or {})
    return _build(found, dialect, raws, capabilities=capabilities, abilities=stated)


def native_body_of(dialect: str, form: NativeFormat, request: InferenceRequest, **more: Any) -> Any:
    """Returns the body that a target of the caller's own format gets; ``more`` is of its call."""
    capabilities = Capabilities(native_format=form)
    native = request.native
    assert native is not None
    assert dialects.speaks(dialect, capabilities, native)
    found = dialects.get_native(dialect, capabilities)
    return _build(found, dialect, request.fields, capabilities=capabilities, native=native, **more)


def secret_of(dialect: str, capabilities: Capabilities) -> Secret:
    """Returns a secret that the dialect can read."""
    is_claude = capabilities.native_format == NativeFormat.ANTHROPIC
    secrets = {
        "azure": clouds.foundry() if is_claude else clouds.azure(),
        "bedrock": clouds.bedrock_key(),
        "vertex": clouds.vertex(),
    }
    return Secret(json.dumps(secrets[dialect]) if dialect in secrets else "key")


def _build(found: Any, dialect: str, fields: Any, capabilities: Capabilities, **more: Any) -> Any:
    call = Call(
        operation=Operation.CHAT,
        base_url="https://host/v1",
        model="m",
        secret=secret_of(dialect, capabilities),
        fields=fields,
        capabilities=capabilities,
        most_searches=10,
        **more,
    )
    assert found is not None
    return json.loads(found.build(call).body or b"")
