"""Each field of a chat is sent to an endpoint, named as left out there, or refused by its name."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import pytest
from django.conf import settings
from msgspec.structs import replace

from catalog import dialects
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat, ThinkingControl
from catalog.dialects.base import Operation, Untranslatable
from config.api.errors import InvalidRequest
from inference.exchange.attempts import build_call
from inference.requests import parsing
from inference.requests.messages.native import parse_message
from inference.requests.operations.completions import PARAMETERS
from inference.requests.operations.gateway_fields import GATEWAY_FIELDS
from inference.requests.operations.server_tools import PROVIDER_FIELDS
from inference.requests.parsing import InferenceRequest
from inference.requests.responses.request import parse_response
from tests.support.dialects.reading import dialect_of
from tests.support.inference.dialects import LOOK, call_of, secret_of, turns
from tests.support.inference.routes import route, select

CLAUDE: Final = Capabilities(native_format=NativeFormat.ANTHROPIC)
BUDGET: Final = replace(CLAUDE, thinking=ThinkingControl.BUDGET)
# Its requests are those of Responses.
NATIVE: Final = Capabilities(native_format=NativeFormat.BOTH)
FORMATS: Final = [
    *((name, UNDESCRIBED) for name in ("openai", "azure", "vertex", "gemini", "bedrock")),
    *((name, CLAUDE) for name in ("anthropic", "azure", "vertex", "bedrock")),
    ("anthropic", BUDGET),
    ("bedrock", BUDGET),
    ("openai", NATIVE),
    ("azure", NATIVE),
]
# What the gateway reads itself, and what every chat has.
KEPT: Final = GATEWAY_FIELDS | {"messages", "stream", "stream_options", "include_reasoning"}
# Of Responses: what the answer repeats, and what only chat has.
KEPT_NATIVELY: Final = {"metadata", "prediction"}
FIELDS: Final[dict[str, Any]] = {
    "cache_control": {"type": "ephemeral"},
    "dataSources": [{"type": "AzureCognitiveSearch"}],
    "data_sources": [{"type": "azure_search"}],
    "enable_search": True,
    "frequency_penalty": 0.5,
    "image_config": {"aspect_ratio": "16:9", "image_size": "2K"},
    "logit_bias": {"50256": -100},
    "logprobs": True,
    "max_completion_tokens": 2000,
    "max_tokens": 2000,
    "metadata": {"job": "7"},
    "min_p": 0.5,
    "modalities": ["text", "image"],
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "high"},
    "reasoning_effort": "high",
    "repetition_penalty": 1.5,
    "response_format": {"type": "json_object"},
    "search_parameters": {"mode": "on"},
    "seed": 0,
    "service_tier": "flex",
    "stop": ["x"],
    "store": True,
    "structured_outputs": True,
    "temperature": 0,
    "tool_choice": "required",
    "tools": [LOOK],
    "top_a": 0.5,
    "top_k": 5,
    "top_logprobs": 3,
    "top_p": 0.5,
    "verbosity": "low",
    "web_search_options": {},
}
# What a field needs beside it.
BESIDE: Final[dict[str, dict[str, Any]]] = {
    "parallel_tool_calls": {"tools": [LOOK]},
    "tool_choice": {"tools": [LOOK]},
    "top_logprobs": {"logprobs": True},
}


UPDATED: Final = [
    {"role": "user", "content": "Hi"},
    {"role": "system", "content": "x", "configuration_update": {"reasoning": {"effort": "low"}}},
]


class Sent(NamedTuple):
    body: Any
    left_out: list[str]


def send(dialect: str, capabilities: Capabilities, fields: dict[str, Any], **members: Any) -> Sent:
    """Returns what an endpoint gets of a request, and the names of what it does not get."""
    asked = {"model": "a/b", **fields}
    if capabilities.has_responses:
        request, _ = parse_response(json.dumps({"input": "Hi", **asked}).encode())
    else:
        chat = {"messages": [{"role": "user", "content": "Hi"}], **asked}
        request = parsing.parse(Operation.CHAT, json.dumps(chat).encode())
    return deliver(request, dialect, capabilities, **members)


def deliver(
    request: InferenceRequest, dialect: str, capabilities: Capabilities, **members: Any
) -> Sent:
    """Returns what an endpoint gets of a parsed request, and the names of what it does not get."""
    members = {"private": True, "dialect": dialect, "capabilities": capabilities, **members}
    candidate = select(request, route("own", **members)).candidates[0]
    call = build_call(candidate, request, None, None)
    call = replace(call, secret=secret_of(dialect, capabilities), base_url="https://host/v1")
    native = None if call.native is None else dialects.get_native(dialect, capabilities)
    built = (native or dialect_of(dialect, capabilities)).build(call)
    lost = call.left_out | built.left_out
    body = json.loads(b"".join((built.body, *built.rest)))
    return Sent(body, candidate.name_left_out(request, lost))


def find_outcome(dialect: str, capabilities: Capabilities, name: str, **members: Any) -> str:
    beside = BESIDE.get(name, {})
    before = send(dialect, capabilities, beside, **members)
    try:
        after = send(dialect, capabilities, {**beside, name: FIELDS[name]}, **members)
    except (InvalidRequest, Untranslatable) as error:
        return "refused" if name in str(error) else "refused without its name"
    is_named = set(after.left_out) - set(before.left_out) == {name}
    if after.body == before.body:
        return "named" if is_named else "ignored"
    return "sent" if after.left_out == before.left_out else "sent and named"


def test_the_table_has_every_field_of_the_interface() -> None:
    document = json.loads((settings.BASE_DIR / "tests/contract/openapi.json").read_text())
    shape = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert FIELDS.keys() == (shape.keys() | PARAMETERS | PROVIDER_FIELDS) - KEPT


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("listed", [None, frozenset[str]()])
@pytest.mark.parametrize(("dialect", "capabilities"), FORMATS)
def test_a_field_is_sent_or_named_or_refused(
    dialect: str, capabilities: Capabilities, listed: frozenset[str] | None, private: bool
) -> None:
    lists = dict.fromkeys(("supported_parameters", "listed_parameters"), listed)
    found = {
        name: find_outcome(dialect, capabilities, name, private=private, **lists) for name in FIELDS
    }
    kept = KEPT_NATIVELY if capabilities.has_responses else ()
    assert {
        name: outcome
        for name, outcome in found.items()
        if outcome not in ("sent", "named", "refused")
    } == dict.fromkeys(kept, "ignored")


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "store": False},
        {"modalities": ["text"], "parallel_tool_calls": True, "service_tier": "auto"},
        {"seed": None, "verbosity": "", "top_p": 1, "temperature": 1, "user": "u"},
        {"stream_options": {"include_usage": True}, "include_reasoning": False},
    ],
)
@pytest.mark.parametrize(("dialect", "capabilities"), FORMATS)
def test_what_would_be_so_anyway_is_not_named(
    dialect: str, capabilities: Capabilities, fields: dict[str, Any]
) -> None:
    assert send(dialect, capabilities, fields).left_out == []


@pytest.mark.parametrize(
    ("capabilities", "fields", "names"),
    [
        # The least budget does not fit into the bound.
        (BUDGET, {"reasoning_effort": "high", "max_tokens": 1024}, ["reasoning_effort"]),
        (BUDGET, {"reasoning": {"max_tokens": 3000}, "max_tokens": 3000}, ["reasoning"]),
        (BUDGET, {"reasoning": {"max_tokens": 3000}, "max_tokens": 3001}, []),
        (BUDGET, {"reasoning": {"effort": "low"}, "tools": [LOOK], "tool_choice": "required"},
         ["reasoning"]),
        (CLAUDE, {"reasoning": {"effort": "low"}, "tools": [LOOK], "tool_choice": "required"},
         ["reasoning"]),
        (BUDGET, {"reasoning": {"effort": "low"}, "tools": [LOOK], "messages": turns(call_of("a"))},
         ["reasoning"]),
        (CLAUDE, {"reasoning": {"max_tokens": 3000}}, ["reasoning.max_tokens"]),
        (BUDGET, {"max_tokens": 1024, "messages": UPDATED}, ["configuration_update"]),
        (CLAUDE, {"reasoning": {"enabled": False}}, []),
        (CLAUDE, {"reasoning_effort": "low", "temperature": 0, "top_k": 5, "top_p": 0.5},
         ["temperature", "top_k", "top_p"]),
        (CLAUDE, {"temperature": 0, "top_p": 0.5}, ["top_p"]),
        (CLAUDE, {"provider": {"options": {"own": {"speed": "fast", "top_k": 5}}}},
         ["provider.options.speed"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["anthropic", "azure", "bedrock", "vertex"])
def test_what_claude_does_not_get_is_named(
    dialect: str, capabilities: Capabilities, fields: dict[str, Any], names: list[str]
) -> None:
    assert send(dialect, capabilities, fields).left_out == names


@pytest.mark.parametrize(
    ("dialect", "listed", "names"),
    [
        ("gemini", None, ["cache_control"]),
        ("bedrock", None, []),
        ("anthropic", None, []),
        ("openai", None, []),
        ("openai", frozenset(("tools",)), ["cache_control"]),
        ("openai", frozenset(("tools", "cache_control")), []),
    ],
)
@pytest.mark.parametrize("is_tool", [True, False])
def test_marks_of_cached_prefixes_are_named(
    dialect: str, listed: frozenset[str] | None, names: list[str], is_tool: bool
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "Hi", **mark}
    marked = {"messages": [{"role": "user", "content": [part]}]}
    fields = {"tools": [LOOK | mark]} if is_tool else marked
    lists = dict.fromkeys(("supported_parameters", "listed_parameters"), listed)
    assert send(dialect, UNDESCRIBED, fields, **lists).left_out == names


@pytest.mark.parametrize(
    ("dialect", "names"), [("gemini", ["prompt_cache_breakpoint"]), ("bedrock", [])]
)
def test_marks_in_the_words_of_openai_are_named(dialect: str, names: list[str]) -> None:
    part = {"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    fields = {"messages": [{"role": "user", "content": [part]}]}
    assert send(dialect, UNDESCRIBED, fields).left_out == names


@pytest.mark.parametrize(
    ("listed", "efforts", "names"),
    [
        (None, [], []),
        (frozenset(("tools",)), [], ["configuration_update"]),
        (frozenset(("reasoning", "reasoning_effort")), ["low"], []),
    ],
)
@pytest.mark.parametrize("dialect", ["openai", "azure", "vertex"])
def test_an_update_of_the_effort_is_sent_or_named(
    dialect: str, listed: frozenset[str] | None, efforts: list[str], names: list[str]
) -> None:
    lists = dict.fromkeys(("supported_parameters", "listed_parameters"), listed)
    sent = send(dialect, UNDESCRIBED, {"messages": UPDATED}, **lists)
    assert [value for name, value in sent.body.items() if "effort" in name] == efforts
    plain = [{"role": each["role"], "content": each["content"]} for each in UPDATED]
    assert sent.body["messages"] == (UPDATED if listed is None else plain)
    assert sent.left_out == names


SHOWN: Final = "data:image/png;base64,iVBORw0KGgo="
WATCHED: Final = {
    "type": "video_url",
    "video_url": {"url": "https://a.example/b.mp4", "processing": "static"},
}
SPOKEN: Final = {"id": "audio_1", "transcript": "Hello there"}


def ask(*parts: dict[str, Any], **answer: Any) -> dict[str, Any]:
    """Returns a chat that asks these parts, after an answer with these members."""
    answers = [{"role": "assistant", **answer}] if answer else []
    said = [{"type": "text", "text": "Hi"}, *parts]
    asks = {"role": "user", "content": "Hi"}, *answers, {"role": "user", "content": said}
    return {"messages": [*asks]}


def show(**members: Any) -> dict[str, Any]:
    return ask({"type": "image_url", "image_url": {"url": SHOWN, **members}})


def call_strictly(strict: bool) -> dict[str, Any]:
    return {"tools": [{**LOOK, "function": {**LOOK["function"], "strict": strict}}]}


@pytest.mark.parametrize(
    ("formats", "fields", "names"),
    [
        ("anthropic bedrock gemini", show(detail="high"), ["image_url.detail"]),
        ("anthropic bedrock gemini", show(detail="auto"), []),
        ("gemini", ask(WATCHED), ["video_url.processing"]),
        ("gemini", call_strictly(True), ["tools.function.strict"]),
        ("anthropic bedrock", call_strictly(True), []),
        ("anthropic bedrock gemini", call_strictly(False), []),
        ("anthropic bedrock gemini", ask(content=None, audio=SPOKEN), []),
        ("anthropic bedrock gemini", ask(content="Hello", audio=SPOKEN), ["messages.audio"]),
        ("anthropic bedrock gemini", ask(content=None, audio={"id": "a"}), ["messages.audio"]),
    ],
)  # fmt: skip
def test_members_of_messages_and_tools_are_named(
    formats: str, fields: dict[str, Any], names: list[str]
) -> None:
    for dialect in formats.split():
        assert send(dialect, UNDESCRIBED, fields).left_out == names
    assert send("openai", UNDESCRIBED, fields).left_out == []


CLOSED: Final = {
    "type": "object", "properties": {}, "required": [], "additionalProperties": False
}  # fmt: skip
OF_CLAUDE: Final = {"name": "look", "input_schema": CLOSED}
OF_OPENAI: Final = {"type": "function", "name": "look", "parameters": CLOSED}
ANSWERED: Final = {"type": "json_schema", "schema": CLOSED}
PART: Final = {"type": "input_text", "text": "Hi"}


def show_in(**members: Any) -> dict[str, Any]:
    """Returns a request of Responses with a part that has these members."""
    return {"input": [{"role": "user", "content": [{**PART, **members}]}]}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"stop_sequences": ["x"]}, ["stop_sequences"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, ["thinking"]),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, ["thinking"]),
        ({"output_config": {"effort": "low"}}, ["output_config.effort"]),
        ({"output_config": {"format": ANSWERED}}, ["output_config.format"]),
        ({"tools": [OF_CLAUDE], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
         ["tool_choice", "tool_choice.disable_parallel_tool_use", "tools"]),
        ({"temperature": 0.5, "top_k": 5}, ["temperature", "top_k"]),
    ],
)  # fmt: skip
def test_what_messages_say_is_named_in_their_words(
    fields: dict[str, Any], names: list[str]
) -> None:
    said = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4000}
    request = parse_message(json.dumps({"model": "a/b", **said, **fields}).encode())
    listed = {"supported_parameters": frozenset(("max_tokens",))}
    assert deliver(request, "openai", UNDESCRIBED, **listed).left_out == names


@pytest.mark.parametrize(
    ("dialect", "capabilities", "fields", "names"),
    [
        ("gemini", UNDESCRIBED, {"tools": [{**OF_CLAUDE, "strict": True}]}, ["tools.strict"]),
        # An option of the provider makes it a request of chat.
        ("anthropic", CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 2048},
                               "provider": {"options": {"own": {"stop": ["x"]}}}},
         ["thinking.budget_tokens"]),
    ],
)  # fmt: skip
def test_what_a_format_lacks_of_messages_is_named_in_their_words(
    dialect: str, capabilities: Capabilities, fields: dict[str, Any], names: list[str]
) -> None:
    said = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4000}
    request = parse_message(json.dumps({"model": "a/b", **said, **fields}).encode())
    assert deliver(request, dialect, capabilities).left_out == names


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"text": {"verbosity": "low"}}, ["text.verbosity"]),
        ({"text": {"format": {**ANSWERED, "name": "a"}}}, []),
        ({"top_logprobs": 3}, ["top_logprobs"]),
        ({"include": ["message.output_text.logprobs"]}, ["include"]),
        ({"tools": [{**OF_OPENAI, "strict": True}]}, ["tools.strict"]),
        (show_in(type="input_image", image_url=SHOWN, detail="high"), ["input_image.detail"]),
        (show_in(**{**WATCHED, "type": "input_video"}), ["input_video.processing"]),
        (show_in(prompt_cache_breakpoint={"mode": "explicit"}), ["prompt_cache_breakpoint"]),
        (show_in(cache_control={"type": "ephemeral"}), ["cache_control"]),
    ],
)
def test_what_a_format_lacks_of_responses_is_named_in_their_words(
    fields: dict[str, Any], names: list[str]
) -> None:
    body = {"model": "a/b", "input": "Hi", **fields}
    request, _ = parse_response(json.dumps(body).encode())
    assert deliver(request, "gemini", UNDESCRIBED).left_out == names
