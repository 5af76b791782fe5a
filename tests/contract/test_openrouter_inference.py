"""The public Python SDK calls embeddings and reads credits and generations."""

from __future__ import annotations

from typing import Any

import pytest
from openrouter.errors import BadRequestResponseError, NotFoundResponseError

from tests.support.contract.clients import MakeOpenRouter, Serve
from tests.support.factories import Tenant


def test_embeddings_answer_and_their_generation_is_found(
    openrouter_client: MakeOpenRouter, tenant: Tenant, serve: Serve
) -> None:
    client = openrouter_client(tenant.api_key)
    answer = client.embeddings.generate(model=serve("sim-echo"), input="one two")
    assert answer.object == "list"
    assert answer.model == "acme/falcon"
    assert answer.usage.prompt_tokens == 2
    found = client.generations.get_generation(id=answer.id).data
    assert (found.id, found.api_type, found.is_byok) == (answer.id, "embeddings", True)
    assert (found.tokens_prompt, found.total_cost) == (2, 0)


def test_a_rerank_answers_and_its_generation_is_found(
    openrouter_client: MakeOpenRouter, tenant: Tenant, serve: Serve
) -> None:
    client = openrouter_client(tenant.api_key)
    model = serve("sim-echo", "rerank")
    documents: list[Any] = ["green tea", {"text": "black tea"}]
    answer = client.rerank.rerank(model=model, query="black tea", documents=documents, top_n=1)
    assert answer.model == "acme/falcon"
    assert answer.provider == "Acme AI"
    [best] = answer.results
    assert (best.index, best.relevance_score, best.document.text) == (1, 1, "black tea")
    assert (answer.usage.total_tokens, answer.usage.cost) == (8, 0)
    found = client.generations.get_generation(id=answer.id).data
    assert (found.id, found.api_type, found.tokens_prompt) == (answer.id, "rerank", 8)


def test_a_refused_rerank_is_an_error_of_the_sdk(
    openrouter_client: MakeOpenRouter, tenant: Tenant, serve: Serve
) -> None:
    client = openrouter_client(tenant.api_key)
    with pytest.raises(BadRequestResponseError) as caught:
        client.rerank.rerank(model=serve("sim-echo", "rerank"), query="q", documents=[])
    assert "documents" in str(caught.value)
    with pytest.raises(NotFoundResponseError):
        client.rerank.rerank(model="acme/none", query="q", documents=["d"])


def test_credits_are_returned(openrouter_client: MakeOpenRouter, tenant: Tenant) -> None:
    found = openrouter_client(tenant.management_key).credits.get_credits().data
    assert (found.total_credits, found.total_usage) == (1_000, 0)
