"""Backtests of guardrails: numbers worked out by hand, and the verdicts of admission itself."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, Guardrail
from catalog.models import ModelEndpoint
from config.clocks.clock import clock
from config.credentials import Secret
from inference.models import Generation
from inference.reports import backtest as backtests
from inference.reports.backtest import BUDGET, Outcome, ReplayedMeter, backtest
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.console import fingerprint
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key, make_member, make_workspace
from tests.support.inference.site import OPERATOR_SECRET, Site

CENT = 10_000_000


def publish(model: str, provider: str, **fields: Any) -> ModelEndpoint:
    """Makes a public endpoint that the gateway can call with a credential of the operator."""
    provider_row = factories.make_provider(provider, secret=Secret(OPERATOR_SECRET))
    return factories.make_endpoint(factories.make_model(model), provider_row, **fields)


def store(tenant: Tenant, endpoint: ModelEndpoint, ago: timedelta, **fields: Any) -> Generation:
    return factories.make_generation(
        tenant,
        model_endpoint=endpoint,
        model=endpoint.model.slug,
        provider_name=endpoint.provider.name,
        created_at=clock.now() - ago,
        **fields,
    )


def propose(tenant: Tenant, **fields: Any) -> Guardrail:
    return Guardrail(organization=tenant.organization, workspace=tenant.workspace, **fields)


HOUR = timedelta(hours=1)


def test_refusals_are_counted_by_reason_and_key(tenant: Tenant) -> None:
    falcon, osprey = publish("acme/falcon", "acme"), publish("globex/osprey", "globex")
    one, two = make_key(tenant, "one"), make_key(tenant, "two")
    for _ in range(3):
        store(tenant, falcon, HOUR, api_key=one)
    for _ in range(2):
        store(tenant, osprey, HOUR, api_key=two)
    store(tenant, osprey, HOUR, api_key=one)
    store(tenant, osprey, timedelta(days=8), api_key=one)
    other = factories.make_tenant("Other")
    store(other, osprey, HOUR)
    before = fingerprint()

    found = backtest(propose(tenant, ignored_models=["globex/*"]))
    assert (found.total, found.refused, found.is_sample) == (6, 3, False)
    assert (found.reasons, found.keys) == ({"model_ignored": 3}, {one.pk: 1, two.pk: 2})
    found = backtest(propose(tenant, allowed_providers=["acme"]))
    assert (found.refused, found.reasons) == (3, {"provider_not_allowed": 3})
    found = backtest(propose(tenant, enforce_zdr_other=True))
    assert (found.refused, found.reasons) == (6, {"zdr": 6})
    found = backtest(propose(tenant, allowed_data_regions=["us"]))
    assert (found.refused, found.reasons) == (6, {"region_not_allowed": 6})
    assert backtest(propose(tenant)).refused == 0
    assert fingerprint() == before


def test_assigned_guardrail_concerns_its_keys_and_members_alone(tenant: Tenant) -> None:
    falcon = publish("acme/falcon", "acme")
    member = make_member(tenant.organization)
    mine, theirs = make_key(tenant, "one"), make_key(tenant, "two", creator=member)
    nobodys = make_key(tenant, "three")
    for key in (mine, theirs, nobodys):
        store(tenant, falcon, HOUR, api_key=key)
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_keys([mine], by="test")
    guardrail.assign_members([member], by="test")

    found = backtest(guardrail.propose(ignored_models=["acme/falcon"]))
    assert (found.total, found.keys) == (2, {mine.pk: 1, theirs.pk: 1})
    assert not found.is_of_every_key
    default = Guardrail.objects.edit_workspace_default(tenant.workspace, name="All")
    assert backtest(default.propose(ignored_models=["acme/*"])).refused == 3


def test_requests_that_have_another_endpoint_are_moved(tenant: Tenant) -> None:
    falcon = publish("acme/falcon", "acme")
    second = factories.make_provider("globex", secret=Secret(OPERATOR_SECRET))
    factories.make_endpoint(falcon.model, second)
    store(tenant, falcon, HOUR)

    found = backtest(propose(tenant, ignored_providers=["acme"]))
    assert (found.refused, found.outcomes) == (0, {Outcome.MOVED: 1})


def test_what_is_refused_without_the_guardrail_is_left_out(tenant: Tenant) -> None:
    falcon, osprey = publish("acme/falcon", "acme"), publish("globex/osprey", "globex")
    store(tenant, falcon, HOUR)
    store(tenant, osprey, HOUR)
    ModelEndpoint.objects.filter(pk=falcon.pk).update(is_listed=False)

    found = backtest(propose(tenant, ignored_models=["acme/*", "globex/*"]))
    assert found.outcomes == {Outcome.UNKNOWN: 1, Outcome.REFUSED: 1}
    default = Guardrail.objects.edit_workspace_default(tenant.workspace, name="All")
    default.edit(allowed_data_regions=["us"])
    assert backtest(propose(tenant, ignored_models=["globex/*"])).outcomes == {Outcome.UNKNOWN: 2}


def at(days: int, hour: int) -> datetime:
    """Returns an hour of a day, counted from a Wednesday in the middle of a month."""
    return datetime(2026, 7, 15, hour, tzinfo=UTC) + timedelta(days=days)


@pytest.mark.parametrize("is_summed", [False, True])
def test_budgets_are_replayed_in_order(tenant: Tenant, *, is_summed: bool) -> None:
    falcon = publish("acme/falcon", "acme")
    one, two = make_key(tenant, "one"), make_key(tenant, "two")
    spent = [
        (one, at(-9, 1), 10), (one, at(-1, 1), 60), (one, at(-1, 2), 60), (one, at(-1, 3), 60),
        (two, at(-1, 4), 100), (two, at(-1, 5), 1), (one, at(0, 1), 99), (one, at(0, 2), 2),
        (one, at(0, 3), 1),
    ]  # fmt: skip
    for key, moment, cents in spent:
        factories.make_generation(
            tenant, api_key=key, model_endpoint=falcon, model="acme/falcon",
            created_at=moment, cost_nano=cents * CENT,
        )  # fmt: skip
    if is_summed:
        assert roll_up_usage(at(3, 0)) > 0
    until = at(0, 12)

    def refused(**fields: Any) -> dict[Any, int]:
        found = backtest(propose(tenant, **fields), until)
        assert found.total == 8
        assert set(found.reasons) <= {BUDGET}
        return dict(found.keys)

    # A budget of a dollar: 60 + 60 are over it, and 100 spend it; 99 + 2 are over it.
    assert refused(limit_nano=100 * CENT, reset_interval="daily") == {one.pk: 2, two.pk: 1}
    # Both days are of one week: 60 + 60, then nothing more.
    assert refused(limit_nano=100 * CENT, reset_interval="weekly") == {one.pk: 4, two.pk: 1}
    # The month had 10 before: 10 + 60 are below 71, 130 over it.
    assert refused(limit_nano=71 * CENT, reset_interval="monthly") == {one.pk: 4, two.pk: 1}
    assert refused(limit_nano=70 * CENT, reset_interval="monthly") == {one.pk: 5, two.pk: 1}
    assert refused(limit_nano=70 * CENT, reset_interval="weekly") == {one.pk: 4, two.pk: 1}
    assert refused(limit_nano=0, reset_interval="weekly") == {one.pk: 6, two.pk: 2}


def test_guardrail_of_a_workspace_concerns_a_key_of_another_that_has_it_too(
    tenant: Tenant,
) -> None:
    falcon = publish("acme/falcon", "acme")
    elsewhere = make_workspace(tenant.organization)
    default = Guardrail.objects.edit_workspace_default(tenant.workspace, name="All")
    inside, assigned = make_key(tenant, "inside"), make_key(tenant, "far", workspace=elsewhere)
    other = make_key(tenant, "other", workspace=elsewhere)
    default.assign_keys([assigned], by="test")
    for key in (inside, assigned, other):
        store(tenant, falcon, HOUR, api_key=key, workspace=key.workspace)

    found = backtest(default.propose(ignored_models=["acme/*"]))
    assert (found.total, found.keys) == (2, {inside.pk: 1, assigned.pk: 1})


def test_own_credentials_count_if_the_budget_says_so(tenant: Tenant) -> None:
    falcon = publish("acme/falcon", "acme")
    for hour in (1, 2):
        factories.make_generation(
            tenant, model_endpoint=falcon, model="acme/falcon", is_byok=True,
            created_at=at(-1, hour), upstream_cost_nano=100 * CENT,
        )  # fmt: skip
    limit = {"limit_nano": 100 * CENT, "reset_interval": "daily"}

    assert backtest(propose(tenant, **limit), at(0, 1)).refused == 0
    found = backtest(propose(tenant, **limit, include_byok_in_budgets=True), at(0, 1))
    assert found.reasons == {BUDGET: 1}


def test_newest_requests_are_a_sample(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    falcon = publish("acme/falcon", "acme")
    stored = [store(tenant, falcon, timedelta(hours=hours)) for hours in (5, 4, 3, 2, 1)]
    monkeypatch.setattr(backtests, "_CHUNK", 2)
    proposal = propose(tenant, ignored_models=["acme/*"])
    assert (backtest(proposal).refused, backtest(proposal).is_sample) == (5, False)
    monkeypatch.setattr(backtests, "MOST_ROWS", 3)

    found = backtest(proposal)
    assert (found.total, found.refused, found.is_sample) == (3, 3, True)
    assert found.since == stored[2].created_at
    monkeypatch.setattr(backtests, "MOST_ROWS", 5)
    assert not backtest(proposal).is_sample


def test_replayed_meter_begins_again_with_each_period() -> None:
    meter = ReplayedMeter()
    meter.add(date(2026, 6, 30), 1, 10)
    meter.add(date(2026, 7, 1), 2, 20)
    assert (meter.cost_daily, meter.cost_weekly, meter.cost_monthly, meter.cost) == (2, 3, 2, 3)
    meter.add(date(2026, 7, 6), 4, 40)
    assert (meter.byok_daily, meter.byok_weekly, meter.byok_monthly) == (40, 40, 60)


def test_form_shows_its_backtest(operator: Client, tenant: Tenant) -> None:
    falcon = publish("acme/falcon", "acme")
    key = make_key(tenant, "robot")
    store(tenant, falcon, HOUR, api_key=key)
    guardrail = make_guardrail(tenant.workspace)
    before = fingerprint()
    path = reverse("admin:accounts_guardrail_backtest", args=[guardrail.pk])
    shown = operator.post(path, {"name": "Strict", "ignored_models": ["acme/*"]})
    text = " ".join(shown.content.decode().split())

    assert "In the last 7 days this would have refused 1 of 1 requests." in text
    assert "Its model is ignored" in text
    assert f"api_key__id__exact={key.pk}" in text
    assert "Content filters are not part of this" in text
    shown = operator.post(path, {"name": "", "limit": "1"})
    assert "Starts again: Choose how often the budget starts again." in shown.content.decode()
    new = {"name": "New", "workspace": str(tenant.workspace.pk), "ignored_providers": ["acme"]}
    shown = operator.post(reverse("admin:accounts_guardrail_backtest_new"), new)
    assert "as if each key of its workspace had it" in shown.content.decode()
    assert "refused 1 of 1 requests" in " ".join(shown.content.decode().split())
    assert fingerprint() == before


SLUGS = ("acme/falcon", "acme/kestrel", "globex/osprey")
PROVIDERS = ("acme", "globex")


def draw(choice: random.Random) -> dict[str, Any]:
    """Returns the limits of a random guardrail."""

    def some(names: tuple[str, ...]) -> list[str] | None:
        found = [name for name in names if choice.random() < 0.5]
        return found if choice.random() < 0.5 else None

    models = (*(f"{slug}-2026-01-01" for slug in SLUGS), "acme/*")
    return {
        "allowed_models": some(models) or None,
        "ignored_models": some(models),
        "allowed_providers": some(PROVIDERS) or None,
        "ignored_providers": some(PROVIDERS),
        "allowed_data_regions": choice.choice((None, None, ["global"], ["us"])),
        "enforce_zdr_other": choice.choice((None, True)),
        "enable_paid_model_training": choice.choice((None, False)),
        "limit_nano": choice.choice((None, None, 0)),
    }


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_are_those_of_admission(site: Site, seed: int) -> None:
    """Backtests random guardrails over served requests, then enforces each and asks again."""
    choice = random.Random(seed)
    second = site.another_provider("globex", trains_on_prompts=True)
    for slug in SLUGS:
        model = site.model if slug == site.model.slug else factories.make_model(slug)
        for provider in (site.provider, second):
            if choice.random() < 0.7 or provider is site.provider:
                factories.make_endpoint(model, provider, zdr=choice.random() < 0.5)
    keys = {slug: ApiKey.objects.create_key(workspace=site.tenant.workspace, name=slug)
            for slug in SLUGS}  # fmt: skip

    def ask() -> dict[str, bool]:
        """Sends a request to each model by a key of its own; returns which were refused."""
        return {
            slug: site.post(site.chat_body(model=slug), key=secret.reveal()).status_code != 200
            for slug, (_, secret) in keys.items()
        }

    assert not any(ask().values())
    site.wait_for_settlement()
    default = Guardrail.objects.edit_workspace_default(site.tenant.workspace, name="Default")
    for _ in range(5):
        limits = draw(choice)
        limits["reset_interval"] = None if limits["limit_nano"] is None else "daily"
        found = backtest(default.propose(**limits))
        default.edit(**limits)
        refused = {slug for slug, is_refused in ask().items() if is_refused}

        assert {key.name for key, _ in keys.values() if key.pk in found.keys} == refused, limits
        default.edit(**dict.fromkeys(limits))
        site.wait_for_settlement()
