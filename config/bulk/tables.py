"""Writes rows of typed columns as CSV, JSON lines or Parquet, in chunks of constant size."""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any, Final, Generic, TypeVar

import msgspec

from config.api.text import plain_digits
from config.bulk.cells import escape_formula, write_line
from config.bulk.parquet import write_parquet

_Item = TypeVar("_Item")

# No amount of nano-USD in a BIGINT is rounded.
_EXACT: Final = Context(prec=28)
_MARK: Final = "\ufeff"


class ColumnKind(enum.Enum):
    """The type of a column's values; every value may be ``None``."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    BOOLEAN = "boolean"
    TIME = "time"
    DAY = "day"
    # An integer of nano-USD, which is written as an exact decimal of USD.
    NANO = "nano"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: ColumnKind


Row = Sequence[Any]
Writer = Callable[[Sequence[Column], Iterable[Row]], Iterator[bytes]]


class CountedItems(Generic[_Item]):
    """An iterator that knows how many items it has yielded."""

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items = iter(items)
        self.count = 0

    def __iter__(self) -> Iterator[_Item]:
        return self

    def __next__(self) -> _Item:
        item = next(self._items)
        self.count += 1
        return item


def usd_of(nano: int) -> Decimal:
    """Returns nano-USD as an exact decimal of USD with nine places."""
    return _EXACT.scaleb(Decimal(nano), -9)


def format_usd(nano: int) -> str:
    """Returns nano-USD as plain decimal digits of USD: ``0.0000125``."""
    return plain_digits(usd_of(nano))


def format_time(moment: datetime) -> str:
    """Returns a moment in UTC: ``2026-03-31T23:59:59.000001Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write_csv(
    columns: Sequence[Column], rows: Iterable[Row], *, mark: str = _MARK
) -> Iterator[bytes]:
    """Yields a header and a line for each row; no text can be a formula of a spreadsheet.

    A spreadsheet takes the file for UTF-8 by the byte order mark.
    """
    buffer = io.StringIO(newline="")
    kinds = [column.kind for column in columns]
    buffer.write(mark)
    csv.writer(buffer).writerow([column.name for column in columns])
    for row in rows:
        cells = [_cell(kind, value) for kind, value in zip(kinds, row, strict=True)]
        buffer.write(write_line(cells))
        yield _drain(buffer)
    if buffer.tell():
        yield _drain(buffer)


def write_json_lines(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yields an object for each row; an amount is a number with all its digits."""
    encoder = msgspec.json.Encoder()
    for row in rows:
        members = {
            column.name: _member(column.kind, value)
            for column, value in zip(columns, row, strict=True)
        }
        yield encoder.encode(members) + b"\n"


def write_parquet_table(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yields a Parquet file; raises :class:`ImportRefused` where pyarrow is not installed."""
    nano = [number for number, column in enumerate(columns) if column.kind is ColumnKind.NANO]
    return write_parquet(
        [(column.name, column.kind.value) for column in columns],
        (_with_decimals(row, nano) for row in rows),
    )


FORMATS: Final[dict[str, Writer]] = {
    "csv": write_csv,
    "jsonl": write_json_lines,
    "parquet": write_parquet_table,
}


def format_of(file_name: str) -> str:
    """Returns the format that the end of a file's name says; JSON lines for any other name."""
    end = file_name.lower().rpartition(".")[2]
    return end if end in FORMATS else "jsonl"


def _drain(buffer: io.StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode()


def _cell(kind: ColumnKind, value: Any) -> str:
    if value is None:
        return ""
    match kind:
        case ColumnKind.NANO:
            return format_usd(value)
        case ColumnKind.TIME:
            return format_time(value)
        case ColumnKind.BOOLEAN:
            return "true" if value else "false"
        case ColumnKind.TEXT:
            return escape_formula(value)
    return str(value)


def _member(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case ColumnKind.NANO:
            return msgspec.Raw(format_usd(value).encode())
        case ColumnKind.TIME:
            return format_time(value)
        case ColumnKind.DAY:
            return str(value)
    return value


def _with_decimals(row: Row, nano: Sequence[int]) -> Row:
    values = list(row)
    for number in nano:
        if values[number] is not None:
            values[number] = usd_of(values[number])
    return values
