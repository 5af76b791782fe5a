"""The metrics of broadcasting: what was sent, and how far behind it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError
from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.sql import fetch_rows

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
    coalesce(extract(epoch FROM now() - min(p.cursor_at) FILTER (WHERE p.failures = 0)), 0),
    count(*) FILTER (WHERE p.failures > 0)
FROM accounts_broadcastprogress p
JOIN accounts_broadcastdestination d ON d.id = p.destination_id
JOIN accounts_workspace w ON w.id = d.workspace_id
WHERE d.is_enabled AND w.is_observability_broadcast_enabled AND w.deleted_at IS NULL
"""


def count_generations(result: str, number: int) -> None:
    """Counts generations that were ``sent`` or ``skipped``."""
    _GENERATIONS.labels(result).inc(number)


def count_request(result: str) -> None:
    """Counts a request that was ``taken`` or ``failed``."""
    _REQUESTS.labels(result).inc()


class BroadcastCollector(Collector):
    """Collects how far the slowest destination that takes what it is sent is behind.

    Destinations that fail are counted apart: their owners must mend them. Collects nothing while
    the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        lag = GaugeMetricFamily(
            "causeway_broadcast_lag_seconds",
            "The age of the oldest cursor of a broadcast destination that does not fail.",
        )
        failing = GaugeMetricFamily(
            "causeway_broadcast_failing_destinations",
            "Broadcast destinations whose last request failed.",
        )
        try:
            [[seconds, count]] = fetch_rows(_STATE)
        except DatabaseError:
            return
        lag.add_metric((), float(seconds))
        failing.add_metric((), count)
        yield from (lag, failing)
