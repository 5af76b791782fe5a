"""Metrics of excesses, deposits and chains.

They are read from the database, so every worker reports the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.db import DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from billing.models import ChainState, Deposit, Excess


class TopUpCollector(Collector):
    """Collects the number of excesses and deposits in review, and the state of each chain.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            in_review = Deposit.objects.in_review().count()
            excesses = Excess.objects.under_review().filter(amount_nano__gt=0).count()
            # A chain that the settings no longer name is read by nobody.
            states = list(ChainState.objects.filter(chain_id__in=settings.CHAINS))
        except DatabaseError:
            return
        yield GaugeMetricFamily(
            "causeway_deposits_in_review", "Deposits that wait for an operator.", value=in_review
        )
        yield GaugeMetricFamily(
            "causeway_excesses_under_review",
            "Claims of upstreams beyond what was allowed that wait for an operator.",
            value=excesses,
        )
        halted = GaugeMetricFamily(
            "causeway_chain_halted",
            "Whether reading a chain was halted until an operator resumes it.",
            labels=("chain_id",),
        )
        failures = GaugeMetricFamily(
            "causeway_chain_failures",
            "Consecutive failures to read a chain's node.",
            labels=("chain_id",),
        )
        block = GaugeMetricFamily(
            "causeway_chain_block",
            "The last block of a chain whose payments are stored.",
            labels=("chain_id",),
        )
        scanned = GaugeMetricFamily(
            "causeway_chain_scanned_timestamp_seconds",
            "The time of a chain's newest block when it was last read up to its confirmed head.",
            labels=("chain_id",),
        )
        behind = GaugeMetricFamily(
            "causeway_chain_lag_blocks",
            "Blocks between the newest one of a chain and the last one whose payments are stored.",
            labels=("chain_id",),
        )
        for state in states:
            labels = (str(state.chain_id),)
            halted.add_metric(labels, float(state.halted_at is not None))
            failures.add_metric(labels, state.failures)
            if state.number is not None:
                block.add_metric(labels, state.number)
                if state.latest_number is not None:
                    behind.add_metric(labels, max(state.latest_number - state.number, 0))
            if state.scanned_at is not None:
                scanned.add_metric(labels, state.scanned_at.timestamp())
        yield from (halted, failures, block, behind, scanned)
