from __future__ import annotations

import pytest
from django.conf import LazySettings

from tests.support.inference.site import Site


@pytest.fixture
def quick(site: Site, settings: LazySettings) -> Site:
    """A site that sends a comment into each stream that is quiet for a moment."""
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    return site
