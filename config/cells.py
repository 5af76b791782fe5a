"""The names of cells, and the settings that contain them.

A cell is an installation with a PostgreSQL cluster of its own; several share a host name and a
catalogue, which the home cell keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HOME: Final = "home"
CELL_NAME: Final = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
MAX_NAME: Final = 32


def parse_cell(text: str) -> str:
    """Returns the name of a cell, or the home cell's for an empty text; raises ``ValueError``."""
    name = text.strip() or HOME
    if not re.fullmatch(CELL_NAME, name) or len(name) > MAX_NAME:
        raise ValueError(f"the name of a cell has at most {MAX_NAME} of a-z, 0-9 and hyphens")
    return name


def parse_cell_databases(items: Iterable[str]) -> dict[str, str]:
    """Reads items ``CELL=postgres://…``; raises ``ValueError``, which never shows a password."""
    found: dict[str, str] = {}
    for item in items:
        name, _, url = item.strip().partition("=")
        if (
            not re.fullmatch(CELL_NAME, name)
            or not url.startswith(("postgres://", "postgresql://"))
            or name in found
        ):
            raise ValueError("needs a comma list of CELL=postgres://USER:PASSWORD@HOST/NAME")
        found[name] = url
    return found
