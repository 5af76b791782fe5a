"""Writes a table to a Parquet file of the archive, and proves by reading it that it is there."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Final

import msgspec

from config.bulk.parquet import read_parquet, write_parquet
from config.bulk.problems import ImportRefused
from config.bulk.tables import Column, Row
from inference.archive.stores import Store, StoreFailed
from inference.archive.tables import RowDigest, Table, read_columns, read_rows

logger = logging.getLogger("causeway.retention")

_PROGRESS_SECONDS: Final = 30.0


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file of the archive with the rows of one table, and the digest of these rows."""

    table: str
    name: str
    rows: int
    digest: str


def archive_table(store: Store | None, table: Table, prefix: str) -> ArchivedFile:
    """Writes the rows of a table that does not change meanwhile; returns what was written.

    A file that an earlier try wrote is used again if it has the same rows. Without a store only the
    digest is made. Raises :class:`StoreFailed` unless the store gives back the same rows.
    """
    columns = read_columns(table.name)
    digest = RowDigest(column.name for column in columns)
    for _ in _log_progress(f"{table.name}: read", digest.pass_on(read_rows(table, columns))):
        pass
    name = f"{prefix}-{digest.hexdigest()[:16]}.parquet"
    made = ArchivedFile(table.name, name, digest.rows, digest.hexdigest())
    if store is None:
        return made
    if not (store.has(name) and _is_whole(store, made)):
        store.write(name, _write(columns, table))
        if not _is_whole(store, made):
            raise StoreFailed(
                f"{store.locate(name)}: it was written, but what is read back has other rows"
            )
    logger.info("%s: %d rows are in %s", table.name, made.rows, store.locate(name))
    return made


def read_file(file: IO[bytes]) -> tuple[list[str], Iterator[Row]]:
    """Returns the columns and the rows of a file; both raise :class:`StoreFailed`."""
    with _refuse_damage():
        names, rows = read_parquet(file)
    return names, _read(rows)


def _read(rows: Iterator[Row]) -> Iterator[Row]:
    with _refuse_damage():
        yield from rows


@contextlib.contextmanager
def _refuse_damage() -> Iterator[None]:
    try:
        yield
    except ImportRefused as exc:
        raise StoreFailed(str(exc)) from None


def _write(columns: Sequence[Column], table: Table) -> Iterator[bytes]:
    rows = _log_progress(f"{table.name}: written", read_rows(table, columns))
    return write_parquet([(column.name, column.kind.value) for column in columns], rows)


def _is_whole(store: Store, expected: ArchivedFile) -> bool:
    """Reads a file back, and returns whether it has the expected rows."""
    try:
        with store.open(expected.name) as file:
            names, rows = read_file(file)
            digest = RowDigest(names)
            for _ in _log_progress(f"{expected.table}: read back", digest.pass_on(rows)):
                pass
    except StoreFailed as exc:
        logger.warning("%s", exc)
        return False
    return (digest.rows, digest.hexdigest()) == (expected.rows, expected.digest)


def _log_progress(what: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yields the rows, and logs their number every half minute."""
    shown_at = time.monotonic()
    for count, row in enumerate(rows, 1):
        yield row
        if time.monotonic() - shown_at >= _PROGRESS_SECONDS:
            shown_at = time.monotonic()
            logger.info("%s %d rows", what, count)
