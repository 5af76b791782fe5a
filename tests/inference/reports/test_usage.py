"""The usage component: its sums by every source, its links, and who sees it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from config.secrets import digest_api_key
from endusers.models import EndUser
from inference.models import DailyUsage, Generation, HourlyShare, HourlyUsage, UsageDay
from inference.reports.hours import HOUR, hour_of, roll_up_hours, sum_hours_again
from inference.reports.rollups import midnight, roll_up_usage
from inference.reports.usage import subjects
from inference.reports.usage.panel import Subject
from inference.reports.usage.sums import PERIODS, PeriodUsage, Sums, read_usage
from tests.support import console, factories
from tests.support.factories import Tenant

pytestmark = pytest.mark.usefixtures("fresh_cache")

DAY: Final = timedelta(days=1)
AGES: Final = (0, 1, 3, 20, 26, 30, 51, 100, 200, 500, 650)


@pytest.fixture
def spread(tenant: Tenant) -> list[Subject]:
    """Makes generations of many ages, some of a stranger; returns the subjects that they have."""
    model, provider = factories.make_model(), factories.make_provider()
    public = factories.make_endpoint(model, provider)
    private = factories.make_draft(tenant, model, provider)
    other = factories.make_tenant("Other")
    now = timezone.now()
    for number, hours in enumerate(AGES):
        fields: dict[str, Any] = {
            "created_at": now - hours * HOUR,
            "cost_nano": 1_000 * 2**number,
            "upstream_cost_nano": 2_000 * 2**number,
            "latency_ms": 2**number if number % 3 else None,
            "status": "failed" if number % 4 == 1 else "completed",
            "end_user": "ann" if number % 2 else None,
            "model": model.slug,
            "provider_name": provider.name,
        }
        served = {"private_endpoint": private} if number % 5 == 2 else {"model_endpoint": public}
        factories.make_generation(tenant, **fields, **served)
        factories.make_generation(other, **fields, model_endpoint=public)
    key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
    ann = EndUser.objects.register(organization_id=tenant.organization.pk, user="ann")
    return [
        subjects.of_organization(tenant.organization),
        subjects.of_workspace(tenant.workspace),
        subjects.of_key(key),
        subjects.of_end_user(ann),
        subjects.of_private_endpoint(private),
        subjects.of_public_endpoint(public),
        subjects.of_model(model),
        subjects.of_provider(provider),
    ]


def count_generations(subject: Subject, begin: datetime) -> Sums:
    """Sums the generations themselves."""
    columns = dict(subject.scope.columns)
    endpoint = columns.pop("endpoint_id", None)
    found = [
        each
        for each in Generation.objects.filter(created_at__gte=begin, **columns)
        if endpoint in (None, each.private_endpoint_id, each.model_endpoint_id)
    ]
    return Sums(
        len(found),
        sum(each.status == "failed" for each in found),
        sum(each.cost_nano for each in found),
        sum(each.upstream_cost_nano for each in found),
        sum(each.latency_ms or 0 for each in found),
        sum(each.latency_ms is not None for each in found),
    )


def read_all(spread: list[Subject]) -> list[PeriodUsage]:
    now = timezone.now()
    return [read_usage(one.scope, period, now) for one in spread for period in PERIODS.values()]


def test_usage_counts_every_generation_once(spread: list[Subject]) -> None:
    now = timezone.now()
    for one in spread:
        for period in PERIODS.values():
            found = read_usage(one.scope, period, now)
            assert found.total == count_generations(one, period.began_at(now))
            assert sum(found.models.values(), Sums()) == found.total
            assert sum(found.providers.values(), Sums()) == found.total
            if one.scope.organization_id is not None:
                assert sum(found.keys.values(), Sums()) == found.total


def test_usage_is_the_same_from_stored_sums(spread: list[Subject]) -> None:
    before = read_all(spread)

    assert roll_up_hours() > 0
    from_hours = read_all(spread)
    assert roll_up_usage() > 0
    from_days = read_all(spread)

    assert UsageDay.objects.exists()
    assert HourlyShare.objects.exclude(organization_id=None).exists()
    assert from_hours == before
    assert from_days == before


def test_usage_reads_stored_sums_instead_of_generations(
    spread: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    roll_up_hours()
    roll_up_usage()
    HourlyShare.objects.update(requests=1_000)
    DailyUsage.objects.update(requests=1_000)
    now = timezone.now()

    for one in spread:
        for period in PERIODS.values():
            found = read_usage(one.scope, period, now)
            end = HourlyUsage.objects.latest("hour").hour + HOUR
            summed = [
                bar.requests
                for slot, bar in zip(found.slots, found.bars, strict=True)
                if slot + period.bar <= end and bar.requests
            ]
            # The hours do not know end users, so that a day's generations are read for them.
            if period.step == "day" or not one.scope.is_of_end_user:
                assert all(count >= 1_000 for count in summed)


def test_usage_of_hours_that_an_earlier_release_summed(spread: list[Subject]) -> None:
    before = read_all(spread)
    roll_up_hours()
    roll_up_usage()
    HourlyShare.objects.all().delete()
    HourlyUsage.objects.update(is_detailed=False)

    assert read_all(spread) == before


def test_hours_that_are_summed_again_have_their_shares_once(spread: list[Subject]) -> None:
    before = read_all(spread)
    roll_up_hours()
    shares = HourlyShare.objects.count()

    first = hour_of(timezone.now() - 2 * DAY)
    sum_hours_again(first, timezone.now())
    roll_up_hours()

    assert HourlyShare.objects.count() == shares
    assert read_all(spread) == before


def test_shares_of_keys_leave_before_those_of_endpoints(tenant: Tenant) -> None:
    now = timezone.now()
    for hours in (2, 40 * 24, 10 * 24, 3):
        factories.make_generation(tenant, created_at=now - hours * HOUR)
    roll_up_hours()

    of_keys = HourlyShare.objects.exclude(organization_id=None)
    of_endpoints = HourlyShare.objects.filter(organization_id=None)
    assert {share.hour for share in of_keys} <= {hour_of(now - 2 * HOUR), hour_of(now - 3 * HOUR)}
    assert hour_of(now - 240 * HOUR) in {share.hour for share in of_endpoints}
    assert hour_of(now - 960 * HOUR) not in {share.hour for share in of_endpoints}
    assert not HourlyUsage.objects.get(hour=hour_of(now - 960 * HOUR)).is_detailed


def test_usage_stands_on_the_pages_and_links_to_the_generations(
    operator: Client, spread: list[Subject], tenant: Tenant
) -> None:
    rows = [
        tenant.organization,
        tenant.workspace,
        ApiKey.objects.get(digest=digest_api_key(tenant.api_key)),
        EndUser.objects.get(),
        tenant.organization.private_endpoints.get(),
    ]
    generation = Generation.objects.exclude(model_endpoint=None).select_related(
        "model_endpoint__model", "model_endpoint__provider"
    )[0]
    public = generation.model_endpoint
    rows += [public, public.model, public.provider]

    for row, subject in zip(rows, spread, strict=True):
        for name, period in PERIODS.items():
            shown = operator.get(console.page(row), {"usage": name}).context["usage"]
            expected = count_generations(subject, period.began_at(timezone.now()))
            assert shown.cards[0].value == f"{expected.requests:,}"
            assert [chosen for _, _, chosen in shown.ranges] == [
                one is period for one in PERIODS.values()
            ]
            listed = operator.get(shown.generations)
            assert listed.status_code == 200
            assert listed.context["cl"].result_count == expected.requests
            failed = operator.get(shown.cards[2].url)
            assert failed.context["cl"].result_count == expected.failed


def test_rankings_name_the_keys_that_spend_most(operator: Client, tenant: Tenant) -> None:
    keys = [
        ApiKey.objects.create_key(workspace=tenant.workspace, name=f"key {number}")[0]
        for number in range(7)
    ]
    for number, key in enumerate(keys):
        factories.make_generation(tenant, api_key=key, cost_nano=number * 10**9)

    shown = operator.get(console.page(tenant.organization)).context["usage"]
    by_key = next(top for top in shown.tops if top.title == "By key")

    assert [(row.name, row.numbers, row.percent) for row in by_key.rows] == [
        ("key 6", "1 · $6.00", 100),
        ("key 5", "1 · $5.00", 83),
        ("key 4", "1 · $4.00", 66),
        ("key 3", "1 · $3.00", 50),
        ("key 2", "1 · $2.00", 33),
        ("2 more", "2 · $1.00", 0),
    ]
    assert (by_key.rows[0].url, by_key.rows[0].exact) == (console.page(keys[6]), "$6")


def test_usage_is_hidden_from_operators_without_generations(db: None, tenant: Tenant) -> None:
    user = User.objects.create_user("ann", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_organization"))
    client = Client()
    client.force_login(user)

    answer = client.get(console.page(tenant.organization))

    assert answer.status_code == 200
    assert answer.context.get("usage") is None
    assert 'id="usage"' not in answer.content.decode()


def test_the_first_bar_begins_with_a_whole_hour_or_day() -> None:
    now = timezone.now()
    for period in PERIODS.values():
        slots = period.slots(now)
        assert len(slots) == period.length // period.bar
        assert slots[-1] <= now < slots[-1] + period.bar
        assert slots[0] == (
            hour_of(slots[0]) if period.step == "hour" else midnight(slots[0].date())
        )
