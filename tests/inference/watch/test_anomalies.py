"""Unusual spending: what is unusual, by which sums, and where operators see it."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import Organization
from config.apps import Role
from config.clocks.clock import clock
from config.console.sign_in import roles
from inference.models import DailyUsage, HourlySpending, HourlyUsage, UsageDay
from inference.reports.hours import KEPT_OF_SPENDING, hour_of, roll_up_hours
from inference.reports.rollups import midnight
from inference.watch import anomalies
from inference.watch.anomalies import (
    LEAST_NANO,
    LEAST_SHARE,
    LEAST_WEEKS,
    RATIO,
    WEEKS,
    find_anomalies,
    find_usual,
)
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import sign_in

pytestmark = pytest.mark.usefixtures("fresh_cache")

DOLLAR: Final = 1_000_000_000
DAY: Final = timedelta(days=1)
HOUR: Final = timedelta(hours=1)
# A Monday afternoon.
NOW: Final = datetime.fromisoformat("2026-03-02T15:30:00+00:00")


@pytest.fixture(autouse=True)
def _summed(db: None) -> None:
    """All hours before 15:00 are summed."""
    sum_until(NOW.replace(minute=0))


def sum_until(end: datetime) -> None:
    HourlyUsage.objects.all().delete()
    HourlyUsage.objects.create(
        hour=end - HOUR, requests=0, failed=0, tokens=0, cost_nano=0, upstream_nano=0,
        latency_ms=0, timed=0,
    )  # fmt: skip


def spend_hour(tenant: Tenant, hour: datetime, dollars: int) -> None:
    HourlySpending.objects.create(
        hour=hour, organization_id=tenant.organization.pk, cost_nano=dollars * DOLLAR
    )


def spend_day(tenant: Tenant, day: date, dollars: int) -> None:
    """Stores the sums of a day as the duty does: once by end user and once for all of them."""
    UsageDay.objects.get_or_create(day=day, defaults={"rolled_up_at": NOW})
    for by_end_user in (False, True):
        DailyUsage.objects.create(
            organization=tenant.organization, day_id=day, by_end_user=by_end_user,
            workspace_id=uuid4(), api_key_id=uuid4(), endpoint_id=uuid4(), model="m",
            provider_name="p", requests=1, prompt_tokens=1, completion_tokens=1, cached_tokens=0,
            reasoning_tokens=0, cost_nano=dollars * DOLLAR, byok_nano=0,
        )  # fmt: skip


def spend_mondays(tenant: Tenant, *dollars: int) -> None:
    """Stores earlier Mondays, the latest first, with busier days between them."""
    for week, amount in enumerate(dollars, 1):
        spend_day(tenant, NOW.date() - 7 * week * DAY, amount)
        spend_day(tenant, NOW.date() - (7 * week - 2) * DAY, 500)


AMOUNTS: Final = st.integers(0, 10**15)


@given(AMOUNTS, st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=WEEKS), st.integers(1, 9))
def test_the_judgement_is_bounded_and_monotonic(
    spent: int, before: list[tuple[int, int]], more: int
) -> None:
    by_then, in_all = [first for first, _ in before], [first + rest for first, rest in before]
    usual = find_usual(spent, by_then, in_all)
    if usual is None:
        is_little = spent < LEAST_NANO or len(before) < LEAST_WEEKS
        assert is_little or spent < RATIO * max(by_then) or spent < max(in_all) // LEAST_SHARE
    else:
        assert spent >= LEAST_NANO
        assert spent >= RATIO * usual
        assert find_usual(spent * more, by_then, in_all) == usual


@pytest.mark.parametrize(
    ("spent", "before", "usual"),
    [
        (30, [10] * 4, 10),
        (29, [10] * 4, None),
        (30, [10] * 3, None),
        # A day that was unusual itself moves nothing.
        (30, [10, 10, 10, 900], 10),
        (30, [10, 10, 10, 900, 900, 900, 900], None),
        # An organization that spends nothing on Sundays.
        (10, [0] * 8, 0),
        (9, [0] * 8, None),
    ],
)
def test_a_day_is_unusual_from_three_times_the_median_on(
    spent: int, before: list[int], usual: int | None
) -> None:
    sums = [each * DOLLAR for each in before]
    found = find_usual(spent * DOLLAR, sums, sums)

    assert found == (None if usual is None else usual * DOLLAR)


@pytest.mark.parametrize(("spent", "usual"), [(24, None), (25, 0), (26, 0)])
def test_hours_with_little_of_a_usual_day_are_not_unusual(spent: int, usual: int | None) -> None:
    """A job that costs $100 on each such day begins two hours earlier."""
    assert find_usual(spent * DOLLAR, [0] * 8, [100 * DOLLAR] * 8) == usual


def spend_by_hours(tenant: Tenant, weeks: int, amounts: dict[int, int]) -> None:
    """Stores what an organization spent in the hours of earlier Mondays, and these days' sums."""
    for week in range(1, weeks + 1):
        day = midnight(NOW.date()) - 7 * week * DAY
        for hour, dollars in amounts.items():
            spend_hour(tenant, day + hour * HOUR, dollars)
        spend_day(tenant, day.date(), sum(amounts.values()))


def test_the_morning_is_compared_with_the_same_hours(tenant: Tenant) -> None:
    spend_by_hours(tenant, 5, {8: 5, 9: 5, 10: 10, 14: 60})
    today = midnight(NOW.date())
    sum_until(today + 10 * HOUR)
    spend_hour(tenant, today + 8 * HOUR, 29)
    assert find_anomalies(now=today + 11 * HOUR) == []
    spend_hour(tenant, today + 9 * HOUR, 1)

    [found] = find_anomalies(now=today + 11 * HOUR)
    assert (found.organization_id, found.name) == (tenant.organization.pk, "Acme")
    assert (found.spent_nano, found.usual_nano) == (30 * DOLLAR, 10 * DOLLAR)
    assert found.text == (
        "$30.00 on Monday, March 2 until 10:00 UTC; usually $10.00 by then on a Monday"
    )
    # An hour later it is what the day costs by then.
    sum_until(today + 11 * HOUR)
    assert find_anomalies(now=today + 12 * HOUR) == []


def test_a_day_whose_hours_were_not_all_summed_counts_whole(tenant: Tenant) -> None:
    """An earlier release summed the mornings of these days by day alone."""
    spend_mondays(tenant, 10, 12, 8, 10)
    for week in range(1, 5):
        spend_hour(tenant, midnight(NOW.date()) - 7 * week * DAY + 20 * HOUR, 1)
    spend_hour(tenant, midnight(NOW.date()), 20)
    assert find_anomalies(now=NOW) == []
    spend_hour(tenant, NOW.replace(hour=13, minute=0), 15)

    [found] = find_anomalies(now=NOW)
    assert (found.spent_nano, found.usual_nano) == (35 * DOLLAR, 10 * DOLLAR)


def test_the_duty_sums_what_each_organization_spent(tenant: Tenant) -> None:
    HourlyUsage.objects.all().delete()
    globex = factories.make_tenant("Globex")
    now = clock.now()
    hour = hour_of(now - 3 * HOUR)
    for owner, nano in ((tenant, 5), (tenant, 7), (globex, 11), (globex, 0)):
        factories.make_generation(owner, created_at=hour + timedelta(minutes=5), cost_nano=nano)
    factories.make_generation(globex, created_at=hour - HOUR, cost_nano=0)
    factories.make_generation(globex, created_at=now - KEPT_OF_SPENDING - HOUR, cost_nano=9)
    roll_up_hours()

    rows = HourlySpending.objects.values_list("organization_id", "hour", "cost_nano")
    assert sorted(rows, key=lambda row: row[2]) == [
        (globex.organization.pk, hour, 11), (tenant.organization.pk, hour, 12),
    ]  # fmt: skip


def test_yesterday_is_still_shown_and_the_day_before_is_not(tenant: Tenant) -> None:
    for week in range(1, 6):
        for days in (1, 2):
            spend_day(tenant, NOW.date() - (7 * week + days) * DAY, 1)
    spend_hour(tenant, midnight(NOW.date()) - timedelta(hours=1), 40)
    spend_hour(tenant, midnight(NOW.date()) - timedelta(hours=25), 90)

    [found] = find_anomalies(now=NOW)
    assert found.text == "$40.00 on Sunday, March 1; usually $1.00 on a Sunday"


def test_weeks_before_the_first_usage_do_not_count(tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    for week in range(1, 9):
        spend_day(other, NOW.date() - 7 * week * DAY, 100)
    spend_mondays(tenant, 1, 1, 1)
    spend_hour(tenant, midnight(NOW.date()), 90)

    assert find_anomalies(now=NOW) == []
    # The Monday after this first day, without requests, was one of no spending.
    spend_day(tenant, NOW.date() - 29 * DAY, 1)
    [found] = find_anomalies(now=NOW)
    assert found.usual_nano == 1 * DOLLAR


def test_each_organization_is_judged_by_itself(tenant: Tenant) -> None:
    usual, grown = factories.make_tenant("Usual"), factories.make_tenant("Grown")
    for one, amount in ((tenant, 10), (usual, 100), (grown, 20)):
        spend_mondays(one, *[amount] * 5)
    for one, amount in ((tenant, 40), (usual, 100), (grown, 200)):
        spend_hour(one, midnight(NOW.date()), amount)

    assert [one.name for one in find_anomalies(now=NOW)] == ["Grown", "Acme"]
    assert [one.name for one in find_anomalies(tenant.organization.pk, now=NOW)] == ["Acme"]
    assert find_anomalies(usual.organization.pk, now=NOW) == []


def test_high_spending_as_usual_hides_no_rise_of_another(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One day is looked at closely, and it is not that of the organization that spends most."""
    monkeypatch.setattr(anomalies, "_MOST", 1)
    large = factories.make_tenant("Large")
    for one, amount in ((large, 5_000), (tenant, 1)):
        for week in range(1, 9):
            day = NOW.date() - 7 * week * DAY
            spend_day(one, day, amount)
            spend_hour(one, midnight(day), amount)
    spend_hour(large, midnight(NOW.date()), 6_000)
    spend_hour(tenant, midnight(NOW.date()), 30)
    [found] = find_anomalies(now=NOW)
    assert (found.name, found.spent_nano, found.usual_nano) == ("Acme", 30 * DOLLAR, 1 * DOLLAR)


@pytest.mark.parametrize(("high", "usual"), [(3, 1), (4, None), (5, None)])
def test_the_quick_look_leaves_out_nothing_unusual(
    tenant: Tenant, high: int, usual: int | None
) -> None:
    """Half of the weeks decide: with four high ones of eight, the median is above the ratio."""
    for week in range(1, 9):
        day, amount = NOW.date() - 7 * week * DAY, 100 if week <= high else 1
        spend_day(tenant, day, amount)
        spend_hour(tenant, midnight(day), amount)
    spend_hour(tenant, midnight(NOW.date()), 60)
    found = [one.usual_nano for one in find_anomalies(now=NOW)]
    assert found == ([] if usual is None else [usual * DOLLAR])


def test_the_sums_are_read_by_one_statement_over_indexes(tenant: Tenant) -> None:
    spend_mondays(tenant, 10, 10, 10, 10)
    spend_hour(tenant, midnight(NOW.date()), 90)
    with connection.cursor() as cursor, CaptureQueriesContext(connection) as queries:
        assert len(find_anomalies(now=NOW)) == 1
        [statement] = queries
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {statement['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "hourly_spending_by_hour" in plan
    assert "daily_usage" in plan
    assert not re.search("Seq Scan on inference_(hourlyspending|dailyusage|usageday)", plan)
    assert "inference_generation" not in plan


def shown(client: Client, organization: Organization) -> tuple[list[dict[str, str]], str]:
    """Returns the anomalies of the first page, and the text of the organization's page."""
    cache.clear()
    page = client.get("/admin/")
    return page.context.get("anomalies", []), client.get(
        f"/admin/accounts/organization/{organization.pk}/change/"
    ).text


def test_the_first_page_and_the_organizations_show_it(operator: Client, tenant: Tenant) -> None:
    today = clock.now().date()
    for week in range(1, 6):
        spend_day(tenant, today - 7 * week * DAY, 1)
    sum_until(midnight(today) + DAY)
    spend_hour(tenant, midnight(today), 5)
    anomalies, text = shown(operator, tenant.organization)
    assert anomalies == []
    assert "Unusual spending" not in text

    spend_hour(tenant, midnight(today) + HOUR, 45)
    [one], text = shown(operator, tenant.organization)
    assert one["name"] == "Acme"
    assert one["text"].startswith("$50.00 on ")
    assert operator.get(one["url"]).context["original"] == tenant.organization
    assert "Unusual spending" in text
    assert "$50.00 on " in text
    others: dict[str, Any] = {"text": operator.get("/admin/").text}
    assert "usually $1.00 on a" in others["text"]


def test_an_operator_without_generations_sees_no_spending(tenant: Tenant) -> None:
    today = clock.now().date()
    for week in range(1, 6):
        spend_day(tenant, today - 7 * week * DAY, 1)
    spend_hour(tenant, midnight(today), 45)
    roles.update_roles()
    group = Group.objects.get(name=Role.SUPPORT)
    group.permissions.remove(*group.permissions.filter(codename="view_generation"))

    anomalies, text = shown(sign_in("support", Role.SUPPORT), tenant.organization)
    assert anomalies == []
    assert "Unusual spending" not in text
