"""``rate_limits`` of keys, workspaces and end users: set, changed, shown, audited and refused."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.models import ApiKey, LimitOwner, RateLimit
from accounts.models import rate_limits as limits_module
from billing.models import Meter
from config.api.errors import InvalidRequest
from config.models import AuditEntry
from tests.support import factories
from tests.support.bulkheads.limits import patch_limits as patch
from tests.support.bulkheads.limits import shown_limits as shown
from tests.support.factories import Tenant

NONE: dict[str, Any] = dict.fromkeys(
    ("requests_per_minute", "tokens_per_minute", "requests_per_day", "concurrent_requests")
)
EMPTY = {**NONE, "models": {}}


def test_limits_are_changed_member_by_member(management: APIClient, route: str) -> None:
    model = factories.make_model("acme/falcon")
    assert shown(management, route) == EMPTY

    first = patch(management, route, {"requests_per_minute": 10, "tokens_per_minute": 1000})
    assert first.status_code == 200
    patch(management, route, {"models": {model.slug: {"concurrent_requests": 2}}})
    last = patch(management, route, {"tokens_per_minute": None, "requests_per_day": 500})

    of_model = {**NONE, "concurrent_requests": 2}
    own = {"requests_per_minute": 10, "requests_per_day": 500}
    expected = {**NONE, **own, "models": {model.slug: of_model}}
    assert last.json()["data"]["rate_limits"] == shown(management, route) == expected
    listed = management.get(route.rpartition("/")[0]).json()["data"]
    assert expected in [row["rate_limits"] for row in listed]
    # Every limit has a meter, which counts from now on.
    subjects = set(RateLimit.objects.values_list("subject_id", flat=True))
    assert len(subjects) == 2
    assert Meter.objects.filter(pk__in=subjects).count() == 2

    patch(management, route, {"models": {model.slug: None}})
    assert shown(management, route) == {**expected, "models": {}}
    patch(management, route, None)
    assert shown(management, route) == EMPTY
    assert not RateLimit.objects.exists()


def test_changes_are_audited(management: APIClient, route: str, tenant: Tenant) -> None:
    for limit in (10, 11, 11):
        patch(management, route, {"requests_per_minute": limit})
    entries = AuditEntry.objects.filter(kind="accounts.ratelimit").order_by("pk")
    assert [entry.organization_id for entry in entries] == [tenant.organization.pk] * 2
    assert entries[1].before == {"requests_per_minute": 10}
    assert entries[1].after == {"requests_per_minute": 11}


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        *(
            ({"requests_per_minute": value}, "requests_per_minute")
            for value in (0, -1, 1.5, "10", True)
        ),
        ({"tokens_per_minute": 10**12 + 1}, "tokens_per_minute"),
        ({"requests_per_hour": 1}, "requests_per_hour"),
        ({"models": []}, "models"),
        ({"models": {"no/such": {"requests_per_minute": 1}}}, "no/such"),
        ({"models": {"no/such": {"requests_per_hour": 1}}}, "requests_per_hour"),
        ([], "rate_limits"),
        (7, "rate_limits"),
    ],
)
def test_a_wrong_limit_is_refused_by_name_and_changes_nothing(
    management: APIClient, route: str, limits: Any, field: str
) -> None:
    answer = patch(management, route, limits)
    assert answer.status_code == 400
    assert field in answer.content.decode()
    assert not RateLimit.objects.exists()


def test_limits_of_a_model_that_has_left_are_written_back(
    management: APIClient, limited: tuple[str, LimitOwner]
) -> None:
    route, owner = limited
    model = factories.make_model("acme/falcon")
    RateLimit.objects.change(owner, {"models": {"rack/gone": {"concurrent_requests": 2}}})
    whole = shown(management, route)
    whole["models"][model.slug] = {**NONE, "requests_per_minute": 3}
    assert patch(management, route, whole).status_code == 200
    assert shown(management, route) == whole
    answer = patch(management, route, {"models": {"rack/gone": {}, "no/such": {}}})
    assert list(answer.json()["error"]["metadata"]["fields"]) == ["rate_limits.models.no/such"]
    assert shown(management, route) == whole


def test_rows_can_be_created_with_limits(management: APIClient) -> None:
    limits = {"requests_per_minute": 5}
    for path, body in (
        ("/api/v1/keys", {"name": "limited"}),
        ("/api/v1/workspaces", {"name": "Limited", "slug": "limited"}),
        ("/api/v1/end-users", {"user": "customer-1"}),
        ("/api/v1/external-users", {"user": "customer-2"}),
    ):
        made = management.post(path, {**body, "rate_limits": limits}, format="json")
        assert made.status_code == 201
        assert made.json()["data"]["rate_limits"] == {**EMPTY, **limits}
    # A registration that exists keeps its limits.
    body = {"user": "customer-1", "rate_limits": {"requests_per_minute": 9}}
    assert management.post("/api/v1/end-users", body, format="json").status_code == 409
    assert RateLimit.objects.get(end_user="customer-1").requests_per_minute == 5


def test_an_end_user_is_limited_without_a_change_of_its_mark(management: APIClient) -> None:
    management.post("/api/v1/end-users", {"user": "customer-1"}, format="json")
    path = "/api/v1/end-users/customer-1"
    patch(management, path, {"requests_per_day": 3}, is_active=False)
    patch(management, path, {"requests_per_minute": 2})
    data = management.get(path).json()["data"]
    assert data["is_active"] is False
    assert (data["rate_limits"]["requests_per_day"]) == 3
    assert management.patch(path, {}, format="json").status_code == 400


def test_another_organization_sees_and_changes_nothing(route: str, management: APIClient) -> None:
    patch(management, route, {"requests_per_minute": 10})
    stranger = factories.client(factories.make_tenant("Stranger").management_key)
    answer = patch(stranger, route, {"requests_per_minute": 99})
    # Both organizations have a workspace of this slug; each changes its own.
    if answer.status_code == 200:
        assert "/workspaces/" in route
    else:
        assert answer.status_code == 404
        assert stranger.get(route).status_code == 404
    assert shown(management, route)["requests_per_minute"] == 10


def test_a_revoked_key_and_a_closed_workspace_leave_no_limits(management: APIClient) -> None:
    body = {"name": "Limited", "slug": "limited", "rate_limits": {"requests_per_minute": 5}}
    management.post("/api/v1/workspaces", body, format="json")
    key = ApiKey.objects.get(name="inference")
    patch(management, f"/api/v1/keys/{key.digest}", {"requests_per_minute": 5})
    assert RateLimit.objects.count() == 2
    management.delete("/api/v1/workspaces/limited")
    management.delete(f"/api/v1/keys/{key.digest}")
    assert not RateLimit.objects.exists()


def test_an_organization_has_a_bounded_number_of_limits(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_module, "MOST_ROWS", 2)
    key = ApiKey.objects.get(name="inference")
    limits = {"requests_per_minute": 5}
    RateLimit.objects.change(key.limit_owner, limits)
    RateLimit.objects.change(tenant.workspace.limit_owner, limits)
    with pytest.raises(InvalidRequest, match="at most 2 rate limits"):
        RateLimit.objects.change(tenant.workspace.limit_owner, {"models": {"acme/falcon": limits}})
    assert RateLimit.objects.count() == 2
