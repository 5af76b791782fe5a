from __future__ import annotations

import pytest

from tests.support.inference.repeats import keep_answers
from tests.support.inference.site import Site


@pytest.fixture
def kept(site: Site) -> Site:
    """The site of a tenant whose workspace keeps answers."""
    site.publish()
    keep_answers(site.tenant)
    return site
