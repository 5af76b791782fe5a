"""Copied tenants: rows like those of a tenant that the models make."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import F

from accounts.models import ApiKey, Organization
from config import secrets
from tests.support import copying, factories
from tests.support.copying import TABLES, read_rows
from tests.support.database.snapshots import MEASUREMENTS
from tests.support.factories import Tenant, make_tenant


def rows_of(tenant: Tenant) -> dict[str, list[dict[str, Any]]]:
    """Returns a tenant's rows with names for the values that each tenant has for itself."""
    rows = read_rows(tenant.organization.pk)
    names = {str(tenant.organization.pk): "organization", str(tenant.workspace.pk): "workspace"}
    keys = {row["name"]: row for row in rows["accounts_apikey"]}
    for name, key in keys.items():
        names |= {key["id"]: name, key["digest"]: f"{name}'s digest", key["label"]: f"{name}'s"}
    accounts = {row["id"]: row["kind"] for row in rows["billing_account"]}

    def named(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {each: named(each, one) for each, one in value.items()}
        if name.endswith("_at") and value:
            return type(datetime.fromisoformat(value))
        known = accounts if name in ("debit_id", "credit_id") else names
        return known.get(value, value)

    found = {
        table: [
            {name: named(name, value) for name, value in row.items() if name != "id"}
            for row in table_rows
        ]
        for table, table_rows in rows.items()
    }
    return {table: sorted(each, key=str) for table, each in found.items()}


def count_rows() -> dict[str, int]:
    """Returns the rows by table; a service that runs meanwhile writes the measurements."""
    models = [model for model in apps.get_models() if model._meta.label not in MEASUREMENTS]
    with connection.cursor() as cursor:
        found = {}
        for model in models:
            cursor.execute(f"SELECT count(*) FROM {model._meta.db_table}")
            found[model._meta.db_table] = cursor.fetchone()[0]
    return found


@pytest.mark.parametrize("wish", [{}, {"credits_usd": 0}, {"endpoint_limit": 3}])
def test_a_copy_has_the_rows_that_the_models_make(
    db: None, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any]
) -> None:
    monkeypatch.setattr(copying, "_patterns", {})
    before = count_rows()
    made = make_tenant("O'Brien & <Söhne>", **wish)
    rows = rows_of(made)
    added = {name: number - before[name] for name, number in count_rows().items()}
    assert {name for name, number in added.items() if number} <= TABLES.keys()
    assert sum(added.values()) == sum(map(len, rows.values()))
    made.organization.slug = "another"
    made.organization.save()
    copy = make_tenant("O'Brien & <Söhne>", **wish)
    assert rows_of(copy) == rows
    assert {copy.organization.pk, copy.workspace.pk}.isdisjoint(
        {made.organization.pk, made.workspace.pk}
    )
    for instance in (copy.organization, copy.workspace):
        stored = type(instance)._base_manager.filter(pk=instance.pk)
        names = [field.attname for field in instance._meta.concrete_fields]
        assert {name: getattr(instance, name) for name in names} == stored.values(*names).get()
    with connection.cursor() as cursor:
        cursor.execute("SHOW session_replication_role")
        assert cursor.fetchone() == ("origin",)


def test_the_place_of_a_row_in_its_table_tells_nothing(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_patterns", {})
    made = make_tenant()
    ApiKey.objects.filter(organization=made.organization, is_management=True).update(name=F("name"))
    copying.remember_tenant(("moved",), made.organization.pk)
    Organization.objects.filter(pk=made.organization.pk).update(slug="another")
    copied = copying.copy_tenant(("moved",))
    assert copied
    kinds = {
        secrets.digest_api_key(key): is_management
        for key, is_management in ((copied.management_key, True), (copied.api_key, False))
    }
    rows = ApiKey.objects.filter(organization=copied.organization)
    assert dict(rows.values_list("digest", "is_management")) == kinds
    assert {key.name for key in rows if key.is_management} == {"management"}


def test_each_copy_has_keys_of_its_own(db: None) -> None:
    made = []
    for _ in range(3):
        made.append(make_tenant())
        Organization.objects.filter(pk=made[-1].organization.pk).update(slug=F("id"))
    for tenant in made:
        answer = factories.client(tenant.management_key).get("/api/v1/keys")
        assert {each["hash"] for each in answer.json()["data"]} == {
            key.digest
            for key in ApiKey.objects.filter(organization=tenant.organization, name="inference")
        }
    assert len({tenant.api_key for tenant in made}) == 3
