"""Copies of a tenant that the models made: its rows under other ids, secrets and times.

A copy costs two messages to the database instead of 23.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID, uuid4

from django.db import connection
from django.db.models import Model

from accounts.models import Organization, Workspace
from config import secrets
from config.clocks.clock import clock
from config.events.outbox import new_event_id
from config.peppers import API_KEY, list_peppers
from tests.support.database.flush import is_superuser

# Where a tenant has rows, each with the condition that finds them.
TABLES: Final = {
    "accounts_organization": "id = %(id)s",
    "accounts_workspace": "organization_id = %(id)s",
    "accounts_apikey": "organization_id = %(id)s",
    "accounts_keydigest": (
        "api_key_id IN (SELECT id FROM accounts_apikey WHERE organization_id = %(id)s)"
    ),
    "billing_account": "organization_id = %(id)s",
    "billing_transfer": "organization_id = %(id)s",
    "billing_meter": "organization_id = %(id)s",
    "config_event": "organization_id = %(id)s",
}
# The tables whose ids a sequence gives.
_NUMBERED: Final = ("billing_account", "billing_transfer")
# A mark stands between control characters, which JSON escapes and no other value has.
_MARK: Final = re.compile(r"\\u0001(\w+)\\u0001")


class _Pattern(NamedTuple):
    """The statement that inserts a tenant.

    It has a mark for each value of which a copy has its own. ``moments`` are the times of the rows
    by their marks, and ``numbers`` the marks of the ids that a sequence gives, by the tables.
    """

    organization: Organization
    workspace: Workspace
    statement: str
    moments: dict[str, datetime]
    numbers: dict[str, list[str]]


class CopiedTenant(NamedTuple):
    """A copied tenant; its instances have the values that the database has."""

    organization: Organization
    workspace: Workspace
    management_key: str
    api_key: str


_Row = TypeVar("_Row", bound=Model)
# Whether a slug is free, and the next ids of each numbered table.
_ASK: Final = f"""
SELECT NOT EXISTS (SELECT FROM accounts_organization WHERE slug = %s), {
    ", ".join(
        f"ARRAY(SELECT nextval('{table}_id_seq') FROM generate_series(1, %s))"
        for table in _NUMBERED
    )
}
"""
_patterns: dict[tuple[object, ...], _Pattern] = {}


def remember_tenant(wish: tuple[object, ...], organization_id: UUID) -> None:
    """Remembers the rows of the first tenant that was made for a wish."""
    key = (*wish, *(pepper.id for pepper in list_peppers(API_KEY)))
    # A key has a digest for each pepper. Only a superuser may insert rows without their triggers.
    if len(list_peppers(API_KEY)) == 1 and key not in _patterns and is_superuser(connection):
        _patterns[key] = _read_pattern(organization_id)


def copy_tenant(wish: tuple[object, ...]) -> CopiedTenant | None:
    """Returns a copied tenant with its keys.

    Returns None where the models must make it: for the first one, and beside one of its slug.
    """
    pattern = _patterns.get((*wish, *(pepper.id for pepper in list_peppers(API_KEY))))
    return _copy(pattern) if pattern else None


def read_rows(organization_id: UUID) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of a tenant by table, in no order that one may rely on."""
    found = {}
    with connection.cursor() as cursor:
        for table, condition in TABLES.items():
            cursor.execute(
                f"SELECT to_jsonb(t)::text FROM {table} t WHERE {condition}",
                {"id": organization_id},
            )
            found[table] = [json.loads(row) for (row,) in cursor.fetchall()]
    return found


def _read_pattern(organization_id: UUID) -> _Pattern:
    rows = read_rows(organization_id)
    moments: dict[str, datetime] = {}
    numbers: dict[str, list[str]] = {table: [] for table in _NUMBERED}
    accounts: dict[int, str] = {}
    for table in _NUMBERED:
        for row in rows[table]:
            mark = f"{table}{len(numbers[table])}"
            numbers[table].append(mark)
            if table == "billing_account":
                accounts[row["id"]] = mark
            row["id"] = _mark(mark)
    for row in rows["billing_transfer"]:
        row["debit_id"], row["credit_id"] = (
            _mark(accounts[row[side]]) for side in ("debit_id", "credit_id")
        )
    for row in (row for table in rows.values() for row in table):
        for name in row:
            if name.endswith("_at") and row[name]:
                mark = f"moment{len(moments)}"
                moments[mark] = datetime.fromisoformat(row[name])
                row[name] = _mark(mark)
    statement = "SET session_replication_role = replica"
    for table, each in rows.items():
        text = json.dumps(each).replace("'", "''")
        statement += f"; INSERT INTO {table} SELECT * FROM jsonb_populate_recordset(NULL::{table}, "
        statement += f"'{text}')"
    statement += "; SET session_replication_role = origin"
    for value, mark in _values_of(rows).items():
        statement = statement.replace(value, json.dumps(_mark(mark))[1:-1])
    organization = Organization.objects.get(pk=organization_id)
    workspace = Workspace.objects.get(organization=organization_id)
    return _Pattern(organization, workspace, statement, moments, numbers)


def _mark(name: str) -> str:
    return f"\x01{name}\x01"


def _values_of(rows: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Returns the marks of the values of which each tenant has its own."""
    inference, management = sorted(rows["accounts_apikey"], key=itemgetter("is_management"))
    [organization], [workspace] = rows["accounts_organization"], rows["accounts_workspace"]
    found = {organization["id"]: "organization", workspace["id"]: "workspace"}
    for name, key in (("management", management), ("inference", inference)):
        found |= {key["id"]: f"{name}_id", key["digest"]: f"{name}_digest"}
        found[json.dumps(key["label"])[1:-1]] = f"{name}_label"
    events = sorted(row["id"] for row in rows["config_event"])
    return found | {event: f"event{at}" for at, event in enumerate(events)}


def _copy(pattern: _Pattern) -> CopiedTenant | None:
    with connection.cursor() as cursor:
        counts = [len(marks) for marks in pattern.numbers.values()]
        cursor.execute(_ASK, [pattern.organization.slug, *counts])
        is_free, *numbers = cursor.fetchone()
        if not is_free:
            return None
        later = clock.now() - max(pattern.moments.values())
        organization_id, workspace_id = uuid4(), uuid4()
        values: dict[str, Any] = {"organization": organization_id, "workspace": workspace_id}
        for marks, found in zip(pattern.numbers.values(), numbers, strict=True):
            values |= zip(marks, found, strict=True)
        for mark, moment in pattern.moments.items():
            values[mark] = (moment + later).isoformat()
        values |= {f"event{at}": new_event_id() for at in range(2)}
        keys = []
        for name, is_management in (("management", True), ("inference", False)):
            secret = secrets.generate_api_key(is_management=is_management)
            keys.append(secret.reveal())
            values[f"{name}_id"] = uuid4()
            values[f"{name}_digest"] = secrets.digest_api_key(secret.reveal())
            values[f"{name}_label"] = json.dumps(secrets.label_api_key(secret))[1:-1]
        cursor.execute(_MARK.sub(lambda found: str(values[found[1]]), pattern.statement))
    organization = _copy_instance(pattern.organization, later, id=organization_id)
    ids = {"id": workspace_id, "organization_id": organization_id}
    return CopiedTenant(organization, _copy_instance(pattern.workspace, later, **ids), *keys)


def _copy_instance(instance: _Row, later: timedelta, **ids: UUID) -> _Row:
    """Returns the instance of a copied row, as if it were read from the database."""
    names = [field.attname for field in instance._meta.concrete_fields]
    values = {name: deepcopy(getattr(instance, name)) for name in names} | ids
    for name, value in values.items():
        if name.endswith("_at") and value is not None:
            values[name] = value + later
    return type(instance).from_db(connection.alias, names, list(values.values()))
