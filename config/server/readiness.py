"""Whether this process should receive traffic, and the probes that say so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

import msgspec

from config.api.errors import MethodNotAllowed, Unavailable
from config.clocks.report import clock_report
from config.server.bodies import Scope, Send

logger = logging.getLogger(__name__)

PROBES: Final = frozenset(("/healthz", "/readyz"))
# Admissions fail if no one has succeeded for so long after a failure.
_FAILING_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 1.0
# Without an admission for so long, only probes tell.
_QUIET_SECONDS: Final = 5.0
_MESSAGES: Final = {
    "stopping": "The worker stops; it still serves for DRAIN_SECONDS.",
    "database": "The worker's heartbeat does not reach the database.",
    "history": "The database has lost what workers had stored: run manage.py accept_history.",
    "admissions": "The database has taken no admission of this worker since one failed.",
}


class HistoryLost(Unavailable):
    message = (
        "The database has lost requests that it had stored. Nothing new is stored until an "
        "operator of the service has acknowledged that."
    )


class Admissions:
    """Whether admissions succeed, by those that were tried and by probes.

    Only failures since the last success count. One organization may fail for a reason of its own,
    so its failures alone say nothing: those of another one, of the connection or of a probe must
    join them, a second after the first failure or later.
    """

    def __init__(self) -> None:
        # Since when admissions fail, and when one succeeded last.
        self.failing_since: float | None = None
        self.succeeded_at = -_QUIET_SECONDS
        self._failed_at = 0.0
        self._owners: set[Hashable] = set()

    @property
    def is_failing(self) -> bool:
        """Whether the worker should get no traffic, because it can admit nothing."""
        return (
            self.failing_since is not None
            and self._failed_at >= self.failing_since + _FAILING_SECONDS
            and (None in self._owners or len(self._owners) > 1)
        )

    @property
    def is_quiet(self) -> bool:
        """Whether no request says how admissions are."""
        return (
            self.failing_since is not None or time.monotonic() > self.succeeded_at + _QUIET_SECONDS
        )

    def record_success(self) -> None:
        """Records an admission."""
        self.succeeded_at = time.monotonic()
        if self.failing_since is not None:
            self._clear()

    def record_failure(self, owner: Hashable | None = None) -> None:
        """Records that the database took no admission.

        ``owner`` is the organization, if the reason may be its own.
        """
        now = time.monotonic()
        if self.failing_since is None:
            self.failing_since = now
        had_failed = self.is_failing
        self._failed_at = now
        if len(self._owners) < 2 or owner is None:
            self._owners.add(owner)
        if self.is_failing and not had_failed:
            logger.error("admissions fail: /readyz answers 503 until one succeeds")

    async def keep_probing(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Probes every second."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            await self.probe_once(probe)

    async def probe_once(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Tries an admission of nothing unless a request has told how admissions are.

        A probe that succeeds ends the failing state only when no request has failed for five
        seconds: the requests know better.
        """
        if not self.is_quiet:
            return
        try:
            await probe()
        except Exception as exc:
            # An outage and a wait for a lock are in the log already.
            if not isinstance(exc, Unavailable):
                logger.warning("the probe of admissions failed: %s", type(exc).__name__)
            self.record_failure()
        else:
            if time.monotonic() > self._failed_at + _QUIET_SECONDS or self._owners == {None}:
                self.record_success()

    def _clear(self) -> None:
        if self.is_failing:
            logger.warning("admissions succeed again")
        self.failing_since = None
        self._owners.clear()


class Readiness:
    """The state of a process: whether it stops, whether statements reach PostgreSQL, and whether
    requests are admitted.

    The heartbeat of the data plane runs a statement every second.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.is_database_available = True
        # Whether the database has lost what a worker had stored, and nobody has accepted it.
        self.is_history_lost = False
        self.admissions = Admissions()

    def body(self) -> tuple[int, dict[str, Any]]:
        """Returns the status and the body of ``/readyz``."""
        reason = self._find_reason()
        answer: dict[str, Any] = {"status": "ok"}
        if reason is not None:
            answer = {"status": "unavailable", "reason": reason, "message": _MESSAGES[reason]}
        if offset := clock_report.describe():
            answer["clock"] = offset
        return 200 if reason is None else 503, answer

    def _find_reason(self) -> str | None:
        if self.is_draining:
            return "stopping"
        if not self.is_database_available:
            return "database"
        if self.is_history_lost:
            return "history"
        return "admissions" if self.admissions.is_failing else None


readiness: Final = Readiness()


async def serve_probe(scope: Scope, send: Send) -> None:
    """Answers ``/healthz`` and ``/readyz`` for every host name, without a statement."""
    headers = []
    if scope["method"] not in ("GET", "HEAD"):
        error = MethodNotAllowed()
        status, answer = error.status, error.body()
        headers = [(b"allow", b"GET, HEAD")]
    elif scope["path"] == "/readyz":
        status, answer = readiness.body()
    else:
        status, answer = 200, {"status": "ok"}
    body = msgspec.json.encode(answer)
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
