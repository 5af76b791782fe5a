"""Rows that generations refer to are kept without foreign keys, and missing ones are found."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Final

import pytest
from django.db import IntegrityError, connection, connections, transaction

from accounts.models import ApiKey
from billing.models import Account
from billing.verification import find_differences, run_check
from catalog.models import CatalogVersion, ModelEndpoint
from config import sql
from inference.admission.admit import ADMIT
from inference.ids import new_generation_id
from inference.models import Generation, Journal
from inference.settlement.verification import VERIFY_REFERENCES
from tests.support import factories
from tests.support.database.locks import waiting
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_member

# The tables that a generation refers to, with the columns and what ``verify_ledger`` calls them.
REFERENCES: Final = [
    ("accounts_organization", "organization_id", "organization"),
    ("accounts_workspace", "workspace_id", "workspace"),
    ("accounts_apikey", "api_key_id", "API key"),
    ("accounts_member", "member_id", "member"),
    ("endpoints_privateendpoint", "private_endpoint_id", "private endpoint"),
    ("catalog_modelendpoint", "model_endpoint_id", "catalogue endpoint"),
    ("catalog_priceversion", "price_id", "price"),
]
TARGETS: Final = ("accounts_apikey", "catalog_modelendpoint")
RACES: Final = 200


def run(statement: str, *parameters: Any) -> int:
    """Runs a statement as an operator would in ``psql``, and returns the number of its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        count: int = cursor.rowcount
    return count


def delete(table: str, key: Any) -> int:
    return run(f"DELETE FROM {table} WHERE id = %s", key)


def delete_unchecked(table: str, key: Any) -> None:
    run("SET CONSTRAINTS ALL IMMEDIATE")
    # In the role of a replica PostgreSQL fires no triggers and checks no foreign keys.
    run("SET LOCAL session_replication_role = replica")
    delete(table, key)
    run("SET LOCAL session_replication_role = DEFAULT")


def make_generation(tenant: Tenant, column: str, **fields: Any) -> Generation:
    """Makes a generation that refers to a row of the column's table."""
    if column == "private_endpoint_id":
        fields["private_endpoint"] = factories.make_draft(
            tenant, factories.make_model(), factories.make_provider()
        )
    member = make_member(tenant.organization)
    return factories.make_generation(tenant, member_id=member.pk, **fields)


@pytest.mark.parametrize(("table", "column", "name"), REFERENCES)
def test_a_row_with_a_generation_is_not_deleted(
    tenant: Tenant, table: str, column: str, name: str
) -> None:
    row = make_generation(tenant, column)
    with pytest.raises(IntegrityError), transaction.atomic():
        delete(table, getattr(row, column))
    assert run(f"SELECT 1 FROM {table} WHERE id = %s", getattr(row, column)) == 1
    assert run_check(VERIFY_REFERENCES) == []


def test_rows_without_generations_are_deleted(tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    assert delete("accounts_member", member.pk) == 1
    assert delete("catalog_modelendpoint", endpoint.pk) == 1


def test_a_running_generation_and_an_account_with_transfers_are_not_deleted(tenant: Tenant) -> None:
    running = factories.make_generation(tenant, status="pending")
    purse = Account.objects.get(organization=tenant.organization, kind="credits")
    for table, key in (("inference_generation", running.pk), ("billing_account", purse.pk)):
        with pytest.raises(IntegrityError), transaction.atomic():
            delete(table, key)
    assert Generation.objects.filter(pk=running.pk).exists()
    assert Account.objects.filter(pk=purse.pk).exists()


@pytest.mark.parametrize(("table", "column", "name"), REFERENCES)
def test_verify_ledger_finds_a_reference_to_nothing(
    tenant: Tenant, table: str, column: str, name: str
) -> None:
    row = make_generation(tenant, column)
    key = getattr(row, column)
    delete_unchecked(table, key)
    assert run_check(VERIFY_REFERENCES) == [f"generation {row.pk}: its {name} {key} does not exist"]


def test_verify_ledger_finds_a_journal_without_its_generation(tenant: Tenant) -> None:
    row = factories.make_generation(tenant, status="pending")
    delete_unchecked("inference_generation", row.pk)
    assert run_check(VERIFY_REFERENCES) == [f"journal {row.pk}: its generation does not exist"]


def test_verify_ledger_finds_a_transfer_without_its_account(tenant: Tenant) -> None:
    purse = Account.objects.get(organization=tenant.organization, kind="credits")
    delete_unchecked("billing_account", purse.pk)
    found = f"its accounts are not those of organization {tenant.organization.pk}"
    assert any(text.endswith(found) for text in find_differences())


class Racer:
    """Admits requests of a key with ``admit.sql``, by the authority that it read at the start."""

    def __init__(self, tenant: Tenant, key: ApiKey, endpoint: ModelEndpoint) -> None:
        self.key = key
        self.endpoint = endpoint
        self._accounts = dict(
            Account.objects.filter(organization=tenant.organization).values_list("kind", "pk")
        )
        tenant.organization.refresh_from_db()
        self._version = tenant.organization.routing_version
        self.catalog = CatalogVersion.objects.get().version

    def admit(self) -> set[str]:
        """Returns the ids of the generations that were stored."""
        key = self.key
        row = {
            "id": new_generation_id(), "organization_id": str(key.organization_id),
            "workspace_id": str(key.workspace_id), "api_key_id": str(key.pk), "region": "global",
            "operation": "chat/completions", "streamed": False, "model": "m",
            "model_endpoint_id": str(self.endpoint.pk), "provider_name": "p",
            "price_id": self.endpoint.price_id, "is_byok": False, "request_id": "r",
            "hold_nano": 5, "upstream_hold_nano": 0, "held_tokens": 0,
            "credits_id": self._accounts["credits"], "usage_id": self._accounts["usage"],
            "routing_version": self._version, "catalog_version": self.catalog,
        }  # fmt: skip
        with connection.cursor() as cursor:
            sql.execute(cursor, ADMIT, [json.dumps([row]), "[]", [], row["id"], row["id"]])
            return {found[0] for found in cursor.fetchall()}


@pytest.fixture
def racer(transactional_db: None) -> Racer:
    tenant = factories.make_tenant()
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    return Racer(tenant, make_key(tenant), endpoint)


def in_a_thread(act: Any) -> Any:
    """Calls a function on a connection of the thread; returns its result or its error."""
    try:
        return act()
    except IntegrityError as exc:
        return exc
    finally:
        connections.close_all()


def delete_target(racer: Racer, table: str) -> int:
    """Deletes the key or the endpoint of a racer."""
    if table == "accounts_apikey":
        run("DELETE FROM accounts_keydigest WHERE api_key_id = %s", racer.key.pk)
        return delete(table, racer.key.pk)
    return delete(table, racer.endpoint.pk)


@pytest.mark.parametrize("table", TARGETS)
def test_a_deletion_waits_for_an_admission_and_is_refused(
    racer: Racer, table: str, eventually: Any
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert len(racer.admit()) == 1
            deleted = pool.submit(in_a_thread, lambda: delete_target(racer, table))
            eventually(lambda: waiting() == 1)
        assert isinstance(deleted.result(), IntegrityError)
    assert Generation.objects.count() == 1
    assert run_check(VERIFY_REFERENCES) == []


@pytest.mark.parametrize("table", TARGETS)
def test_an_admission_that_waits_for_a_deletion_stores_nothing(
    racer: Racer, table: str, eventually: Any
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert delete_target(racer, table) == 1
            stored = pool.submit(in_a_thread, racer.admit)
            eventually(lambda: waiting() == 1)
        assert stored.result() == set()
    assert not Generation.objects.exists()
    assert not Journal.objects.exists()


def test_of_a_deletion_and_an_admission_only_one_happens(racer: Racer) -> None:
    """A race of two connections, repeated."""
    won = {"deleted": 0, "stored": 0}
    for _ in range(RACES):
        start = Barrier(2)
        endpoint = factories.make_endpoint(factories.make_model(), racer.endpoint.provider)
        racer.endpoint = endpoint
        racer.catalog = CatalogVersion.objects.get().version

        def remove(start: Barrier = start, endpoint: ModelEndpoint = endpoint) -> int:
            start.wait()
            return delete("catalog_modelendpoint", endpoint.pk)

        def admit(start: Barrier = start) -> set[str]:
            start.wait()
            return racer.admit()

        with ThreadPoolExecutor(2) as pool:
            deleted = pool.submit(in_a_thread, remove)
            stored = pool.submit(in_a_thread, admit)
            outcomes = (deleted.result() == 1, len(stored.result()) == 1)
        assert outcomes in ((True, False), (False, True))
        won["deleted"] += outcomes[0]
        won["stored"] += outcomes[1]
    assert sum(won.values()) == RACES
    assert run_check(VERIFY_REFERENCES) == []
