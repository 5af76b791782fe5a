"""``POST /end-users`` registers a tracking string once and stores it unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from endusers.models import EndUser
from tests.support import factories
from tests.support.bulkheads.limits import NO_LIMITS
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import refusal, send, stamp


def post(client: APIClient, body: Any) -> Any:
    return send(client, "POST", "end-users", body)


def test_register_returns_the_record(management: APIClient, tenant: Tenant) -> None:
    response = post(management, {"user": "customer-42"})
    assert response.status_code == 201
    stored = EndUser.objects.get()
    assert response.json() == {
        "data": {
            "user": "customer-42",
            "is_active": True,
            "rate_limits": NO_LIMITS,
            "created_at": stamp(stored.created_at),
            "updated_at": stamp(stored.updated_at),
        }
    }
    assert (stored.organization, stored.user) == (tenant.organization, "customer-42")
    assert stored.is_active is True


@pytest.mark.parametrize(
    "user",
    [
        "a", " ", "  kept  ", "a" * 256, "ü" * 256, "😀" * 256, "用户/42?x=1&y=%00#z", "null", "0",
        ".", "..", "' OR 1=1 --", "<script>alert(1)</script>", "=cmd()", "e\u0301",
        "\u200b\u202e\u2028", "\ufeff", "\ufffe",
    ],
)  # fmt: skip
def test_register_stores_the_string_unchanged(management: APIClient, user: str) -> None:
    response = post(management, {"user": user})
    assert response.status_code == 201
    assert response.json()["data"]["user"] == user
    assert EndUser.objects.get().user == user


@pytest.mark.parametrize(
    "body",
    [
        {},
        *({"user": value} for value in (None, "", 5, 1.5, True, [], {}, "a" * 257, "😀" * 257)),
        *({"user": f"a{chr(code)}b"} for code in (*range(0x20), *range(0x7F, 0xA0))),
        *({"user": text} for text in ("a\n", "\ud800", "\udfff\ud800")),
    ],
)
def test_register_refuses_an_invalid_body(management: APIClient, body: dict[str, Any]) -> None:
    with snapshots.unchanged():
        response = post(management, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["metadata"]["error_type"]) == (400, "invalid_request")
    assert set(error["metadata"]["fields"]) == {"user"}


@pytest.mark.parametrize("field", ["id", "is_active", "created_at", "User", "organization_id"])
def test_register_refuses_an_unknown_field(management: APIClient, field: str) -> None:
    with snapshots.unchanged():
        response = post(management, {"user": "a", field: True})
    assert response.status_code == 400
    assert response.json()["error"]["metadata"]["fields"] == {field: "Unknown field."}


def test_register_refuses_a_registered_string(management: APIClient) -> None:
    assert post(management, {"user": "a"}).status_code == 201
    with snapshots.unchanged():
        response = post(management, {"user": "a"})
    assert response.status_code == 409
    message = "This user is already registered."
    assert response.json() == refusal(409, "already_registered", message)


def test_register_refuses_an_inactive_string(management: APIClient, tenant: Tenant) -> None:
    EndUser.objects.create(organization=tenant.organization, user="a", is_active=False)
    assert post(management, {"user": "a"}).status_code == 409
    assert EndUser.objects.get().is_active is False


def test_strings_that_only_look_alike_are_different(management: APIClient) -> None:
    users = ["a", "A", "á", "a\u0301", "á".upper(), " a", "a ", "ａ", "ß", "ss", "SS"]
    assert [post(management, {"user": user}).status_code for user in users] == [201] * 11
    assert set(EndUser.objects.values_list("user", flat=True)) == set(users)


def test_organizations_do_not_share_their_users(management: APIClient) -> None:
    other = factories.make_tenant("Other")
    assert post(management, {"user": "a"}).status_code == 201
    assert post(factories.client(other.management_key), {"user": "a"}).status_code == 201
    assert EndUser.objects.for_organization(other.organization.pk).get().user == "a"
    assert EndUser.objects.count() == 2


def test_register_refuses_an_inference_key(inference: APIClient) -> None:
    with snapshots.unchanged():
        response = post(inference, {"user": "a"})
    assert response.status_code == 403
    assert response.json()["error"]["metadata"] == {"error_type": "permission_denied"}


def test_register_refuses_a_caller_without_a_key(anonymous: APIClient) -> None:
    response = post(anonymous, {"user": "a"})
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert EndUser.objects.count() == 0


def test_the_database_refuses_an_empty_and_a_duplicate_string(tenant: Tenant) -> None:
    EndUser.objects.register(organization_id=tenant.organization.pk, user="a")
    for user in ("", "a"):
        with pytest.raises(IntegrityError), transaction.atomic():
            EndUser.objects.create(organization=tenant.organization, user=user)
    assert EndUser.objects.get().user == "a"
