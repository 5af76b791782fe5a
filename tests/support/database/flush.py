"""Cleans up after a transactional test at a fraction of the cost of Django's flush."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

from inference.models import WorkerBeat

# Django's flush empties these too and makes the same rows again with other keys. A service that
# runs on would take the loss of its heartbeat for lost history.
KEPT: Final = {
    ContentType._meta.db_table,
    Permission._meta.db_table,
    WorkerBeat._meta.db_table,
}
# A large table is truncated: deleted rows stay on the disk and slow later scans down.
LARGE_BYTES: Final = 4 << 20
_EXISTING: Final = (
    "SELECT quote_ident(tablename) FROM pg_tables "
    "WHERE schemaname = current_schema() AND tablename = ANY(%s)"
)
# The tables and partitions that have pages, each with whether it is large.
_FILLED: Final = """
SELECT oid::regclass::text, pg_relation_size(oid) > %s
FROM pg_class
WHERE relkind = 'r'
AND CASE WHEN relispartition THEN pg_partition_root(oid) ELSE oid END = ANY(%s::regclass[])
AND pg_relation_size(oid) > 0
"""
# What ``DISCARD ALL`` does, but for the plans.
_RESET: Final = """
CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *;
SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES
"""


def replace_flush(patch: Any) -> None:
    """Lets transactional tests end with ``empty_tables`` in place of the command ``flush``.

    Only a superuser may change the role of a session. The user of a database that the environment
    names may be none: then the command stays.
    """
    flush = TransactionTestCase._fixture_teardown

    def tear_down(test: Any) -> None:
        if not is_superuser(connections["default"]):
            flush(test)
            return
        names = test._databases_names(include_mirrors=False)
        for connection in connections.all(initialized_only=True):
            if connection.alias not in names:
                connection.close()
        for name in names:
            empty_tables(connections[name])
            reset_session(connections[name])
        test.keeps_sessions = True

    def should_reload(test: Any) -> bool:
        return not getattr(test, "keeps_sessions", False)

    patch.setattr(TransactionTestCase, "_fixture_teardown", tear_down)
    patch.setattr(TransactionTestCase, "_should_reload_connections", should_reload)


def is_superuser(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('is_superuser')")
        return bool(cursor.fetchone() == ("on",))


def empty_tables(connection: BaseDatabaseWrapper) -> None:
    """Deletes every row but those of content types and permissions.

    ``flush`` gives each table a new file and then sends ``post_migrate``, which takes longer than
    most tests. Most tables never had a row, so they have no page; the others hold a few rows.

    The lock keeps a running service from writing between two of the statements. In the role of a
    replica PostgreSQL checks no foreign keys and fires no triggers, so the order does not matter
    and append-only tables can be emptied.
    """
    with connection.cursor() as cursor:
        cursor.execute(_EXISTING, [_find_names()])
        tables = sorted(table for (table,) in cursor.fetchall())
        cursor.execute("BEGIN")
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE")
        cursor.execute(_FILLED, [LARGE_BYTES, tables])
        # One message for all tables, and no plan over all partitions of a table.
        statements = [
            f"TRUNCATE {table} CASCADE" if is_large else f"DELETE FROM {table}"
            for table, is_large in cursor.fetchall()
        ]
        cursor.execute("; ".join([*statements, "COMMIT"]))


@cache
def _find_names() -> list[str]:
    """Returns the tables of all models, whether they exist or not."""
    return sorted(set(connections["default"].introspection.django_table_names()) - KEPT)


def reset_session(connection: BaseDatabaseWrapper) -> None:
    """Lets the next test find a session as if it were new.

    Django opens a new one for each test. Reading what PostgreSQL knows of all tables, as emptying
    them does, costs a new session more CPU time than most tests.
    """
    with connection.cursor() as cursor:
        cursor.execute(_RESET)
    connection.init_connection_state()
