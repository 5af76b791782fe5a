"""Tests tool choices in the non-OpenAI dialects."""

from __future__ import annotations

from typing import Any

import pytest

from catalog.dialects.base import Untranslatable
from tests.support.inference.dialects import ASK, CALLED, KINDS, TOOL, body


@pytest.mark.parametrize(
    ("fields", "anthropic", "gemini", "bedrock"),
    [
        ({}, None, None, None),
        ({"tool_choice": "auto"}, {"type": "auto"}, {"mode": "AUTO"}, {"auto": {}}),
        ({"tool_choice": "required"}, {"type": "any"}, {"mode": "ANY"}, {"any": {}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "look"}}},
            {"type": "tool", "name": "look"},
            {"mode": "ANY", "allowedFunctionNames": ["look"]},
            {"tool": {"name": "look"}},
        ),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}, None,
         None),
    ],
)  # fmt: skip
def test_build_translates_tool_choices(
    fields: dict[str, Any], anthropic: Any, gemini: Any, bedrock: Any
) -> None:
    given = {"tools": [TOOL], **fields}
    assert body("anthropic", **given).get("tool_choice") == anthropic
    config = None if gemini is None else {"functionCallingConfig": gemini}
    assert body("gemini", **given).get("toolConfig") == config
    assert body("bedrock", **given)["toolConfig"].get("toolChoice") == bedrock


def test_build_translates_the_tool_choice_none() -> None:
    given: dict[str, Any] = {"tools": [TOOL], "tool_choice": "none"}
    assert body("anthropic", **given)["tool_choice"] == {"type": "none"}
    config = {"functionCallingConfig": {"mode": "NONE"}}
    assert body("gemini", **given)["toolConfig"] == config
    assert "toolConfig" not in body("bedrock", **given)
    with pytest.raises(Untranslatable, match=r"^Bedrock cannot forbid tools"):
        body("bedrock", messages=[*ASK, CALLED], **given)


@pytest.mark.parametrize("kind", KINDS)
def test_build_drops_the_tool_choice_of_a_request_without_tools(kind: str) -> None:
    made = body(kind, tool_choice="auto", parallel_tool_calls=False)
    assert made.keys() <= {"model", "max_tokens", "messages", "contents"}
