"""The provider of the credentials."""

from __future__ import annotations

import pytest

from catalog.models import Provider
from tests.support import factories


@pytest.fixture
def provider(db: None) -> Provider:
    return factories.make_provider("acme", name="Acme AI")
