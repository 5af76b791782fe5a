"""pytest plugin: no test begins shortly before the end of an hour, a day or a month.

Sums, partitions and budgets have these spans. A test would fail whose rows are of one hour, and
whose reports are of the next one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest

from tests.support.machine.waiting import wait_until

# Longer than a test takes on a busy machine. The clock of a database may be a little behind.
_BEFORE_SECONDS: Final = 40
_AFTER_SECONDS: Final = 1


def is_between_hours(now: datetime) -> bool:
    """Returns whether the hour of a moment ends soon, or has just begun."""
    passed = now - now.replace(minute=0, second=0, microsecond=0)
    return not _AFTER_SECONDS <= passed.total_seconds() < 3600 - _BEFORE_SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Waits before any fixture: the transaction of a test begins in its hour too."""
    wait_until(lambda: not is_between_hours(datetime.now(UTC)), seconds=60)
