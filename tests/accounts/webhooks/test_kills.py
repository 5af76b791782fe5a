"""The short form of ``python -m tests.drills.faults.deliveries``."""

from __future__ import annotations

import pytest

from tests.support.bulkheads.deliveries import EVENTS_PER_KILL, kill_deliveries


@pytest.mark.django_db(transaction=True)
def test_a_killed_work_loses_no_event() -> None:
    found = kill_deliveries(2)
    assert (found.lost, found.unknown, found.undelivered) == (0, 0, 0)
    assert (found.events, found.distinct) == (2 * EVENTS_PER_KILL, 2 * EVENTS_PER_KILL)
