"""Inference requests: what is accepted, what is refused by name, and what travels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.dialects.base import Operation
from config.errors import InvalidRequest
from inference import schemas

MESSAGES = [{"role": "user", "content": "Hi"}]


def parsed(operation: Operation = Operation.CHAT, /, **fields: Any) -> schemas.InferenceRequest:
    base = {"messages": MESSAGES} if operation is Operation.CHAT else {"prompt": "Hi"}
    body = {"model": "a/b", **base, **fields}
    return schemas.parse(operation, json.dumps(body).encode())


def refused(operation: Operation = Operation.CHAT, /, **fields: Any) -> tuple[str, str]:
    """The field that the refusal names, and the whole message."""
    with pytest.raises(InvalidRequest) as error:
        parsed(operation, **fields)
    [(name, text)] = error.value.metadata["fields"].items()
    assert error.value.message == f"{name}: {text}"
    return name, error.value.message


COMMON: list[tuple[str, list[Any], list[Any]]] = [
    ("model", ["a", "a" * 255, "ü/b"], ["", "a" * 256, 5, True, ["a"], {}]),
    ("stream", [True, False, None], ["true", 1, 0, []]),
    ("user", ["a" * 512, "", None], ["a" * 513, 5, "a\nb", "a\0b", "a\x7fb", ["a"]]),
    ("session_id", ["a" * 256, None], ["a" * 257, 5]),
    ("max_tokens", [1, 2, 100_000_000, None], [0, -1, 100_000_001, 1.5, "5", True]),
    ("temperature", [0, 0.001, 2, 1.999, None], [-0.001, 2.001, "1", True, [1]]),
    ("top_p", [0, 1, 0.5, None], [-0.001, 1.001, "1"]),
    ("frequency_penalty", [-2, 2, 0, None], [-2.001, 2.001, "1"]),
    ("presence_penalty", [-2, 2, 0, None], [-2.001, 2.001, "1"]),
    ("seed", [0, -1, 2**63, None], [1.5, "5", True]),
    ("stop", ["x", ["x"] * 16, [], None], [["x"] * 17, 5, [5], {}]),
    ("n", [1, 2, 128, None], [0, 129, 1.5, "1"]),
    ("provider", [{}, None], [[], "acme", 5]),
    ("models", [["a"], ["a"] * 32, [], None], [["a"] * 33, "a", {}]),
]
CHAT: list[tuple[str, list[Any], list[Any]]] = [
    ("messages", [[{"role": "user"}], [{"role": "r" * 32, "content": []}]], [[], None, {}, "Hi"]),
    ("max_completion_tokens", [1, 100_000_000, None], [0, 100_000_001, "5"]),
    ("top_k", [0, 1, None], [-1, 1.5, "1"]),
    ("min_p", [0, 1, None], [-0.001, 1.001]),
    ("repetition_penalty", [0, 2, None], [-0.001, 2.001]),
    ("logprobs", [True, False, None], [1, "true"]),
    ("top_logprobs", [0, 20, None], [-1, 21, 1.5]),
    ("tools", [[], [{"type": "function"}], None], [{}, "x", 5]),
    ("parallel_tool_calls", [True, None], ["x", 1]),
    ("response_format", [{"type": "text"}, None], [[], "text"]),
]
TEXT: list[tuple[str, list[Any], list[Any]]] = [
    ("prompt", ["", "Hi", ["a", "b"], [1, 2], [[1], [2]], []], [None, 5, {}, [None]]),
    ("suffix", ["", "x", None], [5, []]),
    ("echo", [True, False, None], [1, "true"]),
    ("best_of", [1, 128, None], [0, 129]),
    ("logprobs", [0, 20, None], [-1, 21, True]),
]
CASES = [
    (operation, name, accepted, wrong)
    for operation, table in ((Operation.CHAT, COMMON + CHAT), (Operation.TEXT, COMMON + TEXT))
    for name, accepted, wrong in table
]


@pytest.mark.parametrize(("operation", "name", "accepted", "wrong"), CASES)
def test_a_field_is_held_to_its_bounds_and_named(
    operation: Operation, name: str, accepted: list[Any], wrong: list[Any]
) -> None:
    for value in accepted:
        parsed(operation, **{name: value})
    for value in wrong:
        found, _ = refused(operation, **{name: value})
        assert found in (name, f"{name}[0]"), value


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0]"),
        ({"messages": [{"role": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "r" * 33}]}, "messages[0].role"),
        ({"messages": [{"role": 5}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"models": [""]}, "models[0]"),
        ({"models": ["a" * 256]}, "models[0]"),
        ({"models": [5]}, "models[0]"),
        ({"tools": [5]}, "tools[0]"),
        ({"provider": {"order": "acme"}}, "provider.order"),
        ({"provider": {"only": ["x"] * 33}}, "provider.only"),
        ({"provider": {"ignore": [""]}}, "provider.ignore[0]"),
        ({"provider": {"allow_fallbacks": "no"}}, "provider.allow_fallbacks"),
        ({"provider": {"zdr": 1}}, "provider.zdr"),
        ({"provider": {"data_collection": "maybe"}}, "provider.data_collection"),
        ({"provider": {"data_collection": 5}}, "provider.data_collection"),
    ],
)
def test_a_field_inside_another_is_named_by_its_path(fields: dict[str, Any], name: str) -> None:
    assert refused(**fields)[0] == name


@pytest.mark.parametrize(
    ("operation", "body", "name"),
    [
        (Operation.CHAT, b'{"model":"a/b"}', "messages"),
        (Operation.CHAT, b'{"messages":[{"role":"user"}]}', "model"),
        (Operation.CHAT, b'{"messages":[{"role":"user"}],"models":[]}', "model"),
        (Operation.CHAT, b'{"messages":[{"role":"user"}],"model":null}', "model"),
        (Operation.TEXT, b'{"model":"a/b"}', "prompt"),
        (Operation.TEXT, b'{"model":"a/b","messages":[]}', "prompt"),
    ],
)
def test_a_missing_field_is_named(operation: Operation, body: bytes, name: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        schemas.parse(operation, body)
    assert error.value.message == f"{name}: This field is required."
    assert error.value.metadata == {"fields": {name: "This field is required."}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not valid JSON."),
        (b"{", "The body is not valid JSON."),
        (b'{"model":"a","prompt":"","messages":[{"role":"user"}]}x', "The body is not valid JSON."),
        (b'{"model":NaN}', "The body is not valid JSON."),
        (b"\xef\xbb\xbf{}", "The body is not valid JSON."),
        (b'{"model":"\\ud800"}', "The body is not valid JSON."),
        (b'{"model":"\xff"}', "The body is not valid UTF-8."),
        (b'{"x":"\xc3"}', "The body is not valid UTF-8."),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "The body is not valid JSON."),
        (b"[" * 100_000, "The body must be a JSON object. (Expected object, got array)"),
        (b"[]", "The body must be a JSON object. (Expected object, got array)"),
        (b"null", "The body must be a JSON object. (Expected object, got null)"),
        (b'"text"', "The body must be a JSON object. (Expected object, got str)"),
        (b"5", "The body must be a JSON object. (Expected object, got int)"),
    ],
)
@pytest.mark.parametrize("operation", Operation)
def test_what_is_no_json_object_is_refused(operation: Operation, body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        schemas.parse(operation, body)
    assert error.value.message == message


def test_the_models_are_tried_in_order_without_repetition() -> None:
    assert parsed(model="a", models=["b", "a", "c", "b"]).models == ("a", "b", "c")
    assert parsed(model=None, models=["b", "a"]).models == ("b", "a")


def test_fields_meant_for_the_gateway_do_not_travel() -> None:
    request = parsed(
        models=["c/d"],
        provider={"zdr": True, "sort": "price"},
        route="fallback",
        session_id="s",
        trace={},
        transforms=[],
        debug={},
        user="ada",
        seed=5,
    )
    assert set(request.fields) == {"messages", "seed"}
    assert request.user == "ada"
    assert request.preferences.zdr is True


def test_unknown_fields_travel_byte_for_byte() -> None:
    body = (
        b'{ "model":"a/b","prompt":"x", "seed": 1.0e0e, "z": 1 }'.replace(b" 1.0e0e", b"7") + b"\n"
    )
    request = schemas.parse(Operation.TEXT, body.replace(b"1 }", b'{ "a" : 1.50 } }'))
    assert bytes(request.fields["z"]) == b'{ "a" : 1.50 }'
    assert bytes(request.fields["seed"]) == b"7"


def test_of_two_members_with_one_name_the_last_counts_everywhere() -> None:
    body = b'{"model":"a","mod\\u0065l":"b","messages":[{"role":"x"}],"messages":[{"role":"user"}]}'
    request = schemas.parse(Operation.CHAT, body)
    assert request.models == ("b",)
    assert "model" not in request.fields
    assert bytes(request.fields["messages"]) == b'[{"role":"user"}]'


@pytest.mark.parametrize(("stream", "expected"), [(True, True), (False, False), (None, False)])
def test_stream_is_off_unless_it_is_on(stream: bool | None, expected: bool) -> None:
    assert parsed(stream=stream).stream is expected


def test_the_size_of_the_prompt_is_that_of_its_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    text = {"type": "text", "text": "Hi"}
    assert parsed(messages=[{"role": "user", "content": "Hi"}]).prompt_bytes == 16 + 2
    assert parsed(messages=[{"role": "user", "content": "ü"}] * 2).prompt_bytes == 2 * (16 + 2)
    assert (
        parsed(messages=[{"role": "user", "content": [text, image]}]).prompt_bytes == 16 + 4 + 4096
    )
    assert parsed(messages=[{"role": "assistant"}]).prompt_bytes == 16
    assert parsed(Operation.TEXT, prompt="Hi").prompt_bytes == 4


def test_a_request_never_shows_its_prompt() -> None:
    assert "Hi" not in repr(parsed())
