"""docs/parameters.md says for each field and route what happens to it; here each row is sent."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
import pytest
from django.conf import settings
from msgspec.structs import replace

from catalog import dialects
from catalog.capabilities import Capabilities, NativeFormat
from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from inference.exchange.attempts import build_call
from inference.faces.routes import ROUTES
from inference.requests import parsing
from inference.requests.messages.native import parse_message
from inference.requests.operations import ROWS as OPERATIONS
from inference.requests.operations.gateway_fields import GATEWAY_FIELDS, MAX_TRACE_BYTES
from inference.requests.parsing import InferenceRequest
from inference.requests.responses.request import parse_response
from tests.support.inference.dialects import secret_of
from tests.support.inference.routes import route as route_of
from tests.support.inference.routes import select

PAGE: Final = settings.BASE_DIR / "docs/parameters.md"
ROWS: Final = [
    # One outcome is that of all routes.
    (name, json.loads(example), outcomes.split(" | ") if "|" in outcomes else [outcomes] * 4)
    for name, examples, outcomes in re.findall(
        r"^\| `(\w+)` \| (`.+`) \| ((?:kept|sent|rate|400)(?: \| \w+){0,3}) \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    for example in re.findall(r"`(.+?)`", examples)
]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "embeddings": {"input": "Hi"},
    "rerank": {"query": "Hi", "documents": ["Hi"]},
    "audio/speech": {"input": "Hi"},
    "images": {"prompt": "Hi"},
}
FACES: Final = {
    "chat": ["chat/completions", "completions"],
    "messages": ["messages"],
    "responses": ["responses"],
    "others": ["embeddings", "rerank", "audio/speech", "images"],
}
NOTHINGS: Final[list[Any]] = [
    None, False, "", [], {}, *map(msgspec.Raw, (b"[ ]", b"[\n]", b"{ }", b"{\t\r\n}")),
]  # fmt: skip


def read(route: str, /, **fields: Any) -> InferenceRequest:
    body = msgspec.json.encode({"model": "a/b", **BODIES[route], **fields})
    if route == "messages":
        return parse_message(body)
    if route == "responses":
        return parse_response(body)[0]
    return parsing.parse(ROUTES[f"/api/v1/{route}"].operation, body)


def outcome(route: str, name: str, value: Any) -> str:
    """Returns what happens to a field, in the words of the page."""
    try:
        request = read(route, **{name: value})
    except InvalidRequest as error:
        [field] = error.metadata["fields"]
        assert re.split(r"[.\[]", field)[0] == name, field
        return "400"
    native = request.native
    if native is not None and native.problem is not None:
        assert list(native.problem.metadata["fields"]) == [name]
        return "native"
    tools = request.server_tools
    if tools.demanded:
        assert name in tools.demanded or (tools.asked_by or "").startswith(name)
        return "rate"
    return "sent" if name in request.fields or name in read_native_body(request) else "kept"


def read_native_body(request: InferenceRequest) -> dict[str, Any]:
    """Returns what a provider gets that speaks the caller's own format; nothing without one."""
    if request.native is None:
        return {}
    capabilities = Capabilities(native_format=request.native.format)
    dialect = "anthropic" if request.native.format is NativeFormat.ANTHROPIC else "openai"
    served = route_of("own", private=True, dialect=dialect, capabilities=capabilities)
    call = build_call(select(request, served).candidates[0], request, None, None)
    native = dialects.get_native(dialect, capabilities)
    assert native is not None
    built = native.build(replace(call, secret=secret_of(dialect, capabilities)))
    body: dict[str, Any] = json.loads(b"".join((built.body, *built.rest)))
    return body


def test_the_page_has_every_field_of_the_gateway() -> None:
    assert len(ROWS) > 40
    assert GATEWAY_FIELDS - {name for name, _, _ in ROWS} == {"preset"}


@pytest.mark.parametrize(
    ("name", "value", "outcomes"), ROWS, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(ROWS)]
)
def test_a_field_does_what_the_page_says(name: str, value: Any, outcomes: list[str]) -> None:
    for routes, expected in zip(FACES.values(), outcomes, strict=True):
        for route in routes:
            assert (route, outcome(route, name, value)) == (route, expected)


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [
        *((value, True) for value in (["a/b", "c/d"], ["c/d"], "a/b", [7], {"x": 1})),
        *((value, False) for value in (["a/b"], *NOTHINGS)),
    ],
)
def test_several_models_are_refused_where_one_is_asked(value: Any, *, is_refused: bool) -> None:
    for route in ("embeddings", "rerank", "audio/speech"):
        assert outcome(route, "models", value) == ("400" if is_refused else "kept")


@pytest.mark.parametrize("route", ["chat/completions", "completions", "responses", "images"])
def test_several_models_are_asked_in_order(route: str) -> None:
    assert read(route, models=["c/d", "e/f"]).models == ("a/b", "c/d", "e/f")


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    "name",
    [
        "debug", "deferred_tools", "plugins", "preset", "route", "stop_server_tools_when", "trace",
        "transforms",
    ],
)  # fmt: skip
def test_a_value_that_sets_nothing_is_never_refused(route: str, name: str) -> None:
    for value in NOTHINGS:
        assert name not in read(route, **{name: value}).fields
    if name in ("debug", "deferred_tools"):
        assert name not in read(route, **{name: {"x": False, "y": {"z": None}}}).fields


@pytest.mark.parametrize("route", BODIES)
def test_an_optional_field_may_be_null(route: str) -> None:
    shape = OPERATIONS[ROUTES[f"/api/v1/{route}"].operation].shape
    known = {field.name for field in msgspec.structs.fields(shape) if not field.required}
    for name in sorted((known | GATEWAY_FIELDS) - {"model", *BODIES[route]}):
        assert (name, outcome(route, name, None)) != (name, "400")


@pytest.mark.parametrize("value", NOTHINGS)
def test_a_field_marked_400_may_be_empty(value: Any) -> None:
    for name, _, outcomes in ROWS:
        for routes, expected in zip(FACES.values(), outcomes, strict=True):
            # Without a model there is no request.
            for route in routes if expected == "400" and name != "model" else ():
                assert (route, name, outcome(route, name, value)) != (route, name, "400")


@pytest.mark.parametrize("name", ["response_format", "tool_choice"])
@pytest.mark.parametrize("value", NOTHINGS)
def test_an_empty_choice_of_a_chat_is_not_sent(name: str, value: Any) -> None:
    for route in FACES["chat"]:
        request = read(route, **{name: value})
        assert name not in request.fields
        assert request.text.size == 2


@pytest.mark.parametrize("value", NOTHINGS)
def test_an_empty_format_of_speech_is_that_of_the_interface(value: Any) -> None:
    fields = read("audio/speech", response_format=value).fields
    assert fields["response_format"] == msgspec.Raw(b'"pcm"')


@pytest.mark.parametrize("number", [b"1e999", b"-1E+309", b"1" * 400 + b".5", b"-" + b"9" * 5_000])
@pytest.mark.parametrize("size", [1, 40_000])
@pytest.mark.parametrize("route", BODIES)
def test_a_number_out_of_range_is_refused_by_name(route: str, size: int, number: bytes) -> None:
    """Most members stay raw: nobody shall find later that he cannot read one."""
    for name, value in (("response_format", b'{"type": %b}'), ("store", b"%b"), ("x", b"[{}, %b]")):
        with pytest.raises(InvalidRequest) as raised:
            read(route, **{"pad": "x" * size, name: msgspec.Raw(value % number), "z": "1e999"})
        text = "Has a number that is out of range."
        assert raised.value.metadata == {"fields": {name: text}}


@pytest.mark.parametrize("number", [b"1e308", b"1e-999", b"0e999", b"9" * 400, b"0." + b"3" * 999])
def test_a_number_of_any_length_is_read_as_it_is(number: bytes) -> None:
    raw = msgspec.Raw(b'{"type": "json_schema", "x": %b}' % number)
    for size in (1, 40_000):
        fields = read("chat/completions", user="ann", pad="x" * size, response_format=raw).fields
        assert fields["response_format"] == raw


def test_a_text_is_the_same_however_it_is_written() -> None:
    read("chat/completions", route=msgspec.Raw(rb'"fall\u0062ack"'))
    request = read(
        "chat/completions", response_format=msgspec.Raw(rb'{"type": "json\u005fschema"}')
    )
    assert request.needed_parameters == {"response_format", "structured_outputs"}
    with pytest.raises(InvalidRequest, match="truncation"):
        read("responses", truncation=msgspec.Raw(rb'"\u0061uto"'))


@pytest.mark.parametrize("route", BODIES)
def test_a_trace_is_bounded(route: str) -> None:
    # Seven bytes are the name and the punctuation.
    fits = {"a": "x" * (MAX_TRACE_BYTES - 8)}
    assert read(route, trace=fits).trace == json.dumps(fits, separators=(",", ":"))
    with pytest.raises(InvalidRequest, match=r"trace: Has 8,193 bytes as JSON; send at most 8,192"):
        read(route, trace={"a": "x" * (MAX_TRACE_BYTES - 7)})


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('{"a": "\\u0000"}', '{"a":"\\u0000"}'),
        ('{"a": "é", "b": [1, {"c": null}]}', '{"a":"é","b":[1,{"c":null}]}'),
        ('{"a": "\\ud83d\\ude00"}', '{"a":"😀"}'),
        ('{"a": false, "b": null}', '{"a":false,"b":null}'),
    ],
)
def test_a_trace_is_stored_as_compact_json(text: str, stored: str) -> None:
    body = f'{{"model": "a/b", "prompt": "Hi", "trace": {text}}}'.encode()
    assert parsing.parse(Operation.TEXT, body).trace == stored


@pytest.mark.parametrize("trace", ['{"a": 1e999}', "[1]", '"t"', "7", "true"])
def test_a_trace_that_is_no_object_is_refused(trace: str) -> None:
    body = f'{{"model": "a/b", "input": "Hi", "trace": {trace}}}'.encode()
    with pytest.raises(InvalidRequest) as caught:
        parsing.parse(Operation.EMBEDDINGS, body)
    assert [name.rstrip("[]") for name in caught.value.metadata["fields"]] == ["trace"]


@pytest.mark.parametrize(
    ("fields", "user"),
    [
        ({"safety_identifier": "ada"}, "ada"),
        ({"safety_identifier": "ada", "user": "bob"}, "bob"),
        ({"safety_identifier": "", "user": ""}, None),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "responses", "embeddings"])
def test_a_safety_identifier_names_the_end_user(
    route: str, fields: dict[str, str], user: str | None
) -> None:
    request = read(route, **fields)
    assert (request.user, "safety_identifier" in request.fields) == (user, False)


@pytest.mark.parametrize("value", ["a" * 513, "a\n", 5])
def test_a_malformed_safety_identifier_is_refused(value: Any) -> None:
    assert outcome("chat/completions", "safety_identifier", value) == "400"


def test_top_logprobs_alone_asks_for_logprobs() -> None:
    fields = read("responses", top_logprobs=3).fields
    assert (bytes(fields["logprobs"]), bytes(fields["top_logprobs"])) == (b"true", b"3")
    fields = read("responses", include=["message.output_text.logprobs"]).fields
    assert (bytes(fields["logprobs"]), "top_logprobs" in fields) == (b"true", False)
    assert not {"logprobs", "top_logprobs"} & read("responses", top_logprobs=0).fields.keys()


def test_the_place_of_a_search_is_sent_in_the_words_of_openai() -> None:
    spot = {"type": "approximate", "city": "Oslo", "country": "NO", "region": None}
    request = read("chat/completions", plugins=[{"id": "web", "user_location": spot}])
    assert json.loads(bytes(request.fields["web_search_options"])) == {
        "user_location": {"type": "approximate", "approximate": {"city": "Oslo", "country": "NO"}}
    }
    assert (request.server_tools.most_searches, request.allowed.searches) == (10, 10)


def test_the_own_options_of_a_search_win_over_the_plugin() -> None:
    request = read(
        "chat/completions",
        model="a/b:online",
        web_search_options={"search_context_size": "low"},
    )
    assert bytes(request.fields["web_search_options"]) == b'{"search_context_size":"low"}'


def test_a_fast_tier_is_the_priority_tier() -> None:
    assert bytes(read("chat/completions", service_tier="fast").fields["service_tier"]) == (
        b'"priority"'
    )


def test_a_trace_with_half_a_character_is_refused() -> None:
    body = rb'{"model": "a/b", "input": "Hi", "trace": {"a": "\ud800"}}'
    with pytest.raises(InvalidRequest):
        parsing.parse(Operation.EMBEDDINGS, body)
