"""Reads the rows of an imported file: lines of a bounded length, UTF-8, JSON objects."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, TypeVar

import msgspec

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
    """Yields the objects of JSON lines with their line numbers; skips blank lines."""
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


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is named twice in one object")
    return members


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_require_unique_keys)
