"""The site of the tests of images."""

from __future__ import annotations

import pytest

from tests.support.inference.site import Site


@pytest.fixture
def site(site: Site) -> Site:
    """The site, whose model makes images."""
    site.model.output_modalities = ["image"]
    site.model.input_modalities = ["text", "image"]
    site.model.save_fields("output_modalities", "input_modalities")
    return site
