"""Every listed model on every route: served, or refused with a reason before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command

from catalog import dialects
from catalog.dialects.base import Operation
from catalog.models import LanguageModel, ModelEndpoint, Provider
from catalog.operations import OPERATIONS
from config.credentials import Secret
from config.local.bootstrap import PROJECT
from inference.models import Generation
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order

CATALOGUE = PROJECT / "catalog" / "data" / "catalogue.json"
MESSAGES = [{"role": "user", "content": "one"}]
BODIES: dict[str, tuple[Operation, dict[str, Any]]] = {
    "/api/v1/chat/completions": (Operation.CHAT, {"messages": MESSAGES, "max_tokens": 16}),
    "/api/v1/messages": (Operation.CHAT, {"messages": MESSAGES, "max_tokens": 16}),
    "/api/v1/responses": (Operation.CHAT, {"input": "one", "max_output_tokens": 16}),
    "/api/v1/completions": (Operation.TEXT, {"prompt": "one", "max_tokens": 16}),
    "/api/v1/embeddings": (Operation.EMBEDDINGS, {"input": "one"}),
    "/api/v1/rerank": (Operation.RERANK, {"query": "one", "documents": ["one", "two"]}),
}


@pytest.fixture
def listed(site: Site) -> list[LanguageModel]:
    """Imports the bundled catalogue; its providers of OpenAI's format are at the simulator."""
    call_command("import_catalog", str(CATALOGUE), verbosity=0)
    for provider in Provider.objects.filter(dialect="openai").exclude(base_url=None):
        provider.base_url = site.upstream.base_url
        provider.save_fields("base_url")
        provider.set_credential(Secret(f"sk-{provider.slug}-0123456789"))
    models = list(LanguageModel.objects.exclude(pk=site.model.pk))
    assert len(models) >= 80
    return models


def is_served(model: LanguageModel, operation: Operation) -> bool:
    """Returns whether a provider with a credential speaks what the model produces."""
    if OPERATIONS[operation].outputs.isdisjoint(model.output_modalities):
        return False
    endpoints = ModelEndpoint.objects.filter(model=model, provider__dialect="openai")
    dialect = dialects.get("openai")
    return dialect is not None and operation in dialect.operations and endpoints.exists()


@pytest.mark.parametrize("path", BODIES)
def test_every_model_is_served_or_refused_with_the_reason(
    site: Site, listed: list[LanguageModel], path: str
) -> None:
    operation, body = BODIES[path]
    served = []
    for model in listed:
        site.upstream.clear()
        answer = site.post({**body, "model": model.slug}, path=path)
        if is_served(model, operation):
            served.append(model.slug)
            assert answer.status_code == 200, (model.slug, answer.text)
            assert len(site.upstream.requests) == 1
        else:
            assert answer.status_code == 404, (model.slug, answer.text)
            assert site.upstream.requests == []
            if path != "/api/v1/messages":
                excluded = answer.json()["error"]["metadata"]["excluded"]
                assert excluded
                assert all(each["excluded_by"] for each in excluded)
    assert served
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.count() == len(served)
    assert_in_order()
