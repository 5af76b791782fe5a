"""``/workspaces/…/members``: the members of a workspace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import (
    ApiKey,
    Member,
    MemberNotFound,
    Subscription,
    Workspace,
    WorkspaceMember,
    remove_member,
)
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    ask_service,
    make_guardrail,
    make_key,
    make_member,
    make_workspace,
    missing,
    refused,
    send,
    stamp,
    told,
)


@pytest.fixture
def workspace(tenant: Tenant) -> Workspace:
    return make_workspace(tenant.organization, slug="research")


def shown(place: WorkspaceMember) -> dict[str, Any]:
    return {
        "id": str(place.pk),
        "workspace_id": str(place.workspace_id),
        "user_id": str(place.member_id),
        "role": place.role,
        "created_at": stamp(place.created_at),
    }


def add(client: APIClient, *members: Any, verb: str = "add") -> Any:
    ids = {"user_ids": [str(getattr(member, "pk", member)) for member in members]}
    return send(client, "POST", f"workspaces/research/members/{verb}", ids)


def remove(client: APIClient, *members: Any) -> Any:
    return add(client, *members, verb="remove")


def test_members_are_added_with_their_role_and_counted_once(
    management: APIClient, tenant: Tenant, workspace: Workspace
) -> None:
    first = make_member(tenant.organization, role=Member.Role.ADMIN)
    second = make_member(tenant.organization)
    response = add(management, first, first)
    [place] = workspace.memberships.all()
    assert response.status_code == 200
    assert response.json() == {"data": [shown(place)], "added_count": 1}
    assert (place.member, place.role) == (first, "admin")
    both = add(management, second, first)
    places = [shown(row) for row in workspace.memberships.all()]
    assert both.json() == {"data": places, "added_count": 1}
    assert [row["user_id"] for row in places] == [str(first.pk), str(second.pk)]
    with snapshots.unchanged():
        assert add(management, second, first).json() == {"data": places, "added_count": 0}
        assert add(management).json() == {"data": [], "added_count": 0}
    listed = management.get("/api/v1/workspaces/research/members")
    assert listed.json() == {"data": places, "total_count": 2}


def test_members_are_removed_and_counted_once(
    management: APIClient, tenant: Tenant, workspace: Workspace
) -> None:
    gone, left, never = (make_member(tenant.organization) for _ in range(3))
    workspace.add_members([gone, left])
    assert remove(management, gone, never, gone).json() == {"removed_count": 1}
    assert workspace.memberships.get().member == left
    with snapshots.unchanged():
        assert remove(management, gone, never).json() == {"removed_count": 0}


def test_the_list_is_paged(management: APIClient, tenant: Tenant, workspace: Workspace) -> None:
    members = [make_member(tenant.organization) for _ in range(51)]
    workspace.add_members(members)

    def page(query: str) -> tuple[list[str], int]:
        body = management.get(f"/api/v1/workspaces/research/members{query}").json()
        return [row["user_id"] for row in body["data"]], body["total_count"]

    ids = [str(place.member_id) for place in workspace.memberships.all()]
    assert set(ids) == {str(member.pk) for member in members}
    assert page("") == (ids[:50], 51)
    assert page("?limit=2&offset=50") == (ids[50:], 51)


def test_every_member_belongs_to_the_default_workspace(
    management: APIClient, tenant: Tenant
) -> None:
    path = "workspaces/default/members"
    members = [make_member(tenant.organization, role=role) for role in ("admin", "member")]
    make_member(factories.make_tenant("Other").organization)
    places = [shown(tenant.workspace.place_of(member)) for member in members]
    assert [(row["role"], row["created_at"]) for row in places] == [
        (member.role, stamp(member.created_at)) for member in members
    ]
    listed = management.get(f"/api/v1/{path}").json()
    assert listed == {"data": places, "total_count": 2}
    second = management.get(f"/api/v1/{path}?offset=1&limit=1").json()
    assert second == {"data": places[1:], "total_count": 2}
    ids = {"user_ids": [str(members[0].pk)]}
    with snapshots.unchanged():
        added = send(management, "POST", f"{path}/add", ids)
        assert added.json() == {"data": places[:1], "added_count": 0}
        removed = send(management, "POST", f"{path}/remove", ids)
    assert told(removed) == (400, "Members cannot be removed from the default workspace.")


def test_remove_refuses_the_whole_list_if_one_member_has_an_active_key(
    management: APIClient, tenant: Tenant, workspace: Workspace
) -> None:
    holder, other = make_member(tenant.organization), make_member(tenant.organization)
    workspace.add_members([holder, other])
    key = make_key(tenant, workspace=workspace, creator=holder)
    make_key(tenant, creator=other)
    with snapshots.unchanged():
        response = remove(management, other, holder)
    assert told(response) == (400, f"The member {holder.email} has active API keys here.")
    key.edit(disabled=True)
    assert remove(management, other, holder).json() == {"removed_count": 2}


@pytest.mark.parametrize("state", ["disabled", "revoked", "expired", "moved"])
def test_remove_ignores_inactive_and_moved_keys(
    tenant: Tenant, workspace: Workspace, state: str
) -> None:
    member = make_member(tenant.organization)
    workspace.add_members([member])
    key = make_key(tenant, workspace=workspace, creator=member)
    match state:
        case "disabled":
            key.edit(disabled=True)
        case "revoked":
            key.revoke()
        case "moved":
            key.edit(workspace_id=tenant.workspace.pk)
        case "expired":
            past = timezone.now() - timedelta(seconds=30)
            ApiKey.objects.filter(pk=key.pk).update(expires_at=past)
    assert workspace.remove_members([member]) == 1


def test_unknown_members_change_nothing(
    management: APIClient, tenant: Tenant, workspace: Workspace
) -> None:
    mine = make_member(tenant.organization)
    workspace.add_members([mine])
    foreign = make_member(factories.make_tenant("Other").organization)
    with snapshots.unchanged():
        for unknown in (foreign, uuid4(), "user-1", mine.pk.hex):
            for change in (add, remove):
                response = change(management, mine, unknown)
                assert (response.status_code, response.json()) == (404, missing("member"))


def test_a_member_who_was_deleted_meanwhile_joins_nothing(
    tenant: Tenant, workspace: Workspace
) -> None:
    stale = make_member(tenant.organization)
    guardrail = make_guardrail(workspace)
    remove_member(Member.objects.get(pk=stale.pk))
    with snapshots.unchanged():
        for attempt in (
            lambda: workspace.add_members([stale]),
            lambda: tenant.workspace.add_members([stale]),
            lambda: guardrail.assign_members([stale], by="test"),
            lambda: Subscription.objects.create_subscription(
                organization=tenant.organization, form="email", member=stale
            ),
        ):
            with pytest.raises(MemberNotFound):
                attempt()


@pytest.mark.parametrize(
    "text", ["null", '"x"', "5", "{}", "[5]", "[null]", '[""]', '["a\\u0000"]', f'["{"x" * 256}"]']
)
@pytest.mark.parametrize("verb", ["add", "remove"])
def test_malformed_lists_are_refused_by_name(
    management: APIClient, workspace: Workspace, verb: str, text: str
) -> None:
    path = f"workspaces/research/members/{verb}"
    assert refused(send(management, "POST", path, f'{{"user_ids": {text}}}')) == (400, {"user_ids"})
    assert refused(send(management, "POST", path, {})) == (400, {"user_ids"})
    extra = {"user_ids": [], "role": "admin"}
    assert refused(send(management, "POST", path, extra)) == (400, {"role"})


def test_a_list_has_at_most_1000_members(
    management: APIClient, tenant: Tenant, workspace: Workspace
) -> None:
    Member.objects.bulk_create(
        Member(organization=tenant.organization, email=f"{number}@example.com")
        for number in range(1001)
    )
    members = list(Member.objects.all())
    assert refused(add(management, *members)) == (400, {"user_ids"})
    assert add(management, *members[:1000]).json()["added_count"] == 1000
    assert remove(management, *members[:999]).json()["removed_count"] == 999


def test_concurrent_additions_add_a_member_once(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    make_workspace(tenant.organization, slug="research")
    member = make_member(tenant.organization)

    ids = {"user_ids": [str(member.pk)]}
    run = partial(ask_service, server, tenant, "POST", "workspaces/research/members/add", ids)
    answers = together(*[run] * 16)
    assert Counter(answer.json()["added_count"] for answer in answers) == {1: 1, 0: 15}
    assert WorkspaceMember.objects.get().member == member
