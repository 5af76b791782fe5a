"""Every listed model on every route: served, or refused with a reason before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from django.core.management import call_command

from catalog import dialects
from catalog.dialects.base import Operation
from catalog.models import LanguageModel, ModelEndpoint, Provider
from catalog.operations import OPERATIONS
from config.credentials import Secret
from config.local.bootstrap import PROJECT
from inference.faces.routes import ROUTES
from inference.models import Generation
from tests.support.bodies.samples import BODIES, EDITS
from tests.support.inference.pictures import PNG
from tests.support.inference.site import MESSAGES, RESPONSES, Site
from tests.support.ledger import assert_in_order

CATALOGUE = PROJECT / "catalog" / "data" / "catalogue.json"


def test_every_route_is_tried() -> None:
    # Counting tokens sends nothing.
    assert {*BODIES, "/api/v1/messages/count_tokens"} == set(ROUTES)


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


def ask(site: Site, path: str, body: dict[str, Any]) -> requests.Response:
    """Sends a body; an edit is a form with an image."""
    if path != EDITS:
        return site.post(body, path=path)
    image = ("image", ("a.png", PNG, "image/png"))
    return site.post(None, path=path, data=body, files=[image])


def is_served(model: LanguageModel, operation: Operation, path: str) -> bool:
    """Returns whether a provider with a credential speaks what the model takes and produces."""
    if path == EDITS and "image" not in model.input_modalities:
        return False
    if OPERATIONS[operation].outputs.isdisjoint(model.output_modalities):
        return False
    if dialects.lacks_chat("openai", model.capabilities) and path != RESPONSES:
        return False
    endpoints = ModelEndpoint.objects.filter(model=model, provider__dialect="openai")
    dialect = dialects.get("openai")
    return dialect is not None and operation in dialect.operations and endpoints.exists()


def try_models(site: Site, models: list[LanguageModel], path: str) -> tuple[list[str], list[str]]:
    """Asks every model on a route; returns those that served it, and those by Responses alone."""
    operation, body = BODIES[path]
    served, native = [], []
    for model in models:
        site.upstream.clear()
        answer = ask(site, path, {**body, "model": model.slug})
        if not is_served(model, operation, path):
            assert answer.status_code == 404, (path, model.slug, answer.text)
            assert site.upstream.requests == []
            if path != MESSAGES:
                excluded = answer.json()["error"]["metadata"]["excluded"]
                assert excluded
                assert all(each["excluded_by"] for each in excluded)
        elif dialects.lacks_chat("openai", model.capabilities):
            # The simulated provider has no Responses of its own: what counts is what it was asked.
            native.append(model.slug)
            [asked] = site.upstream.requests
            assert asked.path == "/v1/responses"
        else:
            served.append(model.slug)
            assert answer.status_code == 200, (path, model.slug, answer.text)
            assert len(site.upstream.requests) == 1
    return served, native


def test_every_model_is_served_or_refused_with_the_reason(
    site: Site, listed: list[LanguageModel]
) -> None:
    sent = 0
    for path in BODIES:
        served, native = try_models(site, listed, path)
        assert served, path
        assert bool(native) is (path == RESPONSES), path
        sent += len(served) + len(native)
    site.wait_for_settlement()
    assert Generation.objects.count() == sent
    assert_in_order()
