"""Copies follow the versions before a request needs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from accounts.models import Organization
from catalog.models import ModelEndpoint
from inference.admission.copies import hints
from inference.admission.copies.hints import VersionHints
from inference.admission.copies.snapshots import Snapshots
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail

_SECONDS = 60.0


@pytest.fixture
def endpoint(transactional_db: None) -> ModelEndpoint:
    return factories.make_endpoint(factories.make_model("acme/falcon"), factories.make_provider())


async def until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(_SECONDS):
        while not is_met():
            await asyncio.sleep(0.01)


async def until_priced(snapshots: Snapshots, endpoint: ModelEndpoint) -> None:
    def is_priced() -> bool:
        routes = snapshots.catalog.routes.get("acme/falcon", ())
        return [route.price_id for route in routes] == [endpoint.price_id]

    await until(is_priced)


async def change(write: Callable[[], object]) -> None:
    def write_and_close() -> None:
        write()
        connection.close()

    await sync_to_async(write_and_close, thread_sensitive=False)()


async def change_price(endpoint: ModelEndpoint) -> None:
    await change(lambda: factories.set_price(endpoint, factories.make_price("0.5")))


def listeners() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE 'LISTEN%%'"
        )
        return [row[0] for row in cursor.fetchall()]


@asynccontextmanager
async def following() -> AsyncIterator[tuple[VersionHints, Snapshots]]:
    snapshots = Snapshots()
    found = VersionHints(snapshots)
    found.start()
    try:
        yield found, snapshots
    finally:
        await found.close()
        await snapshots.close()


def run(test: Callable[[VersionHints, Snapshots], Awaitable[None]]) -> None:
    async def run_test() -> None:
        async with following() as (found, snapshots):
            await test(found, snapshots)

    asyncio.run(run_test())


def test_the_copy_of_the_catalogue_follows_a_price(endpoint: ModelEndpoint) -> None:
    async def test(found: VersionHints, snapshots: Snapshots) -> None:
        await until(lambda: found.is_listening)
        await until(lambda: "acme/falcon" in snapshots.catalog.routes)
        await change_price(endpoint)
        await until_priced(snapshots, endpoint)

    run(test)


def test_the_copy_of_a_served_organization_follows_its_rules(
    endpoint: ModelEndpoint, tenant: Tenant
) -> None:
    organization = tenant.organization

    async def test(found: VersionHints, snapshots: Snapshots) -> None:
        await until(lambda: found.is_listening)
        old = await snapshots.load(organization.pk, 0)
        await change(lambda: make_guardrail(tenant.workspace))
        await until(lambda: snapshots.find(organization.pk, old.version) is None)
        await change(organization.refresh_from_db)
        assert snapshots.find(organization.pk, organization.routing_version) is not None

    run(test)


def test_an_organization_that_is_deleted_does_not_end_the_following(
    transactional_db: None, tenant: Tenant
) -> None:
    organization, gone = tenant.organization, Organization.objects.create(name="Gone")

    def change_and_delete() -> None:
        with transaction.atomic():
            Organization.objects.filter(pk=gone.pk).update(requires_zdr=True)
            gone.delete()

    async def test(found: VersionHints, snapshots: Snapshots) -> None:
        await until(lambda: found.is_listening)
        await snapshots.load(gone.pk, 0)
        old = await snapshots.load(organization.pk, 0)
        await change(change_and_delete)
        await change(lambda: make_guardrail(tenant.workspace))
        await until(lambda: snapshots.find(organization.pk, old.version) is None)

    run(test)


def test_a_lost_connection_is_opened_again(
    endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(found: VersionHints, snapshots: Snapshots) -> None:
        await until(lambda: found.is_listening)

        def cut() -> None:
            before = listeners()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [before])

        await change(cut)
        await until(lambda: not found.is_listening)
        await until(lambda: found.is_listening)
        await change_price(endpoint)
        await until_priced(snapshots, endpoint)

    run(test)
    assert "changes of versions are not heard any more" in caplog.text


def test_the_catalogue_is_polled_while_nothing_is_heard(
    endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "CHANNEL", "a_channel_that_nobody_notifies")
    monkeypatch.setattr(hints, "_ECHO_WAIT_SECONDS", 0.1)

    async def test(found: VersionHints, snapshots: Snapshots) -> None:
        await until(lambda: "acme/falcon" in snapshots.catalog.routes)
        await until(lambda: "notifications do not arrive" in caplog.text)
        await change_price(endpoint)
        await until_priced(snapshots, endpoint)
        assert not found.is_listening

    run(test)


def test_an_unexpected_error_ends_no_task(
    endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_POLL_SECONDS", 0.01)
    refresh, failures = Snapshots.refresh_catalog, ["first", "second"]

    async def fail_twice(snapshots: Snapshots) -> None:
        if failures:
            raise KeyError(failures.pop())
        await refresh(snapshots)

    monkeypatch.setattr(Snapshots, "refresh_catalog", fail_twice)

    async def test(found: VersionHints, snapshots: Snapshots) -> None:
        await until(lambda: found.is_listening)
        while failures:
            left = len(failures)
            await change_price(endpoint)
            await until(lambda left=left: len(failures) < left)  # type: ignore[misc]
        await change_price(endpoint)
        await until(lambda: "acme/falcon" in snapshots.catalog.routes)

    run(test)
    assert caplog.text.count("a change of versions was not followed") == 2
