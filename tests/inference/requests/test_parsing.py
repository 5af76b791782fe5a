"""Inference requests: accepted fields, named refusals, and fields that are sent upstream."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.base import Operation
from catalog.tokens import Medium
from config.api.errors import InvalidRequest
from inference.requests import parsing
from inference.requests.operations.server_tools import leave_out

MESSAGES = [{"role": "user", "content": "Hi"}]
BASES: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": MESSAGES},
    Operation.TEXT: {"prompt": "Hi"},
    Operation.EMBEDDINGS: {"input": "Hi"},
    Operation.SPEECH: {"input": "Hi"},
    Operation.TRANSCRIPTION: {},
    Operation.RERANK: {"query": "Hi", "documents": ["Hi"]},
    Operation.IMAGES: {"prompt": "Hi"},
}


def write(operation: Operation, fields: dict[str, Any]) -> bytes:
    return json.dumps({"model": "a/b", **BASES[operation], **fields}).encode()


def parsed(operation: Operation = Operation.CHAT, /, **fields: Any) -> parsing.InferenceRequest:
    return parsing.parse(operation, write(operation, fields))


def refusal_of(operation: Operation, body: bytes, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        parsing.parse(operation, body, **options)
    return error.value


def refused(operation: Operation = Operation.CHAT, /, **fields: Any) -> tuple[str, str]:
    """Returns the field that the refusal names and its message."""
    error = refusal_of(operation, write(operation, fields))
    [(name, text)] = error.metadata["fields"].items()
    assert error.message == f"{name}: {text}"
    return name, error.message


_TOO_DEEP = "The body has more than 200 levels of nesting. Send less in one request."
COMMON: list[tuple[str, list[Any], list[Any]]] = [
    ("model", ["a", "a" * 255, "ü/b"], ["", "a" * 256, 5, True, ["a"], {}]),
    ("stream", [True, False, None], ["true", 1, 0, []]),
    (
        "user",
        ["a" * 512, "", None, " a", "a\nb", "a\x7fb", "\x01a"],
        ["a" * 513, 5, "a\0b", "a\n", " a\x7fb", "\ta", ["a"]],
    ),
    ("session_id", ["a" * 256, "", None], ["a" * 257, 5, "a\nb", "a\0b"]),
    ("max_tokens", [1, 2, 100_000_000, None], [0, -1, 100_000_001, 1.5, "5", True]),
    ("temperature", [0, 0.001, 2, 1.999, None], [-0.001, 2.001, "1", True, [1]]),
    ("top_p", [0, 1, 0.5, None], [-0.001, 1.001, "1"]),
    ("frequency_penalty", [-2, 2, 0, None], [-2.001, 2.001, "1"]),
    ("presence_penalty", [-2, 2, 0, None], [-2.001, 2.001, "1"]),
    ("seed", [0, -1, 2**63, None], [1.5, "5", True]),
    ("n", [1, 2, 128, None], [0, 129, 1.5, "1"]),
    ("provider", [{}, None], [[], "acme", 5]),
    ("models", [["a"], ["a"] * 32, [], None], [["a"] * 33, "a", {}]),
    (
        "plugins",
        [[], [{"id": "x", "enabled": False}] * 32, None, {}, False, ""],
        [[{"id": "x", "enabled": False}] * 33, {"id": "x"}, "x", True],
    ),
    ("trace", [{}, None, [], "", False, {"trace_id": "t"}], ["t", 5, True, ["t"]]),
]
CHAT: list[tuple[str, list[Any], list[Any]]] = [
    ("messages", [[{"role": "user", "content": []}]], [[], None, {}, "Hi"]),
    ("stop", ["x", ["x"] * 3, ["x"] * 4, [], None], [["x"] * 5, 5, [5], {}]),
    (
        "metadata",
        [
            {},
            None,
            *({str(each): "x" for each in range(count)} for count in (15, 16)),
            *({"k" * length: "x"} for length in (63, 64)),
            *({"ü" * 64: "ü" * length} for length in (0, 511, 512)),
        ],
        [{str(each): "x" for each in range(17)}, {"k" * 65: "x"}, [], "x", 5],
    ),
    ("max_completion_tokens", [1, 100_000_000, None], [0, 100_000_001, "5"]),
    ("top_k", [0, 1, None], [-1, 1.5, "1"]),
    ("min_p", [0, 1, None], [-0.001, 1.001]),
    ("repetition_penalty", [0, 2, None], [-0.001, 2.001]),
    ("logprobs", [True, False, None], [1, "true"]),
    ("top_logprobs", [0, 20, None], [-1, 21, 1.5]),
    (
        "tools",
        [
            [],
            [{"type": "function"}],
            *(
                [{"type": "function", "function": {"name": name, "strict": True}}]
                for name in ("f", "f" * 63, "f" * 64, "Look_up-2")
            ),
            None,
        ],
        [{}, "x", 5],
    ),
    ("parallel_tool_calls", [True, None], ["x", 1]),
    ("reasoning", [{}, {"effort": None, "enabled": True, "x": 1}, None], [[], "high", 5]),
    ("reasoning_effort", ["high", "unheard of", None], [5, {}, True]),
    ("response_format", [{"type": "text"}, None], [[1], "text"]),
]
TEXT: list[tuple[str, list[Any], list[Any]]] = [
    ("stop", ["x", ["x"] * 16, [], None], [["x"] * 17, 5, [5], {}]),
    ("prompt", ["", "Hi", ["a", "b"], [1, 2], [[1], [2]], []], [None, 5, {}, [None]]),
    ("suffix", ["", "x", None], [5, []]),
    ("echo", [True, False, None], [1, "true"]),
    ("best_of", [1, 128, None], [0, 129]),
    ("logprobs", [0, 20, None], [-1, 21, True]),
]
EMBEDDINGS: list[tuple[str, list[Any], list[Any]]] = [
    *[row for row in COMMON if row[0] in ("model", "user", "session_id", "provider")],
    (
        "input",
        ["", "Hi", ["a", "b"], [1, 2], [[1], [2]], [{"content": [{"type": "text", "text": "x"}]}]],
        [None, 5, {}, [], [None], [{}], [{"content": []}], [{"content": "x"}]],
    ),
    ("dimensions", [1, 1_000_000, None], [0, 1_000_001, 1.5, "5", True]),
    ("encoding_format", ["float", "base64", None], ["hex", "", 5]),
    ("input_type", ["x", "a" * 255, None], ["", "a" * 256, 5]),
    ("stream", [False, None], [True, "false", 0]),
]
CASES = [
    (operation, name, accepted, wrong)
    for operation, table in (
        (Operation.CHAT, COMMON + CHAT),
        (Operation.TEXT, COMMON + TEXT),
        (Operation.EMBEDDINGS, EMBEDDINGS),
    )
    for name, accepted, wrong in table
]


@pytest.mark.parametrize(("operation", "name", "accepted", "wrong"), CASES)
def test_a_field_beyond_its_bounds_is_refused_by_name(
    operation: Operation, name: str, accepted: list[Any], wrong: list[Any]
) -> None:
    for value in accepted:
        parsed(operation, **{name: value})
    for value in wrong:
        found, _ = refused(operation, **{name: value})
        assert found in (name, f"{name}[0]", f"{name}[0].content"), value


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, *MESSAGES, {"role": "critic"}]}, "messages[2].role"),
        *[
            ({"messages": [{"role": role, "content": "Hi"}]}, "messages[0].role")
            for role in ("", "User", "user ", "function", "model", "r" * 33, 5, None, ["user"])
        ],
        *[
            ({"messages": [*MESSAGES, {"role": role, "tool_call_id": "x", **content}]}, path)
            for role in ("user", "system", "developer", "tool")
            for content, path in (
                ({}, "messages[1].content"),
                ({"content": None}, "messages[1].content"),
                ({"content": 5}, "messages[1].content"),
                ({"content": {}}, "messages[1].content"),
            )
        ],
        *[
            ({"messages": [{"role": "tool", "content": "x", **call}]}, "messages[0].tool_call_id")
            for call in ({}, {"tool_call_id": None}, {"tool_call_id": 5})
        ],
        ({"messages": [{"role": "assistant", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"models": [""]}, "models[0]"),
        ({"models": ["a" * 256]}, "models[0]"),
        ({"models": [5]}, "models[0]"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools[0].function"),
        *[
            ({"tools": [{}, {"type": "function", "function": function}]}, "tools[1].function.name")
            for function in (
                {},
                *({"name": name} for name in ("", "f" * 129, "a b", "a.b", "é", "f\n", 5, None)),
            )
        ],
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"metadata": {"k": "x" * 513}}, "metadata[]"),
        ({"metadata": {"k": 5}}, "metadata[]"),
        ({"metadata": {"k": None}}, "metadata[]"),
        ({"plugins": ["web"]}, "plugins[0]"),
        ({"plugins": [{"id": 5}]}, "plugins[0].id"),
        ({"plugins": [{"id": "web", "enabled": "no"}]}, "plugins[0].enabled"),
        ({"provider": {"order": "acme"}}, "provider.order"),
        ({"provider": {"only": ["x"] * 33}}, "provider.only"),
        ({"provider": {"ignore": [""]}}, "provider.ignore[0]"),
        ({"provider": {"allow_fallbacks": "no"}}, "provider.allow_fallbacks"),
        ({"provider": {"zdr": 1}}, "provider.zdr"),
        ({"provider": {"data_collection": "maybe"}}, "provider.data_collection"),
        ({"provider": {"data_collection": 5}}, "provider.data_collection"),
    ],
)
def test_a_nested_field_is_named_by_its_path(fields: dict[str, Any], name: str) -> None:
    assert refused(**fields)[0] == name


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "unheard_of", "x": 1}], "name": "Ada", "x": 1},
        {"role": "system", "content": [{"type": "text", "text": "x"}]},
        {"role": "developer", "content": "x", "configuration_update": None},
        {"role": "tool", "content": [], "tool_call_id": ""},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": "x", "refusal": None, "images": []},
    ],
)
def test_a_message_of_each_role_is_kept_unchanged(message: dict[str, Any]) -> None:
    request = parsed(messages=[message])
    assert json.loads(bytes(request.fields["messages"])) == [message]


@pytest.mark.parametrize(
    ("operation", "body", "name"),
    [
        (Operation.CHAT, b'{"model":"a/b"}', "messages"),
        (Operation.TEXT, b'{"model":"a/b"}', "prompt"),
        (Operation.TEXT, b'{"model":"a/b","messages":[]}', "prompt"),
        (Operation.EMBEDDINGS, b'{"model":"a/b"}', "input"),
        (Operation.EMBEDDINGS, b'{"input":"x"}', "model"),
        (Operation.RERANK, b'{"model":"a","query":"x"}', "documents"),
        (Operation.RERANK, b'{"model":"a","documents":["x"]}', "query"),
    ],
)
def test_a_missing_field_is_named(operation: Operation, body: bytes, name: str) -> None:
    error = refusal_of(operation, body)
    assert error.message == f"{name}: This field is required."
    assert error.metadata == {"fields": {name: "This field is required."}}


@pytest.mark.parametrize(
    ("operation", "body", "names"),
    [
        (Operation.CHAT, b"{}", ["model", "messages"]),
        (Operation.CHAT, b'{"models":["a/b"]}', ["messages"]),
        (Operation.CHAT, b'{"preset":"p"}', ["messages"]),
        (Operation.TEXT, b"{}", ["model", "prompt"]),
        (Operation.EMBEDDINGS, b"{}", ["model", "input"]),
        (Operation.RERANK, b"{}", ["model", "query", "documents"]),
        (Operation.SPEECH, b"{}", ["model", "input"]),
        (Operation.IMAGES, b"{}", ["model", "prompt"]),
        (
            Operation.CHAT,
            b'{"messages":[{},{"role":"user"},{"role":"tool","content":"x"}],"plugins":[{}]}',
            [
                "model", "messages[0].role", "messages[1].content", "messages[2].tool_call_id",
                "plugins[0].id",
            ],
        ),
        (
            Operation.CHAT,
            b'{"messages":[{}],"tools":[{"function":{}},{},{"function":{"name":"f"}}]}',
            ["model", "messages[0].role", "tools[0].function.name"],
        ),
        (
            Operation.CHAT,
            b'{"model":"a/b","messages":[' + b"{}," * 25 + b"{}]}",
            [f"messages[{index}].role" for index in range(20)],
        ),
    ],
)  # fmt: skip
def test_all_missing_fields_are_named_at_once(
    operation: Operation, body: bytes, names: list[str]
) -> None:
    error = refusal_of(operation, body)
    assert sorted(error.metadata["fields"]) == sorted(names)
    assert error.message.startswith(", ".join(error.metadata["fields"]) + ": Th")


@pytest.mark.parametrize(
    ("operation", "fields", "message"),
    [
        (
            Operation.IMAGES,
            {"size": "huge"},
            (
                "size: Must be auto, 512, 768, 1K, 1.5K, 2K, 4K, or a width and a height such as "
                "1024x1024."
            ),
        ),
        (
            Operation.CHAT,
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name: Must have letters, digits, hyphens and underscores alone.",
        ),
        (
            Operation.CHAT,
            {"provider": {"max_price": {"prompt": "cheap"}}},
            'provider.max_price.prompt: Must be an amount such as 0.5 or "0.5".',
        ),
    ],
)
def test_a_wrong_form_is_told_in_words(
    operation: Operation, fields: dict[str, Any], message: str
) -> None:
    assert refused(operation, **fields)[1] == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not valid JSON."),
        (b"{", "The body is not valid JSON."),
        (
            (
                b'{"model":"a","prompt":"p","input":"a","query":"q","documents":["d"],'
                b'"messages":[{"role":"assistant"}]}x'
            ),
            "The body is not valid JSON.",
        ),
        (b'{"model":NaN}', "The body is not valid JSON."),
        (b"\xef\xbb\xbf{}", "The body is not valid JSON."),
        (b'{"model":"\\ud800"}', "The body is not valid JSON."),
        (b'{"model":"\xff"}', "The body is not valid UTF-8."),
        (b'{"x":"\xc3"}', "The body is not valid UTF-8."),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", _TOO_DEEP),
        (b"[" * 100_000, _TOO_DEEP),
        (b"[]", "The body must be a JSON object. (Expected object, got array)"),
        (b"null", "The body must be a JSON object. (Expected object, got null)"),
        (b'"text"', "The body must be a JSON object. (Expected object, got str)"),
        (b"5", "The body must be a JSON object. (Expected object, got int)"),
    ],
)
@pytest.mark.parametrize("operation", Operation)
def test_a_body_that_is_not_a_json_object_is_refused(
    operation: Operation, body: bytes, message: str
) -> None:
    assert refusal_of(operation, body).message == message


def encoded(text: bytes) -> str:
    return f"causeway:{base64.urlsafe_b64encode(text).decode()}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encoded("Hé".encode()), "Hé"),
        # Clients join the pieces of a stream.
        (encoded(b"I must ") + encoded(b"look."), "I must look."),
        (encoded(b"\xff"), ""),
        ("causeway:é", ""),
    ],
)
def test_a_thought_that_its_caller_hid_is_a_text_again(data: str, text: str) -> None:
    """Filters read the texts of a request, and none of its data."""
    detail = {"type": "reasoning.encrypted", "data": data, "format": "unknownunknown", "index": 0}
    signed = {"type": "reasoning.encrypted", "data": "c2ln", "id": "a"}
    messages = [
        {"role": "user", "content": "causeway:"},
        {"role": "assistant", "content": None, "reasoning_details": [detail, signed]},
    ]
    read = parsing.parse(Operation.CHAT, json.dumps({"messages": messages}).encode()).fields
    asked, answer = json.loads(bytes(read["messages"]))
    assert asked == messages[0]
    told = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
    assert answer == {**messages[1], "reasoning_details": [told, signed]}


def test_models_are_listed_in_order_without_duplicates() -> None:
    assert parsed(model="a", models=["b", "a", "c", "b"]).models == ("a", "b", "c")
    assert parsed(model=None, models=["b", "a"]).models == ("b", "a")


def test_fields_of_the_gateway_are_not_sent_upstream() -> None:
    request = parsed(
        models=["c/d"],
        provider={"zdr": True, "sort": "price"},
        route="fallback",
        session_id="s",
        trace={"trace_id": "t"},
        transforms=[],
        debug={},
        deferred_tools={},
        stop_server_tools_when=[],
        usage={"include": True},
        plugins=[],
        user="ada",
        seed=5,
    )
    assert set(request.fields) == {"messages", "seed"}
    assert request.user == "ada"
    assert request.preferences.zdr is True


@pytest.mark.parametrize(
    ("reasoning", "effort"),
    [
        ({"effort": "high"}, "high"),
        ({"effort": None}, "high"),
        ({"effort": "high"}, None),
        ({"max_tokens": 5}, "high"),
        (None, "high"),
    ],
)
def test_an_effort_may_be_given_twice(reasoning: Any, effort: str | None) -> None:
    request = parsed(reasoning=reasoning, reasoning_effort=effort)
    assert json.loads(bytes(request.fields["reasoning"])) == reasoning
    assert json.loads(bytes(request.fields["reasoning_effort"])) == effort


@pytest.mark.parametrize(
    ("effort", "other"), [("high", "low"), ("none", "high"), ("high", "none"), ("high", "High")]
)
def test_efforts_that_contradict_each_other_are_refused(effort: str, other: str) -> None:
    found, message = refused(reasoning={"effort": effort}, reasoning_effort=other)
    assert found == "reasoning_effort"
    assert message == "reasoning_effort: Contradicts reasoning.effort."


def test_unknown_fields_keep_their_bytes() -> None:
    body = (
        b'{ "model":"a/b","prompt":"x", "seed": 1.0e0e, "z": 1 }'.replace(b" 1.0e0e", b"7") + b"\n"
    )
    request = parsing.parse(Operation.TEXT, body.replace(b"1 }", b'{ "a" : 1.50 } }'))
    assert bytes(request.fields["z"]) == b'{ "a" : 1.50 }'
    assert bytes(request.fields["seed"]) == b"7"


@pytest.mark.parametrize(("stream", "expected"), [(True, True), (False, False), (None, False)])
def test_stream_is_off_by_default(stream: bool | None, expected: bool) -> None:
    assert parsed(stream=stream).stream is expected


def test_a_text_is_counted_with_constants_for_other_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    text = {"type": "text", "text": "Hi"}

    def measure(operation: Operation = Operation.CHAT, **fields: Any) -> tuple[int, int]:
        counts = parsed(operation, **fields).text
        return counts.size, counts.tokens

    assert measure(messages=[{"role": "user", "content": "Hi"}]) == (2, 4)
    assert measure(messages=[{"role": "user", "content": "ü"}] * 2) == (4, 8)
    assert measure(messages=[{"role": "user", "content": [text, image]}]) == (2, 4 + 1_024)
    assert measure(messages=[{"role": "assistant"}]) == (0, 4)
    called = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    said = {"role": "assistant", "content": "Hi", "tool_calls": called}
    assert measure(messages=[said]) == (2 + len(json.dumps(called)), 4)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert measure(tools=tools)[0] == measure()[0] + len(json.dumps(tools))
    assert measure(Operation.TEXT, prompt="Hi") == (2, 0)
    assert measure(Operation.TEXT, prompt=[1, 2, 3]) == (0, 3)
    assert measure(Operation.EMBEDDINGS, input=["ab", "c"]) == (3, 0)
    assert measure(Operation.EMBEDDINGS, input=[[1, 2], [3]]) == (0, 3)


def test_the_repr_of_a_request_omits_its_prompt() -> None:
    assert "Hi" not in repr(parsed())


PROVIDER: list[tuple[str, list[Any], list[Any]]] = [
    ("sort", ["price", "throughput", "latency", "exacto", None, {}], ["speed", 5, [], ""]),
    ("sort.by", ["price", "exacto", None], ["speed", 5]),
    ("sort.partition", ["model", "none", None], ["models", 5, ""]),
    ("max_price", [{}, None], [5, "5", []]),
    *[
        (
            f"max_price.{name}",
            [0, 0.5, 5, "0", "1.5", "999999999.000000000001", None],
            [-0.001, -1, "-1", "1.", ".5", "1e3", "9999999999", "1.0000000000001", "1\n", True],
        )
        for name in ("prompt", "completion", "request", "image", "audio")
    ],
    (
        "quantizations",
        [["fp8", "unknown"], ["int4"] * 32, [], None],
        ["fp8", ["fp9"], ["int4"] * 33, [5]],
    ),
    *[
        (name, [0, 0.001, 1_000_000, {}, {"p50": 1, "p99": None}, None], [-0.001, "5", True, []])
        for name in ("preferred_max_latency", "preferred_min_throughput")
    ],
    ("preferred_max_latency.p75", [0, 1_000_000, None], [-0.001, 1_000_000.1, "5"]),
    ("preferred_min_throughput.p90", [0, 1_000_000, None], [-0.001, 1_000_000.1, "5"]),
    ("preferred_max_latency", [1_000_000], [1_000_000.1]),
    ("options", [{}, {"acme": {}}, {"a" * 255: {}}, None], [[], "acme", {"": {}}]),
    ("options", [{str(each): {} for each in range(32)}], [{str(each): {} for each in range(33)}]),
    ("require_parameters", [True, False, None], [1, "true"]),
    ("allow_fallbacks", [True, False, None], [1, "true"]),
    ("zdr", [True, False, None], [1, "true"]),
    ("data_collection", ["allow", "deny", None], ["maybe", "", True]),
    ("enforce_distillable_text", [False, None], [True, 1]),
    ("order", [[], ["a"] * 32, None], [["a"] * 33, "a"]),
]


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    made: dict[str, Any] = value
    return made


@pytest.mark.parametrize(("path", "accepted", "wrong"), PROVIDER)
@pytest.mark.parametrize("operation", Operation)
def test_a_provider_preference_beyond_its_bounds_is_refused_by_name(
    operation: Operation, path: str, accepted: list[Any], wrong: list[Any]
) -> None:
    for value in accepted:
        parsed(operation, provider=nested(path, value))
    for value in wrong:
        found, _ = refused(operation, provider=nested(path, value))
        assert found in (f"provider.{path}", f"provider.{path}[0]"), value


@pytest.mark.parametrize(
    "name", ["model", "messages", "stream", "max_tokens", "n", "user", "provider", "tools"]
)
def test_options_of_a_provider_cannot_change_priced_fields(name: str) -> None:
    found, message = refused(provider={"options": {"other": {}, "acme": {"seed": 1, name: 5}}})
    assert found == f"provider.options.acme.{name}"
    assert message == f"provider.options.acme.{name}: Set it in the body itself."


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        (Operation.TRANSCRIPTION, ["file", "input_audio", "source_url", "response_format"]),
        (Operation.TRANSCRIPTION, ["url", "file_url", "audio_url", "file_id"]),
        (Operation.SPEECH, ["response_format", "stream_format", "input_references"]),
        (Operation.IMAGES, ["response_format"]),
    ],
)
def test_options_of_a_provider_cannot_change_what_the_answer_is(
    operation: Operation, names: list[str]
) -> None:
    for name in names:
        found, _ = refused(operation, provider={"options": {"acme": {"seed": 1, name: "x"}}})
        assert found == f"provider.options.acme.{name}"
    parsed(Operation.CHAT, provider={"options": {"acme": {"response_format": {"type": "text"}}}})


def test_a_request_may_omit_the_model() -> None:
    for operation in (Operation.CHAT, Operation.TEXT):
        assert parsed(operation, model=None).models == ()
        assert parsed(operation, model=None, models=[]).models == ()


def test_the_session_of_the_body_overrides_the_header() -> None:
    body = b'{"model":"a","prompt":"x"}'
    assert parsing.parse(Operation.TEXT, body).session_id is None
    assert parsing.parse(Operation.TEXT, body, session_id="h").session_id == "h"
    named = b'{"model":"a","prompt":"x","session_id":"b"}'
    assert parsing.parse(Operation.TEXT, named, session_id="h").session_id == "b"
    for wrong in ("a" * 257, "a\0"):
        error = refusal_of(Operation.TEXT, body, session_id=wrong)
        assert [*error.metadata["fields"]] == ["session_id"]


@pytest.mark.parametrize(
    ("operation", "fields", "max_tokens", "choices"),
    [
        (Operation.CHAT, {}, None, 1),
        (Operation.CHAT, {"max_tokens": 5}, 5, 1),
        (Operation.CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7, 1),
        (Operation.CHAT, {"max_tokens": 9, "max_completion_tokens": 7, "n": 3}, 9, 3),
        (Operation.TEXT, {"n": 2, "best_of": 5}, None, 5),
        (Operation.TEXT, {"n": 2, "prompt": ["a", "b", "c"], "max_tokens": 4}, 4, 6),
        (Operation.TEXT, {"prompt": [1, 2, 3]}, None, 1),
        (Operation.TEXT, {"prompt": [[1, 2], [3]]}, None, 2),
        (Operation.TEXT, {"prompt": []}, None, 1),
        (Operation.EMBEDDINGS, {}, 0, 1),
    ],
)
def test_max_tokens_and_choices_are_read_from_the_body(
    operation: Operation, fields: dict[str, Any], max_tokens: int | None, choices: int
) -> None:
    request = parsed(operation, **fields)
    assert (request.max_tokens, request.choices) == (max_tokens, choices)


def test_prompt_bound_counts_sent_bytes_and_media_apart() -> None:
    plain = b'[{"role":"user","content":"H\xc3\xbc"}]'
    chat = parsing.parse(Operation.CHAT, b'{"model":"a/b","user":"x","messages":' + plain + b"}")
    assert chat.prompt_bound == len(plain)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 100_000, "format": "mp3"}}
    text = {"type": "text", "text": "Hi"}
    base = parsed(messages=[{"role": "user", "content": [text]}])
    with_image = parsed(messages=[{"role": "user", "content": [text, image, image]}])
    marks = len(', {"type": "image_url", "image_url": }')
    assert with_image.images == 2
    assert with_image.prompt_bound == base.prompt_bound + 2 * marks
    assert with_image.media == (Medium("image"), Medium("image"))
    with_sound = parsed(messages=[{"role": "user", "content": [text, sound]}])
    assert with_sound.images == 0
    marks = len(', {"type": "input_audio", "input_audio": }')
    assert with_sound.prompt_bound == base.prompt_bound + marks
    assert with_sound.media == (Medium("audio", 150),)
    # An image part with a "text" member still counts as an image.
    hidden = parsed(messages=[{"role": "user", "content": [text, {**image, "text": ""}]}])
    assert hidden.media == (Medium("image"),)
    tools = parsed(tools=[{"type": "function"}])
    assert tools.prompt_bound == parsed().prompt_bound + len('[{"type": "function"}]') + 1_024
    assert parsed(Operation.EMBEDDINGS, input=[{"content": [image]}]).images == 1
    options = {"acme": {"documents": ["d" * 50]}, "globex": {"note": "n" * 20, "x": 1}}
    with_options = parsed(provider={"options": options})
    assert with_options.prompt_bound == parsed().prompt_bound + len('["') + 50 + len('"]')


@pytest.mark.parametrize("kind", ["file", "input_file"])
def test_the_name_of_a_file_counts_as_text(kind: str) -> None:
    def bound(*names: str) -> int:
        file = {"file_data": "data:application/pdf;base64," + "A" * 100_000}
        parts = [{"type": kind, kind: {**file, "filename": name}} for name in names]
        return parsed(messages=[{"role": "user", "content": parts}]).prompt_bound

    assert bound("n" * 9_000) == bound("n") + 8_999
    assert bound("n", "n") < 500


@pytest.mark.parametrize("file", ["a.pdf", None, {}, {"filename": 5}])
def test_a_file_without_a_name_is_measured(file: Any) -> None:
    content = [{"type": "file", "file": file}]
    assert parsed(messages=[{"role": "user", "content": content}]).inputs == {"file"}


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 100_000}"}}


@pytest.mark.parametrize("content", ["Here.", "Here\n."])
def test_pictures_of_earlier_answers_are_bounded_as_pictures(content: str) -> None:
    said = {"role": "assistant", "content": content}
    shown = parsed(messages=[{**said, "images": [PICTURE]}])
    marks = len(', "images": [{"type": "image_url", "image_url": }]')
    assert shown.prompt_bound == parsed(messages=[said]).prompt_bound + marks
    assert shown.media == (Medium("image"),)
    # A model that takes no pictures can go on with the conversation.
    assert (shown.images, shown.inputs, shown.forms) == (0, frozenset(), frozenset())
    for malformed in ([5], [{"type": "image_url"}], None):
        assert parsed(messages=[{**said, "images": malformed}]).media == ()


@given(st.text(max_size=200), st.text(max_size=50))
def test_prompt_bound_exceeds_the_bytes_of_any_text(text: str, arguments: str) -> None:
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [{"type": "text", "text": text}], "tool_calls": calls},
    ]
    body = msgspec.json.encode({"model": "a/b", "messages": messages})
    size = 2 * len(text.encode()) + len(arguments.encode())
    assert parsing.parse(Operation.CHAT, body).prompt_bound > size


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([], []),
        ([{"type": "function", "function": {"name": "web_search"}}], []),
        ([{"type": "openrouter:bash"}, {"type": "function"}], ["openrouter:bash"]),
        ([{"type": "web_search"}], ["openrouter:web_search", "web_search"]),
        (
            [{"type": "web_search_preview_2025_03_11"}],
            ["openrouter:web_search", "web_search_preview_2025_03_11"],
        ),
        ([{}, {"type": 5}, {"type": None}], []),
    ],
)
def test_server_tools_are_listed_by_name(tools: list[dict[str, Any]], names: list[str]) -> None:
    assert sorted(parsed(tools=tools).tools) == names


def test_an_escaped_tool_type_is_decoded() -> None:
    body = (
        b'{"model":"a","messages":[{"role":"assistant"}],"tools":[{"type":"openrouter\\u003abash"},'
        b'{"type":"\\u0066unction"}]}'
    )
    assert parsing.parse(Operation.CHAT, body).tools == {"openrouter:bash"}


@pytest.mark.parametrize(
    ("operation", "text", "name"),
    [
        (Operation.CHAT, '{"model":"a","messages":[],"messages":[]}', "messages"),
        (Operation.CHAT, '{"messages":[{"role":"user","role":"user","content":""}]}', "role"),
        (Operation.CHAT, '{"messages":[{"role":"user","content":[{"a":1,"\\u0061":2}]}]}', "a"),
        (Operation.CHAT, '{"provider":{"options":{"x":{"top_k":1,"top_k":2}}}}', "top_k"),
        (Operation.CHAT, '{"tools":[{"function":{"parameters":{"a":1,"a":1}}}]}', "a"),
        (Operation.TEXT, '{"prompt":"a","unknown":[{"b":[{"c":1,"c":2}]}]}', "c"),
        (Operation.EMBEDDINGS, '{"model":"a","input":"a","input":"b"}', "input"),
    ],
)
@pytest.mark.parametrize("padding", [0, 40_000])
def test_a_duplicate_key_at_any_depth_is_refused_by_name(
    operation: Operation, text: str, name: str, padding: int
) -> None:
    error = refusal_of(operation, (text + " " * padding).encode())
    refusal = "An object of the body names this key twice; name it once."
    assert error.message == f"{name}: {refusal}"
    assert error.metadata == {"fields": {name: refusal}}


@pytest.mark.parametrize("padding", [0, 40_000])
def test_a_body_of_any_length_is_nested_200_levels_at_most(padding: int) -> None:
    def nested(levels: int) -> bytes:
        lists = "[" * (levels - 1) + "1" + "]" * (levels - 1)
        body = f'{{"messages":[{{"role":"user","content":"Hi"}}],"x":{lists}}}'
        return (body + " " * padding).encode()

    parsing.parse(Operation.CHAT, nested(200))
    with pytest.raises(InvalidRequest, match="more than 200 levels of nesting"):
        parsing.parse(Operation.CHAT, nested(201))


@pytest.mark.parametrize(
    ("field", "item", "limit"),
    [("messages", MESSAGES[0], 10_000), ("tools", {"type": "function"}, 2_000)],
)
def test_lists_have_a_limit_that_the_refusal_names(field: str, item: Any, limit: int) -> None:
    parsed(**{field: [item] * limit})
    assert refused(**{field: [item] * (limit + 1)}) == (
        field,
        f"{field}: Expected array of length <= {limit}.",
    )


def test_a_message_has_at_most_10000_parts() -> None:
    def body(parts: int) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * parts}]}

    parsed(**body(10_000))
    assert refused(**body(10_001)) == (
        "messages[0].content",
        "messages[0].content: Expected array of length <= 10000.",
    )


def test_a_request_asks_for_at_most_2048_answers_in_all() -> None:
    assert parsed(Operation.TEXT, prompt=["a"] * 16, n=128).choices == 2048
    assert parsed(Operation.EMBEDDINGS, input=["a"] * 2048).choices == 2048
    assert parsed(Operation.EMBEDDINGS, input=[1] * 4000).choices == 1
    for operation, fields, name in (
        (Operation.TEXT, {"prompt": ["a"] * 17, "n": 128}, "prompt"),
        (Operation.EMBEDDINGS, {"input": ["a"] * 2049}, "input"),
    ):
        found, message = refused(operation, **fields)
        assert found == name
        assert message.endswith("answers at once; send at most 2,048.")


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (f"[{'[],' * 100_000}[]]", "100,000 objects and lists"),
        (f"[{'1,' * 500_000}1]", "500,000 values"),
        ("{" + ",".join(f'"{n}":1' for n in range(20_001)) + "}", "20,000 members in one"),
    ],
)
def test_a_large_body_beyond_a_limit_is_refused_with_the_limit(text: str, refusal: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"Hi"}}],"x":{text}}}'
    with pytest.raises(InvalidRequest, match=f"The body has more than {refusal}"):
        parsing.parse(Operation.CHAT, body.encode())


@pytest.mark.parametrize("kind", [{}, [], 5, None, {"type": "web_search"}])
def test_a_type_of_a_tool_that_is_not_text_names_no_tool(kind: Any) -> None:
    tools = [{"type": kind}, {"type": "code_interpreter"}]
    request = parsed(tools=tools, tool_choice={"type": kind})
    assert request.server_tools.others == {"code_interpreter"}
    assert request.server_tools.demanded == frozenset()
    fields = dict(request.fields)
    leave_out(fields, frozenset(("code_interpreter",)))
    assert json.loads(bytes(fields["tools"])) == [{"type": kind}]
