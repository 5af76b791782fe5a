"""A real llama.cpp server as the upstream of a private endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from catalog.models import ModelEndpoint
from tests.support.contract.clients import MakeOpenAI, MakeOpenRouter, pieces_of, tokens_of
from tests.support.factories import Tenant
from tests.support.operators.commands import refuse, run_json
from tests.support.upstreams.llama import ASKED, PROMPT_TOKENS, SECRET, activate, serve_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_llama(tmp_path_factory.mktemp("model"), SECRET) as base_url:
        yield base_url


@pytest.fixture
def client(server: str, llama: str, tenant: Tenant, openai_client: MakeOpenAI) -> openai.OpenAI:
    """Returns a client of a tenant with an active private endpoint on the llama.cpp server."""
    activate(server, tenant, llama)
    return openai_client(tenant.api_key)


def test_chat_answers_with_the_usage_of_llama_cpp(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED)
    content = answer.choices[0].message.content
    assert content is not None
    assert len(content) == 12
    assert answer.choices[0].finish_reason == "length"
    assert answer.model == "acme/tiny"
    assert answer.usage is not None
    assert tokens_of(answer.usage) == (PROMPT_TOKENS, 12)
    assert answer.usage.total_tokens == PROMPT_TOKENS + 12
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["is_byok"] is True
    assert answer.usage.model_extra["cost_details"]["upstream_inference_cost"] == round(
        PROMPT_TOKENS * 0.000001 + 12 * 0.000002, 9
    )


def test_chat_streams_the_same_text_and_usage(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    chunks = pieces_of(client.chat.completions.create(**ASKED, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert len([chunk for chunk in chunks if chunk.choices]) == 14
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert tokens_of(chunks[-1].usage) == (PROMPT_TOKENS, 12)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_text_completion_answers_and_streams(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "acme/tiny", "prompt": "Once upon", "max_tokens": 8, "temperature": 0
    }  # fmt: skip
    whole = client.completions.create(**asked)
    assert len(whole.choices[0].text) == 8
    assert tokens_of(whole.usage) == (len("Once upon") + 1, 8)
    chunks = pieces_of(client.completions.create(**asked, stream=True))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert tokens_of(chunks[-1].usage) == (10, 8)


def test_a_refusal_of_llama_cpp_is_an_error_of_the_caller(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="acme/tiny", messages=[{"role": "user", "content": "x" * 600}]
        )
    assert caught.value.body == {
        "code": 400,
        "message": "request (618 tokens) exceeds the available context size (512 tokens), "
        "try increasing it",
        "metadata": {
            "error_type": "context_length_exceeded",
            "provider_name": "Acme AI",
            "kind": "status",
            "upstream_status": 400,
            "provider_code": "400",
            "attempt": 1,
            "candidates": 1,
        },
    }


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_llama(tmp_path_factory.mktemp("reranker"), SECRET, pooling="RANK") as base_url:
        yield base_url


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_llama(tmp_path_factory.mktemp("embedder"), SECRET, pooling="MEAN") as base_url:
        yield base_url


def test_rerank_is_validated_and_answers_with_the_usage_of_llama_cpp(
    server: str, tenant: Tenant, reranker: str, openrouter_client: MakeOpenRouter
) -> None:
    activate(server, tenant, reranker, output_modalities=["rerank"])
    documents = ["green tea", "black coffee", "water"]
    answer = openrouter_client(tenant.api_key).rerank.rerank(
        model="acme/tiny", query="tea", documents=documents, top_n=2
    )
    assert len(answer.results) == 2
    assert [each.document.text for each in answer.results] == [
        documents[each.index] for each in answer.results
    ]
    first, second = (each.relevance_score for each in answer.results)
    assert first >= second
    # The tokenizer has a token for each character; each pair has the query and a delimiter.
    tokens = sum(len("tea") + 1 + len(text) for text in documents)
    assert answer.usage.total_tokens == tokens
    assert answer.usage.cost == 0


def test_embeddings_are_validated_and_answer_with_the_usage_of_llama_cpp(
    server: str, tenant: Tenant, embedder: str, openai_client: MakeOpenAI
) -> None:
    activate(server, tenant, embedder, output_modalities=["embeddings"])
    answer = openai_client(tenant.api_key).embeddings.create(
        model="acme/tiny", input=["tea", "water"]
    )
    assert [each.index for each in answer.data] == [0, 1]
    assert len({len(each.embedding) for each in answer.data}) == 1
    assert answer.usage.prompt_tokens == len("tea") + len("water") + 2


def test_connect_recognizes_the_server(llama: str, db: None) -> None:
    assert "The server wants a key for the list of its models" in refuse("connect", llama)[1]
    found, _ = run_json("connect", llama, "--key", SECRET)
    assert (found["provider"], found["models"]) == ("llama-cpp", ["llama-cpp/tiny"])
    assert (found["network_allowed"], found["test"]["status"]) == (None, 200)
    # What it serves, not what the model was trained with.
    assert ModelEndpoint.objects.get().context_length == 512
