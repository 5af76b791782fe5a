"""Services beside the one with two workers: with short deadlines, and with few connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import Site
from tests.support.machine.waiting import wait_until
from tests.support.processes import serve


@pytest.fixture(scope="module")
def _guarded_service(django_db_setup: None, django_db_blocker: object) -> Iterator[str]:
    limits = {"REQUEST_HEAD_TIMEOUT": "1", "REQUEST_BODY_TIMEOUT": "12"}
    with django_db_blocker.unblock(), serve("--workers", "2", **limits) as served:  # type: ignore[attr-defined]
        yield served.address


@pytest.fixture(scope="module")
def _crowded_service(django_db_setup: None, django_db_blocker: object) -> Iterator[str]:
    limits = {
        # Nothing ends by itself, and one worker has all connections: they can be counted.
        "REQUEST_HEAD_TIMEOUT": "600",
        "MAX_CONNECTIONS": "40",
        "MAX_CONNECTIONS_PER_ADDRESS": "8",
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
    }
    with django_db_blocker.unblock(), serve(**limits) as served:  # type: ignore[attr-defined]
        yield served.address


@pytest.fixture
def guarded(site: Site, _guarded_service: str) -> Site:
    """The attacked service with short deadlines."""
    site.server = _guarded_service
    return site


@pytest.fixture
def crowded(site: Site, _crowded_service: str) -> Site:
    """The attacked service with places for 40 connections, and for 8 of an address.

    The limit of an address binds every address but 127.0.0.1.
    """
    site.server = _crowded_service
    return site


@pytest.fixture
def service(service: Site) -> Site:
    """The service with two workers, once it holds nothing of an earlier attack any more."""

    def is_free() -> bool:
        return read_counter(service.server, "causeway_buffered_bytes") == 0

    wait_until(is_free, "the service still holds what an earlier test sent")
    return service
