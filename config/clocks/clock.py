"""The database's clock, by which everything that depends on the time is decided; pure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

# A host that differs by more from the database says so.
TOLERATED_SECONDS: Final = 1.0


class DatabaseClock:
    """The database's time as this process knows it, without a statement.

    Each statement that returns PostgreSQL's ``now()`` bounds the difference between that clock and
    the monotonic clock of the host: the value lies between sending and receiving. Between two such
    statements the monotonic clock counts, so a wrong or moving clock of the host changes nothing.
    Before the first statement the clock of the host is all that is known.
    """

    def __init__(self) -> None:
        self.is_measured = False
        # The database's Unix time minus the monotonic clock of the host.
        self._ahead = time.time() - time.monotonic()  # noqa: TID251

    def time(self) -> float:
        """Returns the database's Unix time."""
        return time.monotonic() + self._ahead

    def now(self) -> datetime:
        """Returns the database's time."""
        return datetime.fromtimestamp(self.time(), UTC)

    def offset(self) -> float:
        """Returns the seconds by which the clock of the host is ahead of the database's."""
        return time.time() - self.time() if self.is_measured else 0.0  # noqa: TID251

    def observe(self, read_at: datetime, sent: float) -> None:
        """Learns from a statement that was sent at ``sent`` and has just returned ``read_at``.

        ``sent`` is a monotonic time. ``read_at`` was read between ``sent`` and now: a ``now()`` of
        a transaction that began earlier must not be passed.
        """
        stamp = read_at.timestamp()
        lowest, highest = stamp - time.monotonic(), stamp - sent
        if self.is_measured:
            # A slow statement says little: it corrects only what it contradicts.
            self._ahead = min(max(self._ahead, lowest), highest)
        else:
            self._ahead, self.is_measured = (lowest + highest) / 2, True


clock: Final = DatabaseClock()
