"""Keeps the cells of a CSV file from being formulas.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-``, ``@``, the full-width form of one
of them, a tab or a carriage return for a formula. A negative number is none. Where a comma is the
decimal point, a semicolon begins the next cell: so every value is quoted, but for an empty one,
which databases read as no value. There a comma does not end a cell, so that the quotation marks of
later values are text: a line end in one begins the next row, and a quotation mark after it or after
a semicolon quotes what follows, up to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NUMBER: Final = re.compile(r"-[0-9]+(?:\.[0-9]+)?")
_SIGN: Final = r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]"
# The place of an apostrophe, and the one there. A carriage return is a sign and ends a line, too.
_FORMULA: Final = re.compile(rf"\A(?='*{_SIGN})|(?<=[;\r\n])(?=['\"]*{_SIGN})")
_ESCAPED: Final = re.compile(rf"\A'(?='*{_SIGN})|(?<=[;\r\n])'(?=['\"]*{_SIGN})")


def escape_formula(value: str) -> str:
    """Returns the CSV cell of a value, with an apostrophe where a formula could begin."""
    return value if _NUMBER.fullmatch(value) else _FORMULA.sub("'", value)


def unescape_formula(cell: str) -> str:
    """Returns the value of a cell that :func:`escape_formula` made."""
    return _ESCAPED.sub("", cell)


def write_line(cells: Iterable[str]) -> str:
    """Returns a line of CSV; a single empty cell is quoted, for a blank line would be skipped."""
    line = ",".join('"' + cell.replace('"', '""') + '"' if cell else "" for cell in cells)
    return (line or '""') + "\r\n"
