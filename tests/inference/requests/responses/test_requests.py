"""Requests of OpenAI's Responses as chat requests."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from config.api.errors import InvalidRequest
from inference.requests.chat_replies import ReplyReasoning
from inference.requests.responses.reasoning import seal
from inference.requests.responses.request import parse_response, to_chat
from tests.support.inference.messages import SIGNED_THOUGHT
from tests.support.inference.responses import (
    CUSTOM,
    FUNCTION,
    asked,
    call,
    in_chat,
    messages_of,
    output,
    refused,
    translated,
)

SIGNED = ReplyReasoning(**SIGNED_THOUGHT)
MARK: Final = {"cache_control": {"type": "ephemeral"}}


def test_a_text_is_a_message_of_the_user_after_the_instructions() -> None:
    assert in_chat("Hi", instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}], "id": None, "phase": 1},
    ],
)
def test_each_easy_form_is_the_same_message(item: Any) -> None:
    assert messages_of(item) == [{"role": "user", "content": "Hi"}]


def test_roles_of_the_system_are_one_role() -> None:
    turns = [{"role": role, "content": "x"} for role in ("developer", "system")]
    assert {each["role"] for each in messages_of(*turns)} == {"system"}


@pytest.mark.parametrize(
    "item",
    [
        # The AI SDK sends neither a type nor annotations.
        {"role": "assistant", "content": [{"type": "output_text", "text": "No."}], "id": "msg_1"},
        {"role": "assistant", "content": "No."},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "refusal", "refusal": "No."}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "N", "annotations": [], "logprobs": []},
                {"type": "output_text", "text": "o.", "annotations": []},
            ],
        },
    ],
)
def test_an_answer_comes_back_as_one_text(item: Any) -> None:
    assert messages_of(item) == [{"role": "assistant", "content": "No."}]


STATIC: Final = {"processing": "static"}


def test_parts_of_every_kind_are_converted() -> None:
    data = "data:image/png;base64,aGk="
    parts = [
        {"type": "input_text", "text": "What?", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "input_image", "image_url": data},
        {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "low"},
        {"type": "input_image", "image_url": {"url": data}, "detail": "auto", "file_id": None},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aA"},
        {"type": "input_file", "file_url": "https://x.example/b.pdf"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "input_video", "video_url": "https://x.example/c.mp4"},
        {"type": "input_video", "video_url": "https://x.example/c.mp4", **STATIC},
        {"type": "input_video", "video_url": {"url": "https://x.example/c.mp4", **STATIC}},
        {"type": "input_image", "image_url": {"url": data, "detail": "high"}},
    ]
    assert messages_of({"role": "user", "content": parts})[0]["content"] == [
        {"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": data}},
        {"type": "image_url", "image_url": {"url": "https://x.example/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": data}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aA"},
        },
        {"type": "file", "file": {"filename": "document", "file_data": "https://x.example/b.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "video_url", "video_url": {"url": "https://x.example/c.mp4"}},
        {"type": "video_url", "video_url": {"url": "https://x.example/c.mp4", **STATIC}},
        {"type": "video_url", "video_url": {"url": "https://x.example/c.mp4", **STATIC}},
        {"type": "image_url", "image_url": {"url": data, "detail": "high"}},
    ]


def test_one_answer_is_one_message_and_outputs_follow_their_calls() -> None:
    sealed = seal([SIGNED])
    found = messages_of(
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed},
        {"role": "assistant", "content": "Let me look."},
        call(1),
        call(2, arguments=""),
        {"role": "user", "content": "Quick!"},
        output(2, [{"type": "input_text", "text": "5 °C"}]),
        output(1),
        {"role": "assistant", "content": "Cold."},
    )
    assert found == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_details": [SIGNED_THOUGHT],
            "tool_calls": [
                {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": "{}"},
                }
                for number in (1, 2)
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12 °C"},
        {"role": "tool", "tool_call_id": "c2", "content": "5 °C"},
        {"role": "user", "content": "Quick!"},
        {"role": "assistant", "content": "Cold."},
    ]


def test_a_server_may_use_the_same_ids_for_every_answer() -> None:
    found = messages_of(call(), output(text="first"), call(), output(text="second"), call())
    assert [each["role"] for each in found] == [
        "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [each["content"] for each in found if each["role"] == "tool"] == ["first", "second"]


def test_reasoning_of_the_current_turn_alone_is_sent() -> None:
    thought = {"type": "reasoning", "summary": [], "encrypted_content": seal([SIGNED])}
    items = [thought, {"role": "user", "content": "Hi"}, thought]
    kept = messages_of(*items, reasoning={"context": "current_turn"})
    assert ["reasoning_details" in each for each in kept] == [False, False, True]
    assert ["reasoning_details" in each for each in messages_of(*items)] == [True, False, True]


def test_foreign_reasoning_is_left_out_and_named() -> None:
    foreign = {"type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "gAAAAB"}
    found = translated([{"role": "user", "content": "Hi"}, foreign])
    assert found.left_out == ("input.reasoning",)
    assert json.loads(found.chat)["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("change", ["x", "=", " ", "causeway1:"])
def test_changed_reasoning_is_refused_by_name(change: str) -> None:
    sealed = seal([SIGNED])
    assert sealed is not None
    for text in (sealed + change, sealed[:30] + "A" + sealed[30:], "causeway1:"):
        item = {"type": "reasoning", "summary": [], "encrypted_content": text}
        assert [*refused([item])] == ["input[0].encrypted_content"]


def test_unsigned_reasoning_is_dropped() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    found = translated([item, {"role": "user", "content": "Hi"}])
    assert json.loads(found.chat)["messages"] == [{"role": "user", "content": "Hi"}]
    assert found.left_out == ()


def test_tools_that_the_caller_runs_become_functions() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: PATCH"}
    names = [{"type": "function", "name": "go", "parameters": {"type": "object"}}]
    namespace = {"type": "namespace", "name": "mcp__maps", "description": "Maps.", "tools": names}
    found = in_chat(
        tools=[
            {**FUNCTION, "strict": False, "description": None},
            {**CUSTOM, "format": grammar},
            namespace,
            {"type": "local_shell"},
            {"type": "shell"},
            {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
            {"type": "function", "function": {"name": "nested"}, **MARK},
        ],
        parallel_tool_calls=False,
    )
    assert found["parallel_tool_calls"] is False
    functions = [each["function"] for each in found["tools"]]
    assert [each["name"] for each in functions] == [
        "get_weather", "apply_patch", "mcp__maps__go", "local_shell", "shell", "tool_search",
        "nested",
    ]  # fmt: skip
    assert functions[0] == {
        "name": "get_weather", "parameters": {"type": "object"}, "strict": False,
    }  # fmt: skip
    assert functions[1]["parameters"]["required"] == ["input"]
    assert "start: PATCH" in functions[1]["description"]
    assert functions[3]["parameters"]["required"] == ["command"]
    assert found["tools"][-1]["cache_control"] == MARK["cache_control"]


def test_a_long_name_of_a_namespace_stays_the_same_in_its_calls() -> None:
    inner = {"type": "function", "name": "x" * 125, "parameters": {}}
    namespace = {"type": "namespace", "name": "mcp.maps", "tools": [inner]}
    replayed = call(name="x" * 125, namespace="mcp.maps")
    found = in_chat([replayed, output()], tools=[namespace])
    name = found["tools"][0]["function"]["name"]
    assert len(name) == 128
    assert found["messages"][0]["tool_calls"][0]["function"]["name"] == name


@pytest.mark.parametrize(
    ("items", "name", "arguments", "result"),
    [
        (
            [
                {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
            ],
            "apply_patch",
            {"input": "*"},
            "ok",
        ),
        (
            [
                {
                    "type": "local_shell_call",
                    "id": "lsh_1",
                    "call_id": "c",
                    "status": "completed",
                    "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None},
                },
                {"type": "local_shell_call_output", "id": "lsh_1", "output": "a.txt"},
            ],
            "local_shell",
            {"command": ["ls"], "env": {}},
            "a.txt",
        ),
        (
            [
                {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
                {
                    "type": "shell_call_output",
                    "call_id": "c",
                    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}],
                },
            ],
            "shell",
            {"commands": ["ls"]},
            '[{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}]',
        ),
        (
            [
                {
                    "type": "apply_patch_call",
                    "call_id": "c",
                    "status": "completed",
                    "operation": {"type": "delete_file", "path": "a"},
                },
                {
                    "type": "apply_patch_call_output",
                    "call_id": "c",
                    "status": "failed",
                    "output": "no",
                },
            ],
            "apply_patch",
            {"operation": {"type": "delete_file", "path": "a"}},
            "failed\nno",
        ),
    ],
)
def test_calls_of_every_kind_come_back(
    items: list[Any], name: str, arguments: Any, result: str
) -> None:
    asked, answered = messages_of(*items)
    [made] = asked["tool_calls"]
    assert made["function"]["name"] == name
    assert json.loads(made["function"]["arguments"]) == arguments
    assert answered == {"role": "tool", "tool_call_id": "c", "content": result}


def test_tools_that_were_found_join_the_request() -> None:
    found = in_chat(
        [
            {
                "type": "tool_search_call",
                "call_id": "s",
                "execution": "client",
                "arguments": {"query": "weather"},
            },
            {
                "type": "tool_search_output",
                "call_id": "s",
                "status": "completed",
                "tools": [FUNCTION],
            },
            {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, CUSTOM]},
        ],
        tools=[{"type": "tool_search", "execution": "client"}],
    )
    names = [each["function"]["name"] for each in found["tools"]]
    assert names == ["tool_search", "get_weather", "apply_patch"]
    call = found["messages"][0]["tool_calls"][0]["function"]
    assert call == {"name": "tool_search", "arguments": '{"query":"weather"}'}


@pytest.mark.parametrize(
    "kind",
    ["web_search", "web_search_preview", "file_search", "mcp", "openrouter:datetime", "computer"],
)
def test_a_tool_that_a_server_runs_is_left_out_unless_it_is_demanded(kind: str) -> None:
    offered = translated(tools=[{"type": kind}, FUNCTION], tool_choice="auto")
    assert offered.left_out == (kind,)
    assert len(json.loads(offered.chat)["tools"]) == 1
    alone = in_chat(tools=[{"type": kind}], tool_choice="auto", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & alone.keys()
    assert kind in refused(tools=[{"type": kind}], tool_choice={"type": kind})["tool_choice.type"]
    assert kind in refused(tools=[{"type": kind}], tool_choice="required")["tool_choice"]


def test_a_shell_of_the_provider_is_not_a_shell_of_the_caller() -> None:
    shell = {"type": "shell", "environment": {"type": "container_auto"}}
    offered = translated(tools=[FUNCTION, shell])
    assert offered.left_out == ("shell",)
    names = [each["function"]["name"] for each in json.loads(offered.chat)["tools"]]
    assert names == ["get_weather"]
    assert [*refused(tools=[FUNCTION, shell], tool_choice={"type": "shell"})] == [
        "tool_choice.type"
    ]
    for environment in ({"type": "local"}, None):
        kept = translated(tools=[{"type": "shell", "environment": environment}])
        assert kept.left_out == ()
        assert [each["function"]["name"] for each in json.loads(kept.chat)["tools"]] == ["shell"]


def test_the_name_of_what_is_left_out_fits_a_header() -> None:
    assert translated(tools=[{"type": "a\r\nx: y" + "z" * 100}]).left_out[0].startswith("a__x:_y")


def test_a_header_has_room_for_what_is_left_out() -> None:
    for count in (32, 33):
        names = [f"tool_{number}" for number in range(count)]
        left_out = translated(tools=[{"type": name} for name in names]).left_out
        assert left_out == (*names[:32], "more")[:count]


def test_sealed_reasoning_is_bounded() -> None:
    def item(count: int) -> Any:
        details = [*[ReplyReasoning()] * (count - 1), SIGNED]
        return {"type": "reasoning", "summary": [], "encrypted_content": seal(details)}

    assert to_chat(json.dumps(asked([item(50_000), item(50_000)])).encode())
    assert [*refused([item(50_000), item(50_001)])] == ["input"]
    assert [*refused([item(100_001)])] == ["input[0].encrypted_content"]


@pytest.mark.parametrize("kind", ["web_search_call", "file_search_call", "openrouter:datetime"])
def test_records_of_tools_of_a_server_are_left_out(kind: str) -> None:
    item = {"type": kind, "id": "x", "status": "completed"}
    assert translated([item, {"role": "user", "content": "Hi"}]).left_out == (f"input.{kind}",)


@pytest.mark.parametrize(
    ("result", "url"),
    [
        ("aGk=", "data:image/png;base64,aGk="),
        ("https://pictures.example/a", "https://pictures.example/a"),
        ("data:image/webp;base64,aGk=", "data:image/webp;base64,aGk="),
    ],
)
def test_a_picture_of_the_model_comes_back(result: str, url: str) -> None:
    [message] = messages_of({"type": "image_generation_call", "id": "ig_1", "result": result})
    assert message["images"] == [{"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", "none"),
        ("required", "required"),
        (None, None),
        ({"type": "function", "name": "get_weather"}, "get_weather"),
        ({"type": "function", "function": {"name": "get_weather"}}, "get_weather"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "local_shell"}, "local_shell"),
    ],
)
def test_tool_choice_is_converted(choice: Any, expected: str | None) -> None:
    tools = [FUNCTION, CUSTOM, {"type": "local_shell"}]
    found = in_chat(tools=tools, tool_choice=choice).get("tool_choice")
    if isinstance(choice, dict):
        assert found == {"type": "function", "function": {"name": expected}}
    else:
        assert found == expected


def test_allowed_tools_narrow_the_tools() -> None:
    allowed = [{"type": "function", "name": "get_weather"}, {"type": "web_search"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    found = in_chat(tools=[FUNCTION, CUSTOM, {"type": "web_search"}], tool_choice=choice)
    assert [each["function"]["name"] for each in found["tools"]] == ["get_weather"]
    assert found["tool_choice"] == "required"


def test_options_are_converted() -> None:
    schema = {"type": "object", "properties": {}}
    wanted = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    found = in_chat(
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop=["END"],
        text={"format": wanted, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto", "mode": "standard", "context": "auto"},
        include=["reasoning.encrypted_content", "message.output_text.logprobs", "unheard.of"],
        top_logprobs=2,
        service_tier="flex",
        prompt_cache_key="thread-1",
        safety_identifier="ada",
        seed=7,
        stream=True,
        store=False,
        client_metadata={"a": "b"},
        metadata={"a": "b"},
    )
    del found["messages"]
    assert found == {
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["END"],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        "verbosity": "low",
        "reasoning": {"effort": "low", "summary": "auto"},
        "logprobs": True,
        "top_logprobs": 2,
        "service_tier": "flex",
        "session_id": "thread-1",
        "user": "ada",
        "seed": 7,
        "stream": True,
    }


def test_the_last_change_of_the_effort_counts() -> None:
    updates = [
        {"type": "configuration_update", "reasoning": {"effort": effort}}
        for effort in ("low", "high")
    ]
    found = in_chat([*updates, {"role": "user", "content": "Hi"}], reasoning={"effort": "low"})
    assert found["reasoning"] == {"effort": "high"}


def test_the_session_of_the_body_precedes_that_of_the_header_and_the_cache_key() -> None:
    def session(**fields: Any) -> str | None:
        body = json.dumps({"model": "a/b", "input": "Hi", **fields}).encode()
        found: str | None = json.loads(to_chat(body, session_id="header").chat).get("session_id")
        return found

    assert session(session_id="body", prompt_cache_key="key") == "body"
    assert session(prompt_cache_key="key") == "header"
    assert len(in_chat(prompt_cache_key="x" * 300)["session_id"]) == 64


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("store", True),
        ("background", True),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
        ("context_management", [{"type": "compaction"}]),
        ("moderation", {"model": "x"}),
        ("prompt_cache_retention", "24h"),
        ("truncation", "auto"),
        ("modalities", ["audio"]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
    ],
)
def test_what_is_not_possible_is_refused_by_name(name: str, value: Any) -> None:
    assert [*refused(**{name: value})] == [name]
    for unset in (None, False, "", [], {}):
        in_chat(**{name: unset})


@pytest.mark.parametrize(
    "search", [{"plugins": [{"id": "web"}]}, {"model": "acme/falcon:online"}], ids=str
)
@pytest.mark.parametrize("most", [0, 1])
def test_a_bound_of_calls_is_refused_beside_a_search(search: dict[str, Any], most: int) -> None:
    """A caller reads it again in the answer, and would pay for searches beyond it."""
    body = {"model": "acme/falcon", "input": "Hi", "max_tool_calls": most}
    with pytest.raises(InvalidRequest) as caught:
        parse_response(json.dumps({**body, **search}).encode())
    assert [*caught.value.metadata["fields"]] == ["max_tool_calls"]
    parse_response(json.dumps({**body, **search, "max_tool_calls": None}).encode())
    request, made = parse_response(json.dumps(body).encode())
    assert request.native is not None
    assert json.loads(bytes(request.native.fields["max_tool_calls"])) == most
    assert json.loads(bytes(made.echo["max_tool_calls"])) == most


def test_text_and_images_may_be_asked_for() -> None:
    for names in (["text"], ["image"], ["text", "image"]):
        assert in_chat(modalities=names)["modalities"] == names


def showing(part: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"content": [{"role": role, "content": [part]}]}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}}, "prompt_cache_options.ttl"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"content": []}, "input"),
        ({"content": None}, "input"),
        ({"content": 5}, "input"),
        ({"content": [5]}, "input[0]"),
        ({"content": [{"content": "Hi"}]}, "input[0].type"),
        ({"content": [{"role": "tool", "content": "Hi"}]}, "input[0].role"),
        ({"content": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"content": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"content": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"content": [{"type": "shell_call", "call_id": "c"}]}, "input[0].action"),
        (showing({"type": "input_file", "file_id": "f"}), "input[0].content[0].file_id"),
        (showing({"type": "input_image", "file_id": "f"}), "input[0].content[0].file_id"),
        (showing({"type": "input_smell"}), "input[0].content[0].type"),
        (showing({"type": "input_image"}, "assistant"), "input[0].content[0].type"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "x" * 129}]}, "tools[0].name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [{**CUSTOM, "format": {"type": "regex"}}]}, "tools[0].format.type"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"user": "a\n"}, "user"),
        ({"metadata": {"a": "x" * 513}}, "metadata[]"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ],
)
def test_each_refusal_names_the_field(fields: dict[str, Any], place: str) -> None:
    assert [*refused(**{"content": "Hi", **fields})] == [place]


def test_an_item_reference_says_what_to_set() -> None:
    [text] = refused([{"type": "item_reference", "id": "msg_1"}]).values()
    assert "'store' to false" in text


def test_long_instructions_are_sent_but_not_repeated() -> None:
    for size, is_repeated in ((65_534, True), (65_535, False)):
        found = translated(instructions="x" * size)
        assert len(json.loads(found.chat)["messages"][0]["content"]) == size
        assert (bytes(found.echo["instructions"]) != b"null") is is_repeated


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, ["model", "input"]),
        (
            {"input": [{"type": "function_call"}, {"type": "function_call_output"}, {}]},
            [
                "input[0].call_id", "input[0].name", "input[1].output", "input[1].call_id",
                "input[2].type",
            ],
        ),
        (
            {"input": [{"type": "message"},
                       {"role": "user", "content": [{"type": "input_image"},
                                                    {"type": "input_text"}]}]},
            ["input[0].role", "input[1].content[0].image_url", "input[1].content[1].text"],
        ),
        (
            {"input": "x", "tools": [{}, {"type": "function"}, {"type": "custom"}]},
            ["tools[0].type", "tools[1].name", "tools[2].name"],
        ),
        # Another error comes first where nothing is missing before it.
        ({"input": [{"type": "function_call"}, {"type": "nothing"}]},
         ["input[0].call_id", "input[0].name"]),
        ({"input": [{"type": "nothing"}, {"type": "function_call"}]}, ["input[0].type"]),
    ],
)  # fmt: skip
def test_all_missing_fields_are_named_at_once(body: dict[str, Any], names: list[str]) -> None:
    given = {"model": "a/b", **body} if body else body
    with pytest.raises(InvalidRequest) as error:
        to_chat(json.dumps(given).encode())
    assert list(error.value.metadata["fields"]) == names
