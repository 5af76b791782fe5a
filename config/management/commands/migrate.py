"""Migrates the database without stopping the requests of running workers."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Final

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled

from config.database.aliases import pass_by_pooler
from config.database.functions import make_functions
from config.database.lock_limit import limiting_waits
from config.management.migrations import require_known_migrations
from config.partitions.tables import make_all_ahead
from config.sql import load_statements

# A change of a table waits for every transaction that uses the table, for instance a dump, and all
# later statements on the table wait behind it. So a change gives up early and is tried again.
_LOCK_SECONDS: Final = 1
# Longer, so that a transaction meets its own limit first.
_WATCHED_SECONDS: Final = 2
_PAUSE_SECONDS: Final = 3
_TRIES: Final = 200
_LOCKED: Final = (DeadlockDetected, LockNotAvailable)
# Whose statements the data plane runs.
_PACKAGES: Final = ("catalog", "inference")


class Command(migrate.Command):
    def run_from_argv(self, argv: list[str]) -> None:
        pass_by_pooler()
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> str | None:
        """Migrates; a migration that meets a lock is rolled back and tried again for minutes."""
        require_known_migrations()
        connection: Any = connections[options["database"]]
        # Behind a pooler a session's setting would be somebody else's: there each transaction has
        # it, and statements that are no transactions are watched.
        connection.migration_lock_seconds = _LOCK_SECONDS
        has_session = not connection.is_pooled()
        locked = _LOCKED if has_session else (*_LOCKED, QueryCanceled)
        with nullcontext() if has_session else limiting_waits(connection, _WATCHED_SECONDS):
            for _ in range(_TRIES):
                if has_session:
                    with connection.cursor() as cursor:
                        cursor.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
                try:
                    return self._try(*args, **options)
                except OperationalError as exc:
                    if not isinstance(exc.__cause__, locked):
                        raise
                    self.stderr.write(
                        "Another transaction uses a table that must change. It is tried again in "
                        f"{_PAUSE_SECONDS} seconds; docs/database.md says how to find the "
                        "transaction."
                    )
                    time.sleep(_PAUSE_SECONDS)
                finally:
                    if has_session and connection.is_usable():
                        with connection.cursor() as cursor:
                            cursor.execute("RESET lock_timeout")
        raise CommandError("A table is still locked. The finished migrations stay; run it again.")

    def _try(self, *args: Any, **options: Any) -> str | None:
        done = super().handle(*args, **options)
        if not (options["plan"] or options["check_unapplied"]):
            make_all_ahead()
            _make_functions(options["database"])
        return done


def _make_functions(alias: str) -> None:
    """Makes the functions of the data plane, as far as the tables of their statements are there."""
    if alias == DEFAULT_DB_ALIAS:
        make_functions(statement for package in _PACKAGES for statement in load_statements(package))
