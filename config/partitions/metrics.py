"""Metrics and alerts of the partitions, read from the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError
from django.urls import reverse
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.apps import Alert
from config.clocks.clock import clock
from config.partitions.declarations import partitionings
from config.partitions.tables import count_ahead, count_odd, list_all_partitions, read_now

_PERMISSION: Final = "auth.view_user"


class PartitionCollector(Collector):
    """Collects how many partitions each table has ahead, and its odd rows.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ahead = GaugeMetricFamily(
            "causeway_partitions_ahead",
            "Partitions of a table that begin after the present moment.",
            labels=("table",),
        )
        odd = GaugeMetricFamily(
            "causeway_partition_odd_rows",
            "Rows of a table that lie in none of its partitions, at most 1,000.",
            labels=("table",),
        )
        try:
            now = read_now()
            for partitioning in partitionings():
                ahead.add_metric((partitioning.table,), count_ahead(partitioning, now))
                odd.add_metric((partitioning.table,), count_odd(partitioning))
        except DatabaseError:
            return
        yield from (ahead, odd)


def find_missing() -> Iterator[Alert]:
    """Yields an alert for each table that has no partition for the next span; asks one query."""
    tables, now = list(partitionings()), clock.now()
    for table, found in zip(tables, list_all_partitions(tables), strict=True):
        if not any(each.begin is not None and each.begin > now for each in found):
            yield Alert(
                f"{table.table} has no partition for the next span of time. Its rows are stored, "
                "but cannot leave by month. See that `manage.py work` runs make_partitions.",
                _PERMISSION,
                reverse("admin:config_departure_changelist"),
            )
