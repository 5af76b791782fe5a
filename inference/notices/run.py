"""The duty that stores the events of states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from config.bulk.tables import format_usd
from config.database.outages import is_away
from config.events.outbox import NewEvent, record_new
from inference.notices.balances import find_low_balances
from inference.notices.budgets import find_used_budgets
from inference.notices.refusals import (
    find_failing_providers,
    find_refused_credentials,
    find_refusing_guardrails,
)
from inference.watch.anomalies import find_anomalies

_BATCH: Final = 1_000


def find_notices() -> int:
    """Stores an event for each state that was not told in its period; returns their number.

    An error in one kind of states ends none of the others. It is raised at the end, so that the
    duty counts as failed. An error of an unreachable or read-only database is raised at once.
    """
    stored, errors = 0, []
    for find in (
        find_used_budgets,
        find_low_balances,
        find_failing_providers,
        find_refused_credentials,
        find_refusing_guardrails,
        find_unusual_spending,
    ):
        try:
            stored += _record_all(find())
        except Exception as exc:
            if is_away(exc):
                raise
            errors.append(exc)
    if errors:
        raise ExceptionGroup("notices could not be found", errors)
    return stored


def _record_all(found: Iterator[NewEvent]) -> int:
    """Stores the events that are new, a batch at a time; returns their number."""
    stored = 0
    while batch := list(islice(found, _BATCH)):
        stored += record_new(batch)
    return stored


def find_unusual_spending() -> Iterator[NewEvent]:
    """Yields an event for each day of an organization with far more spending than usual."""
    for anomaly in find_anomalies():
        data = {
            "organization": anomaly.name,
            "day": anomaly.day.isoformat(),
            "until": anomaly.until_text,
            "spent_usd": format_usd(anomaly.spent_nano),
            "usual_usd": format_usd(anomaly.usual_nano),
        }
        once = f"{anomaly.organization_id}|{anomaly.day}"
        yield NewEvent("spend.anomaly", anomaly.organization_id, data, once)
