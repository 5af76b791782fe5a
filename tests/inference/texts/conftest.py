from __future__ import annotations

import pytest

from tests.support.inference.site import Site
from tests.support.texts.logged import log_texts


@pytest.fixture
def logged(site: Site) -> Site:
    """The site of a tenant whose workspace logs inputs and outputs."""
    log_texts(site.tenant)
    return site


@pytest.fixture
def storing(logged: Site, published: Site) -> Site:
    """The logged site, whose model is published."""
    return published
