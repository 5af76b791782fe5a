"""Reads and writes Parquet with pyarrow, which only the extra ``parquet`` installs."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import IO, Any, Final

from config.bulk.problems import ImportRefused
from config.local.bootstrap import install_command

# The rows of one group of a file; memory is bounded by a group.
GROUP_ROWS: Final = 10_000

_MISSING: Final = (
    f"Parquet needs pyarrow, which is not installed. Install it: {install_command('parquet')}"
)


@cache
def load_pyarrow() -> Any:
    """Returns pyarrow with its reader and writer; raises :class:`ImportRefused` without it.

    It takes 60 MB, so that no process loads it before it writes or reads such a file.
    """
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise ImportRefused([_MISSING]) from None


def write_parquet(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]
) -> Iterator[bytes]:
    """Yields the bytes of a file with these names and kinds of columns, a group at a time."""
    pyarrow = load_pyarrow()
    schema = pyarrow.schema([(name, _types(pyarrow)[kind]) for name, kind in columns])
    return _write(pyarrow, schema, iter(rows))


def read_parquet(file: IO[bytes]) -> tuple[list[str], Iterator[list[Any]]]:
    """Returns the names of the columns of a file, and its rows, a group at a time in memory.

    Both raise :class:`ImportRefused` for a damaged file.
    """
    pyarrow = load_pyarrow()
    # Damage shows as bytes that cannot be unpacked, or as values that do not exist.
    damage = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
    try:
        table = pyarrow.parquet.ParquetFile(file)
    except damage as exc:
        raise ImportRefused([f"not a Parquet file: {exc}"]) from None
    return list(table.schema_arrow.names), _read(table, damage)


def _read(table: Any, damage: tuple[type[Exception], ...]) -> Iterator[list[Any]]:
    try:
        for batch in table.iter_batches(GROUP_ROWS):
            values = [column.to_pylist() for column in batch.columns]
            yield from map(list, zip(*values, strict=True))
    except damage as exc:
        raise ImportRefused([f"a damaged Parquet file: {exc}"]) from None


def _write(pyarrow: Any, schema: Any, rows: Iterator[Sequence[Any]]) -> Iterator[bytes]:
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        while group := list(itertools.islice(rows, GROUP_ROWS)):
            values = list(zip(*group, strict=True))
            arrays = [
                pyarrow.array(column, type=field.type)
                for column, field in zip(values, schema, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
            yield sink.drain()
    yield sink.drain()


def _types(pyarrow: Any) -> dict[str, Any]:
    return {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "real": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("us", tz="UTC"),
        "day": pyarrow.date32(),
        "nano": pyarrow.decimal128(28, 9),
    }


class _Sink(io.RawIOBase):
    """Collects what pyarrow writes until it is drained; a pipe could not tell its position."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._written += len(chunk)
        return len(chunk)

    def drain(self) -> bytes:
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)
