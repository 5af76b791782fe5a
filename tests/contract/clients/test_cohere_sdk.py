"""Rerank by Cohere's own SDK, whose routes begin with ``/v1`` under the base URL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

cohere = pytest.importorskip("cohere")
DOCUMENTS = ["green tea", "black coffee", "black tea"]


@pytest.fixture
def client(server: str, tenant: Tenant) -> Any:
    return cohere.Client(api_key=tenant.api_key, base_url=f"{server}/api", max_retries=0)


def test_documents_are_ranked(client: Any, serve: Serve) -> None:
    answer = client.rerank(
        model=serve("sim-echo", "rerank"), query="black tea", documents=DOCUMENTS, top_n=2
    )
    assert [result.index for result in answer.results] == [2, 0]
    assert answer.results[0].relevance_score == 1
    assert answer.id.startswith("gen-")


def test_a_refusal_is_an_error_of_the_sdk(client: Any, serve: Serve) -> None:
    with pytest.raises(cohere.BadRequestError, match="documents"):
        client.rerank(model=serve("sim-echo", "rerank"), query="q", documents=[])
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="acme/none", query="q", documents=["d"])
    client = cohere.Client(api_key="sk-cw-none", base_url=client._client_wrapper._base_url)
    with pytest.raises(cohere.UnauthorizedError):
        client.rerank(model="acme/none", query="q", documents=["d"])
