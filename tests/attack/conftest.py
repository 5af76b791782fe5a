"""What an attack needs: the service with two workers, its attacker and the attacker's neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import requests

from tests.support import factories
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.processes import serve


@pytest.fixture(scope="session")
def _running_service(django_db_setup: None, django_db_blocker: object) -> Iterator[str]:
    """``serve --workers 2`` with its default settings, for all attacks that need no others."""
    with django_db_blocker.unblock(), serve("--workers", "2") as served:  # type: ignore[attr-defined]
        yield served.address


@pytest.fixture
def service(site: Site, _running_service: str) -> Site:
    """The attacked service between a tenant, the attacker, and the simulated upstream.

    An attack that needs other settings starts its own: ``with serve("--workers", "2", NAME=…)``.
    """
    site.server = _running_service
    site.publish()
    return site


@pytest.fixture(scope="session")
def _guarded_service(django_db_setup: None, django_db_blocker: object) -> Iterator[str]:
    limits = {
        "REQUEST_HEAD_TIMEOUT": "3",
        "REQUEST_BODY_TIMEOUT": "12",
        "MAX_CONNECTIONS": "40",
        "MAX_CONNECTIONS_PER_ADDRESS": "8",
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
    }
    with django_db_blocker.unblock(), serve("--workers", "2", **limits) as served:  # type: ignore[attr-defined]
        yield served.address


@pytest.fixture
def guarded(site: Site, _guarded_service: str) -> Site:
    """The attacked service with short deadlines and few connections, 8 a worker and address.

    The limit of an address binds every address but 127.0.0.1.
    """
    site.server = _guarded_service
    return site


@pytest.fixture
def neighbour(site: Site) -> Tenant:
    """Another organization on the same service."""
    return factories.make_tenant("Neighbour")


@pytest.fixture
def is_served(site: Site, neighbour: Tenant) -> Callable[[], bool]:
    """Sends the neighbour's chat request and returns whether it was answered."""

    def ask() -> bool:
        answer: requests.Response = site.post(site.chat_body("one two"), key=neighbour.api_key)
        return answer.status_code == 200

    return ask
