"""A Messages request becomes a chat request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.capabilities import UNDESCRIBED, Capabilities, ThinkingControl
from catalog.dialects.anthropic import build
from catalog.dialects.base import Call, Operation
from config.api.errors import InvalidRequest
from config.credentials import Secret
from inference.requests import parsing
from inference.requests.messages.request import convert
from tests.support.inference.messages import (
    SECRET,
    SIGNED_THOUGHT,
    asked,
    in_chat,
    messages_of,
    result,
    text,
    thought,
    use,
)

BUDGETED = Capabilities(thinking=ThinkingControl.BUDGET)
IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PICTURE = {"type": "image", "source": IMAGE}
CACHED = {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
WORD = {"type": "string"}
CLOSED = {
    "type": "object",
    "properties": {"city": WORD},
    "required": ["city"],
    "additionalProperties": False,
}
STRICT_TOOL = {**TOOL, "input_schema": CLOSED, "strict": True}


def test_a_plain_request_becomes_one_user_message() -> None:
    assert in_chat() == {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("system", "content"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be brief.")], "Be brief."),
        (
            [text("Be brief."), text("Be kind.", cache_control=CACHED)],
            [text("Be brief."), text("Be kind.", cache_control=CACHED)],
        ),
    ],
)
def test_the_system_prompt_comes_first(system: Any, content: Any) -> None:
    assert messages_of(("user", "Hi"), system=system) == [
        {"role": "system", "content": content},
        {"role": "user", "content": "Hi"},
    ]


@pytest.mark.parametrize("system", ["", []])
def test_an_empty_system_prompt_is_omitted(system: Any) -> None:
    assert messages_of(("user", "Hi"), system=system) == [{"role": "user", "content": "Hi"}]


def test_a_later_system_turn_stays_in_its_place() -> None:
    assert messages_of(("user", "Hi"), ("system", [text("Now be brief.")])) == [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Now be brief."},
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (PICTURE, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
            {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        ),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
                "title": "a.pdf",
                "cache_control": CACHED,
            },
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
                "cache_control": CACHED,
            },
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://x.test/a"}},
            {
                "type": "file",
                "file": {"filename": "document.pdf", "file_data": "https://x.test/a"},
            },
        ),
        (
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
                "title": "Weather",
            },
            text("Weather\n\nIt rains."),
        ),
    ],
)
def test_images_and_documents_become_content_parts(
    block: dict[str, Any], part: dict[str, Any]
) -> None:
    assert messages_of(("user", [block, text("What is it?")])) == [
        {"role": "user", "content": [part, text("What is it?")]}
    ]


def test_tool_results_come_before_the_rest_of_a_turn() -> None:
    blocks = [
        text("First"),
        result("a", "12 °C"),
        PICTURE,
        result("b", [text("broken"), PICTURE], is_error=True, cache_control=CACHED),
        {"type": "tool_result", "tool_use_id": "c"},
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert messages_of(("user", blocks)) == [
        {"role": "tool", "tool_call_id": "a", "content": "12 °C"},
        {
            "role": "tool",
            "tool_call_id": "b",
            "content": [text("broken"), {**image, "cache_control": CACHED}],
        },
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [text("First"), image]},
    ]


def test_an_earlier_answer_becomes_an_assistant_message() -> None:
    blocks = [
        thought("Hm.", "c2ln"),
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        thought("Unsigned.", ""),
        text("Let me look.", citations=None),
        use("a", {"city": "Bern"}, "get_weather"),
    ]
    unsigned = {"type": "reasoning.text", "text": "Unsigned.", "format": "unknown", "index": 2}
    assert messages_of(("assistant", blocks)) == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Bern"}'},
                }
            ],
            "reasoning_details": [SIGNED_THOUGHT, SECRET, unsigned],
        }
    ]


def test_an_answer_with_only_tool_calls_has_no_content() -> None:
    [message] = messages_of(("assistant", [use("a")]))
    assert message["content"] is None
    assert messages_of(("assistant", [])) == [{"role": "assistant", "content": ""}]
    assert messages_of(("assistant", "Yes")) == [{"role": "assistant", "content": "Yes"}]


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        (
            {"tools": [{**STRICT_TOOL, "description": "Looks.", "cache_control": CACHED}]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "get_weather",
                            "description": "Looks.",
                            "parameters": CLOSED,
                            "strict": True,
                        },
                        "cache_control": CACHED,
                    }
                ]
            },
        ),
        ({"tools": []}, {}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": False}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            {"reasoning": {"max_tokens": 2048}},
        ),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            {"reasoning": {"enabled": True, "exclude": True}},
        ),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            {"reasoning": {"enabled": False}},
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"reasoning": {"effort": "high", "enabled": True}},
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": CLOSED}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": CLOSED, "strict": True},
                }
            },
        ),
        ({"stop_sequences": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"stop_sequences": []}, {}),
        (
            {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "stream": True},
            {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "stream": True},
        ),
        ({"metadata": {"user_id": "ada"}}, {"user": "ada"}),
        ({"metadata": {"user_id": "ada"}, "user": "eve"}, {"user": "eve"}),
        ({"metadata": {}}, {}),
        ({"cache_control": CACHED}, {"cache_control": CACHED}),
        ({"context_management": {"edits": []}, "service_tier": "auto"}, {}),
        (
            {"models": ["a/b"], "session_id": "s", "route": "fallback", "trace": {"id": 1}},
            {"models": ["a/b"], "session_id": "s", "route": "fallback", "trace": {"id": 1}},
        ),
    ],
)
def test_other_fields_are_translated_or_dropped(
    fields: dict[str, Any], made: dict[str, Any]
) -> None:
    found = in_chat(**fields)
    del found["messages"]
    assert found == made


def hold(schema: Any, **definitions: Any) -> dict[str, Any]:
    """Returns the schema of an object with one property of this schema."""
    return {**CLOSED, "properties": {"city": schema}, "$defs": definitions}


@pytest.mark.parametrize(
    ("schema", "is_strict"),
    [
        (hold({"anyOf": [CLOSED, {"type": "null"}]}), True),
        (hold({"type": "array", "items": CLOSED}), True),
        (hold({"$ref": "#/$defs/a"}, a=CLOSED), True),
        (hold({"enum": ["a"], "type": ["string", "null"]}), True),
        ({"type": "object", "additionalProperties": False}, True),
        # One property is optional.
        ({**CLOSED, "properties": {"city": WORD, "zip": WORD}}, False),
        (hold({**CLOSED, "required": []}), False),
        (hold({"anyOf": [{**CLOSED, "required": []}, WORD]}), False),
        (hold({"type": "array", "items": {**CLOSED, "required": None}}), False),
        (hold({"$ref": "#/$defs/a"}, a={**CLOSED, "required": []}), False),
        # There may be others.
        ({"type": "object"}, False),
        (hold({"type": ["object", "null"], "additionalProperties": WORD}), False),
        (hold({**CLOSED, "additionalProperties": True}), False),
        # OpenAI's strict schemas have no such keywords, no value of any type, and an object on top.
        (hold({"oneOf": [WORD]}), False),
        (hold({"type": "object", "allOf": [CLOSED]}), False),
        (hold({"title": "Any"}), False),
        (hold(True), False),
        ({"anyOf": [CLOSED, CLOSED]}, False),
        ({"type": "array", "items": WORD}, False),
        ({**CLOSED, "properties": [WORD]}, False),
    ],
)
def test_a_schema_is_strict_if_openai_takes_it_so(schema: Any, is_strict: bool) -> None:
    """Anthropic's schemas may have optional properties; the answer to such a one is best effort."""
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    tools = [{**STRICT_TOOL, "input_schema": schema}, {**STRICT_TOOL, "strict": False}]
    made = in_chat(output_config=wanted, tools=tools)
    form = made["response_format"]["json_schema"]
    strict, lax = (each["function"] for each in made["tools"])
    assert (form.pop("strict", False), strict.pop("strict", False)) == (is_strict, is_strict)
    assert form == {"name": "answer", "schema": schema}
    assert strict == {"name": "get_weather", "parameters": schema}
    assert lax["strict"] is False


LETTER = {"type": "text", "media_type": "text/plain", "data": "a"}
PAPER = {"type": "document", "source": LETTER}
NOTHINGS: dict[str, Any] = {
    "context": None, "citations": {"enabled": False}, "x": "", "y": [], "z": False,
}  # fmt: skip


def with_paper(**members: Any) -> dict[str, Any]:
    paper = {**PAPER, **members}
    return {"messages": [{"role": "user", "content": [result("a", [paper]), paper]}]}


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        (with_paper(source={**LETTER, "url": None}, **NOTHINGS), with_paper()),
        (with_paper(citations=None), with_paper()),
        ({"system": [text("Be brief.", name=None)]}, {"system": "Be brief."}),
        ({"messages": [{"role": "user", "content": "Hi", "name": None}]}, {}),
        (
            {
                "tools": [
                    {**TOOL, "type": None, "defer_loading": False},
                    {**TOOL, "allowed_callers": ["direct"], "input_examples": []},
                ]
            },
            {"tools": [TOOL, TOOL]},
        ),
        (
            {"output_config": {"effort": "high", "task_budget": None}},
            {"output_config": {"effort": "high"}},
        ),
        (
            {"thinking": {"type": "adaptive", "budget_tokens": None}},
            {"thinking": {"type": "adaptive"}},
        ),
        (
            {"tool_choice": {"type": "none", "disable_parallel_tool_use": False}},
            {"tool_choice": {"type": "none"}},
        ),
    ],
)
def test_a_member_that_asks_for_nothing_is_left_out(
    fields: dict[str, Any], same: dict[str, Any]
) -> None:
    assert in_chat(**fields) == in_chat(**same)


def test_provider_preferences_are_parsed_like_those_of_chat() -> None:
    wanted = {"only": ["acme"], "options": {"acme": {"mood": "good"}}, "max_price": {"prompt": "1"}}
    body, _ = convert(json.dumps(asked(provider=wanted)).encode())
    plain, _ = convert(json.dumps(asked()).encode())
    chat = json.dumps({**json.loads(plain), "provider": wanted})
    found = parsing.parse(Operation.CHAT, body).preferences
    assert found == parsing.parse(Operation.CHAT, chat.encode()).preferences


@pytest.mark.parametrize(
    "wanted",
    [
        {
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "top_p": 0.95,
            "thinking": {"type": "enabled", "budget_tokens": 2000},
        },
        {
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "temperature": 1,
            "top_k": 5,
        },
    ],
)
def test_a_request_survives_the_round_trip_to_anthropic(wanted: dict[str, Any]) -> None:
    """The translation to chat and back keeps the fields that both formats have."""
    call = use("a", {"city": "Zürich"}, "get_weather")
    told = result("a", [text("12 °C")], cache_control=CACHED)
    sent = {
        "max_tokens": 5000,
        "system": [text("Be brief.", cache_control=CACHED)],
        "messages": [
            {"role": "user", "content": [PICTURE, text("Where?")]},
            {"role": "assistant", "content": [thought("Hm.", "c2ln"), text("Let me look."), call]},
            {"role": "user", "content": [told, text("And now?", cache_control=CACHED)]},
        ],
        "tools": [
            {
                **TOOL,
                "input_schema": {"type": "object", "properties": {}},
                "description": "Looks.",
                "cache_control": CACHED,
            }
        ],
        "stop_sequences": ["END"],
        "cache_control": CACHED,
        **wanted,
    }
    chat, _ = convert(json.dumps({"model": "acme/falcon", **sent}).encode())
    fields = parsing.parse(Operation.CHAT, chat).fields
    model = "claude-sonnet-4-5"
    made = build(
        Call(
            Operation.CHAT,
            "https://x.test/v1",
            model,
            Secret("k"),
            fields,
            is_byok=True,
            capabilities=BUDGETED if "budget_tokens" in str(wanted) else UNDESCRIBED,
        )
    )
    assert json.loads(made.body or b"") == {"model": model, **sent}


def refusal_of(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        convert(body)
    return error.value


def refusal(**fields: Any) -> str:
    error = refusal_of(json.dumps(asked(**fields)).encode())
    name, _, message = error.message.partition(": ")
    assert error.metadata == {"fields": {name: message}}
    return error.message


def with_block(block: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [block]}]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": ""}, "model: Expected str of length >= 1."),
        ({"model": 5}, "model: Expected str, got int."),
        ({"max_tokens": None}, "max_tokens: Expected int, got null."),
        ({"max_tokens": 0}, "max_tokens: Expected int >= 1."),
        ({"messages": []}, "messages: Expected array of length >= 1."),
        ({"messages": [{}]}, "messages[0].role: This field is required."),
        ({"messages": [{"role": "user"}]}, "messages[0].content: This field is required."),
        (
            {"messages": [{"role": "tool", "content": ""}]},
            "messages[0].role: Invalid value 'tool'.",
        ),
        (
            {"messages": [{"role": "user", "content": "", "name": "Ada"}]},
            "messages[0].name: Unknown field.",
        ),
        (with_block({"type": "riddle"}), "messages[0].content[0].type: Invalid value 'riddle'."),
        (with_block(PICTURE, "assistant"), "messages[0].content[0].type: Invalid value 'image'."),
        (with_block({"type": "text"}), "messages[0].content[0].text: This field is required."),
        (with_block(text("x", bold=True)), "messages[0].content[0].bold: Unknown field."),
        (
            with_block({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[0].content[0].source.type: Invalid value 'file'.",
        ),
        (
            with_block({"type": "image", "source": {**IMAGE, "media_type": "image/tiff"}}),
            (
                "messages[0].content[0].source.media_type: Must be image/jpeg, image/png, "
                "image/gif or image/webp."
            ),
        ),
        (with_block(use(None), "assistant"), "messages[0].content[0].id: Expected str, got null."),
        (
            with_block({"type": "tool_result"}),
            "messages[0].content[0].tool_use_id: This field is required.",
        ),
        ({"system": 5}, "system: Expected str | array | null, got int."),
        ({"system": [{"type": "image"}]}, "system[0].type: Invalid value 'image'."),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: This field is required."),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            "tools[0].type: Only tools that the caller runs, of type 'custom'.",
        ),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading: Unknown field."),
        (
            {"tools": [{**TOOL, "type": None, "allowed_callers": ["code_execution_20260120"]}]},
            "tools[0].allowed_callers: Unknown field.",
        ),
        (
            {"output_config": {"task_budget": {"type": "tokens", "total": 9}}},
            "output_config.task_budget: Unknown field.",
        ),
        (
            with_block({**PAPER, "context": None, "citations": {"enabled": True}}),
            "messages[0].content[0].citations: Unknown field.",
        ),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type: Invalid value 'all'."),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: This field is required."),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}},
            "thinking.budget_tokens: Expected int >= 1024.",
        ),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: This field is required."),
        ({"output_config": {"effort": "huge"}}, "output_config.effort: Invalid enum value 'huge'."),
        ({"stop_sequences": "x"}, "stop_sequences: Expected array | null, got str."),
        ({"stop_sequences": ["x"] * 5}, "stop_sequences: Expected array of length <= 4."),
        ({"temperature": 1.5}, "temperature: Expected float <= 1.0."),
        ({"top_p": -1}, "top_p: Expected float >= 0.0."),
        ({"top_k": 0.5}, "top_k: Expected int | null, got float."),
        ({"stream": "yes"}, "stream: Expected bool | null, got str."),
        ({"metadata": {"user_id": "u" * 513}}, "metadata.user_id: Expected str of length <= 512."),
        (
            {"metadata": {"user_id": "a\n"}},
            "metadata.user_id: Must not begin or end with white space.",
        ),
        ({"metadata": {"name": "Ada"}}, "metadata.name: Unknown field."),
        ({"provider": {"only": "acme"}}, "provider.only: Expected array | null, got str."),
        ({"service_tier": "standard_only"}, "service_tier: Invalid enum value 'standard_only'."),
        ({"mcp_servers": []}, "mcp_servers: Unknown field."),
        ({"n": 2}, "n: Unknown field."),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == message


def test_all_missing_fields_are_named_at_once() -> None:
    error = refusal_of(b"{}")
    assert error.message == "model, messages, max_tokens: These fields are required."
    assert error.metadata == {
        "fields": dict.fromkeys(("model", "messages", "max_tokens"), "This field is required.")
    }


def test_missing_fields_inside_others_are_named_with_them() -> None:
    parts = [{"text": "x"}, {"type": "image"}, {"type": "image", "source": {}}]
    body = {
        "messages": [{}, {"role": "user", "content": parts}],
        "tools": [{}, {"name": "f"}],
        "tool_choice": {"type": "tool"},
    }
    assert list(refusal_of(json.dumps(body).encode()).metadata["fields"]) == [
        "model", "messages[0].role", "messages[1].content[0].type",
        "messages[1].content[1].source", "messages[1].content[2].source.type", "tools[0].name",
        "tools[0].input_schema", "tools[1].input_schema", "tool_choice.name", "max_tokens",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
def test_a_missing_field_is_named(name: str) -> None:
    body = asked()
    del body[name]
    assert refusal_of(json.dumps(body).encode()).message == f"{name}: This field is required."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not valid JSON."),
        (b'{"model":"\xff"}', "The body is not valid UTF-8."),
        (b"[]", "The body must be a JSON object. (Expected object, got array)"),
    ],
)
def test_a_body_that_is_not_an_object_is_refused(body: bytes, message: str) -> None:
    assert refusal_of(body).message == message
