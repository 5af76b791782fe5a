"""The metrics and alerts of scheduled duties: who does them, and when they last succeeded.

They are read from the leases, so every process reports the same, ``work`` on a port of its own too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.apps import Alert
from config.clocks.clock import clock
from config.clocks.leases import Lease

# The rule of the alert CausewayDutyLate in docs/deploy/observability.
_LATE_INTERVALS: Final = 3
_LATE_SECONDS: Final = 300
# A lease of one object, such as a chain, stays when nobody watches the object any more.
_OF_ONE_OBJECT: Final = re.compile(r".*_\d+")
_PERMISSION: Final = "auth.view_user"


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


def find_late() -> Iterator[Alert]:
    """Yields an alert for each duty that is late, and for each that has found something wrong."""
    now = clock.now()
    for lease in Lease.objects.order_by("name"):
        age = (now - lease.succeeded_at).total_seconds()
        if lease.every_seconds is None or _OF_ONE_OBJECT.fullmatch(lease.name):
            continue
        if age > _LATE_INTERVALS * lease.every_seconds + _LATE_SECONDS:
            failed = f", and failed {lease.failures:,} times since" if lease.failures else ""
            yield Alert(
                f"The duty {lease.name} last succeeded {_describe_age(age)} ago{failed}. Look into "
                "the log of `manage.py work`, and see that it runs.",
                _PERMISSION,
            )
        if lease.result:
            yield Alert(
                f"The duty {lease.name} found {lease.result:,} problems in its last run. They are "
                "in the log of `manage.py work`.",
                _PERMISSION,
            )


def _describe_age(seconds: float) -> str:
    for name, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
    return "seconds"
