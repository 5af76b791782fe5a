"""Divides an existing table without copying its rows, and unites a divided one; for migrations.

The old table becomes the first partition. A check that was validated before proves that its rows
lie within the bounds, and the indexes that a new primary key needs are built before, both while
requests go on. The exchange itself then locks the table for some milliseconds.

Each step sees what earlier runs did, so that a migration that met a lock can be run again. The
migration must not be atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg import sql

from config.partitions.declarations import Partitioning
from config.partitions.tables import is_partitioned, make_ahead, read_now

# Validating the check of a large table takes hours, and the table must not leave its bounds before.
_LONGEST_CONVERSION: Final = timedelta(days=7)
_NAME_BYTES: Final = 63

_CHECK: Final = """
SELECT pg_get_constraintdef(oid), convalidated FROM pg_constraint
WHERE conrelid = to_regclass(%s) AND conname = %s
"""
_INDEXES: Final = """
SELECT c.relname, pg_get_indexdef(i.indexrelid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass(%s) AND NOT i.indisprimary AND i.indisvalid
"""
_FOREIGN_KEYS: Final = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%s) AND contype = 'f'
"""
_TRIGGERS: Final = """
SELECT t.tgname, pg_get_triggerdef(t.oid), obj_description(t.oid, 'pg_trigger')
FROM pg_trigger AS t WHERE t.tgrelid = to_regclass(%s) AND NOT t.tgisinternal
"""
_PRIMARY_KEY: Final = """
SELECT c.conname, array_agg(a.attname::text ORDER BY k.n)
FROM pg_constraint AS c
CROSS JOIN LATERAL unnest(c.conkey) WITH ORDINALITY AS k (attnum, n)
JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
WHERE c.conrelid = to_regclass(%s) AND c.contype = 'p'
GROUP BY c.conname
"""
_REFERRERS: Final = """
SELECT conrelid::regclass::text FROM pg_constraint
WHERE confrelid = to_regclass(%s) AND contype = 'f'
"""
_GRANTS: Final = """
SELECT a.privilege_type, pg_get_userbyid(a.grantee), a.grantee = 0
FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner
"""
_CREATE: Final = (
    "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED "
    "INCLUDING STORAGE INCLUDING COMMENTS) PARTITION BY RANGE ({})"
)
_IDENTITY: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attidentity <> '' AND NOT attisdropped
"""
_SEQUENCES: Final = """
SELECT a.attname, s.relname
FROM pg_depend AS d
JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.refobjid = to_regclass(%s) AND d.deptype = 'a'
"""


class CannotConvert(Exception):
    """A table cannot be divided as it is; the message says what must change before."""


def divide(partitioning: Partitioning, key: Sequence[str] = ()) -> None:
    """Makes a plain table the first partition of a divided one, and makes partitions ahead.

    The first partition ends with the first span that begins in a week or later. ``key`` has the
    columns of the new primary key, if the present one lacks the column of the ranges. Nothing may
    refer to the table by a foreign key.
    """
    if not is_partitioned(partitioning.table):
        bound, end = _bound_rows(partitioning)
        if key:
            _build_key(partitioning, key)
        with transaction.atomic(), connection.cursor() as cursor:
            _run(cursor, "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", partitioning.table)
            _exchange(cursor, partitioning, bound, partitioning.name_until(end), key)
    make_ahead(partitioning)


def unite(partitioning: Partitioning, key: str) -> None:
    """Makes a divided table plain again, with the primary key ``key``; copies the later rows."""
    if not is_partitioned(partitioning.table):
        return
    table, whole = partitioning.table, f"{partitioning.table}_whole"
    with transaction.atomic(), connection.cursor() as cursor:
        _run(cursor, "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", table)
        indexes, foreign_keys, triggers = (
            _fetch(cursor, query, table) for query in (_INDEXES, _FOREIGN_KEYS, _TRIGGERS)
        )
        [(primary_key, _)] = _fetch(cursor, _PRIMARY_KEY, table) or [(f"{table}_pkey", ())]
        indexes = [index for index in indexes if index[0] != _key_index(partitioning)]
        _run(cursor, "CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES)", whole, table)
        _run(cursor, "INSERT INTO {} SELECT * FROM {}", whole, table)
        sequences = _fetch(cursor, _SEQUENCES, table)
        for _, sequence in sequences:
            _run(cursor, "ALTER SEQUENCE {} OWNED BY NONE", sequence)
        _run(cursor, "DROP TABLE {}", table)
        _run(cursor, "ALTER TABLE {} RENAME TO {}", whole, table)
        _own(cursor, table, sequences)
        _add_primary_key(cursor, table, primary_key, [key])
        _create(cursor, table, indexes, foreign_keys, triggers)
        for name, value in partitioning.storage.items():
            _run(cursor, "ALTER TABLE {} SET ({} = {})", table, name, sql.Literal(value))


def _bound_rows(partitioning: Partitioning) -> tuple[str, datetime]:
    """Adds and validates the check of the first partition; returns its end, also as a bound."""
    table, column, name = partitioning.table, partitioning.column, f"{partitioning.table}_end"
    with connection.cursor() as cursor:
        cursor.execute(_CHECK, [table, name])
        found = cursor.fetchone()
        if found is None:
            begin = partitioning.span.begin(read_now() + _LONGEST_CONVERSION)
            bound = sql.Literal(partitioning.write_bound(partitioning.span.following(begin)))
            statement = (
                "ALTER TABLE {} ADD CONSTRAINT {} CHECK ({} IS NOT NULL AND {} < {}) NOT VALID"
            )
            _run(cursor, statement, table, name, column, column, bound)
            cursor.execute(_CHECK, [table, name])
            found = cursor.fetchone()
        text = found[0].split("'")[1]
        if not found[1]:
            statement = "SELECT count(*), min({}) FROM {} WHERE {} >= {}"
            _run(cursor, statement, column, table, column, sql.Literal(text))
            [count, first] = cursor.fetchone()
            if count:
                raise CannotConvert(
                    f"{table} has {count} rows from the future: their {column} is {first} or "
                    f"higher, which a host with a wrong clock made. Delete them, or give them a "
                    f"{column} below {text}, and run migrate again."
                )
            _run(cursor, "ALTER TABLE {} VALIDATE CONSTRAINT {}", table, name)
    return text, partitioning.read_bound(text)


def _build_key(partitioning: Partitioning, key: Sequence[str]) -> None:
    """Builds the unique index of the new primary key without a lock."""
    name = _key_index(partitioning)
    with connection.cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name])
        found = cursor.fetchone()
        if found == (False,):
            _run(cursor, "DROP INDEX CONCURRENTLY {}", name)
        if found != (True,):
            statement = "CREATE UNIQUE INDEX CONCURRENTLY {} ON {} ({})"
            _run(cursor, statement, name, partitioning.table, _join(key))


def _exchange(
    cursor: CursorWrapper, partitioning: Partitioning, bound: str, first: str, key: Sequence[str]
) -> None:
    """Puts an empty divided table in the place of the plain one, and attaches that to it."""
    table, end = partitioning.table, f"{partitioning.table}_end"
    if referrers := _fetch(cursor, _REFERRERS, table):
        raise CannotConvert(f"{referrers[0][0]} refers to {table} by a foreign key.")
    indexes, foreign_keys, triggers, grants = (
        _fetch(cursor, query, table) for query in (_INDEXES, _FOREIGN_KEYS, _TRIGGERS, _GRANTS)
    )
    [(primary_key, columns)] = _fetch(cursor, _PRIMARY_KEY, table)
    sequences = [*_fetch(cursor, _SEQUENCES, table), *_replace_identities(cursor, table, grants)]
    kept = [index for index in indexes if index[0] != _key_index(partitioning)]
    for name, _, _ in triggers:
        _run(cursor, "DROP TRIGGER {} ON {}", name, table)
    _run(cursor, "ALTER TABLE {} RENAME TO {}", table, first)
    _run(cursor, _CREATE, table, first, partitioning.column)
    # The check says what the bounds say from now on.
    _run(cursor, "ALTER TABLE {} DROP CONSTRAINT {}", table, end)
    _own(cursor, table, sequences)
    for name in (primary_key, *(index for index, _ in kept)):
        _run(cursor, "ALTER INDEX {} RENAME TO {}", name, _partition_name(first, name))
    own_key, index = _partition_name(first, primary_key), _key_index(partitioning)
    if key:
        _run(cursor, "ALTER TABLE {} DROP CONSTRAINT {}", first, own_key)
    if partitioning.values is not None:
        _run(cursor, "ALTER INDEX {} RENAME TO {}", index, _partition_name(first, index))
        _run(cursor, "CREATE UNIQUE INDEX {} ON {} ({})", index, table, _join(key))
    else:
        if key:
            _run(cursor, "ALTER TABLE {} ADD CONSTRAINT {} PRIMARY KEY USING INDEX {}",
                 first, own_key, index)  # fmt: skip
        _add_primary_key(cursor, table, primary_key, key or columns)
    _create(cursor, table, kept, foreign_keys, ())
    _run(cursor, "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM (MINVALUE) TO ({})",
         table, first, sql.Literal(bound))  # fmt: skip
    _run(cursor, "ALTER TABLE {} DROP CONSTRAINT {}", first, end)
    _create(cursor, table, (), (), triggers)
    for privilege, role, is_public in grants:
        grantee = sql.SQL("PUBLIC") if is_public else role
        _run(cursor, "GRANT {} ON {} TO {}", sql.SQL(privilege), table, grantee)


def _add_primary_key(cursor: CursorWrapper, table: str, name: str, columns: Sequence[str]) -> None:
    statement = "ALTER TABLE {} ADD CONSTRAINT {} PRIMARY KEY ({})"
    _run(cursor, statement, table, name, _join(columns))


def _create(
    cursor: CursorWrapper,
    table: str,
    indexes: Sequence[Any],
    foreign_keys: Sequence[Any],
    triggers: Sequence[Any],
) -> None:
    """Creates on a table what another one had under the same name."""
    for _, definition in indexes:
        cursor.execute(definition.replace(" ON ONLY ", " ON ", 1))
    for constraint, definition in foreign_keys:
        statement = "ALTER TABLE {} ADD CONSTRAINT {} {}"
        _run(cursor, statement, table, constraint, sql.SQL(definition))
    for trigger, definition, comment in triggers:
        cursor.execute(definition)
        _run(cursor, "COMMENT ON TRIGGER {} ON {} IS {}", trigger, table, sql.Literal(comment))


def _replace_identities(
    cursor: CursorWrapper, table: str, grants: Sequence[Any]
) -> list[tuple[str, str]]:
    """Gives identity columns a sequence and a default, which every release of PostgreSQL divides.

    A divided table has identities only from PostgreSQL 17 on. Who may insert needs no right on the
    sequence of an identity, but on another one. Returns each column with its sequence.
    """
    replaced = []
    for [column] in _fetch(cursor, _IDENTITY, table):
        cursor.execute("SELECT nextval(pg_get_serial_sequence(%s, %s))", [table, column])
        [value] = cursor.fetchone()
        sequence = f"{table}_{column}_seq"
        _run(cursor, "ALTER TABLE {} ALTER {} DROP IDENTITY", table, column)
        _run(cursor, "CREATE SEQUENCE {}", sequence)
        cursor.execute("SELECT setval(%s::regclass, %s, FALSE)", [sequence, value])
        default = sql.Literal(sequence)
        _run(cursor, "ALTER TABLE {} ALTER {} SET DEFAULT nextval({})", table, column, default)
        for privilege, role, is_public in grants:
            if privilege == "INSERT":
                grantee = sql.SQL("PUBLIC") if is_public else role
                _run(cursor, "GRANT USAGE ON SEQUENCE {} TO {}", sequence, grantee)
        replaced.append((column, sequence))
    return replaced


def _own(cursor: CursorWrapper, table: str, sequences: Sequence[Any]) -> None:
    """Lets the columns of a table own their sequences."""
    for column, sequence in sequences:
        _run(cursor, "ALTER SEQUENCE {} OWNED BY {}.{}", sequence, table, column)


def _partition_name(partition: str, name: str) -> str:
    """Returns the name of a partition's index."""
    return f"{partition}_{name}"[:_NAME_BYTES]


def _key_index(partitioning: Partitioning) -> str:
    return f"{partitioning.table}_ranges"


def _join(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _run(cursor: CursorWrapper, statement: LiteralString, *parts: str | sql.Composable) -> None:
    """Executes a statement with names in place of its braces, or with what is no name as it is."""
    names = (sql.Identifier(part) if isinstance(part, str) else part for part in parts)
    cursor.execute(sql.SQL(statement).format(*names))


def _fetch(cursor: CursorWrapper, query: str, table: str) -> list[Any]:
    cursor.execute(query, [table])
    return list(cursor.fetchall())
