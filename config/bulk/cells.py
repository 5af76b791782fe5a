"""Keeps the cells of a CSV file from being formulas.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-``, ``@``, the full-width form of one
of them, a tab or a carriage return for a formula. A negative number is none. Where a comma is the
decimal point, a semicolon begins the next cell: so every value is quoted, but for an empty one,
which databases read as no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NUMBER: Final = re.compile(r"-[0-9]+(?:\.[0-9]+)?")
_FORMULA: Final = re.compile(r"(\A|;)('*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20])")
_ESCAPED: Final = re.compile(r"(\A|;)'('*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20])")


def escape_formula(value: str) -> str:
    """Returns the CSV cell of a value, with an apostrophe where a formula could begin."""
    return value if _NUMBER.fullmatch(value) else _FORMULA.sub(r"\1'\2", value)


def unescape_formula(cell: str) -> str:
    """Returns the value of a cell that :func:`escape_formula` made."""
    return _ESCAPED.sub(r"\1\2", cell)


def write_line(cells: Iterable[str]) -> str:
    """Returns a line of CSV; a single empty cell is quoted, for a blank line would be skipped."""
    line = ",".join('"' + cell.replace('"', '""') + '"' if cell else "" for cell in cells)
    return (line or '""') + "\r\n"
