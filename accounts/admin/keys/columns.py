"""The columns of the list of keys, and the table of cancelled requests on the page of one."""

from __future__ import annotations

from typing import Any

from django.db.models import OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from accounts.models import ApiKey, LimitReset
from billing.budgets import spent_nano
from billing.models import Meter
from config.clocks.clock import clock
from config.console.base import ConsoleAdmin
from config.console.formatting import nano_dollars, render_table
from config.console.unfold import display
from inference.reports.cancellations import DAYS, Cancellations, sum_today, sum_week


class KeyColumns(ConsoleAdmin):
    """Adds ``spent``, this UTC month and in all, ``last_used``, and ``cancelled`` of a week."""

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Reads the meters and the sums of all keys with one query each."""
        super().read_columns(request, rows)
        meters = Meter.objects.in_bulk([row.subject_id for row in rows])
        for row in rows:
            row.meter = meters.get(row.subject_id)
        sums = sum_week(rows)
        for row in rows:
            row.week = sums.get(row.pk, Cancellations())

    def get_queryset(self, request: HttpRequest) -> Any:
        """Lets the list be sorted by spending; a month begins with nothing."""
        month = clock.now().date().replace(day=1)
        meters = Meter.objects.filter(
            pk=Coalesce(OuterRef("successor_id"), OuterRef("pk")), day__gte=month
        )
        spent = Coalesce(Subquery(meters.values("cost_monthly")), Value(0))
        return super().get_queryset(request).alias(spent_order=spent)

    @display(description="Spent this month", ordering="spent_order")
    def spent(self, key: ApiKey) -> str:
        meter = _meter_of(key)
        if meter is None:
            return ""
        today = clock.now().date()
        return nano_dollars(spent_nano(meter, LimitReset.MONTHLY, today, byok=False))

    @display(description="Spent")
    def spent_in_all(self, key: ApiKey) -> str:
        meter = _meter_of(key)
        if meter is None:
            return ""
        byok = f", and {nano_dollars(meter.byok)} by own credentials" if meter.byok else ""
        return f"{self.spent(key)} this month, {nano_dollars(meter.cost)} in all{byok}"

    @display(description="Last used")
    def last_used(self, key: ApiKey) -> Any:
        meter = _meter_of(key)
        return None if meter is None else meter.last_used_at

    @display(description="Cancelled")
    def cancelled(self, key: ApiKey) -> str:
        week: Cancellations = getattr(key, "week", Cancellations())
        return f"{week.share:.0%}" if week.cancelled else ""


def render_cancellations(key: ApiKey) -> str:
    """Returns the table of a key's page."""
    spans = (
        ("Today, of the latest 10,000 requests", sum_today(key)),
        (f"The last {DAYS} completed days", sum_week([key]).get(key.pk, Cancellations())),
    )
    rows = (
        (
            title,
            f"{found.requests:,}",
            f"{found.cancelled:,}",
            f"{found.share:.1%}",
            nano_dollars(found.upstream_nano),
        )
        for title, found in spans
    )
    headers = ("Time", "Requests", "Cancelled", "Share", "Upstream cost of the cancelled")
    return render_table(headers, rows)


def _meter_of(key: Any) -> Meter | None:
    """Returns the meter that the list has read, or reads it."""
    if not hasattr(key, "meter"):
        key.meter = Meter.objects.filter(pk=key.subject_id).first()
    meter: Meter | None = key.meter
    return meter
