"""Fixtures that all rooms share: tenants, clients, a simulated upstream and the service."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType
from typing import Any

import hypothesis
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import Client
from rest_framework.test import APIClient

from config.local.certificates import ensure_certificates
from tests.support import console, factories
from tests.support.bulkheads.serving import serve_in_thread
from tests.support.database.flush import replace_flush
from tests.support.database.migrated import copy_database, drop_database, migrated_database
from tests.support.database.pooler import run_pooler
from tests.support.embedded import CLOUD_HOSTS, CLOUD_PORT
from tests.support.factories import Tenant
from tests.support.inference.site import Site, make_site
from tests.support.machine.waiting import wait_until
from tests.support.processes import POOLER_ADDRESS, Served, serve
from tests.support.simulator.server import Simulator
from tests.support.static_files import share_static_files
from tests.support.suite.tiers import count_examples
from tests.support.upstreams.clouds import Clouds, Gate

# A property must hold on a slow machine too, and a run finds the same examples again.
hypothesis.settings.register_profile(
    "patient",
    deadline=None,
    derandomize=True,
    max_examples=count_examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _shortcuts() -> Iterator[None]:
    """Replaces three steps of Django and WhiteNoise that would take half of the suite's time."""
    with pytest.MonkeyPatch.context() as patch:
        # A million rounds for each sign-in protect nobody here.
        quick = "django.contrib.auth.hashers.MD5PasswordHasher"
        patch.setattr(settings, "PASSWORD_HASHERS", [quick, *settings.PASSWORD_HASHERS])
        replace_flush(patch)
        share_static_files(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _pooler_for_all(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``CAUSEWAY_TEST_POOLER=1``, puts PgBouncer before the database of every service.

    The tests themselves stay connected to PostgreSQL: they lock rows and look into sessions. The
    service in this process is half of each: its data plane gets an address of its own.
    """
    if not os.environ.get("CAUSEWAY_TEST_POOLER"):
        yield
        return
    request.getfixturevalue("django_db_setup")
    with run_pooler(os.environ["DATABASE_URL"]) as pooler, pytest.MonkeyPatch.context() as patch:
        default = connections.settings["default"]
        given = {name: value for name, value in default["OPTIONS"].items() if name != "host"}
        address = {"HOST": "127.0.0.1", "PORT": str(pooler.port), "OPTIONS": given}
        patch.setitem(connections.settings, "direct", {**default, **address})
        patch.setenv(POOLER_ADDRESS, f"127.0.0.1:{pooler.port}")
        yield


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Copies the tests' database from a migrated one, which is not migrated again."""
    connection.creation._destroy_test_db = MethodType(drop_database, connection.creation)
    if template := migrated_database():
        settings.DATABASES["default"].setdefault("TEST", {})["TEMPLATE"] = template
        connection.creation.create_test_db = MethodType(copy_database, connection.creation)


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    """One simulated upstream over TLS; tests that read its records call ``clear`` first."""
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with Simulator(certificates).run_in_thread() as running:
        yield running


@pytest.fixture(scope="session")
def _clouds() -> Iterator[Simulator]:
    certificates = ensure_certificates(
        Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls", names=CLOUD_HOSTS
    )
    with Clouds(certificates, port=CLOUD_PORT, admit=Gate()).run_in_thread() as running:
        yield running


@pytest.fixture
def clouds(_clouds: Simulator) -> Simulator:
    """Azure, Bedrock and Vertex as one local server at their own names, with nothing recorded."""
    _clouds.clear()
    _clouds.admit = Gate()
    return _clouds


@pytest.fixture
def tenant(db: None) -> Tenant:
    """Creates an organization with its keys."""
    return factories.make_tenant()


@pytest.fixture
def world(tenant: Tenant) -> dict[str, Any]:
    """Returns a row of every model that has a page of the console, by the model's label."""
    return console.make_world(tenant)


@pytest.fixture
def operator(db: None) -> Client:
    """Returns a browser that is signed in as a superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    return client


@pytest.fixture
def viewer(db: None) -> Client:
    """Returns a browser of an operator who may view everything and change nothing."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def management(tenant: Tenant) -> APIClient:
    """A client with the tenant's management key, in process."""
    return factories.client(tenant.management_key)


@pytest.fixture
def inference(tenant: Tenant) -> APIClient:
    """A client with the tenant's inference key, in process."""
    return factories.client(tenant.api_key)


@pytest.fixture
def anonymous(db: None) -> APIClient:
    """A client without a key, in process."""
    return APIClient()


@pytest.fixture(scope="session")
def _running_server(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    from config.asgi import application

    with django_db_blocker.unblock(), serve_in_thread(application) as address:
        yield address


@pytest.fixture
def server(transactional_db: None, _running_server: str) -> Iterator[str]:
    """Returns the address of the service, which runs in this process on the test's database."""
    yield _running_server
    # The tables are emptied while the service may still settle the last requests. In a deadlock,
    # PostgreSQL ends the session whose timeout passes first: the service's, which tries again.
    with connection.cursor() as cursor:
        cursor.execute("SET deadlock_timeout = '1min'")


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """Runs each call in its own thread, all at the same moment, and returns their results."""

    def run(*calls: Callable[[], Any]) -> list[Any]:
        barrier = threading.Barrier(len(calls))

        def start(call: Callable[[], Any]) -> Any:
            try:
                barrier.wait(60)
                return call()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(len(calls)) as pool:
            return [pending.result() for pending in [pool.submit(start, call) for call in calls]]

    return run


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits for an effect that follows a response, such as a settlement."""
    return wait_until


@pytest.fixture
def site(
    server: str, simulator: Simulator, eventually: Callable[[Callable[[], bool]], None]
) -> Site:
    simulator.clear()
    return make_site(server, simulator, eventually)


@pytest.fixture(scope="session")
def running_service(django_db_setup: None, django_db_blocker: Any) -> Iterator[Served]:
    """``serve --workers 2`` with its default settings, for all tests that need no others."""
    with django_db_blocker.unblock(), serve("--workers", "2") as served:
        yield served


@pytest.fixture
def service(site: Site, running_service: Served) -> Site:
    """The service with two workers between a tenant and the simulated upstream.

    A test that needs other settings starts its own: ``with serve("--workers", "2", NAME=…)``.
    """
    site.server = running_service.address
    site.publish()
    return site


@pytest.fixture
def neighbour(site: Site) -> Tenant:
    """Another organization on the same service."""
    return factories.make_tenant("Neighbour")


@pytest.fixture
def is_served(site: Site, neighbour: Tenant) -> Callable[[], bool]:
    """Sends the neighbour's chat request and returns whether it was answered."""

    def ask() -> bool:
        answer = site.post(site.chat_body("one two"), key=neighbour.api_key)
        return answer.status_code == 200

    return ask
