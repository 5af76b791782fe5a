"""Locks that sessions wait for."""

from __future__ import annotations

from django.db import connection


def waiting() -> int:
    """Returns the number of sessions of this database that wait for a row."""
    with connection.cursor() as cursor:
        # Within a transaction the view would stay as it was first seen.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])
