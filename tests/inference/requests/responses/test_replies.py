"""Whole replies of chat as responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.dialects.base import InvalidReply
from config.api.errors import UpstreamError
from inference.requests.responses.reply import render_reply
from tests.support.inference.messages import SECRET, SIGNED_THOUGHT
from tests.support.inference.responses import (
    COUNTED,
    CUSTOM,
    FUNCTION,
    call,
    messages_of,
    output,
    replied,
    translated,
)


def called(name: str, arguments: str = "{}", call_id: str = "c1", **extra: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **extra}


def items_of(message: dict[str, Any], **options: Any) -> list[Any]:
    items: list[Any] = replied(message, **options)["output"]
    return items


def test_a_text_is_a_message_and_the_request_is_repeated() -> None:
    asks = translated(
        instructions="Be brief.",
        tools=[FUNCTION, {"type": "web_search"}],
        tool_choice="auto",
        temperature=0.5,
        max_output_tokens=50,
        metadata={"a": "b"},
        reasoning={"effort": "low"},
    )
    found = replied({"content": "It rains."}, asks=asks)
    assert isinstance(found.pop("completed_at"), int)
    assert found == {
        "id": "gen-1",
        "object": "response",
        "created_at": 1_780_000_000,
        "status": "completed",
        "model": "acme/falcon",
        "output": [
            {
                "id": "msg_1_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {
                        "type": "output_text",
                        "text": "It rains.",
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            }
        ],
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "temperature": 0.5,
        "top_p": None,
        "presence_penalty": None,
        "frequency_penalty": None,
        "tool_choice": "auto",
        "tools": [{**FUNCTION, "description": None, "strict": False}],
        "max_output_tokens": 50,
        "max_tool_calls": None,
        "background": False,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": "low", "summary": None},
        "safety_identifier": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": None,
        "service_tier": None,
        "usage": COUNTED,
        "provider": "Acme AI",
    }


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_the_finish_reason_decides_the_status(reason: str, status: str, details: Any) -> None:
    found = replied({"content": "It"}, finish_reason=reason)
    assert (found["status"], found["incomplete_details"]) == (status, details)
    assert found["output"][0]["status"] == status


def test_refusals_sources_and_probabilities_are_parts_of_a_message() -> None:
    source = {"url": "https://x.example", "title": "X", "start_index": 1, "end_index": 3}
    token = {"token": "It", "logprob": -0.1, "bytes": None}
    [message] = items_of(
        {
            "content": "It rains.",
            "refusal": "No.",
            "annotations": [
                {"type": "url_citation", "url_citation": source},
                {"type": "file"},
                5,
            ],
        },
        logprobs={"content": [token, {}]},
    )
    assert message["content"] == [
        {
            "type": "output_text",
            "text": "It rains.",
            "annotations": [{"type": "url_citation", **source}],
            "logprobs": [{"token": "It", "logprob": -0.1, "bytes": [], "top_logprobs": []}],
        },
        {"type": "refusal", "refusal": "No."},
    ]


@pytest.mark.parametrize(
    ("url", "result"),
    [
        ("data:image/png;base64,aGk=", "aGk="),
        ("data:;base64,aGk=", "aGk="),
        ("https://pictures.example/a.png?b=1,2", "https://pictures.example/a.png?b=1,2"),
        ("HTTP://pictures.example/a", "HTTP://pictures.example/a"),
    ],
)
def test_a_picture_is_an_item(url: str, result: str) -> None:
    unread = [{}, 5, "aGk=", {"image_url": {"url": "data:image/png;base64,"}}]
    images = [{"type": "image_url", "image_url": {"url": url}}, *unread]
    [item] = items_of({"content": None, "images": images})
    assert item == {
        "id": "ig_1_1",
        "type": "image_generation_call",
        "status": "completed",
        "result": result,
    }


@pytest.mark.parametrize(
    "details",
    [
        [SIGNED_THOUGHT],
        [SIGNED_THOUGHT, SECRET],
        [{"type": "reasoning.summary", "summary": "Hm.", "format": "openai-responses-v1",
          "index": 0},
         {"type": "reasoning.encrypted", "data": "c2VjcmV0+/=", "id": "rs_9",
          "format": "openai-responses-v1", "index": 0}],
    ],
)  # fmt: skip
def test_reasoning_comes_back_without_loss(details: list[Any]) -> None:
    [reasoning, message] = items_of({"content": "Yes.", "reasoning_details": details})
    assert reasoning["id"] == "rs_1_1"
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm."}]
    [back] = messages_of(reasoning, message)
    assert back == {"role": "assistant", "content": "Yes.", "reasoning_details": details}


def test_hidden_reasoning_has_no_summary_and_comes_back() -> None:
    details = [{"type": "reasoning.encrypted", "data": "c2VjcmV0", "format": "x", "index": 0}]
    [reasoning] = items_of({"content": "", "reasoning_details": details})
    assert reasoning["summary"] == []
    assert messages_of(reasoning)[0]["reasoning_details"] == details


def test_reasoning_without_a_signature_comes_back() -> None:
    [reasoning, _] = items_of({"content": "Yes.", "reasoning": "Hm."})
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm."}]
    detail = {"type": "reasoning.text", "text": "Hm.", "format": "unknown", "index": 0}
    assert messages_of(reasoning)[0]["reasoning_details"] == [detail]


def test_calls_have_the_items_of_their_tools() -> None:
    inner = {"type": "function", "name": "go", "parameters": {}}
    tools = [
        FUNCTION,
        CUSTOM,
        {"type": "namespace", "name": "maps", "tools": [inner]},
        {"type": "local_shell"},
        {"type": "shell"},
        {"type": "tool_search", "execution": "client"},
    ]
    calls = [
        called("get_weather", '{"city": "Zürich"}', "c1"),
        called("apply_patch", '{"input": "*** Begin"}', "c2"),
        called("maps__go", "", "c3"),
        called("local_shell", '{"command": ["ls"], "timeout_ms": 5}', "c4"),
        called("shell", '{"commands": ["ls"]}', "c5"),
        called("tool_search", '{"query": "x"}', "c6"),
        called("unheard", '{"a": 1}', "c7"),
    ]
    found = items_of({"content": None, "tool_calls": calls}, asks=translated(tools=tools))
    assert [item.pop("id") for item in found] == [
        "fc_1_1", "ctc_1_2", "fc_1_3", "lsh_1_4", "sh_1_5", "tsc_1_6", "fc_1_7",
    ]  # fmt: skip
    assert [item.pop("call_id") for item in found] == [f"c{n}" for n in range(1, 8)]
    assert {item.pop("status") for item in found} == {"completed"}
    action = {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}
    assert found == [
        {"type": "function_call", "name": "get_weather", "arguments": '{"city": "Zürich"}'},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call", "name": "go", "arguments": "{}", "namespace": "maps"},
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5},
        },
        {"type": "shell_call", "action": action},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
        {"type": "function_call", "name": "unheard", "arguments": '{"a": 1}'},
    ]


@pytest.mark.parametrize("arguments", ["*** Begin", '{"input": 5}', "[", '{"other": ""}'])
def test_an_input_that_is_not_wrapped_stays_as_it_is(arguments: str) -> None:
    asks = translated(tools=[CUSTOM])
    [item] = items_of({"tool_calls": [called("apply_patch", arguments)]}, asks=asks)
    assert item["input"] == arguments


def test_a_call_that_does_not_fit_its_tool_is_a_function_call() -> None:
    asks = translated(tools=[{"type": "local_shell"}])
    [item] = items_of({"tool_calls": [called("local_shell", '{"command": "ls"}')]}, asks=asks)
    assert (item["type"], item["name"]) == ("function_call", "local_shell")


def test_the_signature_of_a_call_comes_back_with_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    found = items_of({"tool_calls": [called("get_weather", extra_content=extra)]})
    assert [item["type"] for item in found] == ["reasoning", "function_call"]
    asked, answered = messages_of(*found, output())
    assert asked["reasoning_details"] == [
        {"type": "reasoning.encrypted", "data": "c2ln", "id": "c1", "format": "google-gemini-v1"}
    ]
    assert answered["tool_call_id"] == call()["call_id"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": 5}'])
def test_a_malformed_reply_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidReply):
        render_reply(body, {}, {})


def test_a_reply_that_ended_in_an_error_is_an_error() -> None:
    choice = {"index": 0, "finish_reason": "error", "native_finish_reason": "boom"}
    with pytest.raises(UpstreamError) as caught:
        render_reply(json.dumps({"choices": [choice]}).encode(), {}, {})
    assert caught.value.metadata == {"provider_code": "boom"}


def test_a_reply_without_usage_or_choices_is_empty() -> None:
    found = json.loads(render_reply(b'{"id": "gen-1"}', {}, {}))
    assert (found["output"], found["usage"]["total_tokens"]) == ([], 0)
