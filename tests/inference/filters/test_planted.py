"""A number that is planted anywhere in a request never reaches an upstream."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import dialects
from catalog.capabilities import UNDESCRIBED
from catalog.dialects.base import Call, Operation, Untranslatable
from config.api.errors import GatewayError
from config.credentials import Secret
from inference.filters.definitions import Filters
from inference.filters.problems import ContentBlocked
from inference.filters.screening import screen
from inference.requests import parsing
from inference.requests.messages.native import parse_message
from inference.requests.messages.request import convert
from tests.support.suite.tiers import count_examples
from tests.support.texts.filters import NUMBER, builtin, custom

MEDIA = base64.b64encode(bytes(range(256)) * 2).decode()
PICTURE = f"data:image/png;base64,{MEDIA}"
DIALECTS = ("openai", "anthropic", "gemini")

words = st.sampled_from(["alpha", "a b", "", "Ünïcode", "x-1", "{}", "[1]", "100"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=3)

SCHEMA = {
    "type": "object",
    "description": "of a tool",
    "properties": {"city": {"type": "string", "enum": ["a", "b"], "maxLength": 9, "x-y": "z"}},
    "required": ["city"],
}
PARTS = [
    {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}},
    {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
    {"type": "image_url", "image_url": "https://images.example/1.png"},
    {"type": "input_audio", "input_audio": {"data": MEDIA, "format": "wav"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:;base64,{MEDIA}"}},
]
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"city": "Paris", "deep": {"n": [1]}}'},
    "extra_content": {"google": {"thought_signature": MEDIA}},
}
DETAIL = {"type": "reasoning.text", "text": "hm", "signature": MEDIA, "id": "r", "format": "f"}
OPTIONS = {"safe_prompt": True, "documents": [{"title": "t", "text": "d"}], "top_k": 3}
COMMON = {
    "model": "m",
    "stop": ["end"],
    "seed": 7,
    "temperature": 0.5,
    "provider": {"options": {"acme": OPTIONS}},
    "user": "someone",
    "safety_identifier": "s",
}
CHAT = {
    **COMMON,
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": PARTS, "name": "joe"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_details": [DETAIL]},
        {"role": "tool", "tool_call_id": "call-1", "content": '{"temperature": 21}'},
        {"role": "user", "content": "and now?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "p"}]},
    "metadata": {"key": "value"},
    "logit_bias": {"50256": -100},
    "chat_template_kwargs": {"enable_thinking": True, "note": "n"},
    "reasoning": {"effort": "low"},
    "web_search_options": {"user_location": {"approximate": {"city": "x"}}},
}
TEXT = {**COMMON, "prompt": ["one", "two"], "suffix": "s", "logprobs": 1}
EMBEDDINGS = {
    **{name: value for name, value in COMMON.items() if name != "stop"},
    "input": ["one", {"content": PARTS[:2]}],
    "input_type": "query",
}
RERANK = {
    "model": "m",
    "query": "which one",
    "documents": ["one", {"text": "two"}, {"text": "three", "image": PICTURE}],
    "top_n": 2,
    "return_documents": True,
    "max_tokens_per_doc": 512,
    "user": "u",
    "provider": {"options": {"acme": {"note": "n", "truncation": False}}},
}
_RESULT = {
    "type": "tool_result", "tool_use_id": "t-1", "content": [{"type": "text", "text": "21"}],
}  # fmt: skip


def in_base64(kind: str) -> dict[str, str]:
    return {"type": "base64", "media_type": kind, "data": MEDIA}


MESSAGES = {
    "model": "m",
    "max_tokens": 16,
    "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hello"},
                {"type": "image", "source": in_base64("image/png")},
                {"type": "image", "source": {"type": "url", "url": "https://images.example/1"}},
                {
                    "type": "document",
                    "title": "t",
                    "source": {"type": "text", "media_type": "text/plain", "data": "doc"},
                },
                {"type": "document", "title": "t", "source": in_base64("application/pdf")},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": MEDIA},
                {"type": "redacted_thinking", "data": MEDIA},
                {"type": "tool_use", "id": "t-1", "name": "look", "input": {"city": ["x", 1]}},
            ],
        },
        {"role": "user", "content": [_RESULT]},
    ],
    "tools": [{"name": "look", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "look"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["end"],
    "metadata": {"user_id": "u"},
    "provider": {"options": {"acme": OPTIONS}},
}
# What chat cannot express, and only an upstream that speaks Anthropic's format gets.
_WORDS = {"type": "text", "text": "said"}
_CITED = {
    "type": "web_search_result_location",
    "cited_text": "c",
    "url": "https://pages.example/1",
    "title": "t",
    "encrypted_index": MEDIA,
}
NATIVE = {
    **{name: value for name, value in MESSAGES.items() if name != "provider"},
    "messages": [
        {
            "role": "user",
            "content": [
                {
                    "type": "search_result",
                    "source": "https://pages.example/2",
                    "title": "t",
                    "content": [_WORDS],
                    "citations": {"enabled": True},
                },
                {
                    "type": "document",
                    "title": "t",
                    "context": "c",
                    "source": {"type": "content", "content": [_WORDS]},
                    "citations": {"enabled": True},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "s-1", "name": "web_search", "input": {"q": "x"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "s-1",
                    "content": [
                        {
                            "type": "web_search_result",
                            "url": "https://pages.example/1",
                            "title": "t",
                            "encrypted_content": MEDIA,
                            "page_age": "1 day",
                        }
                    ],
                },
                {**_WORDS, "citations": [_CITED]},
            ],
        },
        *MESSAGES["messages"],
    ],
    "tools": [
        *MESSAGES["tools"],
        {"type": "bash_20250124", "name": "bash"},
        {"type": "web_fetch_20260209", "name": "web_fetch", "max_uses": 2},
    ],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "container": {"id": "container-1", "skills": [{"type": "custom", "skill_id": "s"}]},
    "mcp_servers": [{"type": "url", "url": "https://tools.example", "name": "n"}],
}
ROUTES = {
    "chat": (Operation.CHAT, CHAT),
    "completions": (Operation.TEXT, TEXT),
    "embeddings": (Operation.EMBEDDINGS, EMBEDDINGS),
    "rerank": (Operation.RERANK, RERANK),
    "messages": (Operation.CHAT, MESSAGES),
    "native": (Operation.CHAT, NATIVE),
}


def slots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yields the path of every place where a number can be planted, and the kind of the place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name), "name"
            yield from slots(inner, (*path, name))
        yield path, "member"
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from slots(inner, (*path, index))
        yield path, "item"
    else:
        yield path, "value"


def plant(body: Any, path: tuple[Any, ...], kind: str, planted: Any) -> Any:
    """Returns the body with the number at one place."""
    body = copy.deepcopy(body)
    if not path:
        return {**body, f"x{NUMBER}": planted}
    owner = body
    for step in path[:-1]:
        owner = owner[step]
    last = path[-1]
    if kind == "name":
        owner[f"{last}{NUMBER}"] = owner.pop(last)
    elif kind == "member":
        owner[last] = {**owner[last], "extra": planted}
    elif kind == "item":
        owner[last] = [*owner[last], planted]
    else:
        owner[last] = planted
    return body


def readable(value: Any) -> Iterator[str]:
    """Yields every text and number of a JSON value, and those of JSON in its texts."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from readable(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from readable(inner)
    elif isinstance(value, str):
        yield value
        if value[:1] in ("{", "["):
            try:
                inner = json.loads(value, parse_float=Decimal)
            except ValueError:
                return
            yield from readable(inner)
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        yield format(value, "f") if isinstance(value, Decimal) else str(value)


def outbound(request: parsing.InferenceRequest, dialect: str) -> bytes | None:
    """Returns the body that an upstream receives; ``None`` when its format cannot express it."""
    options = (request.preferences.options or {}).get("acme", {})
    native = request.native
    if native is not None and dialect == "anthropic":
        module = dialects.get_native(dialect, UNDESCRIBED)
    else:
        module = dialects.get(dialect)
    assert module is not None
    if native is not None and native.problem is not None and dialect != "anthropic":
        return None  # no candidate
    if request.operation not in module.operations:
        return None
    call = Call(
        operation=request.operation,
        base_url="https://upstream.example/v1",
        model="m",
        secret=Secret("test-credential-0123456789"),
        fields={**request.fields, **options},
        max_completion_tokens=16,
        is_byok=True,
        native=native,
    )
    try:
        return module.build(call).body
    except Untranslatable:
        return None


def encode(body: Any, *, is_escaped: bool) -> bytes:
    text = json.dumps(body, ensure_ascii=False)
    if is_escaped:
        text = text.replace(NUMBER, "".join(f"\\u{ord(digit):04x}" for digit in NUMBER))
    return text.encode()


def parsed(route: str, operation: Operation, raw: bytes) -> parsing.InferenceRequest:
    match route:
        case "messages":
            return parsing.parse(operation, convert(raw)[0])
        case "native":
            return parse_message(raw, headers=[("anthropic-beta", "web-fetch-2025-09-10")])
    return parsing.parse(operation, raw)


def screened(
    route: str, raw: bytes, filters: Filters
) -> tuple[GatewayError | None, parsing.InferenceRequest | None]:
    """Returns the error that refuses a body, or the request that may be sent."""
    operation, _ = ROUTES[route]
    try:
        return None, screen(filters, parsed(route, operation, raw)).request
    except GatewayError as exc:
        return exc, None


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=count_examples(150), deadline=None)
@given(data=st.data())
def test_a_planted_number_never_reaches_an_upstream(route: str, data: st.DataObject) -> None:
    _, body = ROUTES[route]
    if route not in ("messages", "native"):
        body = {**data.draw(objects), **body, "unknown": data.draw(values)}
    path, kind = data.draw(st.sampled_from(sorted(slots(body), key=str)))
    inside = data.draw(st.sampled_from(["", "x ", "https://h.example/?n="]))
    texts = [f"{inside}{NUMBER}", f"{inside}{NUMBER}", json.dumps({"n": [NUMBER]})]
    others = [{"deep": [{NUMBER: 1}]}, {"deep": [{"n": NUMBER}]}, int(NUMBER)]
    number = data.draw(st.sampled_from([*texts, *others]))
    planted = plant(body, path, kind, number)
    is_escaped = data.draw(st.booleans()) and not isinstance(number, int)
    raw = encode(planted, is_escaped=is_escaped)
    action = data.draw(st.sampled_from(["block", "redact"]))
    refusal, request = screened(route, raw, custom(NUMBER, action, "N"))
    assert refusal is None or refusal.status in (400, 403)
    assert not isinstance(refusal, ContentBlocked) or NUMBER not in refusal.message
    if request is None:
        return
    for dialect in DIALECTS:
        sent = outbound(request, dialect)
        if sent is not None:
            texts = list(readable(json.loads(sent, parse_float=Decimal)))
            assert not [text for text in texts if NUMBER in text]


@pytest.mark.parametrize("route", ROUTES)
def test_the_planted_bodies_are_valid_and_pass_unchanged(route: str) -> None:
    operation, body = ROUTES[route]
    raw = encode(body, is_escaped=False)
    request = parsed(route, operation, raw)
    assert screen(custom(NUMBER, "block", "N"), request).request is request
    assert outbound(request, "anthropic" if route == "native" else "openai") is not None


FORMS = [NUMBER, int(NUMBER), -int(NUMBER), 4.111111111111111e15, {NUMBER: 1}, [[NUMBER]]]


# The types that the parameters do not take.
MALFORMED = {
    *(("seed", kind) for kind in (str, float, dict, list)),
    *(("temperature", kind) for kind in (str, int, dict, list)),
    ("temperature", float),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    "name", ["documents", "seed", "unknown", "logit_bias", "chat_template_kwargs", "temperature"]
)
def test_a_card_number_is_found_in_every_form(name: str, form: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], name: form}
    raw = json.dumps(body)
    if isinstance(form, float):
        raw = raw.replace("4111111111111111.0", "4.111111111111111e15")
    refusal, _ = screened("chat", raw.encode(), builtin("credit-card", "block"))
    assert refusal is not None
    if (name, type(form)) not in MALFORMED:
        assert refusal.message == f"A guardrail blocks this content in `{name}`: [CREDIT_CARD]."
