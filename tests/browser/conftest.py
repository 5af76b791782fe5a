"""Lets the tests of a browser begin first, a file of them takes minutes, and ends the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)
