"""The metrics of deliveries that are read from the database, so every process reports the same."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError
from django.db.models import Min
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accounts.webhooks.dispatching import waiting_events
from accounts.webhooks.models import Delivery, Subscription
from config.clocks.clock import clock
from config.outbound.engine import SLOW_MS


class DeliveryCollector(Collector):
    """Collects the age of the oldest event that nobody has tried to send, and failing receivers.

    Receivers that fail or are slow do not raise the age: they are their owners' affair. Collects
    nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            waiting = waiting_events()
            due = Delivery.objects.filter(
                status=Delivery.Status.PENDING,
                attempts=0,
                subscription__disabled=False,
                subscription__failures=0,
                subscription__mean_ms__lte=SLOW_MS,
            )
            oldest = [
                waiting.aggregate(oldest=Min("created_at"))["oldest"],
                due.aggregate(oldest=Min("next_attempt_at"))["oldest"],
            ]
            failing = Subscription.objects.filter(failures__gt=0, disabled=False)
            operators = failing.filter(organization=None).count()
            others = failing.exclude(organization=None).count()
        except DatabaseError:
            return
        age = max(((clock.now() - each).total_seconds() for each in oldest if each), default=0.0)
        yield GaugeMetricFamily(
            "causeway_oldest_undelivered_seconds",
            "Age of the oldest event that nobody has tried to send yet.",
            value=max(age, 0.0),
        )
        gauge = GaugeMetricFamily(
            "causeway_failing_subscriptions",
            "Receivers of events whose last attempt failed, by their owner.",
            labels=("owner",),
        )
        gauge.add_metric(("operators",), operators)
        gauge.add_metric(("organizations",), others)
        yield gauge
