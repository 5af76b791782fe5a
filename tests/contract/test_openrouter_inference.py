"""The public Python SDK calls embeddings and reads credits and generations."""

from __future__ import annotations

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


def test_credits_are_returned(openrouter_client: MakeOpenRouter, tenant: Tenant) -> None:
    found = openrouter_client(tenant.management_key).credits.get_credits().data
    assert (found.total_credits, found.total_usage) == (1_000, 0)
