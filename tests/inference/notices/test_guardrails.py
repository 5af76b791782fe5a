"""Guardrails that refuse many real requests are told to their organization and to operators."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models import Sum

from accounts.models import Guardrail
from accounts.policy import Policy, RegionNotAllowed
from accounts.webhooks.dispatching import dispatch_events
from accounts.webhooks.models import Delivery, Subscription
from billing.budgets import Budget, Scope
from config.api.errors import GatewayError, NotFound
from config.clocks.clock import clock
from config.events.outbox import Event
from inference.models import GuardrailCount
from inference.notices.run import find_notices
from inference.shadow_counts import SLOT_SECONDS
from inference.shadows.refusals import find_refusing
from inference.shadows.results import clear_shadows
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.inference.site import Site

EMAIL = {"slug": "email", "action": "block", "label": "[EMAIL]"}


def default_of(tenant: Tenant) -> Guardrail:
    return Guardrail.objects.edit_workspace_default(tenant.workspace, name="Strict")


def count_judged(site: Site, requests: int) -> dict[str, int]:
    """Waits until so many requests are counted; returns their number by reason."""

    def counted() -> dict[str, int]:
        rows = GuardrailCount.objects.values_list("reason").annotate(sum=Sum("requests"))
        return dict(rows.order_by("reason"))

    site.eventually(lambda: sum(counted().values()) == requests)
    return counted()


def told() -> list[dict[str, Any]]:
    """Runs the duty; returns the data of the events about guardrails, oldest first."""
    find_notices()
    rows = Event.objects.filter(kind="guardrail.refusing").order_by("pk")
    return list(rows.values_list("data", flat=True))


@pytest.mark.parametrize(
    ("limits", "reason", "status"),
    [
        ({"ignored_models": ["acme/*"]}, "model_ignored", 404),
        ({"limit_nano": 0, "reset_interval": "daily"}, "budget", 403),
        ({"content_filter_builtins": [EMAIL]}, "content_filter", 403),
    ],
)
def test_refused_requests_are_told_once_to_their_organization_and_to_operators(
    site: Site, limits: dict[str, Any], reason: str, status: int
) -> None:
    site.publish()
    other = factories.make_tenant("Other")
    guardrail = default_of(site.tenant)
    assert [site.chat().status_code for _ in range(2)] == [200] * 2
    guardrail.edit(**limits)
    content = "to joe@example.com"
    assert [site.chat(content).status_code for _ in range(9)] == [status] * 9
    assert count_judged(site, 11) == {"": 2, reason: 9}
    assert told() == []

    assert site.chat(content).status_code == status
    count_judged(site, 12)
    for owner in (site.tenant.organization, other.organization, None):
        Subscription.objects.create_subscription(
            organization=owner,
            form="webhook",
            url="https://hooks.example.com/causeway",
            kinds=["guardrail.refusing"],
        )
    assert told() == [
        {
            "organization": site.tenant.organization.name,
            "id": str(guardrail.pk),
            "guardrail": "Strict",
            "reason": reason,
            "refused": 10,
            "requests": 12,
            "percent": 83,
        }
    ]
    assert site.chat(content).status_code == status
    count_judged(site, 13)
    assert len(told()) == 1

    dispatch_events()
    owners = Delivery.objects.values_list("subscription__organization_id", flat=True)
    assert set(owners) == {site.tenant.organization.pk, None}


def make_counts(tenant: Tenant, passed: int, refused: int, *, minutes: int = 0) -> Guardrail:
    """Stores counts of the workspace's guardrail, of a slot that began some minutes ago."""
    guardrail = default_of(tenant)
    at = int(clock.time()) - minutes * 60
    slot = datetime.fromtimestamp(at - at % SLOT_SECONDS, UTC)
    for reason, requests in (("", passed), ("zdr", refused)):
        GuardrailCount.objects.create(
            guardrail_id=guardrail.pk, slot=slot, reason=reason, requests=requests
        )
    return guardrail


@pytest.mark.parametrize(
    ("percent", "passed", "refused", "minutes", "is_told"),
    [
        (10, 90, 10, 0, True),
        (10, 91, 10, 0, False),
        (10, 0, 9, 0, False),
        (10, 0, 1_000, 66, False),
        (0, 0, 1_000, 0, False),
    ],
)
def test_a_share_of_the_last_hour_is_told_from_the_setting_on(
    tenant: Tenant, settings: Any, percent: int, passed: int, refused: int, minutes: int,
    *, is_told: bool,
) -> None:  # fmt: skip
    settings.GUARDRAIL_ALERT_PERCENT = percent
    make_counts(tenant, passed, refused, minutes=minutes)
    assert bool(told()) is is_told


def test_counts_are_deleted_after_a_day(tenant: Tenant) -> None:
    make_counts(tenant, 1, 1, minutes=24 * 60 + 6)
    make_counts(tenant, 1, 1)
    assert clear_shadows() == 2
    assert GuardrailCount.objects.count() == 2


def test_a_refusal_is_of_the_first_guardrail_that_causes_it() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    policies = {
        first: Policy.of(ignored_models=["acme/*"]),
        second: Policy.of(
            ignored_models=["globex/*"], zdr=True, ingress_regions=["eu"], fallback="none"
        ),
    }
    budget = Budget(Scope.API_KEY, uuid.uuid4(), 1, None, False, None, second)
    limit = Budget(Scope.KEY_LIMIT, uuid.uuid4(), 1, None, False)

    def refuse(**metadata: Any) -> GatewayError:
        return NotFound("No.", metadata=metadata)

    def exclude(*reasons: str) -> GatewayError:
        return refuse(excluded=[{"excluded_by": [reason]} for reason in reasons])

    cases: list[tuple[GatewayError, tuple[uuid.UUID, str] | None]] = [
        (exclude("model_ignored", "zdr"), (first, "model_ignored")),
        (exclude("zdr"), (second, "zdr")),
        (exclude("private_only", "no_tools"), (second, "no_endpoint")),
        # The organization's own rules, and needs of the request.
        (exclude("data_collection", "no_tools"), None),
        (refuse(budget={"scope": "api_key"}), (second, "budget")),
        (refuse(budget={"scope": limit.scope.value}), None),
        (RegionNotAllowed("No."), (second, "region_not_allowed")),
        (NotFound("No."), None),
    ]
    for error, wanted in cases:
        assert find_refusing(error, policies, [budget, limit]) == wanted
    assert find_refusing(exclude("zdr"), {}, []) is None
