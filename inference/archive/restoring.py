"""Brings archived tables back, beside the live ones for reading, or as partitions again.

The rows of a fold do not join the ledger again: its opening balances have their sums. The others
may. A table that is restored for reading has no indexes and no triggers; nobody writes to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from django.conf import settings
from django.db import DataError, IntegrityError, connection, transaction
from psycopg import sql

from billing.folds import has_seal
from billing.models import Fold
from config.bulk.tables import Row
from config.models import Departure
from config.partitions.declarations import Partitioning, partitionings, table_of
from config.partitions.tables import create_like, list_partitions, read_now
from config.sql import fetch_rows
from inference.archive.files import ArchivedFile, read_file
from inference.archive.sealing import run_when_free
from inference.archive.stores import Store, StoreFailed
from inference.archive.tables import RowDigest, read_types

PREFIX: Final = "archived_"


class CannotRestore(Exception):
    """What has left cannot be restored; nothing was changed."""


def list_files(record: Fold | Departure) -> list[ArchivedFile]:
    return [msgspec.convert(each, ArchivedFile) for each in record.files]


def restored_name(file: ArchivedFile) -> str:
    """Returns the name of the restored table of a file."""
    return f"{PREFIX}{file.table}"


def restore(record: Fold | Departure, store: Store) -> dict[str, int]:
    """Makes a table of each file, all or none; returns the numbers of rows.

    Raises :class:`CannotRestore` if a table exists already, if the record was altered, or if a file
    has not the rows that were archived.
    """
    _require_seal(record)
    files = list_files(record)
    with transaction.atomic():
        for file in files:
            name = restored_name(file)
            if _exists(name):
                raise CannotRestore(f"The table {name} exists already; drop it with --drop.")
            with _open_rows(file, store) as (columns, rows):
                _create(name, file.table, columns)
                _copy(name, columns, rows)
    return {restored_name(file): file.rows for file in files}


def attach(record: Fold | Departure, store: Store) -> dict[str, int]:
    """Makes the partitions of a departure again, all or none; returns the numbers of rows.

    Raises :class:`CannotRestore` besides for a fold, for what would leave again at once, and for
    rows that no longer fit; raises :class:`TableLocked`.
    """
    if isinstance(record, Fold):
        raise CannotRestore(
            f"{record} has the sums of these transfers in its opening balances, so that attached "
            "they would count twice. Restore it without --attach, and read the tables archived_…."
        )
    _require_seal(record)
    days = settings.RETENTION_DAYS.get(record.kind)
    if days is not None and record.end + timedelta(days=days) <= read_now():
        raise CannotRestore(
            f"RETENTION_DAYS lets {record.kind} leave after {days} days, so work would archive "
            "them again. Raise it, start work again, and then attach them."
        )
    files = list_files(record)
    try:
        with transaction.atomic():
            for file in files:
                _attach_file(record, file, store)
    except (IntegrityError, DataError) as exc:
        raise CannotRestore(
            f"{record} does not fit in any more: {str(exc).splitlines()[0]}. Restore it without "
            "--attach, and read the tables archived_…."
        ) from None
    return {file.table: file.rows for file in files}


def forget(record: Fold | Departure) -> list[str]:
    """Drops the tables that were restored for reading; returns the names of those there were."""
    dropped = []
    with transaction.atomic(), connection.cursor() as cursor:
        for file in list_files(record):
            name = restored_name(file)
            if _exists(name):
                cursor.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
                dropped.append(name)
    return dropped


def _require_seal(record: Fold | Departure) -> None:
    if isinstance(record, Fold) and not has_seal(record):
        raise CannotRestore(f"The seal of {record} is wrong; run verify_ledger.")
    if isinstance(record, Departure) and not record.has_seal:
        raise CannotRestore(
            f"The seal of {record} is wrong: it was altered, or KEY_PEPPERS and "
            "SECRET_KEY_FALLBACKS lack the secret of its time."
        )


def _attach_file(departure: Departure, file: ArchivedFile, store: Store) -> None:
    [partitioning] = [each for each in partitionings() if each.table == table_of(file.table)]
    if any(each.name == file.table for each in list_partitions(partitioning)):
        raise CannotRestore(f"The partition {file.table} is there; nothing was changed.")
    with _open_rows(file, store) as (columns, rows), connection.cursor() as cursor:
        create_like(cursor, partitioning, file.table)
        if unknown := set(columns) - read_types(file.table).keys():
            raise CannotRestore(
                f"{partitioning.table} has no column {min(unknown)} any more. Restore it without "
                "--attach, and read the tables archived_…."
            )
        _copy(file.table, columns, rows)
    run_when_free(partitioning.table, lambda: _attach_partition(departure, file, partitioning))


def _attach_partition(departure: Departure, file: ArchivedFile, partitioning: Partitioning) -> None:
    """Attaches a filled table, which has the rows that were kept when it left, too."""
    column = sql.Identifier(partitioning.column)
    end = sql.Literal(partitioning.write_bound(departure.end))
    within = sql.SQL("{} < {}").format(column, end)
    bound: sql.Composable = sql.SQL("MINVALUE")
    if departure.begin is not None:
        bound = sql.Literal(partitioning.write_bound(departure.begin))
        within = sql.SQL("{} AND {} >= {}").format(within, column, bound)
    names = {
        "table": sql.Identifier(partitioning.table), "odd": sql.Identifier(partitioning.default),
        "name": sql.Identifier(file.table), "within": within, "begin": bound, "end": end,
    }  # fmt: skip
    with connection.cursor() as cursor:
        for statement in (
            "ALTER TABLE {odd} DISABLE TRIGGER USER",
            "DELETE FROM {odd} WHERE {within}",
            "ALTER TABLE {odd} ENABLE TRIGGER USER",
            "ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end})",
        ):
            cursor.execute(sql.SQL(statement).format(**names))


@contextlib.contextmanager
def _open_rows(file: ArchivedFile, store: Store) -> Iterator[tuple[list[str], Iterator[Row]]]:
    """Opens the columns and rows of a file; in the end they must be those that were archived."""
    try:
        with store.open(file.name) as opened:
            names, rows = read_file(opened)
            digest = RowDigest(names)
            yield names, digest.pass_on(rows)
    except StoreFailed as exc:
        raise CannotRestore(str(exc)) from None
    if (digest.rows, digest.hexdigest()) != (file.rows, file.digest):
        raise CannotRestore(
            f"{store.locate(file.name)} has not the {file.rows} rows that were archived; it was "
            "altered or is another file."
        )


def _copy(name: str, columns: Sequence[str], rows: Iterator[Row]) -> None:
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(name), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(copy) as target:
        for row in rows:
            target.write_row(row)


def _create(name: str, partition: str, columns: Sequence[str]) -> None:
    """Creates a table with the present types; a column that is gone from the model is text."""
    types = read_types(table_of(partition))
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL("CREATE TABLE {} ({})").format(
                sql.Identifier(name),
                sql.SQL(", ").join(
                    sql.SQL("{} {}").format(
                        sql.Identifier(column), sql.SQL(types.get(column, "text"))
                    )
                    for column in columns
                ),
            )
        )


def _exists(name: str) -> bool:
    [[exists]] = fetch_rows("SELECT to_regclass(%s) IS NOT NULL", [name])
    return bool(exists)
