"""The column and the panel that show how often the callers of a key leave."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from accounts.models import ApiKey
from config.console.formatting import nano_dollars, render_table
from config.console.lists.pages import ComputedColumns
from config.console.unfold import display
from inference.reports.cancellations import DAYS, Cancellations, sum_today, sum_week


class CancelledColumn(ComputedColumns):
    """Adds the column ``cancelled``: the share of cancelled requests of the last week."""

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Reads the sums of all keys with one query."""
        super().read_columns(request, rows)
        sums = sum_week(rows)
        for row in rows:
            row.week = sums.get(row.pk, Cancellations())

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
