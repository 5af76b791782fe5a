"""The public Python SDK speaks Responses, by its name and by its older one."""

from __future__ import annotations

from typing import Any

import pytest
from openrouter import OpenRouter, errors

from tests.support.contract.answers import WEATHER
from tests.support.contract.clients import Serve, pieces_of

WORDS = ["You", " said:", " one", " two"]


@pytest.fixture(params=["responses", "beta"])
def send(caller: OpenRouter, request: pytest.FixtureRequest) -> Any:
    if request.param == "beta":
        return caller.beta.responses.send
    return caller.responses.send


def test_send_answers(send: Any, serve: Serve) -> None:
    answer = send(model=serve("sim-echo"), input="one two", instructions="Be brief.")
    assert (answer.object, answer.status, answer.model) == ("response", "completed", "acme/falcon")
    assert answer.output[0].content[0].text == "You said: one two"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (4, 4)
    assert (answer.usage.cost, answer.usage.is_byok) == (0, True)


def test_events_are_streamed(send: Any, serve: Serve) -> None:
    events = pieces_of(send(model=serve("sim-reasoning"), input="one two", stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == WORDS
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]


def test_calls_of_tools_come_back(send: Any, serve: Serve) -> None:
    model = serve("sim-tools:2")
    with send(model=model, input="Hi", tools=[WEATHER], stream=True) as stream:
        *_, last = stream
    calls = last.response.output
    assert [call.name for call in calls] == ["get_weather", "get_weather"]
    turns = [
        {"type": "message", "role": "user", "content": "Hi"},
        *(call.model_dump(mode="json", by_alias=True, exclude_none=True) for call in calls),
        *(
            {"type": "function_call_output", "call_id": call.call_id, "output": "12 °C"}
            for call in calls
        ),
    ]
    assert send(model=model, input=turns, tools=[WEATHER]).status == "completed"


def test_a_failed_stream_is_told(send: Any, serve: Serve) -> None:
    with send(model=serve("sim-reset-stream"), input="one two", stream=True) as stream:
        *_, last = stream
    assert last.type == "response.failed"
    assert last.response.error.code == "server_error"


def test_an_error_has_its_class(send: Any, serve: Serve) -> None:
    with pytest.raises(errors.TooManyRequestsResponseError):
        send(model=serve("sim-status-429"), input="one two")
    with pytest.raises(errors.BadRequestResponseError):
        send(model="acme/falcon", input="one two", previous_response_id="resp_1")
