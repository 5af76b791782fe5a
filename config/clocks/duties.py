"""The metrics of scheduled duties: who does them, and when they last succeeded.

They are read from the leases, so every process reports the same, ``work`` on a port of its own too.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.clocks.leases import Lease


class DutyCollector(Collector):
    """Collects the state of each duty that has ever been due.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            leases = list(Lease.objects.order_by("name"))
        except DatabaseError:
            return
        succeeded = GaugeMetricFamily(
            "causeway_duty_success_timestamp_seconds",
            "When a duty last succeeded; at first, when it was first due.",
            labels=("duty",),
        )
        every = GaugeMetricFamily(
            "causeway_duty_interval_seconds", "How often a duty is done.", labels=("duty",)
        )
        failures = GaugeMetricFamily(
            "causeway_duty_failures", "Consecutive runs of a duty that failed.", labels=("duty",)
        )
        holders = GaugeMetricFamily(
            "causeway_duty_running",
            "The duties that are being done at this moment, with the host that does each.",
            labels=("duty", "host"),
        )
        for lease in leases:
            succeeded.add_metric((lease.name,), lease.succeeded_at.timestamp())
            failures.add_metric((lease.name,), lease.failures)
            if lease.every_seconds is not None:
                every.add_metric((lease.name,), lease.every_seconds)
            if lease.holder:
                holders.add_metric((lease.name, lease.holder.partition(":")[0]), 1)
        yield from (succeeded, every, failures, holders)
