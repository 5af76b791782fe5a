"""The columns and the filters of the list of organizations that other tables answer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.db.models import (
    BigIntegerField,
    Exists,
    ExpressionWrapper,
    F,
    Max,
    OuterRef,
    Subquery,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from accounts.models import Organization
from billing.models import Account, Meter
from config.clocks.clock import clock
from config.console.actions import SEES_REQUESTS
from config.console.base import ConsoleAdmin
from config.console.formatting import rounded_dollars, short_dollars
from config.console.lists.filters import make_filter
from config.console.unfold import display
from inference.models import DailyUsage, HourlyShare, UsageDay
from inference.reports.rollups import midnight

_DAY: Final = timedelta(days=1)
_DAYS: Final = 30
_NANO: Final = BigIntegerField()
_STATES: Final = {"active": "success", "suspended": "danger"}
# Without an output field Django assumes 32 bits and drops the comparison as always true.
_AVAILABLE: Final = ExpressionWrapper(
    F("posted_credits") - F("posted_debits") - F("pending_debits"), output_field=_NANO
)


SuspensionFilter = make_filter(
    "status",
    "status",
    {
        "active": ("active", lambda rows: rows.filter(suspended_at=None)),
        "suspended": ("suspended", lambda rows: rows.exclude(suspended_at=None)),
    },
)


class BalanceFilter(admin.SimpleListFilter):
    """Finds the organizations whose credits are nearly spent, as the console's first page does."""

    title = "balance"
    parameter_name = "balance"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("low", f"low: below {short_dollars(settings.BALANCE_ALERT_NANO)}")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() != "low":
            return queryset
        low = (
            Account.objects.filter(
                organization=OuterRef("pk"), kind=Account.Kind.CREDITS, posted_credits__gt=0
            )
            .annotate(left=_AVAILABLE)
            .filter(left__lt=settings.BALANCE_ALERT_NANO)
        )
        return queryset.filter(Exists(low))


def _has_used() -> Exists:
    since = clock.now() - _DAYS * _DAY
    return Exists(Meter.objects.filter(organization=OuterRef("pk"), last_used_at__gte=since))


ActivityFilter = make_filter(
    "activity",
    "activity",
    {
        "recent": (f"in {_DAYS} days", lambda rows: rows.filter(_has_used())),
        "none": (f"none in {_DAYS} days", lambda rows: rows.filter(~_has_used())),
    },
)


# A filter would tell what the column hides.
_NEEDS: Final[dict[Any, str]] = {
    BalanceFilter: "billing.view_account",
    ActivityFilter: SEES_REQUESTS,
}


class OrganizationColumns(ConsoleAdmin):
    """Adds ``balance``, ``spent``, ``last_activity`` and ``state``, with four queries a page."""

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Leaves out the filters by what the operator may not see."""
        parts = super().get_list_filter(request)
        return [part for part in parts if part not in _NEEDS or request.user.has_perm(_NEEDS[part])]

    def get_queryset(self, request: HttpRequest) -> Any:
        """Lets the list be sorted by what only operators see who may view usage."""
        rows = super().get_queryset(request)
        if "o" not in request.GET:
            return rows
        sees_usage = request.user.has_perm(SEES_REQUESTS)
        return rows.alias(spent_order=_write_spending() if sees_usage else Value(0))

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Reads the amounts of all organizations, of those that the operator may see."""
        super().read_columns(request, rows)
        ids = [row.pk for row in rows]
        sees_money = request.user.has_perm("billing.view_account")
        sees_usage = request.user.has_perm(SEES_REQUESTS)
        balances = _read_balances(ids) if sees_money else {}
        spent = _read_spending(ids) if sees_usage else {}
        used = _find_last_use(ids) if sees_usage else {}
        for row in rows:
            row.available_nano = balances.get(row.pk)
            row.spent_nano = spent.get(row.pk, 0) if sees_usage else None
            row.used_at = used.get(row.pk)

    @display(description="Available")
    def balance(self, organization: Any) -> str:
        nano = getattr(organization, "available_nano", None)
        return "" if nano is None else rounded_dollars(nano)

    @display(description="Spent in 30 days", ordering="spent_order")
    def spent(self, organization: Any) -> str:
        nano = getattr(organization, "spent_nano", None)
        return "" if nano is None else rounded_dollars(nano)

    @display(description="Last activity")
    def last_activity(self, organization: Any) -> datetime | None:
        return getattr(organization, "used_at", None)

    @display(description="Status", label=_STATES)
    def state(self, organization: Organization) -> str:
        return "suspended" if organization.is_suspended else "active"


def _read_balances(ids: list[UUID]) -> dict[UUID, int]:
    rows = Account.objects.filter(organization__in=ids, kind=Account.Kind.CREDITS)
    return dict(rows.annotate(left=_AVAILABLE).values_list("organization_id", "left"))


def _read_spending(ids: list[UUID]) -> dict[UUID, int]:
    rows = Organization.objects.filter(pk__in=ids).annotate(spent=_write_spending())
    return {owner: int(nano) for owner, nano in rows.values_list("pk", "spent")}


def _write_spending() -> Any:
    """Returns the spending by stored sums, which lack at most the last two hours, as SQL."""
    owner = OuterRef("pk")
    first = clock.now().date() - (_DAYS - 1) * _DAY
    days = DailyUsage.objects.filter(organization=owner, by_end_user=False, day_id__gte=first)
    summed = list(UsageDay.objects.filter(day__gte=first).values_list("day", flat=True))
    hours = HourlyShare.objects.filter(organization_id=owner, hour__gte=midnight(first))
    # Shares of keys are kept for three days, so that these are few.
    for day in sorted(summed)[-4:]:
        hours = hours.exclude(hour__gte=midnight(day), hour__lt=midnight(day) + _DAY)
    sums = (
        rows.order_by().values("organization_id").annotate(sum=Sum("cost_nano")).values("sum")
        for rows in (days, hours)
    )
    by_day, by_hour = (Coalesce(Subquery(sum_), Value(0), output_field=_NANO) for sum_ in sums)
    return by_day + by_hour


def _find_last_use(ids: list[UUID]) -> dict[UUID, datetime]:
    rows = Meter.objects.filter(organization__in=ids, last_used_at__isnull=False)
    return dict(rows.order_by().values_list("organization_id").annotate(Max("last_used_at")))
