"""PgBouncer before the tests' database, and the service behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.support import processes
from tests.support.database.pooler import Pooler, run_pooler
from tests.support.inference.site import Site
from tests.support.processes import Served, serve


@pytest.fixture(scope="package")
def _pooler(django_db_setup: None) -> Iterator[Pooler]:
    with run_pooler(os.environ["DATABASE_URL"]) as pooler:
        yield pooler


@pytest.fixture
def pooler(_pooler: Pooler) -> Iterator[Pooler]:
    """PgBouncer in transaction mode, with its defaults; it runs again after the test."""
    yield _pooler
    if _pooler.process is None:
        _pooler.start()


@pytest.fixture
def pooled_url(db: None, pooler: Pooler) -> str:
    """The URL of the test's database through the pooler."""
    return pooler.url(processes.environment()["DATABASE_URL"])


@pytest.fixture(scope="package")
def _pooled_service(
    django_db_setup: None, django_db_blocker: object, _pooler: Pooler
) -> Iterator[Served]:
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        url = _pooler.url(processes.environment()["DATABASE_URL"])
        with serve("--workers", "2", DATABASE_URL=url) as served:
            yield served


@pytest.fixture
def pooled(site: Site, pooler: Pooler, _pooled_service: Served) -> Site:
    """The service with two workers, which knows its database through the pooler alone."""
    site.server = _pooled_service.address
    site.publish()
    return site


@pytest.fixture
def logged(_pooled_service: Served) -> Callable[[], str]:
    """Returns what the service behind the pooler has logged since its start."""
    return lambda: _pooled_service.log
