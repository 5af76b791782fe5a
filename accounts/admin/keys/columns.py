"""The columns of keys that are read from their meters."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse

from accounts.models import ApiKey, LimitReset
from billing.budgets import spent_nano
from billing.models import Meter
from config.clocks.clock import clock
from config.console.formatting import nano_dollars
from config.console.unfold import display


class MeterColumns(admin.ModelAdmin):  # type: ignore[type-arg]
    """Adds ``spent``, this UTC month and in all, and ``last_used``; with one query a page."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Reads the meters of all keys of the page."""
        response = super().changelist_view(request, extra_context)
        if isinstance(response, TemplateResponse) and "cl" in (response.context_data or {}):
            rows = (response.context_data or {})["cl"].result_list
            meters = Meter.objects.in_bulk([row.pk for row in rows])
            for row in rows:
                row.meter = meters.get(row.pk)
        return response

    @display(description="Spent this month")
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


def _meter_of(key: Any) -> Meter | None:
    """Returns the meter that the list has read, or reads it."""
    if not hasattr(key, "meter"):
        key.meter = Meter.objects.filter(pk=key.pk).first()
    meter: Meter | None = key.meter
    return meter
