"""Whether the sweeper may believe that a silent worker is dead."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.postgres.functions import TransactionNow

from inference.models import Uptime, WorkerBeat
from inference.settlement.sweeper import beat, clear_health, may_believe_silence

LEASE = settings.HOLD_LEASE


def set_uptime(*, since: float, beat_at: float) -> None:
    """Sets since when heartbeats arrive and when the last one did, in seconds before now."""
    Uptime.objects.update_or_create(
        pk=1,
        defaults={
            "since": TransactionNow() - timedelta(seconds=since),
            "beat_at": TransactionNow() - timedelta(seconds=beat_at),
        },
    )


def test_nothing_is_believed_before_a_lease_of_heartbeats(db: None) -> None:
    # A service of an earlier test may have left its heartbeats.
    Uptime.objects.all().delete()
    assert not may_believe_silence()
    beat()
    assert not may_believe_silence()
    set_uptime(since=LEASE - 5, beat_at=1)
    beat()
    assert not may_believe_silence()
    set_uptime(since=LEASE + 1, beat_at=1)
    beat()
    assert may_believe_silence()


@pytest.mark.parametrize(
    ("gap", "why"),
    [
        (11, "the database was unavailable for eleven seconds"),
        (3600, "a standby was promoted an hour later"),
        (-120, "the clock of the promoted standby is two minutes behind"),
    ],
)
def test_a_gap_starts_the_lease_again(db: None, gap: float, why: str) -> None:
    set_uptime(since=gap + 10 * LEASE, beat_at=gap)
    beat()
    assert not may_believe_silence(), why
    assert Uptime.objects.filter(since=TransactionNow(), beat_at=TransactionNow()).exists()


def test_nobody_is_believed_dead_by_old_heartbeats(db: None) -> None:
    set_uptime(since=10 * LEASE, beat_at=60)
    assert not may_believe_silence()


def test_heartbeats_are_deleted_after_a_lease_without_a_gap(db: None) -> None:
    """A clock that goes wrong by a month makes all of them old, and that is no lost history."""
    old = TransactionNow() - timedelta(days=31)
    WorkerBeat.objects.create(worker="w", number=7, beat_at=old)
    set_uptime(since=31 * 86_400, beat_at=31 * 86_400)
    clear_health()
    beat()
    clear_health()
    assert WorkerBeat.objects.get(pk="w").number == 7
    set_uptime(since=LEASE + 1, beat_at=1)
    clear_health()
    assert not WorkerBeat.objects.filter(pk="w").exists()
