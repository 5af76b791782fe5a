"""Reads the rows of an imported file: lines of a bounded length, UTF-8, JSON objects."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, TypeVar

import msgspec

from config.api.text import NOT_STORABLE
from config.bulk.cells import unescape_formula
from config.bulk.problems import Problems

_Row = TypeVar("_Row")

MAX_LINE: Final = 64 * 1024


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file; cuts a line that is too long for :func:`decode_lines`."""
    while line := file.readline(MAX_LINE + 1):
        yield line


def decode_lines(lines: Iterable[bytes], problems: Problems) -> Iterator[str]:
    """Yields the lines as text; removes a byte order mark from the first one.

    Raises :class:`ImportRefused` at a line that is not UTF-8 or longer than 64 KiB.
    """
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            problems.stop(number, f"longer than {MAX_LINE} bytes")
        try:
            text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
        except UnicodeDecodeError:
            problems.stop(number, "not UTF-8")
        yield text


def parse_json_rows(
    texts: Iterable[str], shape: type[_Row], problems: Problems
) -> Iterator[tuple[int, _Row]]:
    """Yields the objects of JSON lines with their line numbers; skips blank lines.

    Refuses texts that PostgreSQL cannot store.
    """
    for number, text in enumerate(texts, 1):
        if text.isspace():
            continue
        try:
            row = msgspec.convert(_DECODER.decode(text.rstrip("\r\n")), shape)
        except json.JSONDecodeError as exc:
            problems.add(number, f"not JSON: {exc.msg} (column {exc.colno})")
        except RecursionError:
            problems.add(number, "nested too deeply")
        except ValueError as exc:
            problems.add(number, str(exc))
        else:
            yield number, row


def parse_csv_rows(
    texts: Iterable[str], shape: type[_Row], problems: Problems
) -> Iterator[tuple[int, _Row]]:
    """Yields the rows of a CSV file with a header of any order, with their line numbers.

    The columns are the members of ``shape``, which says which ones may be absent. An empty cell
    counts as absent.
    """
    known = shape.__struct_fields__  # type: ignore[attr-defined]
    reader = csv.reader(texts, strict=True)
    header: list[str] = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error:
            problems.stop(line, "not CSV: a quotation mark or a line end is out of place")
        if not header:
            header = cells or []
            if not header or len(set(header)) != len(header) or not set(header) <= set(known):
                problems.stop(line, f"the header must name columns among {', '.join(known)}")
        elif cells is None:
            return
        elif not cells:
            continue
        elif len(cells) != len(header):
            problems.add(line, f"the line has {len(cells)} cells, but the header has {len(header)}")
        else:
            named = zip(header, map(unescape_formula, cells), strict=True)
            try:
                yield line, msgspec.convert({name: cell for name, cell in named if cell}, shape)
            except msgspec.ValidationError as exc:
                problems.add(line, str(exc))


def is_csv(name: str, lines: Iterable[bytes]) -> tuple[bool, Iterator[bytes]]:
    """Returns whether a file is CSV and not JSON lines, and all of its lines.

    Decides by the extension, or else by the first byte that is not blank.
    """
    ending = name.rpartition(".")[2].lower()
    if ending in ("csv", "json", "jsonl", "ndjson"):
        return ending == "csv", iter(lines)
    rest = iter(lines)
    seen = []
    for line in rest:
        seen.append(line)
        if text := line.removeprefix(codecs.BOM_UTF8).strip():
            return not text.startswith(b"{"), itertools.chain(seen, rest)
    return False, iter(seen)


def _read_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is named twice in one object")
    for name, value in pairs:
        if any(map(NOT_STORABLE.search, _iter_texts([name, value]))):
            raise ValueError(f"{name} must not contain NUL or lone surrogates")
    return members


def _iter_texts(value: Any) -> Iterator[str]:
    """Yields the strings of a value, but for those of objects, which were read before."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _iter_texts(item)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_read_members)
