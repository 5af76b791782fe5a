"""Rows that another session locks, as a person does who leaves ``psql`` open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection


@contextmanager
def locked(query: str, *parameters: Any) -> Iterator[psycopg.Connection[Any]]:
    """Locks the rows of a query until the block is left; yields the session, which may end it."""
    wanted = {
        name: value
        for name, value in connection.get_connection_params().items()
        if name in ("dbname", "user", "host", "port", "password")
    }
    with psycopg.connect(**wanted) as other:
        found = other.execute(f"{query} FOR UPDATE", parameters).fetchall()
        assert found, "no row is locked"
        yield other
        other.rollback()
