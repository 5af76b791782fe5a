"""Loads SQL statements from files, and executes them on connections of the ORM.

Each statement stands whole in one file, ``<package>/sql/<name>.sql``, with PostgreSQL's own
placeholders (``$1``). asyncpg takes it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from django.db.backends.utils import CursorWrapper

_PLACEHOLDER: Final = re.compile(r"\$([0-9]+)")


def load_statement(package: str, name: str) -> str:
    """Returns a statement without its comments, which would be sent with every execution."""
    text = files(package).joinpath("sql", f"{name}.sql").read_text("utf-8")
    lines = text.splitlines()
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("--"))


def execute(cursor: CursorWrapper, statement: str, parameters: Sequence[Any] = ()) -> None:
    """Executes a loaded statement on a cursor of the ORM."""
    if parameters:
        named = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        cursor.execute(_for_psycopg(statement), named)
    else:
        cursor.execute(statement)


@lru_cache
def _for_psycopg(statement: str) -> str:
    """Writes placeholders as psycopg takes them."""
    return _PLACEHOLDER.sub(r"%(p\1)s", statement.replace("%", "%%"))
