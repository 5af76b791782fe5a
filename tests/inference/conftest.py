"""Fixtures that several rooms of the data plane share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.cache import cache

from tests.support.inference.site import Site


@pytest.fixture
def fresh_cache() -> Iterator[None]:
    """Clears the cached counts of pages before and after a test."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def published(site: Site) -> Site:
    """The site, whose model is served publicly."""
    site.publish()
    return site
