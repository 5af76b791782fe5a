"""Operators see the use of rate limits on four pages, and set them in a dialog."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from accounts.models import ApiKey, RateLimit
from billing.models import Meter
from catalog.models import LanguageModel
from config.clocks.clock import clock
from config.models import AuditEntry
from endusers.models import EndUser
from tests.support import factories
from tests.support.console import page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press


@pytest.fixture(params=["organization", "workspace", "apikey", "enduser"])
def row(request: pytest.FixtureRequest, tenant: Tenant) -> Any:
    """A row whose page has rate limits."""
    match request.param:
        case "organization":
            return tenant.organization
        case "workspace":
            return tenant.workspace
        case "apikey":
            return ApiKey.objects.get(name="inference")
        case _:
            owner = tenant.organization.pk
            return EndUser.objects.register(organization_id=owner, user="customer-42")


def limit(client: Client, row: Any, **fields: str) -> Any:
    return press(client, row, "limit_rates", **fields)


def test_an_operator_sets_limits_and_sees_their_use(operator: Client, row: Any) -> None:
    model = factories.make_model("acme/falcon")
    assert "There is no limit." in operator.get(page(row)).content.decode()

    limit(operator, row, requests_per_minute="10")
    limit(operator, row, model=model.slug, concurrent_requests="2")

    own, for_model = RateLimit.objects.get(model=None), RateLimit.objects.get(model=model.slug)
    assert (own.requests_per_minute, own.tokens_per_minute) == (10, None)
    assert for_model.concurrent_requests == 2
    # The page may be read in the minute after this one.
    minute = clock.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
    Meter.objects.filter(pk=own.subject_id).update(requests=12, requests_before=5, minute=minute)
    Meter.objects.filter(pk=for_model.subject_id).update(running=1)
    shown = operator.get(page(row)).content.decode()
    assert "7 of 10 requests this minute" in shown
    assert "1 of 2 requests running" in shown
    actors = AuditEntry.objects.filter(kind="accounts.ratelimit").values_list("actor", flat=True)
    assert set(actors) == {"operator operator"}

    limit(operator, row)
    assert RateLimit.objects.get().model == model.slug


@pytest.mark.parametrize(
    "form",
    [
        {"requests_per_minute": "0"},
        {"tokens_per_minute": "-5"},
        {"requests_per_day": "1.5"},
        {"concurrent_requests": "1000000000001"},
        {"model": "no/such", "requests_per_minute": "5"},
    ],
)
def test_a_wrong_limit_changes_nothing(operator: Client, row: Any, form: dict[str, str]) -> None:
    with snapshots.unchanged():
        limit(operator, row, **form)


def test_a_limit_names_no_model_of_another_organization(
    operator: Client, tenant: Tenant, row: Any
) -> None:
    globex = factories.make_tenant("Globex").organization
    foreign = factories.make_model("globex/support-7b", organization=globex)
    with snapshots.unchanged():
        answer = limit(operator, row, model=foreign.slug, requests_per_minute="5")
    assert answer.context["form"].errors == {"model": ["No model has this slug."]}
    own = factories.make_model("acme/support-7b", organization=tenant.organization)
    limit(operator, row, model=own.slug, requests_per_minute="5")
    assert RateLimit.objects.get().model == own.slug
    # Its limit can still be taken away once the model is deleted.
    LanguageModel.objects.of_everybody().filter(pk=own.pk).update(is_listed=False)
    limit(operator, row, model=own.slug)
    assert not RateLimit.objects.exists()


def test_a_viewer_cannot_set_limits(viewer: Client, row: Any) -> None:
    with snapshots.unchanged():
        assert limit(viewer, row, requests_per_day="5").status_code == 403


def test_a_revoked_key_gets_no_limits(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    key.revoke()
    with snapshots.unchanged():
        limit(operator, key, requests_per_day="5")


@pytest.mark.parametrize("ticked", [False, True])
def test_an_operator_sees_that_lower_limits_stay_and_may_replace_them(
    operator: Client, tenant: Tenant, *, ticked: bool
) -> None:
    key = ApiKey.objects.get(name="inference")
    key.edit(rate_limits={"requests_per_minute": 7, "requests_per_day": 1_000})
    form = {"requests_per_minute": "10", "requests_per_day": "500"}
    if ticked:
        form["replaces_lower"] = "on"
    answer = limit(operator, key, **form)
    lower = "Lower limits stay (Requests a minute: 7)."
    assert (lower in answer.content.decode()) is not ticked
    row = RateLimit.objects.get()
    assert row.requests_per_minute == (10 if ticked else 7)
    assert (row.requests_per_minute_ceiling, row.requests_per_day) == (10, 500)
    shown = operator.get(page(key)).content.decode()
    assert f"of {row.requests_per_minute} requests this minute, at most 10" in shown


def test_the_limits_of_an_organization_have_no_ceiling(operator: Client, tenant: Tenant) -> None:
    for most in (10, 20):
        limit(operator, tenant.organization, requests_per_minute=str(most))
        row = RateLimit.objects.get()
        assert (row.requests_per_minute, row.requests_per_minute_ceiling) == (most, None)
