from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import requests
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, models, transaction
from django.db.utils import IntegrityError
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from rest_framework.test import APIClient

from accounts.models import ApiKey, Member
from billing import ledger
from catalog.models import ModelEndpoint, PriceVersion
from config.audit import context as audit
from config.audit.entries import AuditEntry
from config.audit.triggers import audit_triggers
from config.partitions.declarations import table_of
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from tests.support import factories
from tests.support.console import SECRET, SUBMIT, page
from tests.support.endpoints.creating import body_of
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_member, make_workspace
from tests.support.simulator.server import Simulator

LIST = "/admin/config/auditentry/"


def entries() -> list[tuple[Any, ...]]:
    columns = ("actor", "action", "kind", "object_id", "before", "after")
    return list(AuditEntry.objects.order_by("pk").values_list(*columns))


def named() -> list[str]:
    """Returns the actor and the action that the database connection has set."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(current_setting('causeway.actor', true), ''), "
            "coalesce(current_setting('causeway.action', true), '')"
        )
        return list(cursor.fetchone())


def member_form(**fields: str) -> dict[str, str]:
    form = {"email": "ada@example.com", "first_name": "Ada", "last_name": "", "role": "member"}
    return {**form, **fields}


def test_change_by_an_operator_records_the_differences(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization, email="ada@example.com", first_name="Ada")
    operator.post(page(member), member_form(role="admin", last_name="Lovelace"))

    assert entries() == [
        (
            "operator operator",
            "admin: accounts_member_change",
            "accounts.member",
            str(member.pk),
            {"role": "member", "last_name": None},
            {"role": "admin", "last_name": "Lovelace"},
        )
    ]
    assert AuditEntry.objects.get().organization_id == tenant.organization.pk


def test_form_that_changes_nothing_leaves_no_entry(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization, email="ada@example.com", first_name="Ada")
    operator.post(page(member), member_form())

    assert entries() == []


def test_bulk_action_leaves_one_entry_per_row(operator: Client, tenant: Tenant) -> None:
    users = [
        EndUser.objects.register(organization_id=tenant.organization.pk, user=name)
        for name in ("ann", "bob")
    ]
    chosen = {"_selected_action": [str(user.pk) for user in users], "confirmed": "yes"}
    operator.post("/admin/endusers/enduser/", {**chosen, "action": "deactivate_selected"})

    assert [(entry[1], entry[-2], entry[-1]) for entry in entries()] == [
        (
            "admin: endusers_enduser_changelist deactivate_selected",
            {"is_active": True},
            {"is_active": False},
        )
    ] * 2
    assert {entry[3] for entry in entries()} == {str(user.pk) for user in users}


def test_change_by_a_management_key_records_its_route(
    tenant: Tenant, management: APIClient
) -> None:
    key = ApiKey.objects.get(name="inference")
    manager = ApiKey.objects.get(name="management")
    response = management.patch(
        f"/api/v1/keys/{key.digest}", {"disabled": True}, headers={"X-Request-Id": "req-1"}
    )

    assert response.status_code == 200
    assert entries() == [
        (
            f"key {manager.label}",
            "PATCH /api/v1/keys/{hash}",
            "accounts.apikey",
            str(key.pk),
            {"disabled": False},
            {"disabled": True},
        )
    ]
    entry = AuditEntry.objects.get()
    assert (entry.request_id, entry.organization_id) == ("req-1", tenant.organization.pk)


def test_an_action_names_its_route_whatever_the_values_are(
    tenant: Tenant, management: APIClient
) -> None:
    for slug in ("a", "budgets"):
        make_workspace(tenant.organization, slug=slug)
    management.patch("/api/v1/workspaces/a", {"name": "A"})
    management.put("/api/v1/workspaces/budgets/budgets/daily", {"limit_usd": 1})
    assert [entry[1] for entry in entries()] == [
        "PATCH /api/v1/workspaces/{workspace_ref}",
        "PUT /api/v1/workspaces/{workspace_ref}/budgets/{interval}",
    ]


def test_entries_of_created_and_deleted_rows_hold_the_whole_row(
    operator: Client, tenant: Tenant
) -> None:
    guardrail = make_guardrail(tenant.workspace)
    member = make_member(tenant.organization)
    guardrail.assign_members([member], by="test")
    operator.post(page(guardrail, "remove"), SUBMIT)

    found = {entry[2]: entry for entry in entries()}
    assert set(found) == {"accounts.guardrail", "accounts.memberassignment"}
    *_, before, after = found["accounts.guardrail"]
    assert (before["name"], before["id"], after) == (guardrail.name, str(guardrail.pk), None)
    *_, before, after = found["accounts.memberassignment"]
    assert (before["assigned_by"], before["member_id"]) == ("test", str(member.pk))
    owners = AuditEntry.objects.values_list("organization_id", flat=True)
    assert set(owners) == {tenant.organization.pk}


def test_refused_change_leaves_no_entry(
    operator: Client, tenant: Tenant, management: APIClient
) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    operator.post(page(endpoint, "activate"), SUBMIT)
    operator.post(page(make_member(tenant.organization)), member_form(email="no address"))
    management.post("/api/v1/end-users", {"user": ""})
    management.post(f"/api/v1/private-endpoints/{endpoint.pk}/activate", {})

    assert entries() == []


def test_reading_leaves_no_entry_and_sets_no_actor(operator: Client, tenant: Tenant) -> None:
    with CaptureQueriesContext(connection) as queries:
        operator.get(page(tenant.organization))

    assert not any("set_config" in query["sql"] for query in queries)
    assert entries() == []


def test_no_actor_remains_after_a_request(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrappers = list(connection.execute_wrappers)
    member = make_member(tenant.organization)
    operator.post(page(member), member_form())
    operator.post(page(member), member_form(email="no address"))
    monkeypatch.setattr(Member, "save_fields", _fail)
    with pytest.raises(ZeroDivisionError):
        operator.post(page(member), member_form(first_name="Bob"))
    monkeypatch.undo()
    before = AuditEntry.objects.count()
    assert (before, connection.execute_wrappers) == (1, wrappers)

    member.role = "admin"
    member.save_fields("role")

    assert AuditEntry.objects.count() == before


def _fail(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.django_db(transaction=True)
def test_actor_is_cleared_at_the_end_of_the_transaction() -> None:
    tenant = factories.make_tenant()
    with audit.acting_as("operator ann", "test"):
        EndUser.objects.create(organization=tenant.organization, user="one")
        assert named() == ["", ""]
        with pytest.raises(IntegrityError):
            EndUser.objects.create(organization=tenant.organization, user="one")
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                EndUser.objects.create(organization=tenant.organization, user="two")
                raise ZeroDivisionError
            EndUser.objects.create(organization=tenant.organization, user="three")
        connection.close()
        EndUser.objects.create(organization=tenant.organization, user="four")
    EndUser.objects.create(organization=tenant.organization, user="five")

    found = [entry[-1]["user"] for entry in entries()]
    assert found == ["one", "three", "four"]
    assert named() == ["", ""]


def test_secrets_are_masked(operator: Client, tenant: Tenant) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    operator.post(page(credential, "rotate"), {**SUBMIT, "secret": SECRET})
    operator.post(
        page(provider),
        {"name": "Acme", "dialect": "openai", "base_url": provider.base_url, "secret": SECRET},
    )
    somebody = User.objects.create_user("somebody", password="the old password 1")
    operator.post(
        f"/admin/auth/user/{somebody.pk}/password/",
        {"password1": "a long new password", "password2": "a long new password"},
    )
    operator.post(
        reverse("admin:accounts_apikey_add"), {"workspace": str(tenant.workspace.pk), "name": "CI"}
    )

    found = {entry[2]: entry for entry in entries()}
    for sealed in found["accounts.byokcredential"][-2:]:
        assert sealed["sealed"] == "********"
    assert found["catalog.provider"][-1]["sealed_credential"] == "********"
    assert found["auth.user"][-2:] == ({"password": "********"}, {"password": "********"})
    assert found["accounts.apikey"][-1]["digest"] == "********"
    text = str(entries())
    key = ApiKey.objects.get(name="CI")
    for hidden in (SECRET, SECRET.encode().hex(), key.digest, "pbkdf2", "x5c"):
        assert hidden not in text


# The audit log keeps no texts that callers send to models, and no searches of operators.
PROMPTS = {"accounts.presetversion": {"config", "system_prompt"}, "config.savedview": {"query"}}


def test_every_secret_column_is_masked(db: None) -> None:
    """Triggers must mask every binary column and every column named digest, password or key."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'pgtrigger_audit_%'"
        )
        # The triggers of a partition are those of its table.
        tables = {table_of(table) for (table,) in cursor.fetchall()}
    declared = audit_triggers()
    assert tables == {apps.get_model(kind)._meta.db_table for kind in declared}
    for kind, trigger in declared.items():
        columns = trigger.masked
        fields = apps.get_model(kind)._meta.concrete_fields
        assert {""} | set(columns) == {""} | PROMPTS.get(kind, set()) | {
            field.column
            for field in fields
            if isinstance(field, models.BinaryField)
            or field.column in ("digest", "password", "key")
        }, kind


def test_operators_rights_are_audited(operator: Client) -> None:
    somebody = User.objects.create_user("somebody")
    group = Group.objects.create(name="Helpers")
    right = Permission.objects.get(codename="view_organization")
    form = {"username": "somebody", "is_active": "on", "date_joined_0": "2026-01-01"}
    operator.post(
        page(somebody),
        {**form, "date_joined_1": "00:00:00", "is_staff": "on", "groups": [str(group.pk)]},
    )
    operator.post(page(group), {"name": "Helpers", "permissions": [str(right.pk)]})

    found = [(entry[2], entry[3], entry[-2], entry[-1]) for entry in entries()]
    assert found == [
        ("auth.user", str(somebody.pk), {"is_staff": False}, {"is_staff": True}),
        ("auth.user_groups", str(somebody.pk), None,
         {"user_id": somebody.pk, "group_id": group.pk}),
        ("auth.group_permissions", str(group.pk), None,
         {"group_id": group.pk, "permission_id": right.pk}),
    ]  # fmt: skip


@pytest.mark.parametrize("sees", [True, False])
def test_entries_about_operators_are_for_those_who_see_operators(
    viewer: Client, sees: bool
) -> None:
    if not sees:
        right = Permission.objects.get(codename="view_user")
        User.objects.get(username="viewer").user_permissions.remove(right)
    audit.record_sign_in("x", "signed_in", account="ann", address="", detail="")
    for kind in ("auth.user_groups", "otp_totp.totpdevice", "accounts.member"):
        AuditEntry.objects.create(actor="x", action="x", kind=kind, object_id="1", after={})
    listed = viewer.get(LIST)
    kinds = {entry.kind for entry in listed.context["cl"].result_list}
    about = {"auth.user_groups", "otp_totp.totpdevice", "sign_in"}
    assert kinds == ({"accounts.member"} | about if sees else {"accounts.member"})
    assert ("?kind=sign_in" in listed.text) is sees
    entry = AuditEntry.objects.get(kind="sign_in")
    assert (viewer.get(page(entry)).status_code == 200) is sees


def test_login_leaves_only_the_entry_of_the_sign_in(db: None) -> None:
    User.objects.create_superuser("operator", password="a long enough password")
    Client().post("/admin/login/", {"username": "operator", "password": "a long enough password"})

    [(actor, action, kind, *_)] = entries()
    assert (actor, action, kind) == ("operator operator", "sign-in: signed_in", "sign_in")


def test_price_change_shows_both_prices(operator: Client) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    old = endpoint.price
    form = {
        "prompt": "500000", "completion": "1000000", "image": "0", "request": "0",
        "is_listed": "on", "context_length": "131072", "supported_parameters": "",
    }  # fmt: skip
    operator.post(page(endpoint), form)

    new = PriceVersion.objects.order_by("-id")[0]
    by_kind = {entry[2]: entry for entry in entries()}
    assert by_kind["catalog.modelendpoint"][-2:] == ({"price_id": old.pk}, {"price_id": new.pk})
    assert by_kind["catalog.priceversion"][-1]["prompt"] == 0.5
    assert ModelEndpoint.objects.get().price == new


def test_grants_and_refunds_are_audited_and_requests_are_not(tenant: Tenant) -> None:
    with audit.acting_as("operator ann", "test"):
        transfer = ledger.grant(tenant.organization.pk, 5, actor="operator ann")

    [(*_, kind, object_id, before, after)] = entries()
    assert (kind, object_id, before) == ("billing.transfer", str(transfer.pk), None)
    assert (after["kind"], after["amount_nano"]) == ("grant", 5)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger "
            "WHERE tgname LIKE 'pgtrigger_audit_%' AND tgrelid = 'billing_transfer'::regclass"
        )
        [definition] = cursor.fetchone()
    assert "AFTER INSERT ON" in definition
    assert "'grant'" in definition
    assert "'refund'" in definition


def test_entries_cannot_be_updated_or_deleted(tenant: Tenant) -> None:
    entry = audit.record_import("ann", "test", organization_id=None, counts={"created": 1})

    for change in (
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(actor="bob"),
        lambda: AuditEntry.objects.filter(pk=entry.pk).delete(),
    ):
        with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
            change()
    assert AuditEntry.objects.get().actor == "ann"


def test_import_is_one_entry(tenant: Tenant) -> None:
    entry = audit.record_import(
        "command import_end_users by root",
        "command import_end_users",
        organization_id=tenant.organization.pk,
        counts={"created": {"end_users": 3}},
    )

    assert (entry.kind, entry.before) == ("import", None)
    assert entry.after == {"created": {"end_users": 3}}
    assert AuditEntry.objects.count() == 1


def test_command_is_recorded_with_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")

    assert audit.command_actor("grant_credits") == "command grant_credits by ann"


def test_concurrent_requests_keep_their_actors(
    server: str, simulator: Simulator, together: Callable[..., list[Any]]
) -> None:
    """Each request releases its database connection while it waits for the upstream."""
    tenants = [factories.make_tenant(f"Tenant {number}") for number in range(4)]
    model, provider = factories.make_model(), factories.make_provider()
    for tenant in tenants:
        factories.make_credential(tenant, provider)

    def create(tenant: Tenant) -> int:
        activate = {"workspace_id": str(tenant.workspace.pk)}
        body = body_of(model, provider, base_url=simulator.base_url, activate=activate)
        headers = {"Authorization": f"Bearer {tenant.management_key}"}
        answer = requests.post(
            f"{server}/api/v1/private-endpoints", json=body, headers=headers, timeout=30
        )
        return answer.status_code

    assert together(*(lambda tenant=tenant: create(tenant) for tenant in tenants)) == [201] * 4
    for tenant in tenants:
        endpoint = PrivateEndpoint.objects.get(organization=tenant.organization)
        manager = ApiKey.objects.get(organization=tenant.organization, is_management=True)
        found = AuditEntry.objects.filter(object_id=str(endpoint.pk)).order_by("pk")
        assert {entry.actor for entry in found} == {f"key {manager.label}"}
        assert {entry.action for entry in found} == {"POST /api/v1/private-endpoints"}
        assert next(entry.change for entry in found) == "created"
        assert (found.last().before["status"], found.last().after["status"]) == ("draft", "active")
    before = AuditEntry.objects.count()
    answer = requests.post(
        f"{server}/api/v1/chat/completions",
        json={"model": model.slug, "messages": [{"role": "user", "content": "Hi"}]},
        headers={"Authorization": f"Bearer {tenants[0].api_key}"},
        timeout=30,
    )
    assert (answer.status_code, AuditEntry.objects.count()) == (200, before)


def _world(tenant: Tenant) -> tuple[AuditEntry, ...]:
    with audit.acting_as("operator ann", "admin: enduser"):
        end_user = EndUser.objects.register(organization_id=tenant.organization.pk, user="<b>1")
        end_user.deactivate()
    with audit.acting_as("key mk-cw-…", "POST /api/v1/keys"):
        ApiKey.objects.create_key(workspace=tenant.workspace, name="CI")
    audit.record_import("command x by y", "command x", organization_id=None, counts={"made": 2})
    return tuple(AuditEntry.objects.order_by("pk"))


def test_page_shows_before_and_after(operator: Client, tenant: Tenant) -> None:
    _, changed, *_ = _world(tenant)
    text = operator.get(page(changed)).content.decode()

    row = re.search(r">is_active</td>.*?</tr>", text, re.DOTALL)
    assert row is not None
    assert re.findall(r"<(?:del|ins)[^>]*>(\w+)<", row[0]) == ["true", "false"]
    assert reverse("admin:endusers_enduser_change", args=[changed.object_id]) in text
    assert "<b>1" not in operator.get(LIST).content.decode()


def test_list_is_searched_and_filtered(operator: Client, tenant: Tenant) -> None:
    created, changed, issued, imported = _world(tenant)

    def found(**query: str) -> list[AuditEntry]:
        return list(operator.get(LIST, query).context["cl"].result_list)

    assert found() == [imported, issued, changed, created]
    assert "<span>4 audit entries</span>" in operator.get(LIST).content.decode()
    assert found(q="ANN") == [changed, created]
    assert found(q=created.object_id) == [changed, created]
    assert found(q=str(tenant.organization.pk)) == [issued, changed, created]
    assert found(q="acm") == [issued, changed, created]
    assert found(q="100%") == []
    assert found(kind="accounts.apikey") == [issued]
    assert found(kind="import") == [imported]
    assert found(at__gte="2100-01-01 00:00:00+00:00") == []
    assert found(at__lt="2100-01-01 00:00:00+00:00") == [imported, issued, changed, created]


def test_list_makes_the_same_queries_for_3_rows_and_for_30(
    operator: Client, tenant: Tenant
) -> None:
    counts = []
    for added in (3, 27):
        for number in range(added):
            name = f"user {EndUser.objects.count()}"
            with audit.acting_as(f"operator {number}", "test"):
                EndUser.objects.register(organization_id=tenant.organization.pk, user=name)
        operator.get(LIST)
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(LIST).context["cl"].result_count in (3, 30)
        counts.append(len(queries))

    assert counts[0] == counts[1]


def test_a_kind_of_a_later_release_is_shown_by_its_name(operator: Client) -> None:
    for kind in ("accounts.later", "later"):
        entry = AuditEntry.objects.create(actor="x", action="x", kind=kind, object_id="1", after={})
        for path in (LIST, page(entry)):
            assert kind in operator.get(path).text


def test_history_of_a_row_is_its_audit_log(operator: Client, tenant: Tenant) -> None:
    created, changed, *_ = _world(tenant)
    row = EndUser.objects.get()

    assert page(row, "history") in operator.get(page(row)).content.decode()
    answer = operator.get(page(row, "history"), follow=True)

    assert answer.status_code == 200
    assert list(answer.context["cl"].result_list) == [changed, created]


def test_no_operator_can_add_change_or_delete_entries(operator: Client, tenant: Tenant) -> None:
    entry, *_ = _world(tenant)

    assert operator.get(f"{LIST}add/").status_code == 403
    for verb in ("change", "delete"):
        assert operator.post(page(entry, verb), {"actor": "x", "post": "yes"}).status_code == 403
    assert AuditEntry.objects.get(pk=entry.pk).actor == "operator ann"
