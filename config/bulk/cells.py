"""Keeps the cells of a CSV file from being formulas.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return
for a formula. A negative number is none.
"""

from __future__ import annotations

import re
from typing import Final

_FORMULA: Final = re.compile(r"(?!-\d+(?:\.\d+)?\Z)'*[=+\-@\t\r]")


def escape_formula(value: str) -> str:
    """Returns the CSV cell of a value, with an apostrophe where it could be a formula."""
    return f"'{value}" if _FORMULA.match(value) else value


def unescape_formula(cell: str) -> str:
    """Returns the value of a cell that :func:`escape_formula` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
