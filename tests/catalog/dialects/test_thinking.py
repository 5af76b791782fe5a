"""Tests reasoning, limits and sampling in the non-OpenAI dialects."""

from __future__ import annotations

from typing import Any, Final

import pytest

from catalog.dialects.base import Untranslatable
from tests.support.inference.dialects import ASK, TOOL, body, call_of


@pytest.mark.parametrize(
    ("model", "fields", "thinking", "output"),
    [
        ("claude-opus-4-8", {}, None, None),
        ("claude-opus-4-8", {"reasoning": {"exclude": True}}, None, None),
        ("claude-opus-4-8", {"reasoning_effort": "none"}, {"type": "disabled"}, None),
        ("claude-opus-4-8", {"reasoning": {"enabled": False}}, {"type": "disabled"}, None),
        ("claude-sonnet-5", {"reasoning_effort": "none"}, {"type": "disabled"}, None),
        ("claude-sonnet-5-5", {}, None, None),
        ("claude-sonnet-5-5", {"reasoning": {"enabled": False, "effort": "max", "exclude": True}},
         {"type": "between_tools"}, None),
        ("claude-sonnet-5-5", {"reasoning_effort": "high"},
         {"type": "adaptive", "display": "summarized"}, {"effort": "high"}),
        ("claude-opus-4-8", {"reasoning_effort": "minimal"},
         {"type": "adaptive", "display": "summarized"}, {"effort": "low"}),
        ("claude-opus-5", {"reasoning": {"effort": "xhigh", "exclude": True}},
         {"type": "adaptive", "display": "omitted"}, {"effort": "xhigh"}),
        (
            "claude-opus-4-6-20260205",
            {"reasoning": {"max_tokens": 2000}, "include_reasoning": False},
            {"type": "adaptive", "display": "omitted"},
            None,
        ),
        ("claude-haiku-4-5-20251001", {"reasoning": {"effort": "high"}, "max_tokens": 10_000},
         {"type": "enabled", "budget_tokens": 8000}, None),
        ("claude-haiku-4-5-20251001", {"reasoning": {"max_tokens": 2000, "exclude": True}},
         {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}, None),
        ("claude-3-7-sonnet-20250219", {"reasoning": {"enabled": True}},
         {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-sonnet-4-20250514", {"reasoning": {"max_tokens": 10}, "max_tokens": 1025},
         {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-opus-4-1-20250805",
         {"reasoning": {"max_tokens": 3000}, "max_completion_tokens": 3000}, None, None),
    ],
)  # fmt: skip
def test_claude_reasoning_has_a_budget_or_an_effort(
    model: str, fields: dict[str, Any], thinking: Any, output: Any
) -> None:
    made = body("anthropic", model, **fields)
    assert (made.get("thinking"), made.get("output_config")) == (thinking, output)
    over_bedrock = body("bedrock", f"us.anthropic.{model}-v1:0", **fields)
    assert over_bedrock.get("additionalModelRequestFields", {}).get("thinking") == thinking
    assert over_bedrock.get("outputConfig") == output


@pytest.mark.parametrize(
    ("most", "fields", "limit", "budget"),
    [
        (64_000, {}, 64_000, None),
        (64_000, {"max_tokens": 50}, 50, None),
        (64_000, {"reasoning": {"max_tokens": 8000}}, 64_000, 8000),
        (64_000, {"reasoning": {"effort": "high"}}, 64_000, 51_200),
        (None, {"reasoning": {"max_tokens": 8000}}, 12_096, 8000),
        (None, {"reasoning": {"effort": "high"}}, 4096, 3276),
    ],
)
def test_claude_uses_the_limit_of_its_endpoint_by_default(
    most: int | None, fields: dict[str, Any], limit: int, budget: int | None
) -> None:
    thinking = None if budget is None else {"type": "enabled", "budget_tokens": budget}
    made = body("anthropic", "claude-haiku-4-5-20251001", most, **fields)
    assert (made["max_tokens"], made.get("thinking")) == (limit, thinking)
    made = body("bedrock", "us.anthropic.claude-haiku-4-5-20251001-v1:0", most, **fields)
    assert made.get("additionalModelRequestFields", {}).get("thinking") == thinking
    # The Converse format uses the model's own limit by default; the budget may exceed it.
    named = limit if budget is not None or "max_tokens" in fields else None
    assert made.get("inferenceConfig", {}).get("maxTokens") == named


DRAWN: Final = {"temperature": 0.3, "top_k": 5, "top_p": 0.9}


# Newer models accept either ``temperature`` or ``top_p``, not both.
HALF_DRAWN: Final = {"temperature": 0.3, "top_k": 5}


@pytest.mark.parametrize(
    ("model", "fields", "drawn"),
    [
        ("claude-haiku-4-5", {**DRAWN, "reasoning": {"max_tokens": 2000}}, {}),
        ("claude-opus-4-6", {**DRAWN, "reasoning_effort": "low"}, {}),
        ("claude-opus-4-6", {"top_p": 0.96, "reasoning_effort": "low"}, {"top_p": 0.96}),
        ("claude-opus-4-6", {**DRAWN, "reasoning_effort": "none"}, HALF_DRAWN),
        ("claude-opus-4-6", DRAWN, HALF_DRAWN),
        ("claude-opus-4-6", {"top_p": 0.9}, {"top_p": 0.9}),
        ("claude-3-7-sonnet", DRAWN, DRAWN),
        # The limit is too small for reasoning.
        ("claude-haiku-4-5", {**DRAWN, "reasoning_effort": "low", "max_tokens": 1024}, HALF_DRAWN),
    ],
)
def test_claude_receives_only_supported_sampling_parameters(
    model: str, fields: dict[str, Any], drawn: dict[str, Any]
) -> None:
    made = body("anthropic", model, 64_000, **fields)
    assert {name: made[name] for name in DRAWN if name in made} == drawn
    made = body("bedrock", f"us.anthropic.{model}-v1:0", 64_000, **fields)
    common = made.get("inferenceConfig", {})
    found = {
        "temperature": common.get("temperature"),
        "top_k": made.get("additionalModelRequestFields", {}).get("top_k"),
        "top_p": common.get("topP"),
    }
    assert {name: value for name, value in found.items() if value is not None} == drawn


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-opus-4-6"])
def test_claude_does_not_reason_before_a_forced_tool_call(model: str, choice: Any) -> None:
    given: dict[str, Any] = {"tools": [TOOL], "reasoning_effort": "high", **DRAWN}
    forced = body("anthropic", model, 64_000, tool_choice=choice, **given)
    assert "thinking" not in forced
    assert forced["temperature"] == 0.3
    assert "thinking" in body("anthropic", model, 64_000, tool_choice="auto", **given)
    name = f"us.anthropic.{model}-v1:0"
    forced = body("bedrock", name, 64_000, tool_choice=choice, **given)
    assert forced["additionalModelRequestFields"] == {"top_k": 5}
    # Without tools, ``tool_choice`` has no effect.
    assert "thinking" in body(
        "anthropic", model, 64_000, reasoning_effort="high", tool_choice=choice
    )


SIGNED: Final = {
    "type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "format": "anthropic-claude-v1",
}  # fmt: skip
UNSIGNED: Final = {"type": "reasoning.text", "text": "Hm.", "format": "unknown"}


def step(call_id: str, *details: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a call with these thoughts, and its result."""
    said = {"role": "assistant", "content": None, "tool_calls": [call_of(call_id)]}
    return [
        {**said, "reasoning_details": [*details]},
        {"role": "tool", "tool_call_id": call_id, "content": "1"},
    ]


@pytest.mark.parametrize(
    ("later", "thinks"),
    [
        ([], True),
        (step("a"), False),
        (step("a", UNSIGNED), False),
        (step("a", SIGNED), True),
        ([*step("a"), *step("b")], False),
        # Older models think before the first call alone, and may not stop behind it.
        ([*step("a", SIGNED), *step("b")], True),
        # The loop has ended.
        ([*step("a"), {"role": "assistant", "content": "1."}, *ASK], True),
        ([{"role": "assistant", "content": "It is"}], False),
    ],
)
def test_claude_with_a_budget_does_not_think_within_an_answer_that_began_without(
    later: list[dict[str, Any]], thinks: bool
) -> None:
    asked: dict[str, Any] = {
        "messages": [*ASK, *later], "tools": [TOOL], "reasoning_effort": "high",
        "max_tokens": 10_000, "temperature": 0.3,
    }  # fmt: skip
    thinking = {"type": "enabled", "budget_tokens": 8000} if thinks else None
    made = body("anthropic", "claude-haiku-4-5", **asked)
    assert made.get("thinking") == thinking
    assert made.get("temperature") == (None if thinks else 0.3)
    made = body("bedrock", "us.anthropic.claude-haiku-4-5-v1:0", **asked)
    assert made.get("additionalModelRequestFields", {}).get("thinking") == thinking
    newer = body("anthropic", "claude-opus-4-8", **asked)
    assert newer["thinking"] == {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("kind", "model"),
    [("anthropic", "claude-sonnet-5-5"), ("bedrock", "us.anthropic.claude-sonnet-5-5")],
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_build_refuses_a_forced_tool_call_that_claude_does_not_support(
    kind: str, model: str, choice: Any
) -> None:
    with pytest.raises(Untranslatable, match=r"^This model cannot be forced to call a tool\.$"):
        body(kind, model, tools=[TOOL], tool_choice=choice)
    for left in ("auto", "none"):
        body(kind, model, tools=[TOOL], tool_choice=left)
    body(kind, model, tool_choice=choice)


@pytest.mark.parametrize(
    ("model", "fields", "config"),
    [
        ("gemini-3.8-flash", {"reasoning": {"exclude": True}}, None),
        ("gemini-3.8-flash", {"reasoning_effort": "none"}, {"thinkingLevel": "MINIMAL"}),
        ("gemini-2.5-flash", {"reasoning": {"enabled": False}}, {"thinkingBudget": 0}),
        ("gemini-3.8-flash", {"reasoning": {"enabled": True}}, {"includeThoughts": True}),
        ("gemini-3.8-flash", {"reasoning": {"effort": "max", "exclude": True}},
         {"includeThoughts": False, "thinkingLevel": "HIGH"}),
        ("gemini-2.5-pro", {"reasoning_effort": "low"},
         {"includeThoughts": True, "thinkingBudget": 4096}),
        ("gemini-2.5-pro", {"reasoning_effort": "xhigh"},
         {"includeThoughts": True, "thinkingBudget": 24576}),
        ("gemini-3.8-flash", {"reasoning": {"max_tokens": 500}},
         {"includeThoughts": True, "thinkingBudget": 500}),
    ],
)  # fmt: skip
def test_gemini_reasoning_has_a_budget_or_a_level(
    model: str, fields: dict[str, Any], config: Any
) -> None:
    made = body("gemini", model, **fields)
    assert made.get("generationConfig") == (None if config is None else {"thinkingConfig": config})


def test_anthropic_receives_a_limit_and_a_temperature_of_at_most_one() -> None:
    made = body("anthropic", temperature=1.7)
    assert (made["max_tokens"], made["temperature"]) == (4096, 1)
    assert body("bedrock", "anthropic.claude-opus-4-6-v1", temperature=1.7)["inferenceConfig"] == {
        "temperature": 1
    }
    assert body("bedrock", temperature=1.7)["inferenceConfig"] == {"temperature": 1.7}


@pytest.mark.parametrize(
    "asked", [{}, {"reasoning_effort": "high"}, {"reasoning": {"enabled": False}}]
)
def test_the_last_update_of_a_conversation_sets_the_effort(asked: dict[str, Any]) -> None:
    updates = [
        {"role": role, "content": "Go on.", "configuration_update": {"reasoning": {"effort": each}}}
        for role, each in (("system", "high"), ("developer", "low"))
    ]
    said = [*ASK, *updates]
    assert body("anthropic", messages=said, **asked)["output_config"] == {"effort": "low"}
    assert body("gemini", messages=said, **asked)["generationConfig"] == {
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"}
    }
