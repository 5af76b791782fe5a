"""Fixtures for the creation of an endpoint: provider, model, credential and upstream."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import ByokCredential
from catalog.models import LanguageModel, Provider
from tests.support import factories
from tests.support.endpoints.importing import PRICING
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator


@pytest.fixture
def provider(db: None) -> Provider:
    return factories.make_provider("acme", name="Acme AI")


@pytest.fixture
def cloud(db: None) -> Provider:
    """Returns a provider whose URL comes from the credential."""
    return factories.make_provider("azure", name="Azure", dialect="azure", base_url=None)


@pytest.fixture
def model(db: None) -> LanguageModel:
    return factories.make_model("acme/falcon", name="Acme: Falcon")


@pytest.fixture
def credential(tenant: Tenant, provider: Provider) -> ByokCredential:
    return factories.make_credential(tenant, provider)


@pytest.fixture
def upstream(simulator: Simulator) -> Simulator:
    """Returns the simulated upstream without records and without running requests.

    Connections may be open: the service under test keeps some alive.
    """
    assert simulator.wait_until(
        lambda: all(
            request.finished_at or request.client_closed_at for request in simulator.requests
        )
    )
    simulator.clear()
    return simulator


@pytest.fixture
def request_body(model: LanguageModel, provider: Provider) -> dict[str, Any]:
    """Returns a create request that has the required fields only."""
    return {
        "model_permaslug": model.canonical_slug,
        "provider_slug": provider.slug,
        "upstream_model_id": "sim-echo",
        "base_url": "https://llm.example.com/v1",
    }


@pytest.fixture
def row(request_body: dict[str, Any]) -> dict[str, Any]:
    """Returns a line of an import file with every declaration."""
    return request_body | {"declared_region": "europe", "declared_zdr": True, "pricing": PRICING}
