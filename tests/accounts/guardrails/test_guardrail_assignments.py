"""``/guardrails/…/assignments``: a key or a member has at most one assigned guardrail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from accounts.models import ApiKey, Guardrail, KeyAssignment, Member, MemberAssignment, policy_of
from config.secrets import digest_api_key
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    ask_service,
    caller,
    make_guardrail,
    make_key,
    make_keys,
    make_member,
    missing,
    refused,
    send,
    stamp,
)

FIELDS = {"keys": "key_hashes", "members": "member_user_ids"}
KINDS = pytest.mark.parametrize("kind", ["keys", "members"])


def make(tenant: Tenant, kind: str) -> Any:
    return make_key(tenant) if kind == "keys" else make_member(tenant.organization)


def name_of(subject: Any) -> str:
    return subject.digest if isinstance(subject, ApiKey) else str(getattr(subject, "pk", subject))


def change(
    client: APIClient, guardrail: Guardrail, kind: str, *subjects: Any, verb: str = ""
) -> Any:
    path = f"guardrails/{guardrail.pk}/assignments/{kind}{verb}"
    return send(client, "POST", path, {FIELDS[kind]: [name_of(subject) for subject in subjects]})


def listed(client: APIClient, path: str) -> Any:
    return client.get(f"/api/v1/guardrails/{path}").json()


def rows(kind: str) -> Any:
    return KeyAssignment.objects.all() if kind == "keys" else MemberAssignment.objects.all()


def shown(row: Any) -> dict[str, Any]:
    common = {
        "id": str(row.pk),
        "guardrail_id": str(row.guardrail_id),
        "assigned_by": row.assigned_by,
        "created_at": stamp(row.created_at),
    }
    if isinstance(row, KeyAssignment):
        key = row.api_key
        return common | {"key_hash": key.digest, "key_name": key.name, "key_label": key.label}
    return common | {
        "organization_id": str(row.member.organization_id),
        "user_id": str(row.member_id),
    }


@KINDS
def test_assign_replaces_the_guardrail_and_counts_changes(
    management: APIClient, tenant: Tenant, kind: str
) -> None:
    first, second = make_guardrail(tenant.workspace), make_guardrail(tenant.workspace)
    one, two = make(tenant, kind), make(tenant, kind)
    caller = ApiKey.objects.get(digest=digest_api_key(tenant.management_key))
    response = change(management, first, kind, one, one, two)
    assert (response.status_code, response.json()) == (200, {"assigned_count": 2})
    assert {row.assigned_by for row in rows(kind)} == {f"key {caller.label}"}
    with snapshots.unchanged():
        assert change(management, first, kind, one, two).json() == {"assigned_count": 0}
        assert change(management, first, kind).json() == {"assigned_count": 0}
    assert change(management, second, kind, two).json() == {"assigned_count": 1}
    assert change(management, second, kind, one, two).json() == {"assigned_count": 1}
    assert [row.guardrail for row in rows(kind)] == [second, second]


@KINDS
def test_unassign_counts_only_subjects_of_this_guardrail(
    management: APIClient, tenant: Tenant, kind: str
) -> None:
    first, second = make_guardrail(tenant.workspace), make_guardrail(tenant.workspace)
    one, two, none = (make(tenant, kind) for _ in range(3))
    change(management, first, kind, one)
    change(management, second, kind, two)
    removed = change(management, first, kind, one, two, none, verb="/remove")
    assert (removed.status_code, removed.json()) == (200, {"unassigned_count": 1})
    assert rows(kind).get().guardrail == second
    with snapshots.unchanged():
        again = change(management, first, kind, one, two, none, verb="/remove")
    assert again.json() == {"unassigned_count": 0}


@KINDS
def test_assignments_are_listed_for_one_guardrail_and_for_all(
    management: APIClient, tenant: Tenant, kind: str
) -> None:
    first, second = make_guardrail(tenant.workspace), make_guardrail(tenant.workspace)
    other = factories.make_tenant("Other")
    change(factories.client(other.management_key), make_guardrail(other.workspace), kind,
           make(other, kind))  # fmt: skip
    change(management, first, kind, *(make(tenant, kind) for _ in range(2)))
    change(management, second, kind, make(tenant, kind))
    own = [shown(row) for row in rows(kind) if row.guardrail.organization == tenant.organization]
    assert listed(management, f"assignments/{kind}") == {"data": own, "total_count": 3}
    of_first = f"{first.pk}/assignments/{kind}"
    assert listed(management, of_first) == {"data": own[:2], "total_count": 2}
    second_page = listed(management, f"{of_first}?limit=1&offset=1")
    assert second_page == {"data": own[1:2], "total_count": 2}
    assert listed(management, f"assignments/{kind}?offset=3") == {"data": [], "total_count": 3}
    for path in (of_first, f"assignments/{kind}"):
        for query, field in (("limit=0", "limit"), ("limit=101", "limit"), ("offset=x", "offset")):
            response = management.get(f"/api/v1/guardrails/{path}?{query}")
            assert refused(response) == (400, {field})


def test_a_list_makes_the_same_queries_for_1_key_and_for_50(
    management: APIClient, tenant: Tenant, django_assert_num_queries: Any
) -> None:
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_keys([make_key(tenant)], by="test")
    path = f"/api/v1/guardrails/{guardrail.pk}/assignments/keys"
    with django_assert_num_queries(4):
        management.get(path)
    guardrail.assign_keys([make_key(tenant, str(number)) for number in range(49)], by="test")
    with django_assert_num_queries(4):
        assert len(management.get(path).json()["data"]) == 50


@KINDS
def test_an_unknown_key_or_member_refuses_the_whole_request(
    management: APIClient, tenant: Tenant, kind: str
) -> None:
    guardrail, mine = make_guardrail(tenant.workspace), make(tenant, kind)
    foreign = make(factories.make_tenant("Other"), kind)
    unknown: list[Any] = [foreign, uuid4(), "0" * 64, "x"]
    if kind == "keys":
        gone = make_key(tenant)
        gone.revoke()
        unknown += [gone, make_key(tenant, is_management=True), mine.digest.upper()]
    with snapshots.unchanged():
        for subject in unknown:
            for verb in ("", "/remove"):
                response = change(management, guardrail, kind, mine, subject, verb=verb)
                what = "API key" if kind == "keys" else "member"
                assert (response.status_code, response.json()) == (404, missing(what))


@KINDS
@pytest.mark.parametrize("verb", ["", "/remove"])
@pytest.mark.parametrize("text", ["null", '"x"', "5", "{}", "[5]", "[null]", '[""]'])
def test_malformed_lists_are_refused_by_name(
    management: APIClient, tenant: Tenant, kind: str, verb: str, text: str
) -> None:
    path = f"guardrails/{make_guardrail(tenant.workspace).pk}/assignments/{kind}{verb}"
    field = FIELDS[kind]
    assert refused(send(management, "POST", path, f'{{"{field}": {text}}}')) == (400, {field})
    assert refused(send(management, "POST", path, {})) == (400, {field})
    assert refused(send(management, "POST", path, {field: [], "by": "x"})) == (400, {"by"})


def test_a_list_has_at_most_1000_keys(management: APIClient, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    keys = make_keys(tenant, 1001)
    assert refused(change(management, guardrail, "keys", *keys)) == (400, {"key_hashes"})
    assert change(management, guardrail, "keys", *keys[:1000]).json() == {"assigned_count": 1000}
    removed = change(management, guardrail, "keys", *keys[:999], verb="/remove")
    assert removed.json() == {"unassigned_count": 999}


def test_a_guardrail_applies_to_the_key_and_to_every_key_of_the_member(tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    mine = make_key(tenant, creator=member)
    both = make_key(tenant, creator=member)
    nobodys = make_key(tenant)
    of_member = make_guardrail(tenant.workspace, ignored_providers=["acme"])
    of_key = make_guardrail(tenant.workspace, ignored_providers=["globex"])
    of_member.assign_members([member], by="test")
    of_key.assign_keys([both], by="test")
    ignored = [policy_of(key).ignore for key in (mine, both, nobodys)]
    assert ignored == [{"acme"}, {"acme", "globex"}, set()]
    assert of_member.unassign_members([member]) == 1
    assert [policy_of(key).ignore for key in (mine, both)] == [set(), {"globex"}]


def test_an_assignment_survives_a_move_of_its_key_and_ends_with_the_key(
    management: APIClient, tenant: Tenant
) -> None:
    guardrail, key = make_guardrail(tenant.workspace), make_key(tenant)
    guardrail.assign_keys([key], by="test")
    body = {"name": "Research", "slug": "research"}
    workspace = send(management, "POST", "workspaces", body).json()["data"]
    send(management, "PATCH", f"keys/{key.digest}", {"workspace_id": workspace["id"]})
    assert listed(management, "assignments/keys")["total_count"] == 1
    key.revoke()
    assert listed(management, "assignments/keys") == {"data": [], "total_count": 0}
    assert listed(management, f"{guardrail.pk}/assignments/keys")["total_count"] == 0


@KINDS
def test_concurrent_assignments_leave_one_guardrail(
    server: str, together: Callable[..., list[Any]], kind: str
) -> None:
    tenant = factories.make_tenant()
    subject = make(tenant, kind)
    guardrails = [make_guardrail(tenant.workspace) for _ in range(8)]

    def assign(guardrail: Guardrail, verb: str = "") -> Callable[[], Any]:
        path = f"guardrails/{guardrail.pk}/assignments/{kind}{verb}"
        body = {FIELDS[kind]: [name_of(subject)]}
        return lambda: ask_service(server, tenant, "POST", path, body).json()

    answers = together(*(assign(guardrail) for guardrail in guardrails))
    assert answers == [{"assigned_count": 1}] * 8
    last = rows(kind).get().guardrail
    again = together(*[assign(last)] * 4, *[assign(last, "/remove")] * 4)
    removed = Counter(answer.get("unassigned_count") for answer in again)
    assigned = Counter(answer.get("assigned_count") for answer in again)
    # The subject starts assigned, so effective removals and assignments alternate,
    # beginning with a removal.
    assert removed[1] - assigned[1] == 1 - rows(kind).count()


@KINDS
def test_assignments_that_race_a_delete_leave_no_row(
    server: str, together: Callable[..., list[Any]], kind: str
) -> None:
    tenant = factories.make_tenant()
    subject: ApiKey | Member = make(tenant, kind)
    body = {FIELDS[kind]: [name_of(subject)]}
    for _ in range(8):
        path = f"guardrails/{make_guardrail(tenant.workspace).pk}"
        assigned, deleted = together(
            caller(server, tenant, "POST", f"{path}/assignments/{kind}", body),
            caller(server, tenant, "DELETE", path),
        )
        assert (assigned in (200, 404), deleted) == (True, 200)
        assert not rows(kind).exists()
