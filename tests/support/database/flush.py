"""Empties the tables after a transactional test at a fraction of the cost of Django's flush."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.test import TransactionTestCase

# Django's flush empties these too and makes the same rows again with other keys.
KEPT: Final = {ContentType._meta.db_table, Permission._meta.db_table}
# A large table is truncated: deleted rows stay on the disk and slow later scans down.
LARGE_BYTES: Final = 4 << 20
# A table's own, or that of all its partitions.
_SIZE: Final = (
    "SELECT coalesce(sum(pg_relation_size(relid)), pg_relation_size('{0}')) "
    "FROM pg_partition_tree('{0}')"
)


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
        for name in test._databases_names(include_mirrors=False):
            empty_tables(connections[name])

    patch.setattr(TransactionTestCase, "_fixture_teardown", tear_down)


def is_superuser(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('is_superuser')")
        return bool(cursor.fetchone() == ("on",))


def empty_tables(connection: BaseDatabaseWrapper) -> None:
    """Deletes every row but those of content types and permissions.

    ``flush`` gives each table a new file and then sends ``post_migrate``, which takes longer than
    most tests. Almost all tables are empty after a test, and the others hold a few rows.

    The lock keeps a running service from writing between two of the statements. In the role of a
    replica PostgreSQL checks no foreign keys and fires no triggers, so the order does not matter
    and append-only tables can be emptied.
    """
    quote = connection.ops.quote_name
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = [quote(name) for name in sorted(names) if name not in KEPT]
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE")
        # Planning the sizes of all tables would take longer than everything else here.
        filled = select_all(
            cursor, (f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for table in tables)
        )
        sizes = (f"SELECT '{table}', ({_SIZE.format(table)})" for (table,) in filled)
        for table, size in select_all(cursor, sizes):
            cursor.execute(
                f"TRUNCATE {table} CASCADE" if size > LARGE_BYTES else f"DELETE FROM {table}"
            )
        cursor.execute("COMMIT")


def select_all(cursor: CursorWrapper, queries: Iterable[str]) -> list[tuple[Any, ...]]:
    """Returns the rows of all queries, which are sent as one statement."""
    statement = " UNION ALL ".join(queries)
    if not statement:
        return []
    cursor.execute(statement)
    return list(cursor.fetchall())
