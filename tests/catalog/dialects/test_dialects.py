"""What the formats that are not OpenAI's make of single fields, answers and faults."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import botocore.session
import pytest
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from catalog import dialects
from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    Untranslatable,
    parse_error,
)
from catalog.pricing import Usage
from tests.catalog.dialects.test_transcripts import BASES, SECRETS, TRANSCRIPTS, feed_of
from tests.support import clouds

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
    """The body of the request that these fields become, where ``most`` is the endpoint's bound."""
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


def parse(kind: str, answer: Any) -> Any:
    dialect = dialects.get(kind)
    assert dialect is not None
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return dialect.parse_reply(Operation.CHAT, data)


def feed(kind: str, data: bytes, choices: int = 1) -> list[Chunk]:
    dialect = dialects.get(kind)
    assert dialect is not None
    return dialect.stream_parser(Operation.CHAT, choices).feed(data)


def content(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": content({"type": "image_url", "image_url": {"url": "ftp://a.example/b"}})},
        {"messages": content({"type": "image_url", "image_url": {"url": "data:image/png,x"}})},
        {"messages": content({"type": "image_url", "image_url": 5})},
        {"messages": [{"role": "user", "content": "x"}] * 2 + ["x"]},
        {"messages": content({"type": "guess"})},
        {"messages": content({"type": "file", "file": {"file_id": "file-1"}})},
        {"messages": [{"role": "critic", "content": "hi"}]},
        {"messages": [{"role": "user", "content": {"text": "hi"}}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}],
                }
            ]
        },
        {"tools": [{"type": "web_search"}]},
        {"tools": [TOOL], "tool_choice": "some"},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_format_cannot_say_is_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Untranslatable):
        body(kind, **fields)


@pytest.mark.parametrize(
    ("kind", "part", "text"),
    [
        (
            "anthropic",
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "Anthropic takes no audio part of type audio/wav.",
        ),
        (
            "anthropic",
            {"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}},
            "Anthropic takes no video part by its URL.",
        ),
        (
            "anthropic",
            {"type": "file", "file": {"file_data": "data:text/csv;base64,YQ=="}},
            "Anthropic takes no file part of type text/csv.",
        ),
        (
            "gemini",
            {"type": "image_url", "image_url": "data:;base64,AAAA"},
            "Gemini takes no image part of type unknown.",
        ),
        (
            "bedrock",
            {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
            "Bedrock takes no image part by its URL.",
        ),
        (
            "bedrock",
            {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
            "Bedrock takes no image part of type image/tiff.",
        ),
    ],
)
def test_a_part_without_a_place_is_refused_by_name(
    kind: str, part: dict[str, Any], text: str
) -> None:
    with pytest.raises(Untranslatable) as error:
        body(kind, messages=content(part))
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("kind", "part", "expected"),
    [
        (
            "anthropic",
            {"type": "image_url", "image_url": {"url": "https://a.example/b"}},
            {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}},
        ),
        (
            "anthropic",
            {"type": "file", "file": {"file_data": "https://a.example/b.pdf"}},
            {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
        ),
        (
            "gemini",
            {"type": "video_url", "video_url": {"url": "https://a.example/b.mp4?x=1"}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://a.example/b.mp4?x=1"}},
        ),
        (
            "gemini",
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            {"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}},
        ),
        (
            "bedrock",
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"audio": {"format": "wav", "source": {"bytes": "AAAA"}}},
        ),
        (
            "bedrock",
            {"type": "file", "file": {"file_data": "data:text/csv;charset=utf-8;base64,YQ=="}},
            {"document": {"format": "csv", "name": "document", "source": {"bytes": "YQ=="}}},
        ),
    ],
)
def test_parts_find_their_place(kind: str, part: dict[str, Any], expected: dict[str, Any]) -> None:
    made = body(kind, messages=content(part))
    [turn] = made["contents" if kind == "gemini" else "messages"]
    assert turn["parts" if kind == "gemini" else "content"] == [expected]


@pytest.mark.parametrize("kind", KINDS)
def test_they_serve_chats_alone(kind: str) -> None:
    dialect = dialects.get(kind)
    assert dialect is not None
    assert dialect.operations == {Operation.CHAT}


@pytest.mark.parametrize("kind", KINDS)
def test_a_side_speaks_once_at_a_time(kind: str) -> None:
    made = body(
        kind,
        messages=[
            {"role": "system", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "user", "content": ""},
            {"role": "user", "content": "c"},
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": "", "refusal": "No."},
            {"role": "assistant", "content": None},
        ],
    )
    text = {"type": "text"} if kind == "anthropic" else {}
    said = made["contents" if kind == "gemini" else "messages"]
    assert [list(turn.values()) for turn in said] == [
        ["user", [{**text, "text": "b"}, {**text, "text": "c"}]],
        ["model" if kind == "gemini" else "assistant", [{**text, "text": "No."}]],
    ]
    system = made["systemInstruction"]["parts"] if kind == "gemini" else made["system"]
    assert system == [{**text, "text": "a"}, {**text, "text": "d"}]


@pytest.mark.parametrize(
    ("model", "fields", "thinking", "output"),
    [
        ("claude-opus-4-8", {}, None, None),
        ("claude-opus-4-8", {"reasoning": {"exclude": True}}, None, None),
        ("claude-opus-4-8", {"reasoning_effort": "none"}, {"type": "disabled"}, None),
        ("claude-opus-4-8", {"reasoning": {"enabled": False}}, {"type": "disabled"}, None),
        ("claude-sonnet-5", {"reasoning_effort": "none"}, {"type": "disabled"}, None),
        ("claude-sonnet-5-5", {}, None, None),
        (
            "claude-sonnet-5-5",
            {"reasoning": {"enabled": False, "effort": "max", "exclude": True}},
            {"type": "between_tools"},
            None,
        ),
        (
            "claude-sonnet-5-5",
            {"reasoning_effort": "high"},
            {"type": "adaptive", "display": "summarized"},
            {"effort": "high"},
        ),
        (
            "claude-opus-4-8",
            {"reasoning_effort": "minimal"},
            {"type": "adaptive", "display": "summarized"},
            {"effort": "low"},
        ),
        (
            "claude-opus-5",
            {"reasoning": {"effort": "xhigh", "exclude": True}},
            {"type": "adaptive", "display": "omitted"},
            {"effort": "xhigh"},
        ),
        (
            "claude-opus-4-6-20260205",
            {"reasoning": {"max_tokens": 2000}, "include_reasoning": False},
            {"type": "adaptive", "display": "omitted"},
            None,
        ),
        (
            "claude-haiku-4-5-20251001",
            {"reasoning": {"effort": "high"}, "max_tokens": 10_000},
            {"type": "enabled", "budget_tokens": 8000},
            None,
        ),
        (
            "claude-haiku-4-5-20251001",
            {"reasoning": {"max_tokens": 2000, "exclude": True}},
            {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
            None,
        ),
        (
            "claude-3-7-sonnet-20250219",
            {"reasoning": {"enabled": True}},
            {"type": "enabled", "budget_tokens": 2048},
            None,
        ),
        (
            "claude-sonnet-4-20250514",
            {"reasoning": {"max_tokens": 10}, "max_tokens": 1025},
            {"type": "enabled", "budget_tokens": 1024},
            None,
        ),
        (
            "claude-opus-4-1-20250805",
            {"reasoning": {"max_tokens": 3000}, "max_completion_tokens": 3000},
            None,
            None,
        ),
    ],
)
def test_claude_thinks_by_a_budget_or_by_an_effort(
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
def test_claude_without_a_limit_has_that_of_its_endpoint(
    most: int | None, fields: dict[str, Any], limit: int, budget: int | None
) -> None:
    thinking = None if budget is None else {"type": "enabled", "budget_tokens": budget}
    made = body("anthropic", "claude-haiku-4-5-20251001", most, **fields)
    assert (made["max_tokens"], made.get("thinking")) == (limit, thinking)
    made = body("bedrock", "us.anthropic.claude-haiku-4-5-20251001-v1:0", most, **fields)
    assert made.get("additionalModelRequestFields", {}).get("thinking") == thinking
    # The common format presumes the model's own limit, which a budget need not fit.
    named = limit if budget is not None or "max_tokens" in fields else None
    assert made.get("inferenceConfig", {}).get("maxTokens") == named


DRAWN: Final = {"temperature": 0.3, "top_k": 5, "top_p": 0.9}
# Of two ways to say it, newer models take one.
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
        # Too small an answer to think.
        ("claude-haiku-4-5", {**DRAWN, "reasoning_effort": "low", "max_tokens": 1024}, HALF_DRAWN),
    ],
)
def test_claude_is_told_how_to_draw_what_it_takes(
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
def test_claude_that_must_call_a_tool_does_not_think_before(model: str, choice: Any) -> None:
    given: dict[str, Any] = {"tools": [TOOL], "reasoning_effort": "high", **DRAWN}
    forced = body("anthropic", model, 64_000, tool_choice=choice, **given)
    assert "thinking" not in forced
    assert forced["temperature"] == 0.3
    assert "thinking" in body("anthropic", model, 64_000, tool_choice="auto", **given)
    name = f"us.anthropic.{model}-v1:0"
    forced = body("bedrock", name, 64_000, tool_choice=choice, **given)
    assert forced["additionalModelRequestFields"] == {"top_k": 5}
    # A choice among no tools is none.
    assert "thinking" in body(
        "anthropic", model, 64_000, reasoning_effort="high", tool_choice=choice
    )


@pytest.mark.parametrize(
    ("kind", "model"),
    [("anthropic", "claude-sonnet-5-5"), ("bedrock", "us.anthropic.claude-sonnet-5-5")],
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_claude_that_cannot_be_made_to_call_a_tool_is_not_asked_to(
    kind: str, model: str, choice: Any
) -> None:
    with pytest.raises(Untranslatable, match=r"^This model cannot be made to call a tool\.$"):
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
        (
            "gemini-3.8-flash",
            {"reasoning": {"effort": "max", "exclude": True}},
            {"includeThoughts": False, "thinkingLevel": "HIGH"},
        ),
        (
            "gemini-2.5-pro",
            {"reasoning_effort": "low"},
            {"includeThoughts": True, "thinkingBudget": 4096},
        ),
        (
            "gemini-2.5-pro",
            {"reasoning_effort": "xhigh"},
            {"includeThoughts": True, "thinkingBudget": 24576},
        ),
        (
            "gemini-3.8-flash",
            {"reasoning": {"max_tokens": 500}},
            {"includeThoughts": True, "thinkingBudget": 500},
        ),
    ],
)
def test_gemini_thinks_by_a_budget_or_by_a_level(
    model: str, fields: dict[str, Any], config: Any
) -> None:
    made = body("gemini", model, **fields)
    assert made.get("generationConfig") == (None if config is None else {"thinkingConfig": config})


def test_anthropic_is_given_a_limit_and_no_temperature_beyond_its_own() -> None:
    made = body("anthropic", temperature=1.7)
    assert (made["max_tokens"], made["temperature"]) == (4096, 1)
    assert body("bedrock", "anthropic.claude-opus-4-6-v1", temperature=1.7)["inferenceConfig"] == {
        "temperature": 1
    }
    assert body("bedrock", temperature=1.7)["inferenceConfig"] == {"temperature": 1.7}


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
        (
            {"parallel_tool_calls": False},
            {"type": "auto", "disable_parallel_tool_use": True},
            None,
            None,
        ),
    ],
)
def test_tool_choices(fields: dict[str, Any], anthropic: Any, gemini: Any, bedrock: Any) -> None:
    given = {"tools": [TOOL], **fields}
    assert body("anthropic", **given).get("tool_choice") == anthropic
    config = None if gemini is None else {"functionCallingConfig": gemini}
    assert body("gemini", **given).get("toolConfig") == config
    assert body("bedrock", **given)["toolConfig"].get("toolChoice") == bedrock


def test_no_tool_is_a_choice_too() -> None:
    given: dict[str, Any] = {"tools": [TOOL], "tool_choice": "none"}
    assert body("anthropic", **given)["tool_choice"] == {"type": "none"}
    config = {"functionCallingConfig": {"mode": "NONE"}}
    assert body("gemini", **given)["toolConfig"] == config
    assert "toolConfig" not in body("bedrock", **given)
    with pytest.raises(Untranslatable, match=r"^Bedrock cannot forbid tools"):
        body("bedrock", messages=[*ASK, CALLED], **given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_among_no_tools_is_not_sent(kind: str) -> None:
    made = body(kind, tool_choice="auto", parallel_tool_calls=False)
    assert made.keys() <= {"model", "max_tokens", "messages", "contents"}


def test_marks_of_a_cache_travel_where_a_format_has_them() -> None:
    mark = {"type": "ephemeral"}
    given: dict[str, Any] = {
        "messages": content({"type": "text", "text": "a", "cache_control": mark}),
        "tools": [{**TOOL, "cache_control": mark}],
        "cache_control": mark,
    }
    made = body("anthropic", **given)
    assert made["messages"][0]["content"] == [{"type": "text", "text": "a", "cache_control": mark}]
    schema = {"type": "object", "properties": {}}
    assert made["tools"] == [{"name": "look", "input_schema": schema, "cache_control": mark}]
    assert made["cache_control"] == mark
    point = {"cachePoint": {"type": "default"}}
    over_bedrock = body("bedrock", **given)
    assert over_bedrock["messages"][0]["content"] == [{"text": "a"}, point]
    assert over_bedrock["toolConfig"]["tools"][1] == point


def test_a_mark_of_a_tool_s_answer_stands_behind_it() -> None:
    mark = {"type": "ephemeral"}
    said = [
        {"type": "text", "text": "rain"},
        {"type": "text", "text": "wind", "cache_control": mark},
        {"type": "text", "text": ""},
    ]
    given = [*ASK, CALLED, {"role": "tool", "tool_call_id": "c1", "content": said}]
    [result] = body("anthropic", messages=given)["messages"][2]["content"]
    assert result == {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "rain"}, {"type": "text", "text": "wind"}],
        "cache_control": mark,
    }
    assert body("bedrock", messages=given)["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "c1", "content": [{"text": "rain"}, {"text": "wind"}]}},
        {"cachePoint": {"type": "default"}},
    ]


def test_a_cache_of_an_hour_is_for_those_who_pay_for_it_themselves() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    given: dict[str, Any] = {
        "messages": content({"type": "text", "text": "a", "cache_control": mark}),
        "tools": [{**TOOL, "cache_control": mark}],
        "cache_control": mark,
    }
    for is_byok, kept in ((True, mark), (False, {"type": "ephemeral"})):
        made = body("anthropic", is_byok=is_byok, **given)
        assert made["messages"][0]["content"][0]["cache_control"] == kept
        assert made["tools"][0]["cache_control"] == made["cache_control"] == kept
        made = body("bedrock", is_byok=is_byok, **given)
        point = {"cachePoint": {**kept, "type": "default"}}
        assert made["messages"][0]["content"][1] == made["toolConfig"]["tools"][1] == point


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "json_schema"}])
def test_json_without_a_schema_is_asked_for_in_words(form: dict[str, Any]) -> None:
    line = "Answer with one JSON object and nothing else: no text around it, no code fence."
    given: dict[str, Any] = {
        "messages": [{"role": "system", "content": "Be brief."}, *ASK],
        "response_format": form,
    }
    for kind in ("anthropic", "bedrock"):
        made = body(kind, **given)
        assert [part["text"] for part in made["system"]] == ["Be brief.", line]
        assert "outputConfig" not in made
        assert "output_config" not in made
    made = body("gemini", **given)
    assert made["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert made["generationConfig"] == {"responseMimeType": "application/json"}
    with_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert "system" not in body("anthropic", response_format=with_schema)


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u00a0"])
@pytest.mark.parametrize("kind", KINDS)
def test_blank_text_is_not_sent(kind: str, blank: str) -> None:
    given = [
        {"role": "system", "content": blank},
        {"role": "user", "content": [{"type": "text", "text": blank}]},
        {"role": "user", "content": " hi\n"},
        {"role": "assistant", "content": blank},
    ]
    made = body(kind, messages=given)
    [turn] = made["contents" if kind == "gemini" else "messages"]
    [part] = turn["parts" if kind == "gemini" else "content"]
    assert part["text"] == " hi\n"
    assert not made.keys() & {"system", "systemInstruction"}


def reasoned(*details: dict[str, Any]) -> list[dict[str, Any]]:
    return [*ASK, {**CALLED, "reasoning_details": list(details)}]


def test_reasoning_goes_back_to_the_provider_that_signed_it() -> None:
    ours = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    given = reasoned(
        {**ours, "text": "one "},
        {**ours, "text": "two"},
        {**ours, "signature": "s1"},
        {**ours, "text": "unsigned", "index": 1},
        {"type": "reasoning.encrypted", "format": "anthropic-claude-v1", "data": "d1", "index": 2},
        {"type": "reasoning.encrypted", "format": "google-gemini-v1", "data": "g1", "id": "c1"},
    )
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    assert body("anthropic", messages=given)["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "one two", "signature": "s1"},
        {"type": "redacted_thinking", "data": "d1"},
        use,
    ]
    assert body("bedrock", messages=given)["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "one two", "signature": "s1"}}},
        {"reasoningContent": {"redactedContent": "d1"}},
        {"toolUse": {"toolUseId": "c1", "name": "look", "input": {}}},
    ]
    call = {"id": "c1", "name": "look", "args": {}}
    [made] = body("gemini", messages=given)["contents"][1]["parts"]
    assert made == {"functionCall": call, "thoughtSignature": "g1"}


def test_gemini_is_told_which_call_has_no_signature() -> None:
    [made] = body("gemini", messages=[*ASK, CALLED])["contents"][1]["parts"]
    assert made["thoughtSignature"] == "skip_thought_signature_validator"


def test_gemini_takes_pictures_beside_what_a_tool_answered() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answered = {"role": "tool", "tool_call_id": "c1", "content": [picture]}
    assert body("gemini", messages=[*ASK, CALLED, answered])["contents"][2]["parts"] == [
        {"functionResponse": {"id": "c1", "name": "look", "response": {"result": ""}}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    ]


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name.startswith("bedrock/")])
def test_bedrock_s_own_library_finds_no_fault_in_a_request(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").input_shape
    parameters = {"modelId": transcript["model"], **transcript["request"]["body"]}
    assert not ParamValidator().validate(parameters, shape).has_errors()


@pytest.mark.parametrize(
    ("kind", "failure", "message", "code"),
    [
        (
            "anthropic",
            {
                "type": "error",
                "error": {"type": "overloaded_error", "message": "Overloaded"},
                "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
            },
            "Overloaded",
            "overloaded_error",
        ),
        (
            "gemini",
            {
                "error": {
                    "code": 404,
                    "message": "models/x is not found for API version v1beta.",
                    "status": "NOT_FOUND",
                }
            },
            "models/x is not found for API version v1beta.",
            "NOT_FOUND",
        ),
    ],
)
def test_an_error_is_a_failure_wherever_it_stands(
    kind: str, failure: dict[str, Any], message: str, code: str
) -> None:
    with pytest.raises(ProviderFailure) as plain:
        parse(kind, failure)
    with pytest.raises(ProviderFailure) as streamed:
        feed(kind, feed_of(kind, [failure]))
    as_body = parse_error(json.dumps(failure).encode())
    for found in (plain.value, streamed.value, as_body):
        assert (found.message, found.code) == (message, code)


@pytest.mark.parametrize(
    ("frame", "message", "code"),
    [
        (
            clouds.frame(
                b'{"message":"Too many tokens."}',
                message_type="exception",
                exception_type="throttlingException",
                content_type="application/json",
            ),
            "Too many tokens.",
            "throttlingException",
        ),
        (
            clouds.frame(
                b"", message_type="error", error_code="InternalError", error_message="Gone."
            ),
            "Gone.",
            "InternalError",
        ),
        (clouds.frame(b"", message_type="strange"), None, None),
    ],
)
def test_an_exception_in_bedrock_s_stream_is_a_failure(
    frame: bytes, message: str | None, code: str | None
) -> None:
    dialect = dialects.get("bedrock")
    assert dialect is not None
    parser = dialect.stream_parser(Operation.CHAT)
    with pytest.raises(ProviderFailure) as error:
        parser.feed(clouds.event_stream(("messageStart", {"role": "assistant"})) + frame)
    assert (error.value.message, error.value.code) == (message, code)
    assert [chunk.has_choices for chunk in parser.pending] == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_never_shows_the_secret(kind: str) -> None:
    secret = SECRETS[kind]
    text = f"Key {secret.reveal()} or {clouds.BEDROCK_KEY} is wrong."
    if kind == "bedrock":
        data = clouds.frame(
            json.dumps({"message": text}).encode(), message_type="exception", exception_type=text
        )
    else:
        error = {"type": "error", "error": {"message": text, "type": text, "status": text}}
        data = feed_of(kind, [error])
    with pytest.raises(ProviderFailure) as failure:
        feed(kind, data)
    shown = failure.value.cleaned(secret)
    login = clouds.BEDROCK_KEY if kind == "bedrock" else secret.reveal()
    for part in (shown.message, shown.code):
        assert part is not None
        assert "********" in part
        assert login not in part


NO_ANSWERS: Final = [
    b"",
    b"null",
    b"[]",
    b"<!doctype html>",
    b"{",
    b"{}",
    b'{"choices":[{"message":{}}]}',
    b'{"type":"message","content":5}',
    b'{"type":"completion"}',
    b'{"type":"message","content":[{"type":"tool_use","input":{"a":"\xff"}}]}',
    b'{"candidates":[]}',
    b'{"candidates":[{"content":{"parts":"x"}}]}',
    b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"\xff"}}}]}}]}',
    b'{"output":{"message":{"content":[{"toolUse":{"input":{"a":"\xff"}}}]}},"stopReason":"x"}',
    b'{"output":{},"stopReason":"end_turn"}',
    b'{"message":{"content":[]}}',
    b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
]


@pytest.mark.parametrize("answer", NO_ANSWERS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_answer_is_refused(kind: str, answer: bytes) -> None:
    with pytest.raises(InvalidReply):
        parse(kind, answer)


@pytest.mark.parametrize("data", [b"oops", b"[]", b'"x"', b'{"a":"\xff"}', b'{"type":5,"error":5}'])
@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
def test_what_is_no_event_breaks_the_stream(kind: str, data: bytes) -> None:
    with pytest.raises(InvalidStream, match=r"^An event of the stream is malformed\.$"):
        feed(kind, b"data: " + data + b"\n\n")


def test_a_damaged_message_breaks_bedrock_s_stream() -> None:
    good = clouds.event_stream(("messageStart", {"role": "assistant"}))
    damaged = bytearray(good)
    damaged[-6] ^= 1
    dialect = dialects.get("bedrock")
    assert dialect is not None
    parser = dialect.stream_parser(Operation.CHAT)
    with pytest.raises(InvalidStream, match=r"^A message of the stream is damaged\.$"):
        parser.feed(good + bytes(damaged))
    assert len(parser.pending) == 1
    empty = clouds.frame(b"oops", message_type="event", event_type="metadata")
    with pytest.raises(InvalidStream, match=r"^An event of the stream is malformed\.$"):
        feed("bedrock", empty)


@pytest.mark.parametrize("kind", ["anthropic", "bedrock"])
def test_an_event_beyond_a_mebibyte_is_refused(kind: str) -> None:
    if kind == "bedrock":
        delta = {"contentBlockIndex": 0, "delta": {"text": "x" * 1_100_000}}
        data = clouds.event_stream(("contentBlockDelta", delta))[:-1]
    else:
        data = b"data: " + b"x" * 1_100_000
    with pytest.raises(InvalidStream, match=r"^An event of the stream is too large\.$"):
        feed(kind, data)


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("anthropic", [{"type": "ping"}, {"type": "news"}, {"type": "content_block_stop"}]),
        ("gemini", [{"modelVersion": "gemini-3.8-flash"}]),
        ("bedrock", [["news", {}], ["contentBlockStop", {"contentBlockIndex": 0}]]),
    ],
)
def test_an_event_that_says_nothing_is_passed_over(kind: str, events: list[Any]) -> None:
    assert feed(kind, feed_of(kind, events)) == []


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("SOMETHING_NEW", "stop"),
    ],
)
def test_gemini_s_reasons_to_stop(reason: str, word: str) -> None:
    candidate = {"content": {"parts": [{"text": "a"}]}, "finishReason": reason}
    [choice] = parse("gemini", {"candidates": [candidate]}).fields["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == (word, reason)
    *_, last, end = feed("gemini", feed_of("gemini", [{"candidates": [candidate]}]))
    assert (last.finish_reason, end.is_done) == (word, True)


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("something_new", "stop"),
    ],
)
def test_anthropic_s_reasons_to_stop(reason: str, word: str) -> None:
    reply = parse("anthropic", {"type": "message", "content": [], "stop_reason": reason})
    [choice] = reply.fields["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == (word, reason)
    assert reply.usage is None


@pytest.mark.parametrize(
    ("kind", "usage", "expected"),
    [
        ("anthropic", {"input_tokens": 1, "output_tokens": 2}, Usage(1, 2)),
        ("anthropic", {"input_tokens": 1}, None),
        ("anthropic", {"output_tokens": 1}, None),
        ("anthropic", {"input_tokens": "1", "output_tokens": 2}, None),
        ("anthropic", {"input_tokens": -1, "output_tokens": 2}, None),
        (
            "anthropic",
            {
                "input_tokens": 1,
                "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 300,
                "output_tokens": 2,
                "output_tokens_details": {"thinking_tokens": 1},
            },
            Usage(321, 2, cached=20, cache_write=300, reasoning=1),
        ),
        ("gemini", {"promptTokenCount": 3}, Usage(3, 0)),
        ("gemini", {"candidatesTokenCount": 3}, None),
        (
            "gemini",
            {
                "promptTokenCount": 3,
                "candidatesTokenCount": 1300,
                "candidatesTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 10},
                    {"modality": "IMAGE", "tokenCount": 1290},
                ],
            },
            Usage(3, 1300, image_output=1290),
        ),
        (
            "gemini",
            {"promptTokenCount": 3, "candidatesTokensDetails": [{"modality": "IMAGE"}]},
            Usage(3, 0),
        ),
        ("gemini", {"promptTokenCount": 3, "candidatesTokenCount": True}, None),
        ("bedrock", {"inputTokens": 3, "outputTokens": 4}, Usage(3, 4)),
        ("bedrock", {"inputTokens": 3}, None),
        ("bedrock", {"inputTokens": 100_000_001, "outputTokens": 4}, None),
    ],
)
def test_usage_counts_when_it_is_sane(
    kind: str, usage: dict[str, Any], expected: Usage | None
) -> None:
    answer = {
        "anthropic": {"type": "message", "content": [], "usage": usage},
        "gemini": {"candidates": [{"finishReason": "STOP"}], "usageMetadata": usage},
        "bedrock": {
            "output": {"message": {"content": []}},
            "stopReason": "end_turn",
            "usage": usage,
        },
    }[kind]
    reply = parse(kind, answer)
    assert reply.usage == expected
    assert ("usage" in reply.fields) == (expected is not None)


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ({"input_tokens": 7, "output_tokens": 1}, Usage(7, 0)),
        ({"input_tokens": 0, "cache_read_input_tokens": 7}, Usage(7, 0, cached=7)),
        ({"input_tokens": 0, "output_tokens": 0}, None),
    ],
)
def test_a_prompt_of_nothing_is_not_counted_yet(
    begun: dict[str, Any], expected: Usage | None
) -> None:
    start = {"type": "message_start", "message": {"type": "message", "usage": begun}}
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    first, last = feed("anthropic", feed_of("anthropic", [start, end]))
    assert first.usage == expected
    cached = begun.get("cache_read_input_tokens", 0)
    assert last.usage == Usage(9 + cached, 2, cached=cached)


def test_gemini_ends_when_every_candidate_has() -> None:
    def candidate(index: int, finish: str | None) -> dict[str, Any]:
        made = {"index": index, "content": {"parts": [{"text": "a"}]}}
        return made if finish is None else {**made, "finishReason": finish}

    events = [
        {"candidates": [candidate(0, None), candidate(1, None)]},
        {"candidates": [candidate(0, "STOP")]},
        {"candidates": [candidate(1, "MAX_TOKENS")]},
    ]
    chunks = feed("gemini", feed_of("gemini", events), choices=2)
    assert [chunk.is_done for chunk in chunks] == [False, False, False, False, True]
    choices = [chunk.fields["choices"][0] for chunk in chunks[:-1]]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [
        (0, None),
        (1, None),
        (0, "stop"),
        (1, "length"),
    ]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] * 2 + [None] * 2


def test_gemini_s_candidates_may_come_one_after_the_other() -> None:
    def event(index: int, written: int, **members: Any) -> dict[str, Any]:
        candidate = {"index": index, "content": {"parts": [{"text": "a"}]}, **members}
        usage = {"promptTokenCount": 3, "candidatesTokenCount": written}
        return {"candidates": [candidate], "usageMetadata": usage}

    dialect = dialects.get("gemini")
    assert dialect is not None
    parser = dialect.stream_parser(Operation.CHAT, 3)
    one = [event(0, 1), event(0, 2, finishReason="STOP")]
    chunks = parser.feed(feed_of("gemini", one))
    # What is counted after a finish is taken for final, which only the last count is.
    assert [chunk.usage for chunk in chunks] == [None, Usage(3, 1), None]
    chunks = parser.feed(feed_of("gemini", [event(1, 4, finishReason="STOP")]))
    assert [chunk.fields["choices"][0]["index"] for chunk in chunks] == [1]
    # The third never came.
    [last, end] = parser.finish()
    assert (last.usage, end.is_done) == (Usage(3, 4), True)
    assert parser.finish() == []


def test_gemini_s_stream_is_cut_off_when_a_candidate_is() -> None:
    dialect = dialects.get("gemini")
    assert dialect is not None
    parser = dialect.stream_parser(Operation.CHAT, 2)
    cut = {"index": 1, "content": {"parts": [{"text": "a"}]}}
    parser.feed(feed_of("gemini", [{"candidates": [{"index": 0, "finishReason": "STOP"}, cut]}]))
    with pytest.raises(InvalidStream, match=r"^The stream ended without its end mark\.$"):
        parser.finish()


NAMES: Final = [
    "type", "content", "text", "index", "delta", "usage", "error", "message", "candidates", "parts",
    "functionCall", "finishReason", "usageMetadata", "output", "stopReason", "toolUse", "input",
]  # fmt: skip
WORDS: Final = ["message", "error", "message_start", "message_delta", "content_block_delta", "text"]


@given(
    st.sampled_from(KINDS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
        ),
        max_leaves=12,
    ),
)
def test_no_json_breaks_a_parser(kind: str, value: Any) -> None:
    data = json.dumps(value).encode()
    framed = (
        clouds.frame(data, message_type="event", event_type="contentBlockDelta")
        if kind == "bedrock"
        else b"data: " + data + b"\n\n"
    )
    with contextlib.suppress(InvalidReply, ProviderFailure):
        parse(kind, data)
    with contextlib.suppress(InvalidStream, ProviderFailure):
        feed(kind, framed)
