"""The metrics of holds and of the ledger, which every process reads from the database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError
from django.db.models import Count, Min
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.apps import Alert
from config.clocks.clock import clock
from config.clocks.leases import Lease
from config.server.readiness import readiness
from inference.models import HistoryLoss, Journal
from inference.settlement.verification import CHECK_LEDGER

_SECOND: Final = re.compile(r"gen-([0-9]+)-")


class HoldCollector(Collector):
    """Collects the number of open holds, the age of the oldest, and differences of the ledger.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            # Every open hold has a journal, and its generation's id begins with the second of its
            # admission.
            found = Journal.objects.aggregate(count=Count("pk"), first=Min("pk"))
            differences = Lease.objects.filter(name=CHECK_LEDGER).values_list("result", flat=True)
            differing = next(iter(differences), None)
            lost = HistoryLoss.objects.filter(accepted_at=None).count()
        except DatabaseError:
            return
        yield GaugeMetricFamily(
            "causeway_open_holds", "Generations whose hold is open.", value=found["count"]
        )
        yield GaugeMetricFamily(
            "causeway_history_losses",
            "Losses of stored rows that workers have noticed and nobody has accepted.",
            value=lost,
        )
        begun = _SECOND.match(found["first"] or "")
        yield GaugeMetricFamily(
            "causeway_oldest_hold_seconds",
            "The age of the oldest open hold.",
            value=0 if begun is None else max(clock.time() - int(begun[1]), 0),
        )
        ledger = GaugeMetricFamily(
            "causeway_ledger_differences",
            "Differences that the latest check of the ledger has found.",
        )
        if differing is not None:
            ledger.add_metric((), differing)
        yield ledger


def find_lost() -> Iterator[Alert]:
    """Yields an alert for each loss of history that nobody has accepted.

    Each heartbeat tells a worker whether there is one, so that the page asks only then.
    """
    if not readiness.is_history_lost:
        return
    for loss in HistoryLoss.objects.filter(accepted_at=None).order_by("since", "pk"):
        yield Alert(
            f"The database lost what the worker {loss.worker} had stored since "
            f"{loss.since:%Y-%m-%d %H:%M:%S} UTC, until {loss.until:%H:%M:%S}: nothing is "
            "admitted. Bring the right database back, or run `manage.py accept_history`.",
            "inference.view_generation",
        )
