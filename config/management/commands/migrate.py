"""Migrates the database without stopping the requests of running workers."""

from __future__ import annotations

import time
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from django.db.models.signals import post_migrate
from psycopg.errors import DeadlockDetected, LockNotAvailable

from config.cells import HOME
from config.management.migrations import require_known_migrations
from config.partitions.conversion import CannotConvert
from config.partitions.tables import make_all_ahead

# A change of a table waits for every transaction that uses the table, for instance a dump, and all
# later statements on the table wait behind it. So a change gives up early and is tried again.
_LOCK_SECONDS: Final = 1
_PAUSE_SECONDS: Final = 3
_TRIES: Final = 200


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> str | None:
        """Migrates; a migration that meets a lock is rolled back and tried again for minutes."""
        require_known_migrations()
        if settings.CELL != HOME:
            # They make permissions and roles, which are replicated from the home cell.
            post_migrate.receivers = []
            post_migrate.sender_receivers_cache.clear()
        connection = connections[options["database"]]
        for _ in range(_TRIES):
            with connection.cursor() as cursor:
                cursor.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
            try:
                done = super().handle(*args, **options)
                if not (options["plan"] or options["check_unapplied"]):
                    make_all_ahead()
                return done
            except CannotConvert as exc:
                raise CommandError(str(exc)) from None
            except OperationalError as exc:
                if not isinstance(exc.__cause__, LockNotAvailable | DeadlockDetected):
                    raise
                self.stderr.write(
                    "Another transaction uses a table that must change. It is tried again in "
                    f"{_PAUSE_SECONDS} seconds; docs/operating.md says how to find the transaction."
                )
                time.sleep(_PAUSE_SECONDS)
            finally:
                if connection.is_usable():
                    with connection.cursor() as cursor:
                        cursor.execute("RESET lock_timeout")
        raise CommandError("A table is still locked. The finished migrations stay; run it again.")
