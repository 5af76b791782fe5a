"""The highest rate limits that operators allow: management keys set lower ones, and no higher."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from rest_framework.test import APIClient

from accounts.models import LIMIT_NAMES, ApiKey, Ceilings, LimitOwner, RateLimit
from config.models import AuditEntry
from endusers.models import EndUser
from tests.support import factories
from tests.support.bulkheads.limits import patch_limits as patch
from tests.support.bulkheads.limits import shown_limits as shown
from tests.support.database import snapshots
from tests.support.database.locks import waiting
from tests.support.factories import Tenant

NONE: dict[str, Any] = dict.fromkeys(LIMIT_NAMES)


def allow(owner: LimitOwner, *, model: str | None = None, **values: int) -> bool:
    """Sets ceilings as an operator does."""
    return RateLimit.objects.change(owner, Ceilings({**NONE, **values}, model=model))


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_management_key_sets_lower_limits_and_no_higher(
    management: APIClient, limited: tuple[str, LimitOwner], name: str
) -> None:
    path, owner = limited
    [other] = [each for each in LIMIT_NAMES[:2] if each != name][:1]
    assert allow(owner, **{name: 10})
    assert shown(management, path) == {**NONE, name: 10, "models": {}}

    with snapshots.unchanged():
        refused = patch(management, path, {other: 7, name: 11})
    assert refused.status_code == 422
    why = "Must be at most 10, which the operator of this service allows."
    assert refused.json()["error"] == {
        "code": 422,
        "message": f"rate_limits.{name}: {why}",
        "metadata": {
            "error_type": "rate_limit_above_ceiling",
            "fields": {f"rate_limits.{name}": why},
            "ceiling": 10,
        },
    }

    for limits, expected in (
        ({name: 4}, 4),
        ({name: 9}, 9),
        ({name: 10}, 10),
        ({name: 3}, 3),
        ({name: None}, 10),
        ({name: 2}, 2),
        (None, 10),
    ):
        assert patch(management, path, limits).status_code == 200
        assert shown(management, path)[name] == expected
    # What the operator did not bound is free.
    assert patch(management, path, {other: 10**9}).status_code == 200
    assert patch(management, path, {other: None}).status_code == 200
    assert shown(management, path) == {**NONE, name: 10, "models": {}}


def test_a_refused_limit_refuses_the_whole_request(management: APIClient) -> None:
    key = ApiKey.objects.get(name="inference")
    allow(key.limit_owner, requests_per_day=10)
    with snapshots.unchanged():
        answer = patch(
            management, f"/api/v1/keys/{key.digest}", {"requests_per_day": 11}, name="renamed"
        )
    assert answer.status_code == 422


def test_the_limits_of_a_model_have_ceilings_of_their_own(
    management: APIClient, limited: tuple[str, LimitOwner]
) -> None:
    path, owner = limited
    bounded, free = factories.make_model("acme/falcon").slug, factories.make_model("acme/owl").slug
    allow(owner, model=bounded, concurrent_requests=4)
    limits = {bounded: {"concurrent_requests": 2}, free: {"concurrent_requests": 50}}
    assert patch(management, path, {"models": limits}).status_code == 200
    limits = {free: {"concurrent_requests": 60}, bounded: {"concurrent_requests": 5}}
    with snapshots.unchanged():
        refused = patch(management, path, {"concurrent_requests": 9, "models": limits})
    assert refused.status_code == 422
    assert f"rate_limits.models.{bounded}.concurrent_requests" in refused.json()["error"]["message"]

    left = {bounded: {**NONE, "concurrent_requests": 4}}
    for removal in ({"models": {bounded: None, free: None}}, {"models": None}, None):
        again = {bounded: {"concurrent_requests": 1}, free: {"concurrent_requests": 50}}
        patch(management, path, {"models": again, "requests_per_day": 5})
        assert patch(management, path, removal).status_code == 200
        assert shown(management, path)["models"] == left
    assert shown(management, path) == {**NONE, "models": left}


@pytest.mark.parametrize(
    ("limit", "before", "after", "expected"),
    [
        # A limit without a ceiling: no higher than the new one.
        (None, None, 10, 10),
        (4, None, 10, 4),
        (40, None, 10, 10),
        (4, None, None, 4),
        # One that equals its ceiling follows it; a lower one stays if it may.
        (None, 10, 20, 20),
        (None, 10, 5, 5),
        (None, 10, None, None),
        (7, 10, 20, 7),
        (7, 10, 5, 5),
        (7, 10, 7, 7),
        (7, 10, None, 7),
    ],
)
def test_limits_follow_a_new_ceiling(
    management: APIClient, limited: tuple[str, LimitOwner], limit: int | None, before: int | None,
    after: int | None, expected: int | None,
) -> None:  # fmt: skip
    path, owner = limited

    def move(ceiling: int | None, *, replaces_lower: bool = False) -> None:
        values = {**NONE, "requests_per_minute": ceiling}
        RateLimit.objects.change(owner, Ceilings(values, replaces_lower=replaces_lower))

    move(before)
    if limit is not None:
        patch(management, path, {"requests_per_minute": limit})
    move(after)
    assert shown(management, path)["requests_per_minute"] == expected
    move(after, replaces_lower=True)
    assert shown(management, path)["requests_per_minute"] == after
    assert RateLimit.objects.exists() is (after is not None)


def test_a_ceiling_is_audited(limited: tuple[str, LimitOwner], management: APIClient) -> None:
    path, owner = limited
    patch(management, path, {"requests_per_day": 30})
    patch(management, path, {"requests_per_day": 31})
    allow(owner, requests_per_day=20)
    patch(management, path, {"requests_per_day": 19})
    last = AuditEntry.objects.filter(kind="accounts.ratelimit").latest("pk")
    assert (last.before, last.after) == ({"requests_per_day": 20}, {"requests_per_day": 19})


def test_another_organization_is_bounded_by_its_own_ceilings(
    management: APIClient, limited: tuple[str, LimitOwner]
) -> None:
    path, owner = limited
    allow(owner, requests_per_minute=10)
    neighbour = factories.make_tenant("Neighbour")
    stranger = factories.client(neighbour.management_key)
    answer = patch(stranger, path, {"requests_per_minute": 99})
    # Both organizations have a workspace of this slug; each changes its own.
    assert answer.status_code == (200 if "/workspaces/" in path else 404)
    assert shown(management, path)["requests_per_minute"] == 10
    assert patch(management, path, {"requests_per_minute": 99}).status_code == 422


@pytest.mark.parametrize("path", ["/api/v1/end-users", "/api/v1/external-users"])
def test_an_end_user_that_is_registered_again_keeps_its_ceiling(
    management: APIClient, tenant: Tenant, path: str
) -> None:
    management.post(path, {"user": "customer-1"}, format="json")
    allow(LimitOwner(tenant.organization.pk, end_user="customer-1"), requests_per_minute=10)
    assert management.delete(f"{path}/customer-1").status_code == 204
    assert patch(management, f"{path}/customer-1", {"requests_per_minute": 11}).status_code == 422

    registrations = EndUser.objects.filter(user="customer-1")
    registrations.delete()
    body = {"user": "customer-1", "rate_limits": {"requests_per_minute": 11}}
    assert management.post(path, body, format="json").status_code == 422
    assert not registrations.exists()
    made = management.post(path, {"user": "customer-1"}, format="json")
    assert made.json()["data"]["rate_limits"]["requests_per_minute"] == 10


def test_a_change_waits_for_the_operator_and_is_judged_by_the_new_ceiling(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    tenant = factories.make_tenant()
    management = factories.client(tenant.management_key)
    key = ApiKey.objects.get(name="inference")

    def raise_limit() -> int:
        try:
            limits = {"requests_per_minute": 50}
            return int(patch(management, f"/api/v1/keys/{key.digest}", limits).status_code)
        finally:
            connection.close()

    allow(key.limit_owner, requests_per_minute=100)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            allow(key.limit_owner, requests_per_minute=10)
            answer = pool.submit(raise_limit)
            eventually(lambda: waiting() == 1)
        assert answer.result() == 422
    row = RateLimit.objects.get()
    assert (row.requests_per_minute, row.requests_per_minute_ceiling) == (10, 10)


def test_a_limit_never_exceeds_its_ceiling_whoever_comes_first(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    key = ApiKey.objects.get(name="inference")
    path = f"/api/v1/keys/{key.digest}"

    def ask(limit: int | None) -> Callable[[], int]:
        client = factories.client(tenant.management_key)
        return lambda: int(patch(client, path, {"tokens_per_minute": limit}).status_code)

    for ceiling in (30, 100, 20):
        answers = together(
            lambda ceiling=ceiling: allow(key.limit_owner, tokens_per_minute=ceiling),
            *map(ask, (10, 50, 90, None)),
        )
        assert set(answers[1:]) <= {200, 422}
        row = RateLimit.objects.get()
        assert row.tokens_per_minute_ceiling == ceiling
        assert row.tokens_per_minute is not None
        assert row.tokens_per_minute <= ceiling


@pytest.mark.parametrize("limit", [11, None])
def test_the_database_refuses_a_limit_above_its_ceiling(tenant: Tenant, limit: int | None) -> None:
    allow(tenant.workspace.limit_owner, requests_per_minute=10, requests_per_day=5)
    with pytest.raises(IntegrityError, match="rate_limit_within_ceiling"):
        RateLimit.objects.update(requests_per_minute=limit)
