"""What the tests of the catalogue share."""

from __future__ import annotations

import pytest
from django.core.cache import cache


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    """Figures of traffic are kept for a minute, which outlives a test's database."""
    cache.clear()
