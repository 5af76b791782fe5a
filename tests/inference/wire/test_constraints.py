"""What reaches a target that accepts less than its format allows, and what comes back."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest

from catalog import dialects
from catalog.capabilities import UNDESCRIBED, Capabilities
from catalog.dialects.base import Call, Operation, Untranslatable
from catalog.dialects.shared.constraints import ODD_NAME, fit_names
from config.credentials import Secret
from tests.support.inference.dialects import LOOK, MISTRAL, body_of, call_of, turns
from tests.support.inference.messages import messages_of

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
PDF: Final = "data:application/pdf;base64,JVBERi0xLjQ="
DIALECTS: Final = ["openai", "anthropic", "gemini", "bedrock"]


def tool_of(parameters: Any, name: str = "look") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def shown(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a conversation in which the user shows these parts."""
    return [{"role": "user", "content": [*parts]}]


def picture_of(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def file_of(data: str, name: str = "a.pdf") -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": data}}


def answer_in(schema: dict[str, Any]) -> Any:
    """Returns the form in which Anthropic is asked for an answer of a schema."""
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return body_of("anthropic", response_format=wanted)["output_config"]["format"]["schema"]


def blocks_of(body: Any, kind: str) -> list[Any]:
    """Returns the members of one kind in a body of Anthropic's or Bedrock's format."""
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    if kind in ("toolUse", "toolResult", "document"):
        return [block[kind] for block in blocks if kind in block]
    return [block for block in blocks if block.get("type") == kind]


KIMI: Final = "functions.get_weather:0"
IDS: Final = {
    "anthropic": (("tool_use", "id"), ("tool_result", "tool_use_id")),
    "bedrock": (("toolUse", "toolUseId"), ("toolResult", "toolUseId")),
}


def ids_at(
    dialect: str, history: list[dict[str, Any]], capabilities: Capabilities = UNDESCRIBED
) -> list[str]:
    """Returns the ids of the calls that are sent, which the results have in the same order."""
    if dialect == "openai":
        sent = body_of(dialect, capabilities, messages=history)
        used = [each["id"] for each in sent["messages"][1]["tool_calls"]]
        told = [each["tool_call_id"] for each in sent["messages"][2:]]
    else:
        sent = body_of(dialect, capabilities, messages=history, tools=[LOOK])
        used, told = ([each[name] for each in blocks_of(sent, kind)] for kind, name in IDS[dialect])
    assert told == used
    return used


def test_ids_of_calls_fit_their_target_in_call_and_result() -> None:
    history = turns(call_of(KIMI), call_of("call_1"))
    used = ids_at("anthropic", history)
    assert (used[1], used[0].replace("_", "").isalnum()) == ("call_1", True)
    assert ids_at("anthropic", history) == ids_at("bedrock", history) == used


def test_mistral_gets_ids_of_nine_letters_and_digits() -> None:
    ids = ids_at("openai", turns(call_of(KIMI), call_of("abcdefgh1")), MISTRAL)
    assert (ids[1], len(ids[0]), ids[0].isalnum()) == ("abcdefgh1", 9, True)
    assert ids_at("openai", turns(call_of(KIMI))) == [KIMI]


def test_an_id_that_a_server_repeats_in_every_turn_is_another_one_each_time() -> None:
    used = ids_at("anthropic", turns(call_of("call_0")) + turns(call_of("call_0")))
    assert (used[0], len({*used})) == ("call_0", 2)


def test_an_id_that_is_made_may_be_taken_already() -> None:
    def used(other: str) -> list[str]:
        sent = body_of("anthropic", messages=turns(*map(call_of, ("x", other, "x"))), tools=[LOOK])
        return [each["id"] for each in blocks_of(sent, "tool_use")]

    made = used("y")[2]
    assert used(made)[:2] == ["x", made]
    assert len({*used(made)}) == 3


def test_calls_of_one_answer_that_share_an_id_have_their_results_in_order() -> None:
    for given in ("call_0", ""):
        history = turns(call_of(given, name="look"), call_of(given, name="find"))
        for used in (ids_at("anthropic", history), ids_at("openai", history, MISTRAL)):
            assert (len({*used}), "" in used) == (2, False)


@pytest.mark.parametrize("given", ["", "x" * 41])
def test_an_id_that_openai_refuses_is_another_one(given: str) -> None:
    ids = ids_at("openai", turns(call_of(given), call_of("b")))
    assert (ids[1], len(ids[0]) in range(1, 41)) == ("b", True)
    longest = turns(call_of("x" * 40))
    assert body_of("openai", messages=longest)["messages"] == longest


@pytest.mark.parametrize(
    ("dialect", "name", "fitting"),
    [
        ("openai", "functions.look:0", "functions_look_0"),
        ("anthropic", "look it", "look_it"),
        ("bedrock", "mcp/look", "mcp_look"),
        ("gemini", "2nd-look", "_2nd-look"),
        ("openai", "2nd-look", "2nd-look"),
        ("openai", "", "_"),
        ("anthropic", "x" * 128, "x" * 128),
    ],
)
def test_names_fit_their_target(dialect: str, name: str, fitting: str) -> None:
    fields = {"messages": turns(call_of("a", name=name)), "tools": [LOOK]}
    target = dialects.constraints_of(dialect, UNDESCRIBED)
    changed, names = fit_names(fields, target)
    [call] = changed["messages"][1]["tool_calls"]
    assert (call["function"]["name"], names) == (fitting, {})
    assert fields["messages"] == turns(call_of("a", name=name))
    tool = {"type": "function", "function": {"name": name}}
    assert fit_names({"tools": [tool]}, target)[1] == ({} if name == fitting else {fitting: name})
    is_odd = ODD_NAME.search(json.dumps(fields).encode()) is not None
    assert is_odd >= (name != fitting)


NOTHING: Final = [None, {}, "", " ", "null"]


@pytest.mark.parametrize("arguments", NOTHING)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_arguments_are_an_empty_object(dialect: str, arguments: Any) -> None:
    sent = body_of(dialect, messages=turns(call_of("a", arguments)), tools=[LOOK])
    assert sent == body_of(dialect, messages=turns(call_of("a")), tools=[LOOK])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_arguments_may_be_an_object(dialect: str) -> None:
    given: Any = {"city": "Oslo"}
    sent = body_of(dialect, messages=turns(call_of("a", given)), tools=[LOOK])
    text = turns(call_of("a", '{"city":"Oslo"}'))
    assert sent == body_of(dialect, messages=text, tools=[LOOK])


@pytest.mark.parametrize("arguments", ['{"city": "Os', "[1]", "Oslo", '"{}"'])
def test_arguments_that_are_no_object_go_on_as_one(arguments: str) -> None:
    history = turns(call_of("a", arguments))
    sent = body_of("openai", messages=history, tools=[LOOK])
    [call] = sent["messages"][1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"arguments": arguments}
    for dialect, kind in (("anthropic", "tool_use"), ("bedrock", "toolUse")):
        sent = body_of(dialect, messages=history, tools=[LOOK])
        assert blocks_of(sent, kind)[0]["input"] == {"arguments": arguments}


def test_a_history_with_calls_and_no_tools_gets_those_that_it_used() -> None:
    history = turns(call_of("a", name="look"), call_of("b", name="find"))
    sent = body_of("anthropic", messages=history)
    schema = {"type": "object", "properties": {}}
    assert sent["tools"] == [{"name": name, "input_schema": schema} for name in ("look", "find")]
    assert sent["tool_choice"] == {"type": "none"}
    sent = body_of("bedrock", messages=history)
    names = [each["toolSpec"]["name"] for each in sent["toolConfig"]["tools"]]
    assert (names, sent["toolConfig"].keys()) == (["look", "find"], {"tools"})
    assert "tools" not in body_of("openai", messages=history)


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {}])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_only_tools_need_is_left_out_without_tools(
    dialect: str, fields: dict[str, Any]
) -> None:
    asked = {**fields, "tool_choice": "auto", "parallel_tool_calls": False}
    assert body_of(dialect, **asked) == body_of(dialect)


def test_a_search_needs_no_tools_of_earlier_calls() -> None:
    search = {"type": "openrouter:web_search"}
    history = turns(call_of("a"))
    call = Call(
        operation=Operation.CHAT, base_url="https://host/v1", model="m", secret=Secret("key"),
        fields={"messages": msgspec.Raw(json.dumps(history).encode()),
                "tools": msgspec.Raw(json.dumps([search]).encode())},
        most_searches=1,
    )  # fmt: skip
    found = dialects.get("anthropic")
    assert found is not None
    sent = json.loads(found.build(call).body or b"")
    assert ([each["name"] for each in sent["tools"]], "tool_choice" in sent) == (
        ["web_search"],
        False,
    )


def test_an_answer_to_be_continued_ends_in_no_blank_at_claude() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is: \n"}]
    assert body_of("anthropic", messages=messages)["messages"][1]["content"][0]["text"] == "It is:"
    assert body_of("bedrock", messages=messages)["messages"][1]["content"] == [{"text": "It is:"}]
    assert body_of("openai", messages=messages)["messages"] == messages


@pytest.mark.parametrize(
    "parameters",
    [
        {}, None, {"type": "object"}, {"type": "object", "properties": None}, {"type": None},
        {"properties": {}}, {"type": ["object", "null"]},
    ],
)  # fmt: skip
def test_an_empty_schema_is_that_of_an_empty_object(parameters: Any) -> None:
    tools = [tool_of(parameters)]
    schema = {"type": "object", "properties": {}}
    sent = body_of("openai", tools=tools)
    assert sent["tools"][0]["function"]["parameters"] == schema
    assert body_of("anthropic", tools=tools)["tools"][0]["input_schema"] == schema
    [tool] = body_of("gemini", tools=tools)["tools"][0]["functionDeclarations"]
    assert tool["parametersJsonSchema"] == schema


@pytest.mark.parametrize("kind", ["anyOf", "oneOf", "allOf"])
def test_alternatives_at_the_top_of_a_schema_are_told_to_claude(kind: str) -> None:
    text, number = {"type": "string"}, {"type": "number"}
    options = [{"properties": {"a": text}}, {"properties": {"a": text, "b": number}}]
    schema = {"type": "object", "properties": {"b": text}, kind: options}
    tools = [tool_of(schema)]
    told = {
        "type": "object",
        "properties": {"a": text, "b": text},
        "description": json.dumps({kind: options}, separators=(",", ":")),
    }
    assert body_of("anthropic", tools=tools)["tools"][0]["input_schema"] == told
    [tool] = body_of("bedrock", tools=tools)["toolConfig"]["tools"]
    assert tool["toolSpec"]["inputSchema"]["json"] == told
    tools[0]["function"]["strict"] = True
    strict = {**told, "additionalProperties": False}
    assert body_of("anthropic", tools=tools)["tools"][0]["input_schema"] == strict
    assert body_of("openai", tools=tools)["tools"] == tools


def test_stop_sequences_of_white_space_alone_are_left_out() -> None:
    assert body_of("anthropic", stop=["\n\n", "END", " "])["stop_sequences"] == ["END"]
    assert body_of("bedrock", stop=["\n"]).keys() == {"messages"}
    assert body_of("openai", stop=["\n"])["stop"] == ["\n"]
    for dialect in DIALECTS:
        assert body_of(dialect, stop=["", "END"]) == body_of(dialect, stop=["END"])
        assert body_of(dialect, stop="") == body_of(dialect, stop=[""]) == body_of(dialect)


def test_a_schema_has_the_keywords_that_anthropic_accepts() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 1, "maximum": 9, "description": "Years."},
            "tags": {"type": "array", "items": {"type": "object", "properties": {}}, "maxItems": 2},
            "minimum": {"oneOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
        },
        "required": ["age"],
    }
    assert answer_in(schema) == {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "description": 'Years.\n\n{"minimum":1,"maximum":9}'},
            "tags": {
                "type": "array",
                "items": {"type": "object", "properties": {}, "additionalProperties": False},
                "description": '{"maxItems":2}',
            },
            "minimum": {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
        },
        "required": ["age"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("form", [None, 1, ["date"], {"a": 1}])
def test_a_format_that_is_none_is_told_to_anthropic(form: Any) -> None:
    sent = answer_in({"type": "string", "format": form})
    assert json.loads(sent["description"]) == {"format": form}


MAPS: Final[list[Any]] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": ["object", "null"], "properties": {}, "additionalProperties": True},
    {"type": "object", "additionalProperties": False, "patternProperties": {"^a": {}}},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
    {"type": ["object", "null"], "properties": {"a": {}}, "patternProperties": {"^b": {}}},
    {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
    {"type": "object", "anyOf": [{"required": ["a"]}], "additionalProperties": {"type": "string"}},
]


@pytest.mark.parametrize("inner", MAPS)
def test_a_schema_with_a_map_is_told_to_claude_in_words(inner: Any) -> None:
    lists = {"type": "array", "items": {"anyOf": [inner, {"type": "null"}]}}
    named = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": inner}}
    for schema in inner, lists, named:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        line = "Answer with JSON of this schema and nothing else: no text around it, no code fence."
        for dialect in "anthropic", "bedrock":
            sent = body_of(dialect, response_format=form)
            [part] = sent["system"]
            head, _, tail = part["text"].partition("\n")
            assert (head, json.loads(tail)) == (line, schema)
            assert not {"output_config", "outputConfig"} & sent.keys()
            form["json_schema"]["strict"] = True
            with pytest.raises(Untranslatable, match=r"^response_format: .* any names\.$"):
                body_of(dialect, response_format=form)
            form["json_schema"]["strict"] = False


@pytest.mark.parametrize("others", [True, False, {}])
def test_an_object_that_may_have_more_is_closed_for_claude(others: Any) -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": others}
    assert answer_in(schema)["additionalProperties"] is False


def test_a_map_of_a_strict_tool_is_refused_by_claude() -> None:
    tool = tool_of({"type": "object", "properties": {"a": MAPS[1]}})
    sent = body_of("anthropic", tools=[tool])["tools"]
    assert sent == [{"name": "look", "input_schema": tool["function"]["parameters"]}]
    tool["function"]["strict"] = True
    with pytest.raises(Untranslatable, match=r"^tools: .* any names\.$"):
        body_of("anthropic", tools=[tool])


@pytest.mark.parametrize(
    "head",
    [
        "data:IMAGE/PNG;base64", "data:;base64", "data:image/x-png;base64", "data:image/png;BASE64",
        "data:application/octet-stream;base64", "data:image/png;charset=utf-8;base64",
    ],
)  # fmt: skip
def test_the_type_of_a_picture_has_its_registered_name(head: str) -> None:
    messages = shown(picture_of(f"{head},{PNG}"))
    [block] = body_of("anthropic", messages=messages)["messages"][0]["content"]
    assert block["source"]["media_type"] == "image/png"
    [part] = body_of("gemini", messages=messages)["contents"][0]["parts"]
    assert part["inlineData"]["mimeType"] == "image/png"
    [part] = body_of("openai", messages=messages)["messages"][0]["content"]
    assert part["image_url"]["url"] == f"data:image/png;base64,{PNG}"


@pytest.mark.parametrize("head", ["data:image/jpeg;base64", "DATA:image/gif;base64"])
def test_the_bytes_of_a_picture_say_its_type(head: str) -> None:
    messages = shown(picture_of(f"{head},{PNG}"))
    [block] = body_of("anthropic", messages=messages)["messages"][0]["content"]
    assert block["source"]["media_type"] == "image/png"
    [block] = body_of("bedrock", messages=messages)["messages"][0]["content"]
    assert block["image"]["format"] == "png"


@pytest.mark.parametrize(
    ("name", "head", "found"),
    [
        ("a.pdf", "data:application/x-pdf;base64,JVBERi0xLjQ=", "pdf"),
        ("a", "data:;base64,JVBERi0xLjQ=", "pdf"),
        ("a.pdf", "data:application/octet-stream;base64,JVBERi0xLjQ=", "pdf"),
        ("a.csv", "data:application/octet-stream;base64,YSxi", "csv"),
        ("a", "data:application/csv;base64,YSxi", "csv"),
        ("a", "data:text/x-markdown;base64,YSxi", "md"),
    ],
)
def test_the_type_of_a_document_has_its_registered_name(name: str, head: str, found: str) -> None:
    [block] = body_of("bedrock", messages=shown(file_of(head, name)))["messages"]
    assert block["content"][0]["document"]["format"] == found


@pytest.mark.parametrize(
    ("kind", "found"), [("quicktime", "mov"), ("3gpp", "three_gp"), ("mp4", "mp4")]
)
def test_bedrock_has_its_own_names_of_videos(kind: str, found: str) -> None:
    video = {"type": "video_url", "video_url": {"url": f"data:video/{kind};base64,AAAA"}}
    [turn] = body_of("bedrock", messages=shown(video))["messages"]
    assert turn["content"][0]["video"]["format"] == found


def test_escaped_slashes_of_a_picture_change_nothing() -> None:
    raw = (
        rb'[{"role":"user","content":[{"type":"image_url","image_url":{"url":'
        rb'"data:image\/jpg;base64,\/9j\/4AAQ"}}]}]'
    )
    found = dialects.get("openai")
    assert found is not None
    call = Call(
        operation=Operation.CHAT, base_url="https://host/v1", model="m", secret=Secret("key"),
        fields={"messages": msgspec.Raw(raw)},
    )  # fmt: skip
    body = json.loads(found.build(call).body or b"")
    [part] = body["messages"][0]["content"]
    assert part["image_url"]["url"] == "data:image/jpeg;base64,/9j/4AAQ"


def test_a_jpeg_has_its_registered_name_everywhere() -> None:
    messages = shown(picture_of("data:image/jpg;base64,/9j/4AAQ"))
    sent = body_of("openai", messages=messages)["messages"][0]["content"][0]
    assert sent["image_url"]["url"].startswith("data:image/jpeg;base64,")
    [block] = body_of("anthropic", messages=messages)["messages"][0]["content"]
    assert block["source"]["media_type"] == "image/jpeg"


def test_no_two_documents_of_a_request_have_one_name() -> None:
    messages = shown(file_of(PDF), file_of(PDF), {"type": "text", "text": "?"})
    sent = body_of("bedrock", messages=messages)
    assert [each["name"] for each in blocks_of(sent, "document")] == ["a pdf", "a pdf 2"]


def test_a_document_has_a_text_beside_it_at_bedrock() -> None:
    asked = {"type": "text", "text": "?"}
    alone = body_of("bedrock", messages=shown(file_of(PDF), file_of(PDF)))
    assert alone["messages"][0]["content"][2:] == [{"text": "a pdf, a pdf 2"}]
    asking = body_of("bedrock", messages=shown(file_of(PDF), asked))
    assert asking["messages"][0]["content"][1:] == [{"text": "?"}]


@pytest.mark.parametrize("content", ["", " ", [], [{"type": "text", "text": ""}]])
def test_a_result_is_never_empty_at_bedrock(content: Any) -> None:
    history = [*turns(call_of("a"))[:2], {"role": "tool", "tool_call_id": "a", "content": content}]
    [told] = blocks_of(body_of("bedrock", messages=history, tools=[LOOK]), "toolResult")
    assert told["content"] == [{"text": "The result is empty."}]


def test_documents_and_summaries_of_claude_are_text_elsewhere() -> None:
    encoded = {"type": "base64", "media_type": "image/png", "data": PNG}
    picture = {"type": "image", "source": encoded}
    page = {
        "type": "document", "title": "B", "citations": {"enabled": True},
        "source": {"type": "content", "content": [{"type": "text", "text": "Rain."}, picture]},
    }  # fmt: skip
    pdf = {"type": "base64", "media_type": "application/pdf", "data": PDF.partition(",")[2]}
    fetched = {
        "type": "web_fetch_tool_result", "tool_use_id": "s",
        "content": {"type": "web_fetch_result", "url": "https://a",
                    "content": {"type": "document", "source": pdf}},
    }  # fmt: skip
    summary = {"type": "compaction", "content": "It rains."}
    asked, told = messages_of(("user", [page]), ("assistant", [summary, fetched]))
    assert asked["content"] == "[document]\ntitle: B\nRain.\n[image]\n[image/png]"
    assert [part["text"] for part in told["content"]] == [
        "[compaction]\nIt rains.",
        "[web_fetch_tool_result]\n[web_fetch_result]\nurl: https://a\n[document]\n[application/pdf]",
    ]


def test_blocks_of_anthropics_own_tools_are_text_elsewhere() -> None:
    used = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}}
    page = {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "x"}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [page]}
    cited = {"type": "search_result", "source": "https://b", "title": "B",
             "content": [{"type": "text", "text": "Rain."}]}  # fmt: skip
    listed = {"type": "tool_reference", "tool_name": "look"}
    answer = {"type": "tool_use", "id": "t", "name": "find", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [listed, cited]}
    asked, told, back = messages_of(
        ("user", "Hi"), ("assistant", [used, found, answer]), ("user", [result])
    )
    assert asked["content"] == "Hi"
    assert [part["text"] for part in told["content"]] == [
        '[server_tool_use]\nname: web_search\ninput: {"query":"q"}',
        "[web_search_tool_result]\n[web_search_result]\nurl: https://a\ntitle: A",
    ]
    assert [part["text"] for part in back["content"]] == [
        "[tool_reference]\ntool_name: look",
        "[search_result]\nsource: https://b\ntitle: B\nRain.",
    ]


HIGH: Final = {"reasoning": {"effort": "high"}}
OFF: Final = {"reasoning": {"enabled": False}}


@pytest.mark.parametrize(
    ("stated", "asked", "sent"),
    [
        ({"switch": "reasoning_effort"}, HIGH, {"reasoning_effort": "high"}),
        ({"switch": "reasoning_effort"}, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"switch": "reasoning_effort", "efforts": ["none", "low", "xhigh"]},
         {"reasoning": {"effort": "max"}}, {"reasoning_effort": "xhigh"}),
        ({"switch": "reasoning_effort", "efforts": ["none", "low", "xhigh"]},
         HIGH, {"reasoning_effort": "low"}),
        ({"switch": "reasoning_effort", "efforts": ["medium", "high"]},
         {"reasoning": {"effort": "minimal"}}, {"reasoning_effort": "medium"}),
        ({"switch": "reasoning_effort", "efforts": ["none", "low"]}, OFF,
         {"reasoning_effort": "none"}),
        ({"switch": "thinking.type"}, HIGH, {"thinking": {"type": "enabled"}}),
        ({"switch": "thinking.type"}, OFF, {"thinking": {"type": "disabled"}}),
        ({"switch": "enable_thinking"}, OFF, {"enable_thinking": False}),
        ({"switch": "thinking_budget"}, {"reasoning": {"max_tokens": 99}}, {"thinking_budget": 99}),
        ({"switch": "thinking_budget"}, OFF, {"thinking_budget": 0}),
        ({"switch": "thinking_budget"}, HIGH, {"thinking_budget": 16384}),
        ({"switch": "thinking_budget"}, {"reasoning": {"effort": "max"}}, {}),
        ({"switch": "reasoning_effort"}, {"reasoning": {"max_tokens": 9000}},
         {"reasoning_effort": "medium"}),
        ({"switch": "reasoning_effort", "efforts": ["none", "low"]},
         {"reasoning": {"max_tokens": 9000}}, {"reasoning_effort": "low"}),
        ({"switch": "none"}, HIGH, {}),
        ({"switch": "thinking.type"}, {}, {}),
    ],
)  # fmt: skip
def test_thinking_is_switched_by_the_endpoints_own_member(
    stated: dict[str, Any], asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = body_of("openai", abilities={"reasoning": stated}, **asked)
    assert body == {**body_of("openai"), **sent}


@pytest.mark.parametrize(
    ("switch", "sent"),
    [
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("enable_thinking", {"enable_thinking": True}),
        ("thinking_budget", {"thinking_budget": 4096}),
        ("none", {}),
    ],
)
@pytest.mark.parametrize(
    "asked", [{}, HIGH, OFF, {"reasoning": {"max_tokens": 99}}, {"reasoning_effort": "high"}]
)
def test_the_last_update_of_a_conversation_is_switched(
    switch: str, sent: dict[str, Any], asked: dict[str, Any]
) -> None:
    lead: dict[str, Any] = {"role": "developer", "content": "Go on."}
    updates = [
        {**lead, "configuration_update": each}
        for each in ({"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "low"}}, None)
    ]
    abilities = {"reasoning": {"switch": switch}, "roles": {"developer": False}}
    plain = body_of("openai", abilities=abilities, messages=[lead] * 3)
    assert body_of("openai", abilities=abilities, messages=updates, **asked) == {**plain, **sent}


@pytest.mark.parametrize(
    "stated", [{"switch": "none"}, {"switch": "reasoning_effort", "efforts": ["low"]}]
)
def test_thinking_that_cannot_be_turned_off_is_not_promised(stated: dict[str, Any]) -> None:
    with pytest.raises(Untranslatable, match="cannot be turned off"):
        body_of("openai", abilities={"reasoning": stated}, **OFF)


def test_an_endpoint_gets_the_roles_that_it_knows() -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "developer", "content": parts},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "Now shout."},
    ]
    lead = {"role": "system", "content": "You help.\n\nBe brief."}
    sent = body_of("openai", abilities={"roles": {"developer": False}}, messages=messages)
    later = {"role": "system", "content": "Now shout."}
    assert sent["messages"] == [lead, messages[2], later]
    sent = body_of("openai", abilities={"roles": {"later_system": False}}, messages=messages)
    assert sent["messages"] == [lead, messages[2], {**later, "role": "user"}]
    assert body_of("openai", messages=messages)["messages"] == messages


def test_an_endpoint_that_reads_texts_alone_gets_texts() -> None:
    picture = picture_of("https://a/b.png")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": parts},
        {"role": "user", "content": [*parts, picture]},
        {"role": "assistant", "content": parts},
    ]
    sent = body_of("openai", abilities={"string_content": True}, messages=messages)["messages"]
    assert [each["content"] for each in sent] == ["ab", [*parts, picture], "ab"]


def test_an_endpoint_that_states_it_gets_thoughts_or_none() -> None:
    answer = {"role": "assistant", "content": "Hi", "reasoning": "Hm."}
    for states, sent in ((True, "Hm."), (False, None)):
        abilities = {"reasoning": {"must_return": states}}
        body = body_of("openai", abilities=abilities, messages=[answer])
        assert body["messages"][0].get("reasoning_content") == sent
