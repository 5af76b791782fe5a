"""Brings the tables of a fold back from the archive, beside the live ones, for reading.

The rows do not join the ledger again: its opening balances have their sums. A restored table has no
indexes and no triggers; nobody writes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from django.db import connection, transaction
from psycopg import sql

from billing.folds import has_seal
from billing.models import Fold, Transfer
from inference.archive.files import ArchivedFile, read_file
from inference.archive.stores import Store, StoreFailed
from inference.archive.tables import RowDigest, read_types
from inference.models import Generation

PREFIX: Final = "archived_"
_TABLES: Final = (Transfer._meta.db_table, Generation._meta.db_table)


class CannotRestore(Exception):
    """A fold cannot be restored; nothing was changed."""


def list_files(fold: Fold) -> list[ArchivedFile]:
    return [msgspec.convert(each, ArchivedFile) for each in fold.files]


def restored_name(file: ArchivedFile) -> str:
    """Returns the name of the restored table of a file."""
    return f"{PREFIX}{file.table}"


def restore(fold: Fold, store: Store) -> dict[str, int]:
    """Makes a table of each file of a fold, all or none; returns the numbers of rows.

    Raises :class:`CannotRestore` if a table exists already, if the fold was altered, or if a file
    has not the rows that were archived.
    """
    if not has_seal(fold):
        raise CannotRestore(f"The seal of {fold} is wrong; run verify_ledger.")
    files = list_files(fold)
    with transaction.atomic():
        for file in files:
            _require_absent(restored_name(file))
            _restore_file(file, store)
    return {restored_name(file): file.rows for file in files}


def forget(fold: Fold) -> list[str]:
    """Drops the restored tables of a fold; returns the names of those that there were."""
    dropped = []
    with transaction.atomic(), connection.cursor() as cursor:
        for file in list_files(fold):
            name = restored_name(file)
            if _exists(name):
                cursor.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
                dropped.append(name)
    return dropped


def _restore_file(file: ArchivedFile, store: Store) -> None:
    try:
        with store.open(file.name) as opened:
            names, rows = read_file(opened)
            digest = RowDigest(names)
            _create(restored_name(file), file.table, names)
            copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
                sql.Identifier(restored_name(file)), sql.SQL(", ").join(map(sql.Identifier, names))
            )
            with connection.cursor() as cursor, cursor.copy(copy) as target:
                for row in digest.pass_on(rows):
                    target.write_row(row)
    except StoreFailed as exc:
        raise CannotRestore(str(exc)) from None
    if (digest.rows, digest.hexdigest()) != (file.rows, file.digest):
        raise CannotRestore(
            f"{store.locate(file.name)} has not the {file.rows} rows that were archived; it was "
            "altered or is another file."
        )


def _create(name: str, partition: str, columns: Sequence[str]) -> None:
    """Creates a table with the present types; a column that is gone from the model is text."""
    parent = next(table for table in _TABLES if partition.startswith(table))
    types = read_types(parent)
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


def _require_absent(name: str) -> None:
    if _exists(name):
        raise CannotRestore(f"The table {name} exists already; drop it with --drop.")


def _exists(name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
        return bool(cursor.fetchone()[0])
