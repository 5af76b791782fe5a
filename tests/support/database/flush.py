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
KEPT: Final = {ContentType._meta.db_table, Permission._meta.db_table, WorkerBeat._meta.db_table}
# A large table is truncated: deleted rows stay on the disk and slow later scans down.
LARGE_BYTES: Final = 4 << 20
_ASK: Final = """
SELECT current_setting('is_superuser')::bool,
    EXISTS (SELECT FROM pg_prepared_statements WHERE name = 'filled')
"""
# The tables and partitions that have pages, each with whether it is large. The names are constants
# of a prepared statement, so that they are looked up once for a session.
_FILLED: Final = """
PREPARE filled AS
SELECT oid::regclass::text, pg_relation_size(oid) > {most}
FROM pg_class
WHERE relkind = 'r'
AND (CASE WHEN relispartition THEN pg_partition_root(oid) ELSE oid END)::regclass IN ({tables})
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
        names = test._databases_names(include_mirrors=False)
        if not all(empty_tables(connections[name]) for name in names):
            flush(test)
            return
        for connection in connections.all(initialized_only=True):
            if connection.alias not in names:
                connection.close()
        test.keeps_sessions = True

    def should_reload(test: Any) -> bool:
        return not getattr(test, "keeps_sessions", False)

    patch.setattr(TransactionTestCase, "_fixture_teardown", tear_down)
    patch.setattr(TransactionTestCase, "_should_reload_connections", should_reload)


def is_superuser(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('is_superuser')")
        return bool(cursor.fetchone() == ("on",))


def empty_tables(connection: BaseDatabaseWrapper) -> bool:
    """Deletes every row but those of content types and permissions, and resets the session.

    Does nothing, and returns whether it did, for a user that is no superuser.

    ``flush`` gives each table a new file and then sends ``post_migrate``, which takes longer than
    most tests. Most tables never had a row, so they have no page; the others hold a few rows. Each
    message costs as much as what it says, so there are three.

    The lock keeps a running service from writing between two of the statements. In the role of a
    replica PostgreSQL checks no foreign keys and fires no triggers, so the order does not matter
    and append-only tables can be emptied.
    """
    tables = _find_names()
    with connection.cursor() as cursor:
        cursor.execute(_ASK)
        may_empty, is_prepared = cursor.fetchone()
        if not may_empty:
            return False
        if not is_prepared:
            names = ", ".join(f"'{table}'::regclass" for table in tables)
            cursor.execute(_FILLED.format(most=LARGE_BYTES, tables=names))
        cursor.execute(
            "BEGIN; SET LOCAL session_replication_role = replica; "
            f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE; EXECUTE filled"
        )
        while cursor.nextset():
            pass
        # No plan over all partitions of a table.
        statements = [
            f"TRUNCATE {table} CASCADE" if is_large else f"DELETE FROM {table}"
            for table, is_large in cursor.fetchall()
        ]
        cursor.execute("; ".join([*statements, "COMMIT", _RESET]))
    connection.init_connection_state()
    return True


@cache
def _find_names() -> list[str]:
    """Returns the tables of all models."""
    return sorted(set(connections["default"].introspection.django_table_names()) - KEPT)


def reset_session(connection: BaseDatabaseWrapper) -> None:
    """Lets the next test find a session as if it were new.

    Django opens a new one for each test. Reading what PostgreSQL knows of all tables, as emptying
    them does, costs a new session more CPU time than most tests.
    """
    with connection.cursor() as cursor:
        cursor.execute(_RESET)
    connection.init_connection_state()
