"""The rows of one organization: which tables have some, and how they are copied and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg
from django.apps import apps
from django.db import models
from psycopg import sql

from accounts.models import Organization
from config.apps import declarations

# They differ between two copies of an organization.
_OF_THE_CELL: Final = ("routing_version", "residence", "other_cell", "slug", "updated_at")
_DIGEST: Final = """
SELECT count(*), coalesce(sum(('x' || left(md5(ROW({columns})::text), 15))::bit(60)::bigint), 0)
FROM {table} WHERE {condition}
"""


class Digest(NamedTuple):
    """The number of rows of a table, and the sum of their digests, which no order changes."""

    rows: int
    total: int


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table with rows of organizations; ``condition`` finds those of ``%(id)s``."""

    name: str
    columns: tuple[str, ...]
    condition: str
    depth: int
    is_root: bool = False

    def narrow(self, condition: str) -> OwnedTable:
        """Returns the same table with fewer rows."""
        return replace(self, condition=f"{self.condition} AND {condition}")


def owned_tables() -> list[OwnedTable]:
    """Returns the tables with rows of organizations, parents before their children.

    They are found by the foreign keys of the models; where none leads to an organization, the app
    declares the condition.
    """
    found: dict[str, OwnedTable] = {}
    declared = declarations()
    for model in apps.get_models(include_auto_created=True):
        meta = model._meta
        if meta.proxy or not meta.managed or meta.db_table in found:
            continue
        declaration = declared.get(meta.label_lower)
        condition, depth = _find_condition(model, ())
        if declaration is not None and declaration.owned_by:
            condition, depth = declaration.owned_by, 9
        if condition:
            columns = tuple(field.column for field in meta.concrete_fields if field.column)
            found[meta.db_table] = OwnedTable(
                meta.db_table, columns, condition, depth, model is Organization
            )
    return sorted(found.values(), key=lambda table: (table.depth, table.name))


def _find_condition(
    model: type[models.Model], seen: tuple[type[models.Model], ...]
) -> tuple[str, int]:
    """Returns the condition of the shortest path to an organization; an empty one for none."""
    if model is Organization:
        return "id = %(id)s", 0
    best = "", 99
    for field in model._meta.concrete_fields:
        parent = field.related_model
        if not field.is_relation or not isinstance(parent, type) or parent in (*seen, model):
            continue
        if parent is Organization:
            return f"{field.column} = %(id)s", 1
        inner, depth = _find_condition(parent, (*seen, model))
        if inner and depth + 1 < best[1]:
            key, table = parent._meta.pk.column, parent._meta.db_table
            condition = f"{field.column} IN (SELECT {key} FROM {table} WHERE {inner})"  # noqa: S608
            best = condition, depth + 1
    return best


def find_digest(
    cell: psycopg.Connection[Any], table: OwnedTable, parameters: Mapping[str, Any]
) -> Digest:
    """Returns the digest of an organization's rows in a table."""
    columns = [column for column in table.columns if not (table.is_root and column in _OF_THE_CELL)]
    statement = _compose(_DIGEST, table, columns=sql.SQL(", ").join(map(sql.Identifier, columns)))
    with psycopg.ClientCursor(cell) as cursor:
        row = cursor.execute(statement, parameters).fetchone()
    assert row is not None
    return Digest(int(row[0]), int(row[1]))


def copy_rows(
    source: psycopg.Connection[Any],
    target: psycopg.Connection[Any],
    table: OwnedTable,
    parameters: Mapping[str, Any],
    values: Mapping[str, Any],
) -> None:
    """Copies an organization's rows of a table block by block; ``values`` replace columns."""
    columns = [
        sql.Literal(values[name]) if name in values else sql.Identifier(name)
        for name in table.columns
    ]
    query = _compose(
        "COPY (SELECT {columns} FROM {table} WHERE {condition}) TO STDOUT",
        table,
        columns=sql.SQL(", ").join(columns),
    )
    store = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, table.columns))
    )
    with psycopg.ClientCursor(source) as reader, target.cursor() as writer:
        statement = reader.mogrify(query, parameters)
        with source.cursor().copy(statement) as rows, writer.copy(store) as stored:
            for block in rows:
                stored.write(block)


def delete_rows(cell: psycopg.Connection[Any], organization_id: UUID) -> None:
    """Deletes an organization's rows, children first; append-only tables are no exception.

    Must run in a transaction after :func:`switch_triggers_off`.
    """
    parameters = {"id": organization_id}
    for table in reversed(owned_tables()):
        with psycopg.ClientCursor(cell) as cursor:
            cursor.execute(_compose("DELETE FROM {table} WHERE {condition}", table), parameters)


def _compose(text: str, table: OwnedTable, **parts: sql.Composable) -> sql.Composed:
    return sql.SQL(text).format(
        table=sql.Identifier(table.name),
        condition=sql.SQL(table.condition),
        **parts,
    )
