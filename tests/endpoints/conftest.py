"""Fixtures for the creation of an endpoint: provider, model, credential and upstream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import ByokCredential
from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.endpoints.creating import body_of
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
def make_draft(
    tenant: Tenant, provider: Provider, credential: ByokCredential, upstream: Simulator
) -> Callable[..., PrivateEndpoint]:
    """Makes a draft of a model at the simulated upstream; the tenant has a credential for it."""

    def make(model: LanguageModel, **fields: Any) -> PrivateEndpoint:
        place = {"base_url": upstream.base_url, **fields}
        return factories.make_draft(tenant, model, provider, **place)

    return make


@pytest.fixture
def active(
    tenant: Tenant,
    model: LanguageModel,
    provider: Provider,
    credential: ByokCredential,
    upstream: Simulator,
) -> PrivateEndpoint:
    """Returns an active endpoint, which calls of the simulated upstream have validated."""
    return factories.make_active(tenant, model, provider, base_url=upstream.base_url)


@pytest.fixture
def request_body(model: LanguageModel, provider: Provider) -> dict[str, Any]:
    """Returns a create request that has the required fields only."""
    return body_of(model, provider)


@pytest.fixture
def activating(
    request_body: dict[str, Any], tenant: Tenant, credential: ByokCredential, upstream: Simulator
) -> dict[str, Any]:
    """Returns a create request that activates its endpoint at the simulated upstream."""
    return request_body | {
        "base_url": upstream.base_url,
        "activate": {"workspace_id": str(tenant.workspace.pk)},
    }


@pytest.fixture
def row(request_body: dict[str, Any]) -> dict[str, Any]:
    """Returns a line of an import file with every declaration."""
    return request_body | {"declared_region": "europe", "declared_zdr": True, "pricing": PRICING}
