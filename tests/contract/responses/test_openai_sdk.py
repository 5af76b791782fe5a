"""The ``openai`` SDK speaks Responses with only a base URL and a key."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pydantic
import pytest

from tests.support.contract import document
from tests.support.contract.answers import ANSWER, ARGUMENTS, WEATHER, WORDS
from tests.support.contract.clients import Serve, answer_to, pieces_of
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

TOOL: Any = {**WEATHER, "strict": False}


class Answer(pydantic.BaseModel):
    body: dict[str, Any]


def deltas_of(events: list[Any], kind: str) -> list[str]:
    return [event.delta for event in events if event.type == f"response.{kind}.delta"]


def test_create_answers(client: openai.OpenAI, serve: Serve) -> None:
    answer = client.responses.create(
        model=serve("sim-echo"), input="one two three", instructions="Be brief."
    )
    assert answer.id.startswith("gen-")
    assert (answer.object, answer.model, answer.status) == ("response", "acme/falcon", "completed")
    assert answer.output_text == ANSWER
    assert answer.usage is not None
    counts = answer.usage
    assert (counts.input_tokens, counts.output_tokens, counts.total_tokens) == (5, 5, 10)


def test_every_event_is_documented_and_in_order(client: openai.OpenAI, serve: Serve) -> None:
    with client.responses.create(
        model=serve("sim-tools:2"), input="Hi", tools=[TOOL], stream=True
    ) as stream:
        found = [event.to_dict() for event in stream]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert found[-1]["type"] == "response.completed"
    for event in found:
        document.check_schema(document.stream_schema("/responses"), event)


def test_the_stream_helper_assembles_the_response(client: openai.OpenAI, serve: Serve) -> None:
    with client.responses.stream(model=serve("sim-reasoning"), input="one two three") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert deltas_of(events, "output_text") == WORDS
    assert deltas_of(events, "reasoning_summary_text") == ["Let me", " think."]
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output_text == ANSWER
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tools_are_called_and_their_outputs_are_sent(
    client: openai.OpenAI, serve: Serve, simulator: Simulator, is_streamed: bool
) -> None:
    model, turns = serve("sim-tools:2"), [{"role": "user", "content": "one two three"}]
    wanted: Any = {"model": model, "tools": [TOOL], "store": False}
    answer = answer_to(client, is_streamed, **wanted, input=turns)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [call.call_id for call in calls] == ["call_0", "call_1"]
    assert {call.name for call in calls} == {"get_weather"}
    assert calls[0].arguments == ARGUMENTS
    turns += [item.to_dict() for item in answer.output]
    turns += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "12 °C"}
        for call in calls
    ]
    client.responses.create(**wanted, input=turns)
    body = simulator.requests[-1].body
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in body["messages"][1]["tool_calls"]] == ["call_0", "call_1"]
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "call_0", "content": "12 °C"}


def test_a_custom_tool_is_called_with_its_text(client: openai.OpenAI, serve: Serve) -> None:
    tool: Any = {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    }
    with client.responses.stream(model=serve("sim-tools"), input="Hi", tools=[tool]) as stream:
        events = list(stream)
        [call] = stream.get_final_response().output
    assert (call.type, call.name, call.call_id) == ("custom_tool_call", "apply_patch", "call_0")
    # The simulated model does not wrap its text.
    assert call.input == ARGUMENTS
    assert [event.delta for event in events if event.type.endswith("input.delta")] == [ARGUMENTS]


def test_parse_returns_an_object_of_the_schema(
    client: openai.OpenAI, serve: Serve, simulator: Simulator
) -> None:
    answer = client.responses.parse(model=serve("sim-mirror"), input="Hi", text_format=Answer)
    assert answer.output_parsed is not None
    wanted = answer.output_parsed.body["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["name"] == "Answer"
    assert wanted["json_schema"]["strict"] is True
    assert simulator.requests[-1].body["response_format"] == wanted


def test_the_answer_of_an_earlier_turn_is_sent_back(
    client: openai.OpenAI, serve: Serve, simulator: Simulator
) -> None:
    model = serve("sim-reasoning")
    first = client.responses.create(model=model, input="one two three")
    turns: Any = [*first.output, {"role": "user", "content": "four"}]
    assert client.responses.create(model=model, input=turns).output_text == "You said: four"
    detail = {
        "type": "reasoning.text", "text": "Let me think.", "format": "unknown", "index": 0,
    }  # fmt: skip
    assert simulator.requests[-1].body["messages"] == [
        {
            "role": "assistant",
            "content": ANSWER,
            "reasoning_content": "Let me think.",
            "reasoning_details": [detail],
        },
        {"role": "user", "content": "four"},
    ]


def test_images_and_files_reach_the_upstream(
    client: openai.OpenAI, serve: Serve, simulator: Simulator
) -> None:
    image, pdf = "data:image/png;base64,aGk=", "data:application/pdf;base64,aGk="
    content: Any = [
        {"type": "input_image", "image_url": image, "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": pdf},
        {"type": "input_text", "text": "What is it?"},
    ]
    client.responses.create(model=serve("sim-echo"), input=[{"role": "user", "content": content}])
    assert simulator.requests[-1].body["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}},
        {"type": "text", "text": "What is it?"},
    ]


def test_the_asynchronous_client_streams(server: str, tenant: Tenant, serve: Serve) -> None:
    model = serve("sim-echo")

    async def ask() -> list[str]:
        async with (
            openai.AsyncOpenAI(
                api_key=tenant.api_key, base_url=f"{server}/api/v1", max_retries=0
            ) as client,
            client.responses.stream(model=model, input="one two three") as stream,
        ):
            return deltas_of([event async for event in stream], "output_text")

    assert asyncio.run(ask()) == WORDS


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ],
)
def test_what_needs_a_store_is_a_bad_request_error(
    client: openai.OpenAI, serve: Serve, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": serve("sim-echo"), "input": "Hi", **fields})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == 400
    assert [*caught.value.body["metadata"]["fields"]] == [name]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "error", "status"),
    [
        ("sim-status-400", openai.BadRequestError, 400),
        ("sim-status-429", openai.RateLimitError, 429),
        ("sim-status-503", openai.InternalServerError, 503),
        ("sim-html", openai.InternalServerError, 502),
    ],
)
def test_each_failure_of_an_upstream_has_its_own_class(
    client: openai.OpenAI,
    serve: Serve,
    behaviour: str,
    error: type[openai.APIStatusError],
    status: int,
    is_streamed: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.responses.create(model=serve(behaviour), input="Hi", stream=is_streamed)
    assert caught.value.status_code == status


def test_an_error_inside_a_stream_is_a_failed_response(client: openai.OpenAI, serve: Serve) -> None:
    model = serve("sim-reset-stream")
    events = pieces_of(client.responses.create(model=model, input="one two three", stream=True))
    assert deltas_of(events, "output_text") == ["You"]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert json.dumps(last.response.error.to_dict())
