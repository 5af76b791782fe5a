"""Django's PostgreSQL backend, for connections that may lead through a pooler."""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.postgresql.schema import DatabaseSchemaEditor

from config.database.outages import outages
from config.database.patience import CHECK_SECONDS, OPEN_SECONDS, limit_write

# Between two connections that a pooler without a server has opened at once.
_PAUSE_SECONDS: Final = 0.1


class SchemaEditor(DatabaseSchemaEditor):
    """Changes the schema; waits for locks as long as the command ``migrate`` says."""

    def __enter__(self) -> Any:
        editor = super().__enter__()
        connection: Any = self.connection
        seconds = connection.migration_lock_seconds
        if self.atomic_migration and seconds is not None:
            self.execute(f"SET LOCAL lock_timeout = '{seconds}s'")
        return editor


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that finds out by itself what a pooler does not let it have."""

    SchemaEditorClass = SchemaEditor
    # How long the statements of a migration wait for a lock.
    migration_lock_seconds: int | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute_wrappers.append(limit_write)

    def get_new_connection(self, conn_params: Any) -> Any:
        """Returns a connection; one of the pool has answered, or none does in time."""
        if not self.pool or not self.settings_dict["CONN_HEALTH_CHECKS"]:
            return super().get_new_connection(conn_params)
        until, kept = time.monotonic() + OPEN_SECONDS, self.pool.max_size
        try:
            session = super().get_new_connection(conn_params)
            while not session.answers(min(max(until - time.monotonic(), 0.3), CHECK_SECONDS)):
                self.pool.putconn(session)
                # What the pool had kept may all be closed, without a server that is away.
                kept -= 1
                time.sleep(0 if kept > 0 else _PAUSE_SECONDS)
                if (left := until - time.monotonic()) <= 0:
                    raise psycopg.OperationalError("the server does not answer")
                session = self.pool.getconn(left)
        except psycopg.OperationalError:
            outages.is_silent = True
            raise
        outages.is_silent = False
        return session

    def set_autocommit(self, autocommit: bool, *args: Any, **options: Any) -> None:
        """Sets the mode; connects for that only if a transaction shall begin.

        Django would connect again at the end of a transaction that has lost its connection.
        """
        if self.connection is not None or not autocommit:
            super().set_autocommit(autocommit, *args, **options)

    def is_pooled(self) -> bool:
        """Returns whether another process answers than the one that was connected to.

        Settings of the session, cursors and locks that outlive a transaction then belong to whoever
        gets that process next.
        """
        with self.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [pid] = cursor.fetchone()
        return bool(pid != self.connection.info.backend_pid)

    def chunked_cursor(self) -> Any:
        """Returns a cursor in the server, or one here where its transaction ends too early."""
        if not self.in_atomic_block and self.is_pooled():
            return self.cursor()
        return super().chunked_cursor()
