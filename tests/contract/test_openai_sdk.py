"""The ``openai`` SDK works with only a base URL and a key."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.support.contract import document
from tests.support.contract.answers import ANSWER, ARGUMENTS, COST, MESSAGES, WORDS
from tests.support.contract.clients import MakeOpenAI, Serve, calls_of, pieces_of
from tests.support.factories import Tenant

TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def test_chat_answers(client: openai.OpenAI, serve: Serve) -> None:
    answer = client.chat.completions.create(model=serve("sim-echo"), messages=MESSAGES)
    assert answer.id.startswith("gen-")
    assert answer.object == "chat.completion"
    assert answer.model == "acme/falcon"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 5, 8)
    assert answer.usage.model_extra == COST


def test_chat_streams_one_word_at_a_time(client: openai.OpenAI, serve: Serve) -> None:
    chunks = pieces_of(
        client.chat.completions.create(model=serve("sim-echo"), messages=MESSAGES, stream=True)
    )
    contents = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    assert contents == ["", *WORDS, None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.model for chunk in chunks} == {"acme/falcon"}


def test_chat_answers_with_tool_calls(client: openai.OpenAI, serve: Serve) -> None:
    answer = client.chat.completions.create(
        model=serve("sim-tools"), messages=MESSAGES, tools=[TOOL]
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    found = (call.id, call.function.name, call.function.arguments)
    assert found == ("call_0", "get_weather", ARGUMENTS)


def test_chat_streams_tool_calls_in_parts(client: openai.OpenAI, serve: Serve) -> None:
    model = serve("sim-tools:2")
    chunks = pieces_of(
        client.chat.completions.create(model=model, messages=MESSAGES, tools=[TOOL], stream=True)
    )
    calls = calls_of(chunks)
    assert [call.id for call in calls if call.id] == ["call_0", "call_1"]
    arguments = ["", ""]
    for call in calls:
        arguments[call.index] += call.function.arguments or ""
    assert arguments == [ARGUMENTS, ARGUMENTS.replace("0}", "1}")]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"


def test_stream_helper_assembles_the_message(client: openai.OpenAI, serve: Serve) -> None:
    with client.chat.completions.stream(model=serve("sim-echo"), messages=MESSAGES) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert [delta for delta in deltas if delta] == WORDS
    assert final.choices[0].message.content == ANSWER
    assert final.usage is not None
    assert final.usage.total_tokens == 8


def test_text_completion_answers(client: openai.OpenAI, serve: Serve) -> None:
    answer = client.completions.create(model=serve("sim-echo"), prompt="one two three")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 8


def test_text_completion_streams(client: openai.OpenAI, serve: Serve) -> None:
    chunks = pieces_of(
        client.completions.create(model=serve("sim-echo"), prompt="one two three", stream=True)
    )
    assert [choice.text for chunk in chunks for choice in chunk.choices] == [*WORDS, ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8


def test_asynchronous_client_answers_and_streams(server: str, tenant: Tenant, serve: Serve) -> None:
    model = serve("sim-echo")

    async def ask() -> tuple[str | None, list[str | None]]:
        transport = openai.DefaultAsyncHttpxClient(
            timeout=30, event_hooks={"response": [document.check_answer_async]}
        )
        async with openai.AsyncOpenAI(
            api_key=tenant.api_key,
            base_url=f"{server}/api/v1",
            max_retries=0,
            http_client=transport,
        ) as client:
            answer = await client.chat.completions.create(model=model, messages=MESSAGES)
            stream = await client.chat.completions.create(
                model=model, messages=MESSAGES, stream=True
            )
            async with stream:
                contents = [
                    choice.delta.content async for chunk in stream for choice in chunk.choices
                ]
            return answer.choices[0].message.content, contents

    assert asyncio.run(ask()) == (ANSWER, ["", *WORDS, None])


def test_unknown_key_is_an_authentication_error(openai_client: MakeOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        openai_client("sk-unknown").chat.completions.create(model="any", messages=MESSAGES)
    assert caught.value.status_code == 401


def test_management_key_is_a_permission_error(openai_client: MakeOpenAI, tenant: Tenant) -> None:
    with pytest.raises(openai.PermissionDeniedError) as caught:
        openai_client(tenant.management_key).chat.completions.create(model="any", messages=MESSAGES)
    assert caught.value.status_code == 403


def test_unknown_model_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="acme/none", messages=MESSAGES)
    assert caught.value.body == {
        "code": 404,
        "message": "There is no model 'acme/none'.",
        "metadata": {"error_type": "model_not_found"},
    }


def test_wrong_parameter_is_a_bad_request_error(client: openai.OpenAI, serve: Serve) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=serve("sim-echo"), messages=MESSAGES, temperature=9)
    assert isinstance(caught.value.body, dict)
    assert list(caught.value.body["metadata"]["fields"]) == ["temperature"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "error", "status"),
    [
        ("sim-status-400", openai.BadRequestError, 400),
        ("sim-status-429", openai.RateLimitError, 429),
        ("sim-status-500", openai.InternalServerError, 502),
        ("sim-status-503", openai.InternalServerError, 503),
        ("sim-status-504", openai.InternalServerError, 504),
        ("sim-connect-reset", openai.InternalServerError, 502),
        ("sim-html", openai.InternalServerError, 502),
    ],
)
def test_each_failure_of_an_upstream_has_its_own_class(
    client: openai.OpenAI,
    serve: Serve,
    behaviour: str,
    error: type[openai.APIStatusError],
    status: int,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(model=serve(behaviour), messages=MESSAGES, stream=stream)
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == status


def test_rate_limit_of_an_upstream_has_retry_after(client: openai.OpenAI, serve: Serve) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=serve("sim-status:429,7"), messages=MESSAGES)
    assert caught.value.response.headers["retry-after"] == "7"


def test_error_inside_a_stream_is_raised_after_the_earlier_words(
    client: openai.OpenAI, serve: Serve
) -> None:
    contents = []
    with (
        client.chat.completions.create(
            model=serve("sim-reset-stream"), messages=MESSAGES, stream=True
        ) as stream,
        pytest.raises(openai.APIError) as caught,
    ):
        contents.extend(choice.delta.content for chunk in stream for choice in chunk.choices)
    assert contents == ["", "You"]
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == 502
    assert caught.value.body["metadata"]["error_type"] == "provider_unavailable"


def test_embeddings_answer(client: openai.OpenAI, serve: Serve) -> None:
    answer = client.embeddings.create(
        model=serve("sim-echo"), input=["one two", "three"], encoding_format="float"
    )
    assert (answer.object, answer.model) == ("list", "acme/falcon")
    assert [item.index for item in answer.data] == [0, 1]
    assert all(isinstance(number, float) for number in answer.data[0].embedding)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)


def test_a_model_is_found_by_its_id(client: openai.OpenAI, serve: Serve) -> None:
    found = client.models.retrieve(serve("sim-echo"))
    assert (found.id, found.object, found.owned_by) == ("acme/falcon", "model", "acme")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("acme/none")
