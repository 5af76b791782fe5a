"""The public Python SDK chats, embeds and reranks, and reads credits and generations."""

from __future__ import annotations

from typing import Any

import pytest
from openrouter import OpenRouter, errors
from openrouter.errors import BadRequestResponseError, NotFoundResponseError

from tests.support.contract.answers import ANSWER, ARGUMENTS, COST, MESSAGES, WORDS
from tests.support.contract.clients import MakeOpenRouter, Serve, calls_of, pieces_of
from tests.support.simulator.server import Simulator

USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, **COST}


def test_embeddings_answer_and_their_generation_is_found(caller: OpenRouter, serve: Serve) -> None:
    answer = caller.embeddings.generate(model=serve("sim-echo"), input="one two")
    assert answer.object == "list"
    assert answer.model == "acme/falcon"
    assert answer.usage.prompt_tokens == 2
    found = caller.generations.get_generation(id=answer.id).data
    assert (found.id, found.api_type, found.is_byok) == (answer.id, "embeddings", True)
    assert (found.tokens_prompt, found.total_cost) == (2, 0)


def test_a_rerank_answers_and_its_generation_is_found(caller: OpenRouter, serve: Serve) -> None:
    model = serve("sim-echo", "rerank")
    documents: list[Any] = ["green tea", {"text": "black tea"}]
    answer = caller.rerank.rerank(model=model, query="black tea", documents=documents, top_n=1)
    assert answer.model == "acme/falcon"
    assert answer.provider == "Acme AI"
    [best] = answer.results
    assert (best.index, best.relevance_score, best.document.text) == (1, 1, "black tea")
    assert (answer.usage.total_tokens, answer.usage.cost) == (8, 0)
    found = caller.generations.get_generation(id=answer.id).data
    assert (found.id, found.api_type, found.tokens_prompt) == (answer.id, "rerank", 8)


def test_a_refused_rerank_is_an_error_of_the_sdk(caller: OpenRouter, serve: Serve) -> None:
    with pytest.raises(BadRequestResponseError) as caught:
        caller.rerank.rerank(model=serve("sim-echo", "rerank"), query="q", documents=[])
    assert "documents" in str(caught.value)
    with pytest.raises(NotFoundResponseError):
        caller.rerank.rerank(model="acme/none", query="q", documents=["d"])


def test_credits_are_returned(manager: OpenRouter) -> None:
    found = manager.credits.get_credits().data
    assert (found.total_credits, found.total_usage) == (1_000, 0)


def test_chat_answers_with_usage_and_cost(caller: OpenRouter, serve: Serve) -> None:
    answer = caller.chat.send(model=serve("sim-echo"), messages=MESSAGES)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "acme/falcon"
    assert answer.usage is not None
    assert answer.usage.model_dump() == USAGE


def test_chat_streams_tokens_and_ends_with_the_cost(caller: OpenRouter, serve: Serve) -> None:
    chunks = pieces_of(caller.chat.send(model=serve("sim-echo"), messages=MESSAGES, stream=True))
    assert [
        chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0]
    ][1:-1] == WORDS
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump() == USAGE
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_chat_delivers_each_token_without_buffering(
    caller: OpenRouter, serve: Serve, simulator: Simulator
) -> None:
    simulator.clear()
    with caller.chat.send(model=serve("sim-gated"), messages=MESSAGES, stream=True) as stream:
        chunks = iter(stream)
        assert next(chunks).choices[0].delta.role == "assistant"
        for word in WORDS:
            simulator.release()
            assert next(chunks).choices[0].delta.content == word
        simulator.release(3)
        assert [len(chunk.choices) for chunk in chunks] == [1, 0]


def test_chat_streams_the_arguments_of_a_tool_call(caller: OpenRouter, serve: Serve) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    chunks = pieces_of(
        caller.chat.send(model=serve("sim-tools"), messages=MESSAGES, tools=tools, stream=True)
    )
    calls = calls_of(chunks)
    assert calls[0].id == "call_0"
    assert calls[0].function.name == "get_weather"
    pieces = (call.function.arguments or "" for call in calls if call.function)
    assert "".join(pieces) == ARGUMENTS
    assert [choice.finish_reason for choice in chunks[-2].choices] == ["tool_calls"]


@pytest.mark.parametrize(
    "behaviour",
    ["sim-reasoning", "sim-null-content", "sim-extra", "sim-cached", "sim-no-usage",
     "sim-null-usage", "sim-content-filter", "sim-usage-null", "sim-versioned", "sim-crlf"],
)  # fmt: skip
def test_chat_keeps_its_shape_when_the_upstream_adds_or_omits_fields(
    caller: OpenRouter, serve: Serve, behaviour: str
) -> None:
    model = serve(behaviour)
    plain = caller.chat.send(model=model, messages=MESSAGES)
    chunks = pieces_of(caller.chat.send(model=model, messages=MESSAGES, stream=True))
    assert plain.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == plain.choices[0].message.content == ANSWER


def test_chat_reports_an_error_inside_a_stream_as_its_last_chunk(
    caller: OpenRouter, serve: Serve
) -> None:
    model = serve("sim-reset-stream")
    chunks = pieces_of(caller.chat.send(model=model, messages=MESSAGES, stream=True))
    assert chunks[-1].error is not None
    assert chunks[-1].error.code == 502
    assert chunks[-1].error.metadata is not None
    assert chunks[-1].error.metadata.error_type == "provider_unavailable"
    assert chunks[-1].choices[0].finish_reason == "error"


def test_chat_refuses_keys_without_inference_permission(
    openrouter_client: MakeOpenRouter, manager: OpenRouter, serve: Serve
) -> None:
    model = serve("sim-echo")
    with pytest.raises(errors.UnauthorizedResponseError):
        openrouter_client("sk-unknown").chat.send(model=model, messages=MESSAGES)
    with pytest.raises(errors.ForbiddenResponseError) as caught:
        manager.chat.send(model=model, messages=MESSAGES)
    assert caught.value.data.error.code == 403


def test_chat_refuses_an_unknown_model(caller: OpenRouter) -> None:
    with pytest.raises(errors.NotFoundResponseError) as caught:
        caller.chat.send(model="acme/none", messages=MESSAGES)
    assert caught.value.data.error.metadata == {"error_type": "model_not_found"}


def test_chat_refuses_a_parameter_out_of_range(caller: OpenRouter, serve: Serve) -> None:
    with pytest.raises(errors.BadRequestResponseError) as caught:
        caller.chat.send(model=serve("sim-echo"), messages=MESSAGES, temperature=9)
    assert caught.value.data.error.metadata is not None
    assert list(caught.value.data.error.metadata["fields"]) == ["temperature"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "error", "status"),
    [
        ("sim-status-400", errors.BadRequestResponseError, 400),
        ("sim-status-401", errors.BadGatewayResponseError, 502),
        ("sim-status-429", errors.TooManyRequestsResponseError, 429),
        ("sim-status-500", errors.BadGatewayResponseError, 502),
        ("sim-status-503", errors.ServiceUnavailableResponseError, 503),
    ],
)
def test_chat_maps_the_failures_of_an_upstream(
    caller: OpenRouter,
    serve: Serve,
    behaviour: str,
    error: type[errors.OpenRouterError],
    status: int,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        caller.chat.send(model=serve(behaviour), messages=MESSAGES, stream=stream)  # type: ignore[call-overload]
    assert type(caught.value) is error
    assert caught.value.status_code == status
    assert caught.value.data.error.code == status  # type: ignore[attr-defined]
