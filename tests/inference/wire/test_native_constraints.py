"""What reaches a target of the caller's own format, and what each face takes of such a history.

Each row has what another model, server or client has left in a conversation, and what is sound.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from catalog import dialects
from catalog.abilities import read_abilities
from catalog.capabilities import Capabilities, NativeFormat
from catalog.dialects.base import Call, Operation, Untranslatable
from config.credentials import Secret
from inference.requests.messages.native import parse_message
from inference.requests.responses.request import parse_response
from tests.support.inference import messages, responses
from tests.support.inference.dialects import native_body_of
from tests.support.inference.messages import result, use

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
PDF: Final = "JVBERi0xLjQ="
KIMI: Final = "functions.get_weather:0"
KIMI_AS_SENT: Final = "call_79ac1aaab216b228c7ab2241"
EMPTY: Final[dict[str, Any]] = {"type": "object", "properties": {}}
LONG: Final = "x" * 70

Row = dict[str, Any]


def claude_body(dialect: str = "anthropic", **fields: Any) -> Any:
    body = json.dumps(messages.asked(**fields)).encode()
    return native_body_of(dialect, NativeFormat.ANTHROPIC, parse_message(body))


def openai_body(dialect: str = "openai", **fields: Any) -> Any:
    body = json.dumps(responses.asked(**fields)).encode()
    return native_body_of(dialect, NativeFormat.RESPONSES, parse_response(body)[0])


def turns(*given: tuple[str, Any], **fields: Any) -> Row:
    return {"messages": [{"role": role, "content": content} for role, content in given], **fields}


TOOL: Final = {"name": "look", "input_schema": EMPTY}


def history(*calls: Row, results: list[Row] | None = None, tools: Any = (TOOL,)) -> Row:
    found = results or [result(call["id"]) for call in calls]
    told = turns(("user", "Hi"), ("assistant", [*calls]), ("user", found))
    return told if tools is None else {**told, "tools": [*tools]}


def asks(*blocks: Row) -> Row:
    return turns(("user", [*blocks, messages.text("?")]))


def media(kind: str, data: str, media_type: str | None = None, **members: Any) -> Row:
    named = {} if media_type is None else {"media_type": media_type}
    return {"type": kind, "source": {"type": "base64", **named, "data": data}, **members}


def with_tool(**members: Any) -> Row:
    return {"tools": [{"name": "look", **members}]}


BOTH_UNDER_ONE_ID: Final = [result("call_0", "a"), result("call_0", "b")]
NUMBER: Final = {"type": "integer", "minimum": 1}
TOLD: Final = {"type": "integer", "description": '{"minimum":1}'}
OPTIONS: Final = [{"properties": {"a": {"type": "string"}}}]
# What came into a conversation of Messages, and what Claude accepts.
CLAUDE_ROWS: Final[dict[str, tuple[Row, Row]]] = {
    "an id of Kimi's": (history(use(KIMI)), history(use(KIMI_AS_SENT))),
    "a long id": (history(use(LONG)), history(use("call_c71bd109227e23434ecf71fd"))),
    "no id": (history(use("")), history(use("call_e3b0c44298fc1c149afbf4c8"))),
    "one id for all calls": (
        history(use("call_0"), use("call_0", {"b": 1}), results=BOTH_UNDER_ONE_ID),
        history(
            use("call_0"), use("call_15ae3265bcbf1b06d46a4124", {"b": 1}),
            results=[result("call_0", "a"), result("call_15ae3265bcbf1b06d46a4124", "b")],
        ),
    ),
    "an invented name": (
        history(use("a", name="functions.look:0")), history(use("a", name="functions_look_0"))
    ),
    "no name": (history(use("a", name="")), history(use("a", name="_"))),
    "arguments that were cut off": (
        history(use("a", '{"city": "Os')), history(use("a", {"arguments": '{"city": "Os'}))
    ),
    "arguments as a text": (
        history(use("a", '{"city":"Oslo"}')), history(use("a", {"city": "Oslo"}))
    ),
    "a list as arguments": (history(use("a", [1])), history(use("a", {"arguments": "[1]"}))),
    "null as arguments": (history(use("a", None)), history(use("a"))),
    "no arguments": (
        history({"type": "tool_use", "id": "a", "name": "look"}), history(use("a"))
    ),
    "no tools": (
        history(use("a"), use("b", name="find"), tools=None),
        {
            **history(use("a"), use("b", name="find"), tools=[TOOL, {**TOOL, "name": "find"}]),
            "tool_choice": {"type": "none"},
        },
    ),
    "an empty list of tools": (
        {**history(use("a")), "tools": []}, {**history(use("a")), "tool_choice": {"type": "none"}}
    ),
    "a choice without tools": (
        {"tools": [], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, {}
    ),
    "blank stop sequences": (
        {"stop_sequences": ["\n\n", "END", " "]}, {"stop_sequences": ["END"]}
    ),
    "only blank stop sequences": ({"stop_sequences": ["\n", ""]}, {}),
    "an alias of a JPEG": (
        asks(media("image", "/9j/4AAQ", "image/jpg")),
        asks(media("image", "/9j/4AAQ", "image/jpeg")),
    ),
    "another case": (
        asks(media("image", PNG, "IMAGE/PNG")), asks(media("image", PNG, "image/png"))
    ),
    "a wrong type": (
        asks(media("image", PNG, "image/jpeg")), asks(media("image", PNG, "image/png"))
    ),
    "no type": (asks(media("image", PNG)), asks(media("image", PNG, "image/png"))),
    "a type with a parameter": (
        asks(media("image", PNG, "image/png; charset=utf-8")),
        asks(media("image", PNG, "image/png")),
    ),
    "a picture in a result": (
        history(use("a"), results=[result("a", [media("image", PNG, "image/x-png")])]),
        history(use("a"), results=[result("a", [media("image", PNG, "image/png")])]),
    ),
    "an alias of PDF": (
        asks(media("document", PDF, "application/x-pdf")),
        asks(media("document", PDF, "application/pdf")),
    ),
    "a document without a type": (
        asks(media("document", PDF)), asks(media("document", PDF, "application/pdf"))
    ),
    "an empty schema": (with_tool(input_schema={}), with_tool(input_schema=EMPTY)),
    "a schema that may be null": (
        with_tool(input_schema={"type": ["object", "null"]}), with_tool(input_schema=EMPTY)
    ),
    "alternatives at the top of a schema": (
        with_tool(input_schema={"type": "object", "anyOf": OPTIONS}),
        with_tool(
            input_schema={
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "description": json.dumps({"anyOf": OPTIONS}, separators=(",", ":")),
            }
        ),
    ),
    "keywords that a strict schema may not have": (
        with_tool(input_schema={"type": "object", "properties": {"a": NUMBER}}, strict=True),
        with_tool(
            input_schema={
                "type": "object", "properties": {"a": TOLD}, "additionalProperties": False
            },
            strict=True,
        ),
    ),
    "keywords that a schema of the answer may not have": (
        {"output_config": {"format": {"type": "json_schema", "schema": NUMBER}}},
        {"output_config": {"format": {"type": "json_schema", "schema": TOLD}}},
    ),
    "a blank text": (asks(messages.text("")), asks()),
    "a blank text beside a call": (
        history(messages.text("\n\n"), use("a"), results=[result("a")]), history(use("a"))
    ),
    "a blank answer": (
        turns(("user", "Hi"), ("assistant", ""), ("user", "?")),
        turns(("user", "Hi"), ("user", "?")),
    ),
    "an empty answer": (
        turns(("user", "Hi"), ("assistant", []), ("user", "?")),
        turns(("user", "Hi"), ("user", "?")),
    ),
    "a blank text in a result": (
        history(use("a"), results=[result("a", [messages.text(" "), messages.text("1")])]),
        history(use("a"), results=[result("a", [messages.text("1")])]),
    ),
    "blanks at the end of an answer to be continued": (
        turns(("user", "Hi"), ("assistant", "It is: \n")),
        turns(("user", "Hi"), ("assistant", "It is:")),
    ),
    "blanks at the end of its last text": (
        turns(("user", "Hi"), ("assistant", [messages.text("It is: ")])),
        turns(("user", "Hi"), ("assistant", [messages.text("It is:")])),
    ),
    "a blank system text": (
        {"system": [messages.text("\n"), messages.text("Be.")]}, {"system": [messages.text("Be.")]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", CLAUDE_ROWS)
@pytest.mark.parametrize("dialect", ["anthropic", "azure", "bedrock", "vertex"])
def test_claude_gets_what_it_accepts_of_a_message(dialect: str, row: str) -> None:
    given, sound = CLAUDE_ROWS[row]
    sent = claude_body(dialect, **given)
    assert sent == claude_body(dialect, **sound)
    # Nothing of what is sound changes.
    kept = {name: sent.get(name) for name in messages.asked(**sound) if name != "model"}
    assert kept == {name: value for name, value in messages.asked(**sound).items() if name in kept}


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize("dialect", ["bedrock", "vertex"])
def test_a_mark_of_the_whole_message_stands_at_its_last_block_in_a_cloud(
    dialect: str, is_text: bool
) -> None:
    mark = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
    text = messages.text("Hi")
    sent = claude_body(dialect, content="Hi" if is_text else [text, text], cache_control=mark)
    assert "cache_control" not in sent
    *before, last = sent["messages"][0]["content"]
    assert before == ([] if is_text else [text])
    assert last == text | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_what_claude_accepts_passes_in_the_callers_own_bytes() -> None:
    own = (
        b'[ {"role":"user","content":[{"type":"text","text":"\\u00fc"}]}, {"role":"assistant", '
        b'"content":[{"type":"tool_use","id":"toolu_1","name":"look","input":{"a":1.50}}]},'
        b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":""}]} ]'
    )
    tools = b'[ {"name":"look","input_schema":{"properties":{"a":{"anyOf":[]}},"type":"object"}}]'
    body = b'{"model":"acme/falcon","max_tokens":5,"messages":%b,"tools":%b}' % (own, tools)
    request = parse_message(body)
    found = dialects.get_native("anthropic", Capabilities())
    assert found is not None
    made = found.build(
        Call(
            operation=Operation.CHAT, base_url="https://host/v1", model="acme/falcon",
            secret=Secret("key"), fields=request.fields, native=request.native,
        )
    )  # fmt: skip
    assert made.body == body


@pytest.mark.parametrize("row", CLAUDE_ROWS)
def test_a_face_takes_a_message_that_any_model_may_go_on_with(row: str) -> None:
    given, _ = CLAUDE_ROWS[row]
    request = parse_message(json.dumps(messages.asked(**given)).encode())
    assert request.native is not None
    assert request.native.problem is None


def call(call_id: str, arguments: Any = "{}", name: str = "look", **members: Any) -> Row:
    shape = {"type": "function_call", "call_id": call_id, "name": name}
    return {**shape, "arguments": arguments, **members}


def output(call_id: str, text: Any = "1") -> Row:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


FUNCTION: Final = {"type": "function", "name": "look", "parameters": EMPTY}


def items(*given: Row, **fields: Any) -> Row:
    return {"content": [{"role": "user", "content": "Hi"}, *given], "tools": [FUNCTION], **fields}


def shown(url: Any, **asked: Any) -> Row:
    part = {"type": "input_image", "image_url": url, **asked}
    return {"content": [{"role": "user", "content": [part]}]}


def attached(data: str) -> Row:
    part = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    return {"content": [{"role": "user", "content": [part]}]}


THOUGHT: Final = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "."}],
}
SHELL: Final = {
    "type": "local_shell_call", "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}  # fmt: skip
ANSWER: Final = {"type": "message", "role": "assistant", "content": "Yes."}
# What came into a conversation of Responses, and what OpenAI accepts.
OPENAI_ROWS: Final[dict[str, tuple[Row, Row]]] = {
    "a long id": (
        items(call(LONG), output(LONG)),
        items(call("call_c71bd109227e23434ecf71fd"), output("call_c71bd109227e23434ecf71fd")),
    ),
    "no id": (
        items(call(""), output("")),
        items(call("call_e3b0c44298fc1c149afbf4c8"), output("call_e3b0c44298fc1c149afbf4c8")),
    ),
    "one id for all calls": (
        items(call("call_0"), call("call_0", "[]"), output("call_0", "a"), output("call_0", "b")),
        items(
            call("call_0"), call("call_15ae3265bcbf1b06d46a4124", "[]"), output("call_0", "a"),
            output("call_15ae3265bcbf1b06d46a4124", "b"),
        ),
    ),
    "an id of Kimi's": (items(call(KIMI), output(KIMI)), items(call(KIMI), output(KIMI))),
    "ids of items of another server": (
        items(call("a", id="item_1"), output("a"), {**ANSWER, "id": "x" * 65}),
        items(call("a"), output("a"), ANSWER),
    ),
    "an output of a shell's call": (
        items({**SHELL, "call_id": "a"}, output("a"), {**SHELL, "call_id": "b"}),
        items({**SHELL, "call_id": "a"}, output("a"), {**SHELL, "call_id": "b"}),
    ),
    "an invented name": (
        items(call("a", name="functions.look:0"), output("a")),
        items(call("a", name="functions_look_0"), output("a")),
    ),
    "null as arguments": (items(call("a", None), output("a")), items(call("a"), output("a"))),
    "an object as arguments": (
        items(call("a", {"city": "Oslo"}), output("a")),
        items(call("a", '{"city":"Oslo"}'), output("a")),
    ),
    "a thought that no server has": (
        items(THOUGHT, call("a"), output("a")), items(call("a"), output("a"))
    ),
    "a choice without tools": ({"tool_choice": "auto", "parallel_tool_calls": False}, {}),
    "an empty schema": (
        {"tools": [{**FUNCTION, "parameters": {}}]}, {"tools": [FUNCTION]}
    ),
    "an alias of a JPEG": (
        shown("data:image/jpg;base64,/9j/4AAQ"), shown("data:image/jpeg;base64,/9j/4AAQ")
    ),
    "another case": (shown(f"data:IMAGE/PNG;base64,{PNG}"), shown(f"data:image/png;base64,{PNG}")),
    "any type": (shown(f"data:image/*;base64,{PNG}"), shown(f"data:image/png;base64,{PNG}")),
    "no type": (shown(f"data:;base64,{PNG}"), shown(f"data:image/png;base64,{PNG}")),
    "a URL in the words of chat": (
        shown({"url": f"data:image/png;base64,{PNG}"}), shown(f"data:image/png;base64,{PNG}")
    ),
    "a detail in the words of chat": (
        shown({"url": f"data:image/png;base64,{PNG}", "detail": "low"}),
        shown(f"data:image/png;base64,{PNG}", detail="low"),
    ),
    "an alias of PDF": (
        attached(f"data:application/x-pdf;base64,{PDF}"),
        attached(f"data:application/pdf;base64,{PDF}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", OPENAI_ROWS)
@pytest.mark.parametrize("dialect", ["openai", "azure"])
def test_openai_gets_what_it_accepts_of_a_response(dialect: str, row: str) -> None:
    given, sound = OPENAI_ROWS[row]
    sent = openai_body(dialect, **given)
    assert sent == openai_body(dialect, **sound)
    kept = {name: sent.get(name) for name in responses.asked(**sound) if name != "model"}
    asked = responses.asked(**sound)
    assert kept == {name: value for name, value in asked.items() if name in kept}


STATED: Final = {"reasoning": {"switch": "reasoning_effort", "efforts": ["low", "medium"]}}


def thinks(
    wish: Row, listed: list[str] | None = None, stated: dict[str, Any] | None = None
) -> Row | None:
    """Returns the reasoning that OpenAI is asked for at an endpoint with this list."""
    request, _ = parse_response(json.dumps(responses.asked(reasoning=wish)).encode())
    members = {
        "supported_parameters": None if listed is None else frozenset(listed),
        "abilities": read_abilities(stated or {}),
    }
    body = native_body_of("openai", NativeFormat.RESPONSES, request, **members)
    found: Row | None = body.get("reasoning")
    return found


@pytest.mark.parametrize(
    ("wish", "listed", "stated", "unlisted"),
    [
        ({"enabled": True, "max_tokens": 3000}, "low", "low", "low"),
        ({"max_tokens": 90_000}, "high", "medium", "high"),
        ({"effort": "medium", "max_tokens": 1}, "medium", "medium", "medium"),
        ({"enabled": True}, None, None, "medium"),
        ({"enabled": True, "summary": "auto"}, None, None, "medium"),
        ({"enabled": None, "max_tokens": None}, None, None, None),
    ],
)
def test_other_words_for_thinking_become_an_effort_of_a_response(
    wish: Row, listed: str | None, stated: str | None, unlisted: str | None
) -> None:
    kept = {name: wish[name] for name in ("summary",) if name in wish}

    def with_effort(effort: str | None) -> Row | None:
        return {**kept, **({} if effort is None else {"effort": effort})} or None

    assert thinks(wish, ["reasoning"]) == thinks(wish, ["reasoning_effort"]) == with_effort(listed)
    assert thinks(wish, stated=STATED) == with_effort(stated)
    assert thinks(wish) == with_effort(unlisted)
    assert thinks(wish, ["temperature"]) is None


def test_thinking_of_a_response_is_turned_off_where_it_can_be() -> None:
    wish = {"enabled": False}
    assert thinks(wish) == thinks(wish, ["reasoning"]) == {"effort": "none"}
    with pytest.raises(Untranslatable, match="cannot be turned off"):
        thinks(wish, stated=STATED)


@pytest.mark.parametrize("stop", [["END", 5, " "], [{}], "\n"])
def test_what_is_no_stop_sequence_is_left_to_the_provider(stop: Any) -> None:
    kept = [each for each in stop if each != " "] if isinstance(stop, list) else stop
    assert claude_body(stop_sequences=stop)["stop_sequences"] == kept


def test_a_message_that_lacks_several_fields_has_its_own_form() -> None:
    request = parse_message(json.dumps(messages.asked(tools=[{}])).encode())
    assert request.native is not None
    names = ("tools[0].name", "tools[0].input_schema")
    problem = request.native.problem
    assert problem is not None
    assert problem.message == f"{', '.join(names)}: These fields are required."
    assert problem.metadata == {"fields": dict.fromkeys(names, "This field is required.")}


@pytest.mark.parametrize("tools", ["", {}, False, []])
def test_tools_that_are_none_are_left_out_of_responses(tools: Any) -> None:
    sent = openai_body(tools=tools, tool_choice="auto", parallel_tool_calls=True)
    assert sent == openai_body()


def test_a_map_in_the_schema_of_an_answer_is_refused_by_its_field() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    asked = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    with pytest.raises(Untranslatable, match=r"^output_config\.format: .* any names\.$"):
        claude_body(**asked)
