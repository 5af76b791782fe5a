"""Requests of the OpenAI dialect."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from catalog.capabilities import UNDESCRIBED
from catalog.dialects import openai
from catalog.dialects.base import Call, Operation, Untranslatable
from catalog.dialects.openai.fields import ATTACHED
from config.credentials import Secret

SECRET = Secret("credential-0123456789")


def call(body: bytes = b"{}", **changes: Any) -> Call:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    defaults: dict[str, Any] = {
        "operation": Operation.CHAT,
        "base_url": "https://llm.example.com/v1",
        "model": "deployed",
        "stream": False,
        "secret": SECRET,
        "fields": fields,
    }
    return Call(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("operation", "url"),
    [
        (Operation.CHAT, "https://llm.example.com/v1/chat/completions"),
        (Operation.TEXT, "https://llm.example.com/v1/completions"),
    ],
)
def test_build_posts_to_the_operations_path(operation: Operation, url: str) -> None:
    request = openai.build(call(operation=operation))
    assert (request.method, request.url) == ("POST", url)
    assert request.headers == {
        "Authorization": "Bearer credential-0123456789",
        "Content-Type": "application/json",
        "Accept": "application/json",
    }


def test_build_replaces_the_model_and_keeps_the_other_bytes() -> None:
    body = b'{"messages":[ {"role" :"user","content":"\\u00fc"}],"t":1.50,"n":1e2,"z":{"a":null}}'
    assert openai.build(call(body)).body == body[:-1] + b',"model":"deployed","stream":false}'


def test_build_does_not_change_the_fields_of_the_call() -> None:
    made = call(b'{"a":1}', stream=True)
    openai.build(made)
    assert set(made.fields) == {"a"}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, {"include_usage": True}),
        (b'{"include_usage":false}', {"include_usage": True}),
        (b'{"x":{"y":[1.0]}}', {"x": {"y": [1.0]}, "include_usage": True}),
        (b"null", {"include_usage": True}),
        (b"5", {"include_usage": True}),
        (b"[]", {"include_usage": True}),
    ],
)
def test_build_requests_usage_for_a_stream(options: bytes | None, sent: dict[str, Any]) -> None:
    body = b"{}" if options is None else b'{"stream_options":' + options + b"}"
    request = openai.build(call(body, stream=True))
    assert json.loads(request.body) == {"stream": True, "stream_options": sent, "model": "deployed"}
    assert request.headers["Accept"] == "text/event-stream"


@pytest.mark.parametrize(
    ("operation", "asked", "sent"),
    [
        (
            Operation.CHAT,
            {"stream_options": {"include_usage": True}, "seed": 7, "max_completion_tokens": 9},
            {"random_seed": 7, "max_tokens": 9, "stream": True},
        ),
        (Operation.CHAT, {"seed": 7, "random_seed": 8}, {"random_seed": 8, "stream": True}),
        (Operation.EMBEDDINGS, {"dimensions": 256}, {"output_dimension": 256}),
    ],
)
def test_mistral_gets_its_own_names_and_nothing_that_it_refuses(
    operation: Operation, asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = json.dumps({**asked, "user": "pseudonym"}).encode()
    is_chat = operation is Operation.CHAT
    made = call(body, operation=operation, base_url="https://api.mistral.ai/v1", stream=is_chat)
    assert json.loads(openai.build(made).body or b"") == {**sent, "model": "deployed"}


@pytest.mark.parametrize("listed", [None, frozenset(("reasoning",))])
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_mistral_gets_no_earlier_thoughts(listed: frozenset[str] | None, name: str) -> None:
    messages = [{"role": "assistant", "content": "Hi", name: "Hm."}]
    body = json.dumps({"messages": messages}).encode()
    made = call(body, base_url="https://api.mistral.ai/v1", supported_parameters=listed)
    assert b"Hm." not in bytes(openai.build(made).body or b"")


@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        ({"reasoning": {"effort": "xhigh"}}, "xhigh"),
        ({"reasoning": {"effort": "low", "max_tokens": 30_000}}, "low"),
        ({"reasoning": {"max_tokens": 1024}}, "low"),
        ({"reasoning": {"max_tokens": 8000, "exclude": True}}, "medium"),
        ({"reasoning": {"max_tokens": 31_999}}, "high"),
        ({"reasoning": {"enabled": False}}, "none"),
        ({"reasoning": {"enabled": False, "effort": "high"}}, "none"),
        ({"reasoning": {"effort": "none"}}, "none"),
        ({"reasoning": {"enabled": True}}, None),
        ({"reasoning": {"exclude": True, "effort": None}}, None),
        ({"reasoning": {}, "reasoning_effort": "high"}, "high"),
        ({"reasoning": {"enabled": False}, "reasoning_effort": "high"}, "none"),
        ({"reasoning": None}, None),
        ({"reasoning_effort": "minimal"}, "minimal"),
    ],
)
@pytest.mark.parametrize(
    ("listed", "is_sent"),
    [
        (("reasoning_effort",), True),
        (("reasoning_effort", "reasoning", "reasoning_details", "include_reasoning"), True),
        (("reasoning", "reasoning_details", "include_reasoning"), False),
        (("temperature",), False),
    ],
)
def test_build_sends_reasoning_effort_when_the_endpoint_lists_it(
    asked: dict[str, Any], effort: str | None, listed: tuple[str, ...], is_sent: bool
) -> None:
    body = json.dumps({**asked, "include_reasoning": False}).encode()
    made = openai.build(call(body, supported_parameters=frozenset(listed)))
    sent = {} if effort is None or not is_sent else {"reasoning_effort": effort}
    assert json.loads(made.body or b"") == {**sent, "model": "deployed", "stream": False}


def test_build_refuses_malformed_reasoning() -> None:
    known = frozenset(("reasoning_effort",))
    with pytest.raises(Untranslatable):
        openai.build(call(b'{"reasoning": {"max_tokens": "many"}}', supported_parameters=known))


CACHED = {"cache_control": {"type": "ephemeral"}}
THOUGHT = {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}


def extended(cached: dict[str, Any], thought: dict[str, Any]) -> dict[str, Any]:
    """Returns a request with the given extra members of the gateway's interface."""
    schema = {"type": "object", "properties": {"cache_control": {}, "reasoning": {}}}
    function = {"name": "look", "arguments": '{"cache_control":"reasoning"}'}
    return {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief.", **cached}]},
            {"role": "user", "content": "Say \"cache_control\" and 'reasoning'."},
            {
                "role": "assistant",
                "content": None,
                **thought,
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "a", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "1.50", **cached},
        ],
        "tools": [
            {"type": "function", "function": {"name": "look", "parameters": schema}, **cached}
        ],
        **cached,
        "model": "deployed",
        "stream": False,
    }


@pytest.mark.parametrize(
    ("listed", "sent"),
    [
        (("temperature",), extended({}, {})),
        (("reasoning", "tools"), extended({}, {})),
        (("cache_control",), extended(CACHED, {})),
        (("reasoning_details",), extended({}, THOUGHT)),
        (("cache_control", "reasoning_details"), extended(CACHED, THOUGHT)),
    ],
)
def test_build_drops_extensions_that_the_endpoint_does_not_list(
    listed: tuple[str, ...], sent: dict[str, Any]
) -> None:
    body = json.dumps(extended(CACHED, THOUGHT)).encode()
    made = call(body, supported_parameters=frozenset(listed))
    assert json.loads(openai.build(made).body or b"") == sent
    assert json.dumps(extended(CACHED, THOUGHT)).encode() == body


def test_build_gives_cached_prefixes_the_usual_lifetime_where_another_has_no_rate() -> None:
    long = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for listed in (None, frozenset(("cache_control", "reasoning_details"))):
        for marks, keeps_lifetimes, sent in (
            (long, False, CACHED),
            (long, True, long),
            (CACHED, False, CACHED),
            ({"cache_control": 1, "ttl": "1h"}, False, {"cache_control": 1, "ttl": "1h"}),
        ):
            body = json.dumps(extended(marks, THOUGHT)).encode()
            made = call(body, supported_parameters=listed)
            built = openai.build(replace(made, keeps_lifetimes=keeps_lifetimes))
            assert json.loads(built.body or b"") == extended(sent, THOUGHT)
        # A schema of the caller may name such a member too.
        schema = {"type": "object", "properties": {"cache_control": {"ttl": "1h"}}}
        tool = {"function": {"parameters": schema}}
        body = json.dumps({"tools": [tool], **long}).encode()
        made = replace(call(body, supported_parameters=listed), keeps_lifetimes=False)
        assert json.loads(openai.build(made).body or b"")["tools"] == [tool]


def test_build_keeps_all_fields_for_an_endpoint_that_lists_nothing() -> None:
    asked = {
        "include_reasoning": False,
        "reasoning": {"max_tokens": 1024, "exclude": True},
        "reasoning_effort": "high",
        **extended(CACHED, THOUGHT),
    }
    body = json.dumps(asked).encode()
    assert json.loads(openai.build(call(body)).body or b"") == asked
    # The bytes of the fields are unchanged too.
    body = b'{"messages":[ {"cache_control": {"ttl":1.50}, "reasoning":"\\u00fc"}]}'
    assert openai.build(call(body)).body == body[:-1] + b',"model":"deployed","stream":false}'


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":5,"tools":["cache_control"],"prompt":"reasoning"}',
        b'{"messages":[["cache_control"]],"tools":{"cache_control":1}}',
        b'{"messages":[{"cache":"cache_control","role":"user","content":1.50}]}',
    ],
)
def test_build_keeps_fields_of_an_unknown_shape(body: bytes) -> None:
    made = call(body, supported_parameters=frozenset(("temperature",)))
    assert openai.build(made).body == body[:-1] + b',"model":"deployed","stream":false}'


def result(call_id: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": list(parts)}


def calls(*names: str) -> dict[str, Any]:
    function = {"name": "find", "arguments": "{}"}
    found = [{"id": name, "type": "function", "function": function} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": found}


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://example.com/{name}.png"}}


@pytest.mark.parametrize("is_mistral", [False, True])
def test_build_leaves_a_text_part_its_own_members(is_mistral: bool) -> None:
    """OpenAI's Agents SDK in JavaScript copies a whole answer into the text part of the next."""
    said = {"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}}
    answer = {**calls("abcdefghi"), "content": [said]}
    spread = {
        **said,
        "role": "assistant",
        "tool_calls": answer["tool_calls"],
        "images": [image("a")],
    }
    messages = [{"role": "user", "content": [said, image("b")]}, {**answer, "content": [spread]},
                {"role": "tool", "tool_call_id": "abcdefghi", "content": "Found."}]  # fmt: skip
    body = json.dumps({"messages": messages}).encode()
    capabilities = replace(UNDESCRIBED, has_short_call_ids=is_mistral)
    made = json.loads(openai.build(call(body, capabilities=capabilities)).body or b"")
    assert made["messages"] == [messages[0], answer, messages[2]]


def test_build_moves_attachments_of_tool_results_into_a_user_message() -> None:
    said, more = {"type": "text", "text": "Found it."}, {"type": "text", "text": "And this."}
    document = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:,"}}
    asked = {"role": "user", "content": [image("0"), said]}
    messages = [
        asked,
        calls("a", "b", "c"),
        result("a", said, {**image("a"), **CACHED}),
        result("b", said, more),
        result("c", document),
        {"role": "user", "content": "And now?"},
        calls("d"),
        result("d", said, more, image("d")),
    ]
    body = json.dumps({"messages": messages}).encode()
    made = openai.build(call(body, supported_parameters=frozenset(("tools",))))
    assert json.loads(made.body or b"")["messages"] == [
        asked,
        messages[1],
        {"role": "tool", "tool_call_id": "a", "content": "Found it."},
        messages[3],
        {"role": "tool", "tool_call_id": "c", "content": ATTACHED},
        {"role": "user", "content": [image("a"), document]},
        *messages[5:7],
        {"role": "tool", "tool_call_id": "d", "content": [said, more]},
        {"role": "user", "content": [image("d")]},
    ]
    # Attachments also move for an endpoint that lists nothing; they keep ``cache_control`` there.
    moved = json.loads(openai.build(call(body)).body or b"")["messages"][5]
    assert moved == {"role": "user", "content": [{**image("a"), **CACHED}, document]}
