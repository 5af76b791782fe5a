"""Fixtures of admission: a key whose requests cost 1,000 nano-USD a token."""

from __future__ import annotations

import pytest

from accounts.models import ApiKey
from tests.support import factories
from tests.support.inference.site import Site


@pytest.fixture
def key(site: Site) -> ApiKey:
    """Publishes a model and returns the tenant's inference key."""
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    found: ApiKey = ApiKey.objects.get(name="inference")
    return found
