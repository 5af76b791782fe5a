"""Fixtures for the tests of lists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import factories
from tests.support.factories import Tenant


@pytest.fixture
def private(tenant: Tenant) -> Any:
    """Returns an active private endpoint of a model without public endpoints."""
    provider = factories.make_provider()
    model = factories.make_model("acme/own", context_length=8192)
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(
        tenant, model, provider, price=factories.make_price("0.5", "0.25")
    )
    factories.make_validation(endpoint, credential)
    endpoint.activate()
    return endpoint
