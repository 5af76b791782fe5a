"""Divides a table that a migration has just created: it has no rows, and no index but its key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import connection
from django.db.backends.utils import CursorWrapper
from psycopg import sql

from config.partitions.declarations import Partitioning
from config.partitions.tables import create_like, read_now

# The first partition has the rows of all times before; the next one must not begin at once.
_FIRST: Final = timedelta(days=7)
_IDENTITY: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attidentity <> '' AND NOT attisdropped
"""


def divide(partitioning: Partitioning, key: Sequence[str]) -> None:
    """Puts a divided table in the place of a new one, with its first partition.

    That one ends with the first span that begins in a week or later; ``migrate`` makes the others.
    ``key`` has the columns of the primary key, or of the unique index of a table without one.
    """
    table, divided = partitioning.table, f"{partitioning.table}_divided"
    begin = partitioning.span.begin(read_now() + _FIRST)
    end = partitioning.span.following(begin)
    first = partitioning.name_until(end)
    bound = sql.Literal(partitioning.write_bound(end))
    with connection.cursor() as cursor:
        cursor.execute(_IDENTITY, [table])
        identities = [column for (column,) in cursor.fetchall()]
        _run(
            cursor,
            "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED "
            "INCLUDING STORAGE INCLUDING COMMENTS) PARTITION BY RANGE ({})",
            divided, table, partitioning.column,
        )  # fmt: skip
        _run(cursor, "DROP TABLE {}", table)
        _run(cursor, "ALTER TABLE {} RENAME TO {}", divided, table)
        for column in identities:
            # A divided table has identities only from PostgreSQL 17 on.
            sequence = f"{table}_{column}_seq"
            default = sql.Literal(sequence)
            _run(cursor, "CREATE SEQUENCE {}", sequence)
            _run(cursor, "ALTER TABLE {} ALTER {} SET DEFAULT nextval({})", table, column, default)
            _run(cursor, "ALTER SEQUENCE {} OWNED BY {}.{}", sequence, table, column)
        columns = sql.SQL(", ").join(map(sql.Identifier, key))
        if partitioning.values is None:
            name = f"{table}_pkey"
            _run(cursor, "ALTER TABLE {} ADD CONSTRAINT {} PRIMARY KEY ({})", table, name, columns)
        else:
            _run(cursor, "CREATE UNIQUE INDEX {} ON {} ({})", f"{table}_ranges", table, columns)
        create_like(cursor, partitioning, first)
        _run(
            cursor,
            "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM (MINVALUE) TO ({})",
            table, first, bound,
        )  # fmt: skip


def _run(cursor: CursorWrapper, statement: Any, *parts: Any) -> None:
    """Executes a statement with names, or with parts that are SQL already."""
    names = (sql.Identifier(each) if isinstance(each, str) else each for each in parts)
    cursor.execute(sql.SQL(statement).format(*names))
