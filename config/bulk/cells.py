"""Keeps the cells of a CSV file from being formulas.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-``, ``@``, the full-width form of one
of them, a tab or a carriage return for a formula. A negative number is none. Where a comma is the
decimal point, a semicolon begins the next cell.
"""

from __future__ import annotations

import re
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
