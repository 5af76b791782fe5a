"""Makes the operator whom the tests of a browser sign in, and ends the browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User

from tests.support.browser import PASSWORD, end_chromium


@pytest.fixture(scope="package", autouse=True)
def _chromium_ends() -> Iterator[None]:
    yield
    end_chromium()


@pytest.fixture
def superuser(server: str) -> User:
    """The operator whom ``enter`` and ``log_in`` sign in."""
    return User.objects.create_superuser("operator", password=PASSWORD)
