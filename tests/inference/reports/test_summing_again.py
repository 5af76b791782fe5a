"""Sums of past days and hours that are made again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from inference.models import DailyUsage, EndpointHour, Generation, HourlyUsage, UsageDay
from inference.reports.hours import HOUR, hour_of, roll_up_hours
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.factories import Tenant

DAY = timedelta(days=1)
TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")


def make(tenant: Tenant, moment: datetime, **fields: Any) -> Generation:
    made = f"gen-{int(moment.timestamp())}-{Generation.objects.count()}"
    return factories.make_generation(tenant, id=made, created_at=moment, **fields)


def sum_again(capsys: pytest.CaptureFixture[str], begin: datetime, end: datetime) -> Any:
    call_command("sum_usage", f"--from={begin.date()}", f"--to={end.date()}", json=True)
    return json.loads(capsys.readouterr().out)


def sums() -> tuple[list[Any], list[Any]]:
    columns = ("day", "by_end_user", "requests", "prompt_tokens", "cost_nano")
    days = DailyUsage.objects.order_by(*columns).values_list(*columns)
    return list(days), list(HourlyUsage.objects.order_by("hour").values_list())


def test_wrong_sums_are_made_right(tenant: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    now = timezone.now()
    for age in (0, 5, 26, 50, 74):
        make(tenant, now - age * HOUR, prompt_tokens=age, cost_nano=1_000_000 * age)
    roll_up_usage()
    roll_up_hours()
    right = sums()
    DailyUsage.objects.update(requests=9, prompt_tokens=99)
    HourlyUsage.objects.update(requests=9, cost_nano=99)

    found = sum_again(capsys, now - 90 * HOUR, now)

    assert sums() == right
    assert found == {"days": UsageDay.objects.count(), "hours": HourlyUsage.objects.count()}
    assert (roll_up_usage(), roll_up_hours()) == (0, 0)


def test_an_hour_that_was_summed_too_early_waits_for_its_end(
    tenant: Tenant, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host whose clock was ahead has stored sums of this hour and of the next two."""
    now = timezone.now()
    make(tenant, now - 5 * HOUR)
    roll_up_hours()
    right = sums()[1]
    wrong = HourlyUsage.objects.order_by("hour").last()
    assert wrong is not None
    for ahead in (1, 2, 3):
        wrong.hour += HOUR
        wrong.save(force_insert=True)
        assert ahead
    sum_again(capsys, now - HOUR, now)
    assert sums()[1] == right


def test_a_day_with_a_running_generation_is_left_to_the_duty(
    tenant: Tenant, capsys: pytest.CaptureFixture[str]
) -> None:
    now = timezone.now()
    make(tenant, now - 5 * DAY)
    make(tenant, now - 3 * DAY)
    roll_up_usage()
    roll_up_hours()
    waiting = make(tenant, now - 3 * DAY, status="pending")
    days = UsageDay.objects.count()

    found = sum_again(capsys, now - 5 * DAY, now)

    pending = (now - 3 * DAY).date()
    assert found["days"] == days - 1
    assert not UsageDay.objects.filter(day=pending).exists()
    assert not DailyUsage.objects.filter(day=pending).exists()
    last = HourlyUsage.objects.order_by("hour").last()
    assert last is not None
    assert last.hour == hour_of(now - 3 * DAY) - HOUR
    Generation.objects.filter(pk=waiting.pk).update(status="failed")
    waiting.journal.delete()
    assert roll_up_usage() == 1
    rows = DailyUsage.objects.filter(day=pending, by_end_user=False)
    assert sum(row.requests for row in rows) == 2
    assert roll_up_hours() > 0


def test_days_may_be_any_of_the_calendar(
    tenant: Tenant, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tenant, timezone.now() - 50 * HOUR, cost_nano=1_000_000)
    roll_up_usage()
    roll_up_hours()
    right = sums()
    DailyUsage.objects.update(requests=9)
    HourlyUsage.objects.update(requests=9)

    call_command("sum_usage", "--from=0001-01-01", "--to=9999-12-31", json=True)

    assert sums() == right
    counts = {"days": UsageDay.objects.count(), "hours": HourlyUsage.objects.count()}
    assert json.loads(capsys.readouterr().out) == counts


def test_the_prices_and_tokens_of_one_tenant_keep_no_sums_of_others_from_being_stored(
    tenant: Tenant,
) -> None:
    """A tenant states the price of its own models, and its server the tokens.

    No column holds the sums of either.
    """
    now = timezone.now()
    most = 2**63 - 1
    half: dict[str, Any] = {"is_byok": True, "upstream_cost_nano": most // 2}
    half |= dict.fromkeys(TOKENS, most // 2)
    first = make(tenant, now - 30 * HOUR, **half)
    for _ in range(2):
        make(tenant, now - 30 * HOUR, model_endpoint=first.model_endpoint, **half)
    other = factories.make_tenant()
    make(other, now - 30 * HOUR, cost_nano=7)
    assert roll_up_usage() > 0
    assert roll_up_hours() > 0
    days = DailyUsage.objects.filter(by_end_user=False)
    assert days.get(organization_id=other.organization.pk).cost_nano == 7
    day = days.get(organization_id=tenant.organization.pk)
    assert (day.requests, day.byok_nano, day.upstream_nano) == (3, most, most)
    assert [getattr(day, name) for name in TOKENS] == [most] * 4
    hour = HourlyUsage.objects.get(requests=4)
    assert (hour.cost_nano, hour.upstream_nano, hour.tokens) == (7, most, most)
    hours = EndpointHour.objects.order_by("tokens").values_list("tokens", flat=True)
    assert list(hours) == [0, most]


def test_counts_below_zero_keep_no_sums_from_being_stored(tenant: Tenant) -> None:
    """An earlier release stored such counts; together they are below the range of a column."""
    now = timezone.now()
    first = make(tenant, now - 30 * HOUR)
    for _ in range(2):
        make(tenant, now - 30 * HOUR, model_endpoint=first.model_endpoint)
    Generation.objects.update(**dict.fromkeys(TOKENS, -(2**62)))
    other = factories.make_tenant()
    make(other, now - 30 * HOUR, prompt_tokens=5, completion_tokens=7)
    assert roll_up_usage() > 0
    assert roll_up_hours() > 0
    days = DailyUsage.objects.filter(by_end_user=False)
    day = days.get(organization_id=tenant.organization.pk)
    assert [getattr(day, name) for name in TOKENS] == [0] * 4
    assert days.get(organization_id=other.organization.pk).prompt_tokens == 5
    assert HourlyUsage.objects.get(requests=4).tokens == 0
    assert set(EndpointHour.objects.values_list("tokens", flat=True)) == {0, 12}


def test_a_range_that_ends_before_it_begins_is_refused(
    db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    now = timezone.now()
    with pytest.raises(CommandError, match="before --from"):
        sum_again(capsys, now, now - DAY)


def test_the_ends_of_the_calendar_are_days(
    tenant: Tenant, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tenant, timezone.now() - 50 * HOUR, cost_nano=5)
    roll_up_usage()
    roll_up_hours()
    right = sums()
    DailyUsage.objects.update(cost_nano=99)
    HourlyUsage.objects.update(cost_nano=99)
    call_command("sum_usage", "--from=0001-01-01", "--to=9999-12-31", json=True)
    assert json.loads(capsys.readouterr().out)["days"] == UsageDay.objects.count()
    assert sums() == right


def test_a_day_has_the_rows_of_an_organization_together(tenant: Tenant) -> None:
    """A report on one organization reads few pages, and none of its end users."""
    now = timezone.now()
    tenants = [tenant, factories.make_tenant("Second"), factories.make_tenant("Third")]
    for number in range(12):
        make(tenants[number % 3], now - 50 * HOUR, end_user=f"user {number}")

    roll_up_usage()

    stored = DailyUsage.objects.order_by("id").values_list("by_end_user", "organization")
    assert list(stored) == sorted(stored)
    assert [by_end_user for by_end_user, _ in stored] == [False] * 12 + [True] * 12
