"""What the bulkheads are tested with: many organizations, two hosts, and the service's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import factories
from tests.support.bulkheads.load import Load
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.processes import Served, serve


@pytest.fixture
def neighbours(site: Site) -> list[Tenant]:
    """Sixteen other organizations on the same service."""
    return [factories.make_tenant(f"Neighbour {number}") for number in range(16)]


@pytest.fixture
def load(service: Site, neighbours: list[Tenant]) -> Load:
    """Requests of the neighbours, which begin with ``with load:`` and end with its block."""
    return Load(service, [tenant.api_key for tenant in neighbours], pause=0.2)


@pytest.fixture(scope="package")
def _two_hosts(django_db_setup: None, django_db_blocker: object) -> Iterator[tuple[Served, Served]]:
    with django_db_blocker.unblock(), serve() as one, serve() as other:  # type: ignore[attr-defined]
        yield one, other


@pytest.fixture
def hosts(site: Site, _two_hosts: tuple[Served, Served]) -> tuple[str, str]:
    """The addresses of two services on one database, as on two hosts."""
    return _two_hosts[0].address, _two_hosts[1].address


@pytest.fixture
def logged(running_service: Served) -> Callable[[str], list[str]]:
    """Returns the lines with a text that the service has logged since the test began."""
    begin = len(running_service.log)

    def find(text: str) -> list[str]:
        return [line for line in running_service.log[begin:].splitlines() if text in line]

    return find
