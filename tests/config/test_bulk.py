"""Cells of CSV, and the writing and progress of a file, which all imports and exports share."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management.base import CommandError, OutputWrapper
from hypothesis import given
from hypothesis import strategies as st

from config.bulk import files
from config.bulk.cells import escape_formula, unescape_formula, write_line
from config.bulk.files import with_progress, write_output
from config.bulk.tables import (
    Column,
    ColumnKind,
    Writer,
    write_csv,
    write_json_lines,
    write_parquet_table,
)

SIGNS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"
TRICKY = st.sampled_from(f"{SIGNS}'\n\", a;")


@given(st.text(alphabet=st.one_of(TRICKY, st.characters()), min_size=1))
def test_an_escaped_cell_is_no_formula_and_can_be_unescaped(value: str) -> None:
    cell = escape_formula(value)
    assert unescape_formula(cell) == value
    if cell[0] == "-":
        assert cell == value
    else:
        # Where a comma is the decimal point, a semicolon begins a cell, and a line end a row.
        assert all(part[:1] not in {*SIGNS} for part in re.split("[;\r\n]", cell))
        line = write_line(["a", cell])
        rows = csv.reader(io.StringIO(line, newline=""), delimiter=";")
        # The end of the line itself may stand at the beginning of a quoted cell.
        assert all(part.strip("\r\n")[:1] not in {*SIGNS} for row in rows for part in row)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1", "'=1"),
        ("+1", "'+1"),
        ("-1", "-1"),
        ("-1.5", "-1.5"),
        ("-1+1", "'-1+1"),
        ("-", "'-"),
        ("@x", "'@x"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("'=1", "''=1"),
        ("''=1", "'''=1"),
        ("'x", "'x"),
        ("x=1", "x=1"),
        ("\uff1d1", "'\uff1d1"),
        ("\uff20x", "'\uff20x"),
        ("a;=1", "a;'=1"),
        ("a;'=1;-2", "a;''=1;'-2"),
        ("a;b", "a;b"),
        ("a\n=1\nb", "a\n'=1\nb"),
        ("a\r\n-1", "a\r\n'-1"),
        ("\r=1", "'\r'=1"),
        ("a\n'=1", "a\n''=1"),
        ('a;"=1;b', "a;'\"=1;b"),
        ('"=1', '"=1'),
        ("'", "'"),
    ],
)
def test_escape_formula_returns_the_cell_of_a_value(value: str, cell: str) -> None:
    assert escape_formula(value) == cell


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (["a", "b c"], '"a","b c"\r\n'),
        (["a;b", "", 'say "x"'], '"a;b",,"say ""x"""\r\n'),
        (["line\nbreak", "1.5"], '"line\nbreak","1.5"\r\n'),
        (["", ""], ",\r\n"),
        ([""], '""\r\n'),
    ],
)
def test_every_cell_of_a_line_is_quoted_unless_it_is_empty(cells: list[str], line: str) -> None:
    assert write_line(cells) == line
    assert next(csv.reader([line], strict=True)) == cells


class Lost(Exception):
    """The error of a source of rows."""


def rows_until(count: int) -> Iterator[bytes]:
    """Yields some rows, and then fails."""
    yield from (b"%d\n" % number for number in range(count))
    raise Lost


def test_a_file_keeps_its_content_until_the_first_row_is_read(tmp_path: Path) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_bytes(b"yesterday\n")
    for path in (old, new):
        with pytest.raises(Lost):
            write_output(str(path), rows_until(0), header=b"number\n")
    assert old.read_bytes() == b"yesterday\n"
    assert not new.exists()

    with pytest.raises(Lost):
        write_output(str(old), rows_until(2), header=b"number\n")
    assert old.read_bytes() == b"number\n0\n1\n"


@pytest.mark.parametrize("write", [write_csv, write_json_lines, write_parquet_table])
def test_no_format_writes_before_its_first_row_is_read(tmp_path: Path, write: Writer) -> None:
    """A header would open the file."""
    path = tmp_path / "rows"
    path.write_bytes(b"yesterday\n")
    columns = [Column("number", ColumnKind.TEXT)]
    with pytest.raises(Lost):
        write_output(str(path), write(columns, ([row] for row in rows_until(0))))
    assert path.read_bytes() == b"yesterday\n"


def test_rows_end_if_the_file_cannot_be_opened(tmp_path: Path) -> None:
    """They may hold a transaction open."""
    ended: list[bool] = []

    def read_rows() -> Iterator[bytes]:
        try:
            yield b"1\n"
        finally:
            ended.append(True)

    rows = read_rows()
    with pytest.raises(CommandError, match="No such file or directory"):
        write_output(str(tmp_path / "missing" / "rows"), rows)
    assert ended == [True]


@pytest.mark.parametrize("rows", [[], [b"1\n"], [b"1\n", b"2\n", b"3\n"]])
def test_every_row_is_written_once_behind_the_header(tmp_path: Path, rows: list[bytes]) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"a longer text than the rows of the test\n")
    assert write_output(str(path), rows, header=b"number\n") == len(rows)
    assert path.read_bytes() == b"number\n" + b"".join(rows)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_printed_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 1.2, 2.0, 2.0])
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    pipe, terminal = io.StringIO(), Terminal()
    lines = [b"12345", b"67890", b"12345"]
    assert list(with_progress(lines, OutputWrapper(pipe), size=20)) == lines
    assert pipe.getvalue() == ""
    assert list(with_progress(lines, OutputWrapper(terminal), size=20)) == lines
    assert terminal.getvalue().split("\r\x1b[K") == [
        "",
        "1 lines, 1/s, 3 s left",
        "3 lines, 2/s, 1 s left",
        "3 lines in 2.0 s\n",
    ]


def test_the_time_left_is_omitted_without_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 1.0])
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    terminal = Terminal()
    assert list(with_progress([b"x"], OutputWrapper(terminal))) == [b"x"]
    assert terminal.getvalue() == "\r\x1b[K1 lines, 1/s\r\x1b[K1 lines in 1.0 s\n"
