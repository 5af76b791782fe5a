"""Leases of dead workers in tests: lets them run out without waiting for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.contrib.postgres.functions import TransactionNow
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test.utils import override_settings

from inference.models import Journal, Uptime


def end_leases(lease: str, eventually: Callable[[Callable[[], bool]], None]) -> None:
    """Makes every running generation look as if it had been silent for ``lease`` seconds.

    What a worker sent just before it was killed is written first. A generation whose worker lives
    does not look so any more after the next heartbeat.
    """
    eventually(_is_quiet)
    now, age = TransactionNow(), timedelta(seconds=float(lease) + 1)
    Uptime.objects.update_or_create(pk=1, defaults={"since": now - 2 * age, "beat_at": now})
    Journal.objects.update(beat_at=F("beat_at") - age)


def sweep(lease: str) -> None:
    """Does what ``HOLD_TIMEOUT=… work --once`` does on the host of dead workers."""
    with override_settings(HOLD_TIMEOUT=int(lease), HOLD_LEASE=int(lease)):
        call_command("work", once=True)


def _is_quiet() -> bool:
    """Returns whether no other session of this database runs a statement at this moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state = 'active' AND backend_type = 'client backend')"
        )
        return bool(cursor.fetchone()[0])
