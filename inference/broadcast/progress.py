"""Stores how far a destination was served, after a request to it succeeded or failed; counts both.

A result is stored only if nobody has moved the cursor meanwhile: another process, or an operator
who has switched the destination on anew. A failure says nothing of a receiver that was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce, Now
from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accounts.destinations.models import MOST_IN_A_BATCH
from accounts.models import BroadcastProgress, BroadcastWait
from config.outbound.engine import SLOW_MS
from config.outbound.sending import SendingOutcome
from config.sql import fetch_rows
from inference.broadcast.reading import KEPT, Page, count_between, oldest_kept_id

logger = logging.getLogger("causeway.broadcast")

_FIRST_RETRY_SECONDS: Final = 5.0
_LAST_RETRY_SECONDS: Final = 600.0
_GENERATIONS: Final = Counter(
    "causeway_broadcast_generations_total",
    "Generations that destinations took, and those that were given up.",
    ("result",),
)
_REQUESTS: Final = Counter(
    "causeway_broadcast_requests_total", "Requests to broadcast destinations.", ("result",)
)
_STATE: Final = """
SELECT
    coalesce(
        extract(epoch FROM now() - min(p.cursor_at) FILTER (
            WHERE p.failures = 0 AND p.mean_ms <= %(slow)s
        )),
        0
    ),
    count(*) FILTER (WHERE p.failures > 0)
FROM accounts_broadcastprogress p
JOIN accounts_broadcastdestination d ON d.id = p.destination_id
JOIN accounts_workspace w ON w.id = d.workspace_id
WHERE d.is_enabled AND w.is_observability_broadcast_enabled AND w.deleted_at IS NULL
"""


def store_success(page: Page, rejected: int = 0, *, duration_ms: int = 0) -> bool:
    """Moves the cursor behind a page that was taken, or of which nothing was to be sent.

    ``rejected`` spans of it were refused for good. Returns whether the cursor was where it had
    been.
    """
    sent = len(page.generations) - rejected
    changes: dict[str, Any] = _moved(page)
    if page.generations:
        changes |= {
            "failures": 0,
            "failing_since": None,
            "retry_at": None,
            "last_error": "",
            "succeeded_at": Now(),
            "batch": min(page.destination.progress.batch * 2, MOST_IN_A_BATCH),
            "sent": F("sent") + sent,
            "skipped": F("skipped") + rejected,
            "mean_ms": page.destination.progress.next_mean(duration_ms),
        }
    if not _store(page, changes, has_ended=True):
        return False
    if page.generations:
        _REQUESTS.labels("taken").inc()
        _GENERATIONS.labels("sent").inc(sent)
        _count_skipped(page, rejected, "the receiver rejected them", page.generations[-1].pk)
    return True


def store_failure(page: Page, outcome: SendingOutcome, now: datetime) -> None:
    """Lets the page be sent again later, and gives up what is too old.

    A receiver that refuses the body itself gets half as much next time, and a single generation
    that it refuses is given up, so that one bad row stops nothing.
    """
    progress, count = page.destination.progress, len(page.generations)
    failures = progress.failures + 1
    changes: dict[str, Any] = {
        "failures": failures,
        "failing_since": Coalesce(F("failing_since"), Now()),
        "retry_at": Now() + timedelta(seconds=_pause(failures, outcome)),
        "last_error": outcome.error[:255],
        "mean_ms": progress.next_mean(outcome.duration_ms),
    }
    is_given_up = outcome.is_body_refused and count == 1
    if outcome.is_body_refused:
        changes["batch"] = max(count // 2, 1)
    if is_given_up:
        changes |= {**_moved(page), "skipped": F("skipped") + 1}
    with transaction.atomic():
        is_stored = page.destination.lock_receiver() and _store(
            page, changes, has_ended=is_given_up
        )
        if is_stored and is_given_up:
            _count_skipped(page, 1, outcome.error, page.generations[0].pk)
        elif is_stored:
            _give_up(page, now)
    _REQUESTS.labels("failed").inc()
    logger.warning(
        "destination %s at %s: %s; %d failures",
        page.destination.pk,
        page.destination.host,
        outcome.detail,
        failures,
    )


def _give_up(page: Page, now: datetime) -> None:
    """Skips what has not been taken for a day; counts it and says what it was."""
    destination, bound = page.destination, now - KEPT
    waits = BroadcastWait.objects.filter(
        destination=destination.pk, generation_id__lt=oldest_kept_id(now)
    )
    given_up = waits.delete()[0]
    first, last = "", ""
    since = destination.progress.cursor_at
    moved = {}
    if since < bound:
        count, first, last = count_between(destination, since, bound)
        given_up += count
        moved = {"cursor_at": bound, "cursor_id": ""}
    if moved or given_up:
        _row(page).update(**moved, skipped=F("skipped") + given_up)
        _count_skipped(page, given_up, "not taken for a day", f"{first} to {last}")


def _count_skipped(page: Page, number: int, why: str, which: str) -> None:
    if number:
        _GENERATIONS.labels("skipped").inc(number)
        logger.warning(
            "destination %s: %d generations are given up (%s): %s",
            page.destination.pk,
            number,
            why,
            which,
        )


def _pause(failures: int, outcome: SendingOutcome) -> float:
    pause = min(_FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 20), _LAST_RETRY_SECONDS)
    return max(pause, min(outcome.retry_after, _LAST_RETRY_SECONDS))


def _moved(page: Page) -> dict[str, Any]:
    if page.cursor_at is None:
        return {}
    return {"cursor_at": page.cursor_at, "cursor_id": page.cursor_id}


def _row(page: Page) -> QuerySet[BroadcastProgress]:
    """Returns the progress as long as its cursor is where it was when the page was read."""
    before = page.destination.progress
    return BroadcastProgress.objects.filter(
        pk=before.pk, cursor_at=before.cursor_at, cursor_id=before.cursor_id
    )


def _store(page: Page, changes: dict[str, Any], *, has_ended: bool) -> bool:
    """Stores a result, unless somebody has moved the cursor meanwhile."""
    with transaction.atomic():
        if changes and not _row(page).update(**changes):
            return False
        if has_ended:
            destination = page.destination.pk
            BroadcastWait.objects.filter(
                destination=destination, generation_id__in=page.ended
            ).delete()
            BroadcastWait.objects.bulk_create(
                [
                    BroadcastWait(destination_id=destination, generation_id=pk)
                    for pk in page.running
                ],
                ignore_conflicts=True,
            )
    return True


class BroadcastCollector(Collector):
    """Collects how far the slowest destination that takes what it is sent is behind.

    Destinations that fail are counted apart, and slow ones are left out: both are their owners'
    affair. Collects nothing while the database is unreachable, so that other metrics are still
    served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        lag = GaugeMetricFamily(
            "causeway_broadcast_lag_seconds",
            "The age of the oldest cursor of a destination that neither fails nor is slow.",
        )
        failing = GaugeMetricFamily(
            "causeway_broadcast_failing_destinations",
            "Broadcast destinations whose last request failed.",
        )
        try:
            [[seconds, count]] = fetch_rows(_STATE, {"slow": SLOW_MS})
        except DatabaseError:
            return
        lag.add_metric((), float(seconds))
        failing.add_metric((), count)
        yield from (lag, failing)
