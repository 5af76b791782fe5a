"""Anthropic's Messages in front of chat: what becomes of a request, of an answer and of errors."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from django.conf import LazySettings
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import ApiKey
from catalog.dialects import openai, vertex
from catalog.dialects.anthropic import build
from catalog.dialects.base import Call, InvalidReply, InvalidStream, Operation
from config.api.errors import InvalidRequest, UpstreamError
from config.credentials import Secret
from config.local.simulator.certificates import ensure_certificates
from inference.models import Generation
from inference.requests import schemas
from inference.requests.messages import reply
from inference.requests.messages.request import to_chat
from tests.inference.conftest import Site
from tests.support import clouds, factories
from tests.support.tls import serving

MESSAGES = "/api/v1/messages"
IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
CACHED = {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}


def asked(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "acme/falcon", "max_tokens": 50, "messages": messages, **fields}


def in_chat(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """What a request is in chat, without what every one has."""
    body = to_chat(json.dumps(asked(content, **fields)).encode())
    schemas.parse(Operation.CHAT, body)
    made: dict[str, Any] = json.loads(body)
    assert (made.pop("model"), made.pop("max_tokens")) == ("acme/falcon", 50)
    return made


def messages_of(*turns: tuple[str, Any], **fields: Any) -> list[Any]:
    turned = [{"role": role, "content": content} for role, content in turns]
    messages: list[Any] = in_chat(messages=turned, **fields)["messages"]
    return messages


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


def test_a_plain_request() -> None:
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
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    assert messages_of(("user", "Hi"), system=system) == [{"role": "user", "content": "Hi"}]


def test_a_later_system_turn_stays_in_its_place() -> None:
    assert messages_of(("user", "Hi"), ("system", [text("Now be brief.")])) == [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Now be brief."},
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "image", "source": IMAGE},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        ),
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
def test_a_part_that_is_not_text(block: dict[str, Any], part: dict[str, Any]) -> None:
    assert messages_of(("user", [block, text("What is it?")])) == [
        {"role": "user", "content": [part, text("What is it?")]}
    ]


def test_what_tools_answered_comes_before_the_rest_of_a_turn() -> None:
    blocks = [
        text("First"),
        {"type": "tool_result", "tool_use_id": "a", "content": "12 °C"},
        {"type": "image", "source": IMAGE},
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [text("broken"), {"type": "image", "source": IMAGE}],
            "is_error": True,
            "cache_control": CACHED,
        },
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


def test_an_answer_of_before_comes_back() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "thinking", "thinking": "Unsigned.", "signature": ""},
        text("Let me look.", citations=None),
        {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Bern"}},
    ]
    kind = {"format": "anthropic-claude-v1"}
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
            "reasoning_details": [
                {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "index": 0, **kind},
                {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 1, **kind},
            ],
        }
    ]


def test_an_answer_that_only_called_has_no_content() -> None:
    blocks = [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]
    [message] = messages_of(("assistant", blocks))
    assert message["content"] is None
    assert messages_of(("assistant", [])) == [{"role": "assistant", "content": ""}]
    assert messages_of(("assistant", "Yes")) == [{"role": "assistant", "content": "Yes"}]


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        (
            {"tools": [{**TOOL, "description": "Looks.", "strict": True, "cache_control": CACHED}]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "get_weather",
                            "description": "Looks.",
                            "parameters": {"type": "object"},
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
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "answer",
                        "schema": {"type": "object"},
                        "strict": True,
                    },
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
def test_the_other_fields(fields: dict[str, Any], made: dict[str, Any]) -> None:
    found = in_chat(**fields)
    del found["messages"]
    assert found == made


def test_the_preferences_are_those_of_chat() -> None:
    wanted = {"only": ["acme"], "options": {"acme": {"mood": "good"}}, "max_price": {"prompt": "1"}}
    body = to_chat(json.dumps(asked(provider=wanted)).encode())
    chat = json.dumps({**json.loads(to_chat(json.dumps(asked()).encode())), "provider": wanted})
    found = schemas.parse(Operation.CHAT, body).preferences
    assert found == schemas.parse(Operation.CHAT, chat.encode()).preferences


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
def test_a_request_reaches_anthropic_as_it_was(wanted: dict[str, Any]) -> None:
    """There and back through chat: what both sides know is what was sent."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Zürich"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [text("12 °C")],
        "cache_control": CACHED,
    }
    sent = {
        "max_tokens": 5000,
        "system": [text("Be brief.", cache_control=CACHED)],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": IMAGE}, text("Where?")]},
            {"role": "assistant", "content": [thinking, text("Let me look."), call]},
            {"role": "user", "content": [result, text("And now?", cache_control=CACHED)]},
        ],
        "tools": [{**TOOL, "description": "Looks.", "cache_control": CACHED}],
        "stop_sequences": ["END"],
        "cache_control": CACHED,
        **wanted,
    }
    chat = to_chat(json.dumps({"model": "acme/falcon", **sent}).encode())
    fields = schemas.parse(Operation.CHAT, chat).fields
    model = "claude-sonnet-4-5"
    made = build(
        Call(Operation.CHAT, "https://x.test/v1", model, Secret("k"), fields, is_byok=True)
    )
    assert json.loads(made.body or b"") == {"model": model, **sent}


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        to_chat(json.dumps(asked(**fields)).encode())
    name, _, message = error.value.message.partition(": ")
    assert error.value.metadata == {"fields": {name: message}}
    return error.value.message


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
        (
            with_block({"type": "search_result"}),
            "messages[0].content[0].type: Invalid value 'search_result'.",
        ),
        (
            with_block({"type": "server_tool_use"}, "assistant"),
            "messages[0].content[0].type: Invalid value 'server_tool_use'.",
        ),
        (
            with_block({"type": "image", "source": IMAGE}, "assistant"),
            "messages[0].content[0].type: Invalid value 'image'.",
        ),
        (with_block({"type": "text"}), "messages[0].content[0].text: This field is required."),
        (with_block(text("x", bold=True)), "messages[0].content[0].bold: Unknown field."),
        (
            with_block({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[0].content[0].source.type: Invalid value 'file'.",
        ),
        (
            with_block({"type": "image", "source": {**IMAGE, "media_type": "image/tiff"}}),
            "messages[0].content[0].source.media_type: Invalid enum value 'image/tiff'.",
        ),
        (
            with_block({"type": "tool_use", "id": "a", "name": "f", "input": "{}"}, "assistant"),
            "messages[0].content[0].input: Expected object, got str.",
        ),
        (
            with_block({"type": "tool_result", "tool_use_id": ""}),
            "messages[0].content[0].tool_use_id: Expected str of length >= 1.",
        ),
        ({"system": 5}, "system: Expected str | array | null, got int."),
        ({"system": [{"type": "image"}]}, "system[0].type: Invalid value 'image'."),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: This field is required."),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            "tools[0].type: Only tools that the caller runs, of type 'custom'.",
        ),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading: Unknown field."),
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
            "metadata.user_id: Must not contain control characters.",
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


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
def test_a_missing_field_is_named(name: str) -> None:
    body = asked()
    del body[name]
    with pytest.raises(InvalidRequest) as error:
        to_chat(json.dumps(body).encode())
    assert error.value.message == f"{name}: This field is required."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not valid JSON."),
        (b'{"model":"\xff"}', "The body is not valid UTF-8."),
        (b"[]", "The body must be a JSON object. (Expected object, got array)"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        to_chat(body)
    assert error.value.message == message


USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 40,
    "total_tokens": 70,
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 5},
    "cost": 0.000092,
    "is_byok": False,
    "cost_details": {"upstream_inference_cost": 0.000092},
}
COUNTED = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 3,
    "cache_read_input_tokens": 20,
    "output_tokens": 40,
    "output_tokens_details": {"thinking_tokens": 5},
    "cost": 0.000092,
    "is_byok": False,
    "cost_details": {"upstream_inference_cost": 0.000092},
}
IDENTITY = {"id": "gen-1", "model": "acme/falcon", "provider": "Acme AI"}


def answer(message: dict[str, Any], **choice: Any) -> Any:
    choice = {"index": 0, "message": message, "finish_reason": "stop", **choice}
    body = {**IDENTITY, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return json.loads(reply.reply(json.dumps(body).encode()))


def test_an_answer_is_a_message() -> None:
    assert answer({"role": "assistant", "content": "It rains."}) == {
        "id": "gen-1",
        "type": "message",
        "role": "assistant",
        "model": "acme/falcon",
        "content": [text("It rains.")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": COUNTED,
        "provider": "Acme AI",
    }


@pytest.mark.parametrize(
    ("choice", "stop"),
    [
        ({"finish_reason": "stop"}, ("end_turn", None)),
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "tool_calls"}, ("tool_use", None)),
        ({"finish_reason": "content_filter"}, ("refusal", None)),
        ({"finish_reason": None}, ("end_turn", None)),
        ({"native_finish_reason": "stop_sequence"}, ("stop_sequence", None)),
        (
            {
                "finish_reason": "length",
                "native_finish_reason": "model_context_window_exceeded",
            },
            ("model_context_window_exceeded", None),
        ),
        ({"native_finish_reason": ["stop_sequence"]}, ("end_turn", None)),
        ({"stop_reason": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": "length", "stop_reason": "END"}, ("max_tokens", None)),
    ],
)
def test_why_an_answer_ended(choice: dict[str, Any], stop: tuple[str, str | None]) -> None:
    found = answer({"content": "It rains."}, **choice)
    assert (found["stop_reason"], found["stop_sequence"]) == stop


def called(arguments: Any, call_id: str | None = "a") -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_an_answer_that_calls_is_one_whatever_the_server_says() -> None:
    found = answer({"content": None, "tool_calls": [called('{"city":"Zürich"}')]})
    assert found["content"] == [
        {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Zürich"}}
    ]
    assert found["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a":', {"arguments": '{"a":'}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_arguments_are_an_object(arguments: Any, given: dict[str, Any]) -> None:
    [block] = answer({"tool_calls": [called(arguments, None)]})["content"]
    assert (block["id"], block["input"]) == ("call_0", given)


@pytest.mark.parametrize(
    ("said", "blocks"),
    [
        (
            {"reasoning": "Hm.", "content": "Yes."},
            [{"type": "thinking", "thinking": "Hm.", "signature": ""}, text("Yes.")],
        ),
        (
            {"reasoning_content": "Hm.", "refusal": "No."},
            [{"type": "thinking", "thinking": "Hm.", "signature": ""}, text("No.")],
        ),
        (
            {
                "reasoning": "Hm.",
                "reasoning_details": [
                    {
                        "type": "reasoning.text",
                        "text": "Hm.",
                        "signature": "c2ln",
                        "format": "anthropic-claude-v1",
                        "index": 0,
                    },
                    {
                        "type": "reasoning.encrypted",
                        "data": "c2VjcmV0",
                        "format": "anthropic-claude-v1",
                        "index": 1,
                    },
                ],
                "content": "",
            },
            [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "c2VjcmV0"},
            ],
        ),
        ({"content": "", "reasoning_details": [{"index": "x"}, 5]}, []),
        (
            {
                "content": [
                    {
                        "type": "thinking",
                        "thinking": [text("H"), {"type": "reference"}, text("m.")],
                    },
                    text("In "),
                    {"type": "reference", "reference_ids": [1]},
                    text("parts."),
                    {"type": "text"},
                    "odd",
                ]
            },
            [{"type": "thinking", "thinking": "Hm.", "signature": ""}, text("In parts.")],
        ),
        (
            {"reasoning": "Hm.", "content": [{"type": "thinking", "thinking": "Hm."}]},
            [{"type": "thinking", "thinking": "Hm.", "signature": ""}],
        ),
    ],
)
def test_what_was_thought_comes_first(said: dict[str, Any], blocks: list[Any]) -> None:
    assert answer(said)["content"] == blocks


@pytest.mark.parametrize(
    "secret",
    [
        {"type": "reasoning.encrypted", "data": "c2VjcmV0", "id": "a"},
        {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln"},
    ],
)
def test_the_reasoning_of_any_provider_comes_back_to_it(secret: dict[str, Any]) -> None:
    detail = {**secret, "format": "google-gemini-v1", "index": 0}
    blocks = answer({"content": "", "reasoning_details": [detail]})["content"]
    [message] = messages_of(("assistant", blocks))
    assert message["reasoning_details"] == [detail]


SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


@pytest.mark.parametrize("listed", [None, frozenset(("tools",))])
def test_the_signature_of_a_call_comes_back_to_who_gave_it(listed: frozenset[str] | None) -> None:
    calls = [{**called("{}", "a"), **SIGNED}, called("{}", "b"), {**called("{}", None), **SIGNED}]
    whole = answer({"content": "Let me look.", "tool_calls": calls})["content"]
    kinds = ["text", "redacted_thinking", "tool_use", "tool_use", "redacted_thinking", "tool_use"]
    assert [block["type"] for block in whole] == kinds
    pieces = [
        call_piece(0, "{", id="a", name="f", **SIGNED),
        call_piece(0, "}", **SIGNED),
        call_piece(1, "{}", id="b", name="f"),
        call_piece(2, "{}", name="f", **SIGNED),
    ]
    streamed = turned(event({"content": "Let me look."}), *pieces, ended("tool_calls"))
    begun = [one["content_block"] for one in streamed if one["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == kinds
    assert [block for block in begun if "data" in block] == [
        block for block in whole if "data" in block
    ]
    [message] = messages_of(("assistant", whole))
    credential = Secret(json.dumps(clouds.vertex()))
    made = vertex.build(
        Call(
            Operation.CHAT,
            None,
            "google/gemini-3-pro",
            credential,
            {"messages": [message]},
            supported_parameters=listed,
        )
    )
    [sent] = json.loads(made.body or b"")["messages"]
    assert ("reasoning_details" in sent) is (listed is None)
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [
        SIGNED["extra_content"], None, SIGNED["extra_content"]
    ]  # fmt: skip


def test_a_signature_is_sent_to_nobody_who_did_not_give_it() -> None:
    [message] = messages_of(
        ("assistant", answer({"tool_calls": [{**called("{}"), **SIGNED}]})["content"])
    )
    made = openai.build(
        Call(
            Operation.CHAT,
            "https://x.test/v1",
            "m",
            Secret("k"),
            {"messages": [message]},
            supported_parameters=frozenset(("tools",)),
        )
    )
    assert json.loads(made.body or b"")["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        ]}
    ]  # fmt: skip


def test_an_answer_that_ended_in_an_error_is_one() -> None:
    with pytest.raises(UpstreamError) as error:
        answer(
            {"content": ""}, finish_reason="error", native_finish_reason="MALFORMED_FUNCTION_CALL"
        )
    assert error.value.message == "The upstream provider ended the answer with an error."
    assert error.value.metadata == {"provider_code": "MALFORMED_FUNCTION_CALL"}


def test_a_stream_that_ended_in_an_error_is_one() -> None:
    assert turned(event({"content": "It "}), ended("error", native="OTHER"))[1:] == [
        start(0, {"type": "text", "text": ""}),
        delta(0, "text_delta", text="It "),
        {
            "type": "error",
            "error": {
                "type": "api_error",
                "message": "The upstream provider ended the answer with an error.",
                "details": {"error_code": "provider_unavailable", "provider_code": "OTHER"},
            },
            "request_id": "req-1",
        },
    ]


def test_a_stream_may_come_in_parts() -> None:
    thinking = {"type": "thinking", "thinking": [text("Hm.")]}
    chat = (event({"content": [thinking]}), event({"content": [text("It ")]}), ended())
    assert turned(*chat)[1:-2] == [
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, "thinking_delta", thinking="Hm."),
        stop(0),
        start(1, {"type": "text", "text": ""}),
        delta(1, "text_delta", text="It "),
        stop(1),
    ]


@pytest.mark.parametrize("signature", ["causeway:", "causeway:é", "causeway:bm8="])
def test_a_seal_that_is_none_of_ours_is_a_signature(signature: str) -> None:
    block = {"type": "thinking", "thinking": "Hm.", "signature": signature}
    [message] = messages_of(("assistant", [block]))
    assert message["reasoning_details"][0]["signature"] == signature


def test_an_answer_with_a_choice_that_is_malformed_is_refused() -> None:
    with pytest.raises(InvalidReply):
        answer({"tool_calls": 5})


def event(delta: dict[str, Any], **choice: Any) -> bytes:
    return raw({"choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]})


def raw(members: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({**IDENTITY, **members}).encode() + b"\n\n"


def ended(reason: str = "stop", native: str | None = None, **members: Any) -> bytes:
    usage = raw({"choices": [], "usage": USAGE, **members})
    last = event({}, finish_reason=reason, native_finish_reason=native or reason)
    return last + usage + b"data: [DONE]\n\n"


def events_of(data: bytes) -> list[Any]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, _, line = block.partition("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def turned(*chat: bytes) -> list[Any]:
    events = reply.Events("req-1")
    return events_of(b"".join(map(events.feed, chat)))


def call_piece(number: int, arguments: str, **begun: Any) -> bytes:
    name = {"name": begun.pop("name")} if "name" in begun else {}
    call = {"index": number, **begun, "function": {**name, "arguments": arguments}}
    return event({"tool_calls": [call]})


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **piece}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


STARTED = {
    "type": "message_start",
    "message": {
        "id": "gen-1",
        "type": "message",
        "role": "assistant",
        "model": "acme/falcon",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
        "provider": "Acme AI",
    },
}


def finish(reason: str) -> list[Any]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": COUNTED,
        },
        {"type": "message_stop"},
    ]


CHAT = (
    event({"role": "assistant", "content": ""})
    + event({"reasoning": "H"})
    + event({"reasoning": "m."})
    + event({"reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0,
                                    "format": "anthropic-claude-v1"}]})
    + event({"content": "Schnee"})
    + event({"content": "stürme."})
    + call_piece(0, "", id="a", name="f")
    + call_piece(0, '{"x":')
    + call_piece(0, "1}")
    + call_piece(1, "{}", id="b", name="g")
    + ended("tool_calls")
)  # fmt: skip
EVENTS = [
    STARTED,
    start(0, {"type": "thinking", "thinking": "", "signature": ""}),
    delta(0, "thinking_delta", thinking="H"),
    delta(0, "thinking_delta", thinking="m."),
    delta(0, "signature_delta", signature="c2ln"),
    stop(0),
    start(1, {"type": "text", "text": ""}),
    delta(1, "text_delta", text="Schnee"),
    delta(1, "text_delta", text="stürme."),
    stop(1),
    start(2, use("a", "f")),
    delta(2, "input_json_delta", partial_json='{"x":'),
    delta(2, "input_json_delta", partial_json="1}"),
    stop(2),
    start(3, use("b", "g")),
    delta(3, "input_json_delta", partial_json="{}"),
    stop(3),
    *finish("tool_use"),
]


def test_a_stream_is_one_of_a_message() -> None:
    assert turned(CHAT) == EVENTS


@given(st.lists(st.integers(0, len(CHAT)), max_size=40))
def test_a_stream_is_the_same_however_it_was_cut(places: list[int]) -> None:
    cuts = sorted({0, len(CHAT), *places})
    assert turned(*(CHAT[here:there] for here, there in itertools.pairwise(cuts))) == EVENTS


def test_events_leave_as_soon_as_they_can() -> None:
    events = reply.Events("req-1")
    assert [kind["type"] for kind in events_of(events.feed(event({"content": "It "})))] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    assert events_of(events.feed(event({"content": "rains."}))) == [
        delta(0, "text_delta", text="rains.")
    ]
    assert events.feed(event({}, finish_reason="stop")) == b""


def test_calls_that_take_turns_come_one_after_the_other() -> None:
    chat = (
        call_piece(0, "", id="a", name="f"),
        call_piece(1, "", id="b", name="g"),
        call_piece(1, '{"y":'),
        call_piece(0, '{"x":1}'),
        call_piece(1, "2}"),
        event({"content": "Done."}),
        ended("tool_calls"),
    )
    assert turned(*chat)[1:-2] == [
        start(0, use("a", "f")),
        delta(0, "input_json_delta", partial_json='{"x":1}'),
        stop(0),
        start(1, use("b", "g")),
        delta(1, "input_json_delta", partial_json='{"y":'),
        delta(1, "input_json_delta", partial_json="2}"),
        stop(1),
        start(2, {"type": "text", "text": ""}),
        delta(2, "text_delta", text="Done."),
        stop(2),
    ]


def test_a_call_that_another_follows_under_its_number_is_ended() -> None:
    chat = (call_piece(0, "{}", id="a", name="f"), call_piece(0, "{}", id="b", name="g"), ended())
    assert [block["content_block"] for block in turned(*chat) if "content_block" in block] == [
        use("a", "f"),
        use("b", "g"),
    ]


def test_a_call_without_arguments_that_nothing_completes_ends_with_the_stream() -> None:
    chat = (call_piece(0, "", id="a", name="f"), call_piece(1, "", id="b", name="g"), ended())
    assert turned(*chat)[1:] == [
        start(0, use("a", "f")),
        stop(0),
        start(1, use("b", "g")),
        stop(1),
        *finish("tool_use"),
    ]


ENCRYPTED = {"type": "reasoning.encrypted", "format": "anthropic-claude-v1"}


@pytest.mark.parametrize(
    "piece",
    [
        call_piece(0, "x" * 1_000_000),
        event({"content": "x" * 1_000_000}),
        event({"reasoning_details": [{**ENCRYPTED, "data": "x" * 1_000_000}]}),
    ],
)
def test_only_so_much_is_kept_of_what_waits(piece: bytes) -> None:
    begun = call_piece(0, '{"x":', id="a", name="f")
    assert len(turned(begun, *[piece] * 16)) > 1
    with pytest.raises(InvalidStream) as error:
        turned(begun, *[piece] * 17)
    assert str(error.value) == "The tool calls of the stream are too large."


def test_encrypted_reasoning_is_a_block_of_its_own() -> None:
    kind = {"format": "anthropic-claude-v1"}
    details: list[Any] = [
        {"type": "reasoning.text", "text": "Hm.", "index": 0, **kind},
        {"type": "reasoning.text", "signature": "c2ln", "index": 0, **kind},
        {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 1, **kind},
        {"type": "reasoning.summary", "summary": "So.", "index": 2},
    ]
    chat = [event({"reasoning_details": [detail]}) for detail in details]
    assert turned(*chat, ended())[1:-2] == [
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, "thinking_delta", thinking="Hm."),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        start(1, {"type": "redacted_thinking", "data": "c2VjcmV0"}),
        stop(1),
        start(2, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(2, "thinking_delta", thinking="So."),
        stop(2),
    ]


def test_an_error_in_a_stream_is_its_last_event() -> None:
    error = {"code": 529, "message": "Busy.", "metadata": {"error_type": "provider_overloaded"}}
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    chat = (event({"content": "It "}), raw({"error": error, "choices": [choice]}))
    assert turned(*chat)[3:] == [
        {
            "type": "error",
            "error": {
                "type": "overloaded_error",
                "message": "Busy.",
                "details": {"error_code": "provider_overloaded"},
            },
            "request_id": "req-1",
        }
    ]


def test_an_event_that_is_malformed_ends_the_stream() -> None:
    with pytest.raises(InvalidStream):
        turned(event({"tool_calls": 5}))
    with pytest.raises(InvalidStream):
        turned(b"data: " + b"x" * 67_200_000)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_an_error_has_anthropics_name(status: int, kind: str) -> None:
    metadata = {"error_type": "ours", "provider_name": "Acme AI"}
    body = {"error": {"code": status, "message": "No.", "metadata": metadata}, "beside": 1}
    assert reply.error_body(body, "req-1") == {
        "type": "error",
        "error": {
            "type": kind,
            "message": "No.",
            "details": {"error_code": "ours", "provider_name": "Acme AI"},
        },
        "request_id": "req-1",
        "beside": 1,
    }


def send(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> requests.Response:
    sent = {"x-api-key": site.tenant.api_key} if headers is None else headers
    return requests.post(
        f"{site.server}{MESSAGES}", json=asked(**fields), headers=sent, timeout=20, stream=True
    )


def count(site: Site, key: str | None = None, **fields: Any) -> requests.Response:
    return requests.post(
        f"{site.server}{MESSAGES}/count_tokens",
        json={"model": "acme/falcon", "messages": [{"role": "user", "content": "Hi"}], **fields},
        headers={"x-api-key": key or site.tenant.api_key},
        timeout=20,
    )


def test_tokens_are_counted_by_size_and_cost_nothing(site: Site) -> None:
    found = count(site)
    assert (found.status_code, found.json()) == (200, {"input_tokens": 5})
    assert "X-Generation-Id" not in found.headers
    assert found.headers["request-id"] == found.headers["X-Request-Id"]
    assert count(site, max_tokens=5, system="x" * 400).json() == {"input_tokens": 5 + 4 + 100}
    tool = {"name": "f", "input_schema": {"type": "object", "description": "x" * 4000}}
    assert count(site, tools=[tool]).json()["input_tokens"] > 1005
    assert not Generation.objects.exists()
    assert not site.dialled()


def test_tokens_are_counted_for_keys_that_may_call(site: Site) -> None:
    for key, status, kind in (
        ("sk-unknown", 401, "authentication_error"),
        (site.tenant.management_key, 403, "permission_error"),
    ):
        refused = count(site, key)
        assert (refused.status_code, refused.json()["type"]) == (status, "error")
        assert refused.json()["error"]["type"] == kind
    ApiKey.objects.update(disabled=True)
    assert count(site).status_code == 401


def test_a_count_of_what_is_no_message_is_refused(site: Site) -> None:
    refused = count(site, messages=[])
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "type": "invalid_request_error",
        "message": "messages: Expected array of length >= 1.",
        "details": {
            "error_code": "invalid_request",
            "fields": {"messages": "Expected array of length >= 1."},
        },
    }


def test_a_message_costs_what_its_chat_would(site: Site) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000002"))
    found = send(site, content="one two", metadata={"user_id": "ada@example.com"})
    assert found.status_code == 200, found.text
    row = site.settled()
    assert found.json() == {
        "id": row.id,
        "type": "message",
        "role": "assistant",
        "model": "acme/falcon",
        "content": [text("You said: one two")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
            "cost": 0.00001,
            "is_byok": False,
            "cost_details": {
                "upstream_inference_cost": 0.00001,
                "upstream_inference_prompt_cost": 0.000002,
                "upstream_inference_completions_cost": 0.000008,
            },
        },
        "provider": "Acme AI",
    }
    assert (row.status, row.operation, row.cost_nano) == ("completed", "chat/completions", 10_000)
    assert found.headers["request-id"] == found.headers["x-request-id"]
    assert found.headers["x-generation-id"] == row.id
    [request] = site.dialled()
    assert request.body["max_tokens"] == 50
    assert "ada@example.com" not in json.dumps(request.body)


def test_a_quiet_stream_is_kept_alive_with_pings(site: Site, settings: LazySettings) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    site.publish("sim-gated")
    chunks = send(site, content="one two", stream=True).iter_content(None)
    assert next(chunks).startswith(b"event: message_start\n")
    assert next(chunks) == reply.PING
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    site.upstream.release(20)
    rest = b"".join(chunks).replace(reply.PING, b"")
    words = [
        each["delta"]["text"] for each in events_of(rest) if "index" in each and "delta" in each
    ]
    assert "".join(words) == "You said: one two"
    assert rest.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert site.settled().status == "completed"


def test_a_caller_that_leaves_ends_the_upstream(site: Site) -> None:
    site.publish("sim-gated", price=factories.make_price("0.000001", "0.000002"))
    site.upstream.release(3)
    with send(site, content="one two", stream=True) as found:
        seen = b""
        for data in found.iter_content(None):
            seen += data
            if b" one" in seen or b" said" in seen:
                break
    [request] = site.dialled()
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None, 2)
    assert site.settled().status == "cancelled"


def test_a_stream_that_breaks_off_ends_in_an_error(site: Site) -> None:
    site.publish("sim-reset-stream")
    events = events_of(send(site, content="one two", stream=True).content)
    assert [each["type"] for each in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["error"]["details"]["error_code"] == "provider_unavailable"
    assert site.settled().status == "failed"


@pytest.fixture
def strange(site: Site) -> Iterator[None]:
    """Serves the model where calls of tools are no list."""
    message = {"role": "assistant", "tool_calls": {"name": "f"}}
    events = [
        {"id": "a", "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"id": "a", "choices": [{"index": 0, "delta": message}]},
    ]
    whole = {"id": "a", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        is_streamed = b'"stream":true' in body
        data = json.dumps(whole).encode()
        if is_streamed:
            data = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in events)
        kind = b"text/event-stream" if is_streamed else b"application/json"
        line.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (kind, len(data), data)
        )
        return True

    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(script, certificates.server_context()) as server:
        site.provider.base_url = f"https://127.0.0.1:{server.port}/v1"
        site.provider.save_fields("base_url")
        site.publish("m")
        yield


@pytest.mark.usefixtures("strange")
def test_an_answer_that_no_message_can_hold_is_the_providers_fault(site: Site) -> None:
    found = send(site)
    assert found.status_code == 502
    assert found.json()["error"]["type"] == "api_error"
    assert found.json()["error"]["message"] == (
        "The upstream provider's answer is not valid: A choice of the answer is malformed."
    )


@pytest.mark.usefixtures("strange")
def test_a_stream_that_no_message_can_hold_ends_in_an_error(site: Site) -> None:
    events = events_of(send(site, stream=True).content)
    assert [each["type"] for each in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert events[-1]["error"]["message"] == (
        "The upstream provider's answer is not valid: A choice of the stream is malformed."
    )
    assert site.settled().status == "failed"


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_is_overloaded_is_told_so(site: Site, stream: bool) -> None:
    site.publish("sim-status:529")
    found = send(site, stream=stream)
    assert found.status_code == 529
    assert found.json()["error"]["type"] == "overloaded_error"
    assert found.json()["request_id"] == found.headers["request-id"]
    assert site.settled().status == "failed"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "Authentication is missing or invalid. Send 'Authorization: Bearer <API key>'."),
        ({"x-api-key": "wrong"}, "The API key is not valid."),
        ({"Authorization": "Bearer wrong"}, "The API key is not valid."),
        ({"x-api-key": "KEY", "Authorization": "Basic eDp5"}, "The API key is not valid."),
        (
            {"x-api-key": "KEY", "Authorization": "Bearer OTHER"},
            "Authorization and x-api-key hold different keys; send one of them.",
        ),
    ],
)
def test_a_request_without_one_key_of_ours_is_refused(
    site: Site, headers: dict[str, str], message: str
) -> None:
    site.publish()
    keys = {"KEY": site.tenant.api_key, "OTHER": site.tenant.management_key}
    for name, key in keys.items():
        headers = {header: value.replace(name, key) for header, value in headers.items()}
    found = send(site, headers=headers)
    assert found.status_code == 401
    assert found.json() == {
        "type": "error",
        "error": {
            "type": "authentication_error",
            "message": message,
            "details": {"error_code": "authentication"},
        },
        "request_id": found.headers["request-id"],
    }
    assert found.headers["WWW-Authenticate"] == "Bearer"
    site.assert_nothing_happened()


@pytest.mark.parametrize(
    "names", [("x-api-key",), ("Authorization",), ("x-api-key", "Authorization")]
)
def test_a_key_may_come_by_either_name(site: Site, names: tuple[str, ...]) -> None:
    site.publish()
    key = site.tenant.api_key
    values = {"x-api-key": key, "Authorization": f"Bearer {key}"}
    assert send(site, headers={name: values[name] for name in names}).status_code == 200


def test_a_key_of_another_name_is_none_for_chat(site: Site) -> None:
    site.publish()
    found = requests.post(
        f"{site.server}/api/v1/chat/completions",
        json=site.chat_body(),
        headers={"x-api-key": site.tenant.api_key},
        timeout=10,
    )
    assert found.status_code == 401
    site.assert_nothing_happened()


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error"),
        ({"model": "acme/unknown"}, 404, "not_found_error"),
        ({"session_id": "s" * 257}, 400, "invalid_request_error"),
        ({"session_id": "a\n"}, 400, "invalid_request_error"),
        ({"provider": {"options": {"acme": {"n": 2}}}}, 400, "invalid_request_error"),
    ],
)
def test_a_refusal_stores_nothing(
    site: Site, fields: dict[str, Any], status: int, kind: str
) -> None:
    site.publish()
    found = send(site, **fields)
    assert (found.status_code, found.json()["error"]["type"]) == (status, kind)
    site.assert_nothing_happened()


def test_a_caller_without_credits_is_told_the_bill(site: Site) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000002"))
    poor = factories.make_tenant("Poor", credits_usd=0)
    found = send(site, headers={"x-api-key": poor.api_key})
    assert (found.status_code, found.json()["error"]["type"]) == (402, "billing_error")
    assert found.json()["error"]["details"]["error_code"] == "payment_required"
    site.assert_nothing_happened()


def test_other_methods_are_refused_in_the_same_words(site: Site) -> None:
    found = requests.get(f"{site.server}{MESSAGES}", timeout=10)
    assert (found.status_code, found.headers["Allow"]) == (405, "POST")
    assert found.json()["error"]["type"] == "invalid_request_error"


def test_a_large_body_is_refused_in_the_same_words(site: Site, settings: LazySettings) -> None:
    settings.MAX_REQUEST_BYTES = 10
    found = send(site)
    assert (found.status_code, found.json()["error"]["type"]) == (413, "request_too_large")
    site.assert_nothing_happened()


def test_many_messages_at_a_time_keep_apart(site: Site) -> None:
    site.publish()
    words = [f"word{number}" for number in range(20)]

    def said(word: str) -> str:
        events = events_of(send(site, content=word, stream=True).content)
        deltas = (each["delta"] for each in events if each["type"] == "content_block_delta")
        return "".join(piece["text"] for piece in deltas)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(said, words)) == [f"You said: {word}" for word in words]
