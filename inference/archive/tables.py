"""Reads and restores whole tables for the archive: every column, in the order of a unique key.

The digest of rows is the same in the table, in the file and in the restored table, so that each can
be compared with the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from psycopg import sql

from config.bulk.tables import Column, ColumnKind, Row
from config.sql import fetch_rows

PAGE_ROWS: Final = 5_000
_KINDS: Final = {
    "bool": ColumnKind.BOOLEAN,
    "date": ColumnKind.DAY,
    "float8": ColumnKind.REAL,
    "int2": ColumnKind.INTEGER,
    "int4": ColumnKind.INTEGER,
    "int8": ColumnKind.INTEGER,
    "timestamptz": ColumnKind.TIME,
}
_COLUMNS: Final = """
SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows are read in the order of the columns ``key``.

    ``condition`` leaves out rows that are not archived.
    """

    name: str
    key: tuple[str, ...]
    condition: sql.Composable


class RowDigest:
    """The number of rows and a SHA-256 digest over their columns and values, in their order."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.rows = 0
        self._digest = hashlib.sha256(msgspec.json.encode(list(columns)))

    def add(self, row: Row) -> None:
        """Counts one row; times of any zone with the same instant are the same."""
        self.rows += 1
        self._digest.update(
            msgspec.json.encode(
                [
                    value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
                    for value in row
                ]
            )
        )

    def pass_on(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows, and counts each."""
        for row in rows:
            self.add(row)
            yield row

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def read_columns(table: str) -> list[Column]:
    """Returns the columns of a table; what Parquet has no type for is text."""
    return [
        Column(name, _KINDS.get(base, ColumnKind.TEXT)) for name, base, _ in _list_columns(table)
    ]


def read_types(table: str) -> dict[str, str]:
    """Returns the PostgreSQL type of each column of a table."""
    return {name: full for name, _, full in _list_columns(table)}


def read_rows(table: Table, columns: Sequence[Column]) -> Iterator[Row]:
    """Yields the rows of a table, page by page: no transaction stays open meanwhile."""
    places = [[column.name for column in columns].index(name) for name in table.key]
    last: Sequence[Any] | None = None
    while page := _read_page(table, columns, last):
        yield from page
        if len(page) < PAGE_ROWS:
            return
        last = [page[-1][place] for place in places]


def _read_page(table: Table, columns: Sequence[Column], last: Sequence[Any] | None) -> list[Row]:
    selected = [
        sql.SQL("{}::text").format(sql.Identifier(column.name))
        if column.kind is ColumnKind.TEXT
        else sql.Identifier(column.name)
        for column in columns
    ]
    # A plain name in ORDER BY would mean the column's text, which is selected under that name.
    key = sql.SQL(", ").join(sql.Identifier(table.name, name) for name in table.key)
    after: sql.Composable = sql.SQL("TRUE")
    if last is not None:
        values = sql.SQL(", ").join(map(sql.Literal, last))
        after = sql.SQL("({}) > ({})").format(key, values)
    query = sql.SQL("SELECT {} FROM {} WHERE {} AND {} ORDER BY {} LIMIT {}").format(
        sql.SQL(", ").join(selected),
        sql.Identifier(table.name),
        after,
        table.condition,
        key,
        sql.Literal(PAGE_ROWS),
    )
    return fetch_rows(query)


def _list_columns(table: str) -> list[Row]:
    return fetch_rows(_COLUMNS, [table])
