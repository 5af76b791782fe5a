"""The interface of a connection of the data plane, and the errors that it raises.

Two drivers answer: ``direct`` speaks to PostgreSQL itself, ``pooled`` to a pooler that may run each
transaction on another connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from config.sql import Statement

# A lock is waited for only briefly, because the statement holds the locks of other organizations
# meanwhile. Our own statements hold theirs for a few milliseconds.
LOCK_MS: Final = 200
# A server that hangs does not enforce its own statement timeout.
STATEMENT_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 3.0
APPLICATION_NAME: Final = "causeway-data-plane"

# The statements are few and always the same, so planning each execution costs more than running it.
# All of them find rows by key. A plan for small tables may prefer a scan, which is wrong as soon as
# the tables grow.
PLANNING: Final = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}


class Away(Exception):
    """The database is unreachable or not ready, or the connection broke: open another one.

    A statement that was running may or may not have committed.
    """


class Locked(Exception):
    """Another transaction holds a lock; nothing changed. ``context`` is that of PostgreSQL."""

    def __init__(self, context: str | None) -> None:
        super().__init__(context)
        self.context = context


class Canceled(Exception):
    """PostgreSQL ended the statement because it ran too long; nothing changed."""


class Rejected(Exception):
    """PostgreSQL rejected a statement, and would reject it again."""


class DriverConnection(Protocol):
    """An open connection, for one statement at a time; each statement is a transaction."""

    async def fetch(
        self, statement: Statement, parameters: Sequence[Any], lock_ms: int | None
    ) -> list[Sequence[Any]]:
        """Runs a statement and returns its rows.

        It waits ``lock_ms`` milliseconds for a lock; ``None`` leaves the limit as it was set last.
        Raises one of this module's errors. After :class:`Away`, or after the caller was cancelled,
        the connection can only be terminated.
        """

    async def listen(
        self, channel: str, hear: Callable[..., None], notice_loss: Callable[[], None]
    ) -> None:
        """Calls ``hear`` for each notification; raises :class:`TimeoutError` if none can arrive."""

    def terminate(self) -> None:
        """Closes the connection at once, whatever it does."""
