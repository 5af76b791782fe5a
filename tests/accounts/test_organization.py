"""``/organization``: members, settings, and the creators of keys."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from rest_framework.test import APIClient

from accounts.models import ApiKey, Member, MemberNotFound, remove_member
from accounts.rotation import rotate_key
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    make_guardrail,
    make_key,
    make_member,
    missing,
    refused,
    send,
    told,
)

SETTINGS = "/api/v1/organization/settings"
MEMBERS = "organization/members"


def settings_of(tenant: Tenant, *, filtered: bool) -> dict[str, Any]:
    return {
        "data": {
            "id": str(tenant.organization.pk),
            "is_filtered_model_catalog_enabled": filtered,
            "fallback": None,
        }
    }


def shown(email: str, **fields: str) -> dict[str, Any]:
    """Returns what the interface shows of the member with an address."""
    member_id = str(Member.objects.get(email=email).pk)
    defaults = {"first_name": None, "last_name": None, "role": "org:member"}
    return {"id": member_id, "email": email, **defaults, **fields}


def test_members_are_listed_oldest_first(management: APIClient, tenant: Tenant) -> None:
    make_member(tenant.organization, email="b@example.com", role="admin", first_name="Ada")
    make_member(tenant.organization, email="a@example.com", last_name="Turing")
    make_member(factories.make_tenant("Other").organization)
    rows = [
        shown("b@example.com", first_name="Ada", role="org:admin"),
        shown("a@example.com", last_name="Turing"),
    ]
    path = f"/api/v1/{MEMBERS}"
    assert management.get(path).json() == {"data": rows, "total_count": 2}
    second = management.get(f"{path}?offset=1&limit=1").json()
    assert second == {"data": rows[1:], "total_count": 2}
    for query in ("limit=0", "limit=101", "offset=-1", "offset=x"):
        assert management.get(f"{path}?{query}").status_code == 400


def test_members_are_listed_in_pages_of_50(management: APIClient, tenant: Tenant) -> None:
    for _ in range(51):
        make_member(tenant.organization)
    for query, count in (("", 50), ("?limit=100", 51)):
        body = management.get(f"/api/v1/{MEMBERS}{query}").json()
        assert (len(body["data"]), body["total_count"]) == (count, 51)


def test_an_organization_has_one_member_per_address(tenant: Tenant) -> None:
    make_member(tenant.organization, email="a@example.com")
    make_member(factories.make_tenant("Other").organization, email="a@example.com")
    with pytest.raises(IntegrityError), transaction.atomic():
        make_member(tenant.organization, email="a@example.com")


def test_settings_are_shown_and_changed(management: APIClient, tenant: Tenant) -> None:
    assert management.get(SETTINGS).json() == settings_of(tenant, filtered=False)
    for filtered in (True, True, False):
        body = {"is_filtered_model_catalog_enabled": filtered}
        response = send(management, "PATCH", "organization/settings", body)
        assert response.status_code == 200
        assert response.json() == settings_of(tenant, filtered=filtered)
        tenant.organization.refresh_from_db()
        assert tenant.organization.is_filtered_model_catalog_enabled is filtered
        assert management.get(SETTINGS).json() == response.json()


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        *(
            (f'{{"is_filtered_model_catalog_enabled": {text}}}',
             {"is_filtered_model_catalog_enabled"})
            for text in ("null", '"true"', "1", "[]")
        ),
        ("{}", {"is_filtered_model_catalog_enabled"}),
        ('{"is_filtered_model_catalog_enabled": true, "name": "x"}', {"name"}),
        ('{"is_filtered_model_catalog_enabled": true, "requires_zdr": true}', {"requires_zdr"}),
    ],
)  # fmt: skip
def test_settings_refuse_invalid_fields_by_name(
    management: APIClient, text: str, fields: set[str]
) -> None:
    with snapshots.unchanged():
        assert refused(send(management, "PATCH", "organization/settings", text)) == (400, fields)


def test_a_key_shows_its_creator(management: APIClient, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    body = {"name": "key", "creator_user_id": str(member.pk)}
    created = send(management, "POST", "keys", body).json()
    assert created["data"]["creator_user_id"] == str(member.pk)
    assert ApiKey.objects.get(name="key").creator == member
    shown = management.get(f"/api/v1/keys/{created['data']['hash']}").json()["data"]
    current = factories.client(created["key"]).get("/api/v1/key").json()["data"]
    assert shown["creator_user_id"] == current["creator_user_id"] == str(member.pk)


def test_create_key_refuses_an_unknown_creator(management: APIClient) -> None:
    foreign = make_member(factories.make_tenant("Other").organization)
    with snapshots.unchanged():
        for unknown in (foreign.pk, uuid4()):
            body = {"name": "key", "creator_user_id": str(unknown)}
            response = send(management, "POST", "keys", body)
            assert (response.status_code, response.json()) == (404, missing("member"))
        malformed = send(management, "POST", "keys", {"name": "key", "creator_user_id": "user-1"})
    assert refused(malformed) == (400, {"creator_user_id"})


def test_a_credential_refuses_unknown_and_foreign_members(
    management: APIClient, tenant: Tenant
) -> None:
    provider = factories.make_provider("acme")
    mine = make_member(tenant.organization)
    foreign = make_member(factories.make_tenant("Other").organization)
    credential = factories.make_credential(tenant, provider)
    with snapshots.unchanged():
        for unknown in (foreign.pk, uuid4(), "user-1"):
            ids = {"allowed_user_ids": [str(mine.pk), str(unknown)]}
            created = send(management, "POST", "byok", {"provider": "acme", "key": "x" * 20, **ids})
            changed = send(management, "PATCH", f"byok/{credential.pk}", ids)
            assert refused(created) == refused(changed) == (400, {"allowed_user_ids"})
    # Admission compares the usual spelling.
    ids = {"allowed_user_ids": [str(mine.pk).upper()]}
    response = send(management, "PATCH", f"byok/{credential.pk}", ids)
    assert response.json()["data"]["allowed_user_ids"] == [str(mine.pk)]


def test_a_member_who_created_keys_cannot_be_deleted(tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    make_key(tenant, creator=member)
    with pytest.raises(ProtectedError):
        member.delete()


def test_a_member_is_created_in_its_workspaces(management: APIClient, tenant: Tenant) -> None:
    team = tenant.organization.workspaces.create(name="Team", slug="team")
    body = {"email": "ada@example.com", "first_name": "Ada", "role": "org:admin"}
    made = send(management, "post", MEMBERS, {**body, "workspace_ids": [str(team.pk)]})
    member = Member.objects.get()
    assert made.status_code == 201
    assert made.json() == {"data": shown("ada@example.com", first_name="Ada", role="org:admin")}
    assert [(each.member, each.role) for each in team.memberships.all()] == [(member, "admin")]
    with snapshots.unchanged():
        again = send(management, "post", MEMBERS, {"email": "ADA@example.com"})
    assert told(again) == (409, "email: The organization has a member with this address already.")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "email: This field is required."),
        ({"email": "ada"}, 400, "email: Must be an email address."),
        ({"email": "a@example.com", "role": "boss"}, 400, "role: Must be one of: admin, member, "),
        ({"email": "a@example.com", "team": "x"}, 400, "team: "),
        ({"email": "a@example.com", "workspace_ids": [str(uuid4())]}, 404, "The workspace"),
    ],
)
def test_a_member_that_cannot_be_created_changes_nothing(
    management: APIClient, body: dict[str, Any], status: int, message: str
) -> None:
    with snapshots.unchanged():
        answer = send(management, "post", MEMBERS, body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(message)


def test_a_member_is_changed(management: APIClient, tenant: Tenant) -> None:
    member = make_member(tenant.organization, email="a@example.com", first_name="Ada")
    path = f"{MEMBERS}/{member.pk}"
    answer = send(management, "patch", path, {"first_name": None, "role": "admin"})
    assert (answer.status_code, answer.json()["data"]["role"]) == (200, "org:admin")
    member.refresh_from_db()
    assert (member.first_name, member.role) == (None, "admin")
    other = make_member(factories.make_tenant("Other").organization)
    with snapshots.unchanged():
        assert send(management, "patch", path, {}).status_code == 400
        assert send(management, "patch", path, {"email": "b@example.com"}).status_code == 400
        for foreign in (other.pk, uuid4()):
            missed = send(management, "patch", f"{MEMBERS}/{foreign}", {"role": "admin"})
            assert told(missed) == (404, "The member does not exist.")


def test_a_deleted_member_frees_the_address(management: APIClient, tenant: Tenant) -> None:
    member = make_member(tenant.organization, email="a@example.com", first_name="Ada")
    team = tenant.organization.workspaces.create(name="Team", slug="team")
    team.add_members([member])
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_members([member], by="test")
    key = make_key(tenant, creator=member)
    factories.make_generation(tenant, api_key=key, member=member)
    key.revoke()
    path = f"{MEMBERS}/{member.pk}"
    answer = send(management, "delete", path)
    assert (answer.status_code, answer.json()) == (200, {"deleted": True})
    assert team.memberships.count() == guardrail.member_assignments.count() == 0
    assert management.get(f"/api/v1/{MEMBERS}").json() == {"data": [], "total_count": 0}
    with snapshots.unchanged():
        for method, body in (("delete", None), ("patch", {"role": "admin"})):
            assert send(management, method, path, body).status_code == 404
        body = {"name": "key", "creator_user_id": str(member.pk)}
        assert send(management, "post", "keys", body).status_code == 404
    assert send(management, "post", MEMBERS, {"email": "a@example.com"}).status_code == 201


def test_a_member_with_keys_is_not_deleted(
    management: APIClient, inference: APIClient, tenant: Tenant
) -> None:
    member = make_member(tenant.organization)
    for name in ("one", "two"):
        make_key(tenant, name, creator=member).pause()
    key = ApiKey.objects.get(name="one")
    for _ in range(2):
        rotate_key(key, overlap=0)
    other = make_member(factories.make_tenant("Other").organization)
    with snapshots.unchanged():
        refusal = send(management, "delete", f"{MEMBERS}/{member.pk}")
        assert told(refusal) == (409, "The member has 2 API keys. Delete them first.")
        assert send(inference, "delete", f"{MEMBERS}/{member.pk}").status_code == 403
        for unknown in (other.pk, uuid4(), "x"):
            assert send(management, "delete", f"{MEMBERS}/{unknown}").status_code == 404
    for each in (key, ApiKey.objects.get(name="two")):
        assert send(management, "delete", f"keys/{each.digest}").status_code == 200
    assert send(management, "delete", f"{MEMBERS}/{member.pk}").status_code == 200


def test_a_key_is_not_created_for_a_member_deleted_meanwhile(tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    remove_member(Member.objects.get(pk=member.pk))
    with pytest.raises(MemberNotFound):
        make_key(tenant, creator=member)
    assert not ApiKey.objects.filter(name="key").exists()
