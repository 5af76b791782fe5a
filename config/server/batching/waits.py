"""Waits for locks: what reports them, and the organizations that are suspected of more."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from prometheus_client import Counter, Gauge

from config.api.errors import Unavailable
from config.server.load.figures import figures

logger = logging.getLogger(__name__)

# How long an organization stays apart after its last blocked statement. Each further lock within
# the memory doubles it, so that short repeated locks do not stop the shared lanes every time.
_FIRST_SECONDS: Final = 1.0
# How long it stays apart after a lock that it met in a batch with others: until its own statement
# has shown whether the lock is held for long.
_WARNED_SECONDS: Final = 0.5
_LONGEST_SECONDS: Final = 32.0
_REMEMBERED_SECONDS: Final = 60.0

_SLOW_STATEMENTS: Final = Counter(
    "causeway_slow_statements_total",
    "Statements of the data plane that took more than 100 ms.",
    ("statement",),
)
_LOCK_TIMEOUTS: Final = Counter(
    "causeway_lock_timeouts_total",
    "Statements of the data plane that were given up because a row or a table was locked.",
    ("statement", "relation"),
)
_BLOCKED: Final = Gauge(
    "causeway_blocked_organizations",
    "Organizations whose items wait apart, because one of their rows is locked.",
    ("statement",),
    multiprocess_mode="livesum",
)
STATEMENT_SECONDS: Final = figures.histogram(
    "causeway_statement_seconds",
    "How long the statements of the data plane take, by statement.",
    ("statement",),
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
# One log line a statement and kind in this time.
_LOG_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Suspect:
    strikes: int
    until: float


class Suspects:
    """The organizations that the lanes of a worker serve apart, each until a time.

    All lanes share them: a lock that stops an admission will stop the settlements too.
    """

    def __init__(self) -> None:
        self.known: dict[UUID, _Suspect] = {}

    def accuse(self, organization_id: UUID, now: float) -> None:
        """Records that a statement of this organization alone met a lock."""
        self._forget(now)
        suspect = self.known.setdefault(organization_id, _Suspect(0, 0.0))
        if suspect.until <= now or not suspect.strikes:
            suspect.strikes += 1
        seconds = min(_FIRST_SECONDS * 2 ** (suspect.strikes - 1), _LONGEST_SECONDS)
        suspect.until = now + seconds

    def warn(self, organization_id: UUID, now: float) -> None:
        """Records that a statement of several organizations met a lock of this one."""
        self._forget(now)
        suspect = self.known.setdefault(organization_id, _Suspect(0, 0.0))
        suspect.until = max(suspect.until, now + _WARNED_SECONDS)

    def has(self, organization_id: UUID, now: float) -> bool:
        """Returns whether the organization is to be served apart."""
        suspect = self.known.get(organization_id)
        return suspect is not None and suspect.until > now

    def _forget(self, now: float) -> None:
        for organization_id, suspect in list(self.known.items()):
            if suspect.until + _REMEMBERED_SECONDS < now:
                del self.known[organization_id]


class Blocked(Unavailable):
    """A lock that a statement needs is held by another transaction; it stored nothing.

    ``organization_id`` is the organization of the locked row, if it is known.
    """

    message = (
        "Another transaction has locked a row that this request needs. Nothing was stored. "
        "Try again shortly."
    )

    def __init__(self, organization_id: UUID | None = None) -> None:
        super().__init__()
        self.organization_id = organization_id


class Waits:
    """Logs and counts slow statements and lock timeouts.

    There is at most one line a second for a slow statement, and for a statement and a relation.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], float] = {}
        # A statement that takes longer is to be reported.
        self.slow_seconds = 0.1

    def report_slow(self, statement: str, organizations: Collection[UUID], seconds: float) -> None:
        """Reports a statement that took more than ``slow_seconds``."""
        _SLOW_STATEMENTS.labels(statement).inc()
        if self._may_log(statement):
            logger.warning(
                "the statement %s took %d ms for %s",
                statement,
                seconds * 1000,
                _name(organizations),
            )

    def report_timeout(
        self, statement: str, organizations: Collection[UUID], seconds: float, relation: str
    ) -> None:
        """Reports a statement that was given up; ``relation`` has the row that is locked."""
        _LOCK_TIMEOUTS.labels(statement, relation).inc()
        if self._may_log(statement, relation):
            logger.warning(
                "the statement %s waited %d ms for a lock in %s, for %s",
                statement,
                seconds * 1000,
                relation,
                _name(organizations),
            )

    def report_blocked(self, statement: str, count: int) -> None:
        """Sets the number of organizations whose items wait for locks."""
        _BLOCKED.labels(statement).set(count)

    def _may_log(self, statement: str, relation: str = "") -> bool:
        now = time.monotonic()
        if self._logged.get((statement, relation), -_LOG_SECONDS) + _LOG_SECONDS > now:
            return False
        self._logged[statement, relation] = now
        return True


waits: Final = Waits()


def _name(organizations: Collection[UUID]) -> str:
    if len(organizations) == 1:
        return f"organization {next(iter(organizations))}"
    return f"{len(organizations)} organizations" if organizations else "all organizations"
