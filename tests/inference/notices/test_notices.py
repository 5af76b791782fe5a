"""The states that the duty finds: each is told once in its period, to the organization it is of."""

from __future__ import annotations

import time
from datetime import UTC, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from accounts.models import ApiKey, BudgetInterval, LimitReset
from accounts.models.guardrails import Guardrail
from billing.models import Meter
from catalog.models import CredentialRefusal
from catalog.pricing import NANO
from config.events.outbox import Event
from config.secrets import digest_api_key
from inference.models import DailyUsage, EndpointHealth, HourlySpending, HourlyUsage, UsageDay
from inference.notices import balances, budgets
from inference.notices.run import find_notices
from inference.reports.hours import hour_of
from inference.reports.rollups import midnight
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail


@pytest.fixture
def tenant(db: None) -> Tenant:
    made = factories.make_tenant()
    Event.objects.all().delete()
    return made


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return ApiKey.objects.get(digest=digest_api_key(tenant.api_key))


def told() -> list[tuple[str, dict[str, Any]]]:
    """Runs the duty; returns the kinds and data of what it has stored, by kind."""
    before = set(Event.objects.values_list("pk", flat=True))
    count = find_notices()
    rows = Event.objects.exclude(pk__in=before).order_by("kind", "pk")
    found = list(rows.values_list("kind", "data"))
    assert len(found) == count
    return found


def spend(tenant: Tenant, dollars: str) -> None:
    nano = int(float(dollars) * NANO)
    factories.make_generation(tenant, cost_nano=nano, upstream_cost_nano=nano)


def test_nothing_is_told_of_an_idle_service(tenant: Tenant) -> None:
    assert told() == []


def test_a_budget_is_told_at_each_step_once(tenant: Tenant) -> None:
    tenant.workspace.set_budget(BudgetInterval.MONTHLY, limit_nano=100 * NANO)
    spend(tenant, "49")
    assert told() == []
    spend(tenant, "2")
    [(kind, data)] = told()
    assert kind == "budget.used"
    assert data.pop("resets_at").endswith("-01T00:00:00.000000Z")
    assert data == {
        "scope": "workspace",
        "id": str(tenant.workspace.budgets.get().pk),
        "name": "Default",
        "interval": "monthly",
        "limit_usd": "100",
        "spent_usd": "51",
        "percent": 50,
    }
    assert told() == []
    for amount, percent in (("30", 80), ("5", None), ("9", 95), ("6", 100), ("50", None)):
        spend(tenant, amount)
        steps = [data["percent"] for _, data in told()]
        assert steps == ([] if percent is None else [percent])
    assert {row.organization_id for row in Event.objects.all()} == {tenant.organization.pk}


def test_a_budget_that_is_passed_at_once_is_told_at_its_highest_step(tenant: Tenant) -> None:
    tenant.workspace.set_budget(BudgetInterval.DAILY, limit_nano=10 * NANO)
    spend(tenant, "9.6")
    assert [data["percent"] for _, data in told()] == [95]


def test_budgets_and_balances_told_before_hide_no_others(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "_PAGE", 1)
    monkeypatch.setattr(balances, "_PAGE", 1)
    others = [factories.make_tenant(name) for name in ("Globex", "Initech")]
    Event.objects.all().delete()
    for each in (tenant, *others):
        each.workspace.set_budget(BudgetInterval.DAILY, limit_nano=1_000 * NANO)
        spend(each, "999")
    found = [kind for kind, _ in told()]
    assert found == ["balance.low"] * 3 + ["budget.used"] * 3
    assert told() == []


def test_a_key_is_told_near_and_at_its_limit(tenant: Tenant, key: ApiKey) -> None:
    key.edit(limit_nano=10 * NANO, limit_reset=LimitReset.WEEKLY)
    spend(tenant, "6")
    assert told() == []
    spend(tenant, "2")
    [(kind, data)] = told()
    assert (kind, data["hash"], data["percent"], data["spent_usd"]) == (
        "key.limit_near", key.digest, 80, "8",
    )  # fmt: skip
    spend(tenant, "1.6")
    assert told() == []
    spend(tenant, "1")
    assert [kind for kind, _ in told()] == ["key.limit_reached"]
    assert told() == []
    key.edit(limit_nano=12 * NANO)
    assert [kind for kind, _ in told()] == ["key.limit_near"]


def test_guardrails_of_keys_and_workspaces_are_budgets_too(tenant: Tenant, key: ApiKey) -> None:
    budget = {"limit_nano": 10 * NANO, "reset_interval": LimitReset.DAILY}
    guardrail = make_guardrail(tenant.workspace, **budget)
    guardrail.assign_keys([key], by="test")
    Guardrail.objects.edit_workspace_default(tenant.workspace, **budget)
    spend(tenant, "8.5")
    names = sorted(data["name"] for kind, data in told() if kind == "budget.used")
    assert names == ["Strict, key inference", "Workspace default, key inference"]


def test_a_meter_that_a_tenant_has_filled_hides_no_notices(tenant: Tenant, key: ApiKey) -> None:
    """A tenant states the price of its own models, so its meters may have no room for a sum."""
    other = factories.make_tenant("Globex")
    Event.objects.all().delete()
    other.workspace.set_budget(BudgetInterval.DAILY, limit_nano=10 * NANO)
    spend(other, "6")
    key.edit(limit_nano=10 * NANO, include_byok_in_limit=True)
    spend(tenant, "1")
    Meter.objects.filter(subject_id=key.pk).update(byok=2**63 - 1)
    found = [(kind, data["spent_usd"]) for kind, data in told()]
    assert found == [("budget.used", "6"), ("key.limit_reached", "9223372036.854775807")]


def test_an_error_in_one_kind_of_states_ends_none_of_the_others(
    tenant: Tenant, key: ApiKey
) -> None:
    """The duty has failed all the same, which is what wakes somebody."""
    # A release that comes later may know more periods.
    ApiKey.objects.filter(pk=key.pk).update(limit_nano=NANO, limit_reset="hourly")
    spend(tenant, "999")
    with pytest.raises(ExceptionGroup) as caught:
        find_notices()
    assert [type(each) for each in caught.value.exceptions] == [ValueError]
    assert list(Event.objects.values_list("kind", flat=True)) == ["balance.low"]


def test_usage_of_another_day_is_not_of_today(tenant: Tenant) -> None:
    tenant.workspace.set_budget(BudgetInterval.DAILY, limit_nano=10 * NANO)
    spend(tenant, "9")
    Meter.objects.update(day=timezone.now().date() - timedelta(days=1))
    assert told() == []


def test_a_low_balance_is_told_once_a_week_with_the_days_that_are_left(tenant: Tenant) -> None:
    spend(tenant, "200")
    assert told() == []
    spend(tenant, "600")
    [(kind, data)] = told()
    assert kind == "balance.low"
    assert data == {
        "organization": "Acme",
        "available_usd": "200",
        "threshold_usd": "5",
        "daily_usd": "800",
        "days_left": 0,
    }
    spend(tenant, "10")
    assert told() == []


def test_what_is_held_is_not_available(tenant: Tenant) -> None:
    spend(tenant, "100")
    assert told() == []
    running = factories.make_generation(tenant, status="pending")
    factories.place_hold(running, 898 * NANO)
    [(kind, data)] = told()
    assert (kind, data["available_usd"], data["days_left"]) == ("balance.low", "2", 0)


def test_unusual_spending_is_told_once_a_day_to_its_organization(tenant: Tenant) -> None:
    now = timezone.now()
    yesterday = now.astimezone(UTC).date() - timedelta(days=1)
    for week in range(1, 5):
        day = yesterday - timedelta(days=7 * week)
        UsageDay.objects.create(day=day, rolled_up_at=now)
        DailyUsage.objects.create(
            organization=tenant.organization, day_id=day, by_end_user=False,
            workspace_id=tenant.workspace.pk, api_key_id=uuid4(), endpoint_id=uuid4(), model="m",
            provider_name="p", requests=1, prompt_tokens=1, completion_tokens=1, cached_tokens=0,
            reasoning_tokens=0, cost_nano=20 * NANO, byok_nano=0,
        )  # fmt: skip
    # All hours of yesterday are summed.
    HourlyUsage.objects.create(
        hour=hour_of(now) - timedelta(hours=1), requests=0, failed=0, tokens=0, cost_nano=0,
        upstream_nano=0, latency_ms=0, timed=0,
    )  # fmt: skip
    HourlySpending.objects.create(
        hour=midnight(yesterday), organization_id=tenant.organization.pk, cost_nano=90 * NANO
    )
    data = {
        "organization": "Acme",
        "day": yesterday.isoformat(),
        "until": "24:00",
        "spent_usd": "90",
        "usual_usd": "20",
    }
    assert told() == [("spend.anomaly", data)]
    assert Event.objects.get().organization_id == tenant.organization.pk
    assert told() == []


def test_a_provider_that_fails_is_told_to_operators(tenant: Tenant) -> None:
    provider = factories.make_provider("acme", name="Acme AI")
    endpoint = factories.make_endpoint(factories.make_model(), provider)
    healthy = factories.make_endpoint(factories.make_model(), factories.make_provider("fine"))
    bucket = int(time.time()) // 5
    for served, successes, failures in ((endpoint, 10, 30), (healthy, 300, 30)):
        EndpointHealth.objects.create(
            endpoint_id=served.pk, slot=bucket % 12, bucket=bucket, successes=successes,
            failures=failures, latencies=[], speeds=[], retry_at=0,
        )  # fmt: skip
    assert told() == [
        (
            "provider.failing",
            {
                "provider": "acme",
                "name": "Acme AI",
                "failures": 30,
                "attempts": 40,
                "percent": 75,
            },
        )
    ]
    assert told() == []


def test_a_refused_credential_is_told_to_its_owner(tenant: Tenant) -> None:
    now = timezone.now()
    CredentialRefusal.objects.create(
        provider=factories.make_provider("acme"), reason="canary", since=now, seen_at=now
    )
    refused = {"provider": "Acme AI", "is_byok": True, "status": 401}
    for _ in range(3):
        factories.make_generation(tenant, is_byok=True, status="failed", attempts=[refused])
    found = told()
    # Events of one instant have no order.
    assert sorted((kind, data["owner"], data["provider"]) for kind, data in found) == [
        ("credential.failing", "the operator", "Acme"),
        ("credential.failing", "the organization", "Acme AI"),
    ]
    assert "canary" not in str(found)
    owners = dict(Event.objects.values_list("data__owner", "organization_id"))
    assert owners == {"the operator": None, "the organization": tenant.organization.pk}
    assert told() == []
