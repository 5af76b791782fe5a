"""``/workspaces``: workspaces are created, found by id or slug, changed and deleted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import (
    ApiKey,
    BudgetInterval,
    Guardrail,
    KeyAssignment,
    Preset,
    PresetVersion,
    Workspace,
    WorkspaceBudget,
    WorkspaceMember,
    WorkspaceNotFound,
)
from config.secrets import digest_api_key
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.limits import NO_LIMITS
from tests.support.database import snapshots
from tests.support.database.locks import waiting
from tests.support.factories import Tenant
from tests.support.governance import (
    caller,
    issue_key,
    make_guardrail,
    make_key,
    make_member,
    make_preset,
    make_workspace,
    missing,
    refused,
    send,
    stamp,
    status_of,
    told,
)

FULL: dict[str, Any] = {
    "name": "n" * 255,
    "slug": "research-and-development-2",
    "description": "d" * 4096,
    "default_text_model": "acme/falcon",
    "default_image_model": "acme/kestrel",
    "default_provider_sort": "latency",
    "disabled_server_tools": ["openrouter:web_search", "openrouter:bash"],
    "fallback": "any",
    "is_answer_storage_enabled": True,
    "is_response_caching_enabled": True,
    "is_observability_broadcast_enabled": True,
}
# Settings that nothing reads, or that name what does not exist, as earlier releases stored them.
STORED: dict[str, Any] = {
    "io_logging_api_key_ids": [0, 7, 2**63 - 1],
    "io_logging_sampling_rate": 0.0001,
    "is_data_discount_logging_enabled": True,
    "is_observability_io_logging_enabled": True,
}
PLAIN: dict[str, Any] = {
    **dict.fromkeys((
        "description", "default_text_model", "default_image_model", "default_provider_sort",
        "disabled_server_tools", "fallback", "io_logging_api_key_ids", "io_logging_retention_days",
    )),
    **dict.fromkeys((
        "is_answer_storage_enabled", "is_response_caching_enabled",
        "is_data_discount_logging_enabled", "is_observability_broadcast_enabled",
        "is_observability_io_logging_enabled",
    ), False),
    "io_logging_sampling_rate": 1.0,
}  # fmt: skip


def shown(workspace: Workspace, **changes: Any) -> dict[str, Any]:
    workspace.refresh_from_db()
    return {
        "id": str(workspace.pk),
        "name": workspace.name,
        "slug": workspace.slug,
        "default_guardrail_id": str(workspace.default_guardrail_id),
        **PLAIN,
        "rate_limits": NO_LIMITS,
        "include_byok_in_budgets": False,
        "created_by": None,
        "created_at": stamp(workspace.created_at),
        "updated_at": stamp(workspace.updated_at),
        **changes,
    }


def test_create_requires_only_a_name_and_a_slug(management: APIClient, tenant: Tenant) -> None:
    response = send(management, "POST", "workspaces", {"name": "Research", "slug": "research"})
    stored = Workspace.objects.get(slug="research")
    caller = ApiKey.objects.get(digest=digest_api_key(tenant.management_key))
    assert response.status_code == 201
    assert response.json() == {"data": shown(stored, created_by=f"key {caller.label}")}
    assert (stored.organization, stored.is_default) == (tenant.organization, False)


def test_create_stores_every_field(management: APIClient) -> None:
    data = send(management, "POST", "workspaces", FULL).json()["data"]
    assert {name: data[name] for name in FULL} == FULL
    stored = Workspace.objects.get(slug=FULL["slug"])
    assert management.get(f"/api/v1/workspaces/{stored.pk}").json() == {"data": data}


@pytest.mark.parametrize(
    ("field", "text", "stored"),
    [
        *(("slug", f'"{slug}"', slug) for slug in ("a", "0", "a-b-c", "x" * 64, "1-2")),
        ("description", '""', ""),
        ("disabled_server_tools", "[]", None),
        ("io_logging_api_key_ids", "[]", []),
        ("io_logging_sampling_rate", "1", 1.0),
        ("io_logging_sampling_rate", "1.0", 1.0),
        *((name, "false", False) for name, value in STORED.items() if value is True),
        *((name, json.dumps(value), value) for name, value in STORED.items()),
        *(
            ("default_provider_sort", f'"{sort}"', sort)
            for sort in ("price", "throughput", "latency", "exacto")
        ),
        *((name, "null", None) for name in PLAIN if PLAIN[name] is None),
    ],
)
def test_patch_stores_the_value(
    management: APIClient, tenant: Tenant, field: str, text: str, stored: Any
) -> None:
    full = FULL | STORED | {"name": "Full"}
    workspace = make_workspace(tenant.organization, **FULL | {"name": "Full"})
    Workspace.objects.filter(pk=workspace.pk).update(**STORED)
    response = send(management, "PATCH", f"workspaces/{workspace.pk}", f'{{"{field}": {text}}}')
    assert response.status_code == 200
    changed = full | {field: stored}
    assert response.json() == {"data": shown(workspace, **changed)}


def assert_never_stored(
    management: APIClient, tenant: Tenant, field: str, value: Any, words: str
) -> None:
    """Asserts that neither a new workspace nor a change takes the value, with a reason."""
    workspace = make_workspace(tenant.organization)
    with snapshots.unchanged():
        for method, path, body in (
            ("POST", "workspaces", {"name": "Research", "slug": "research", field: value}),
            ("PATCH", f"workspaces/{workspace.pk}", {"name": "Other", field: value}),
        ):
            response = send(management, method, path, body)
            assert refused(response) == (400, {field})
            assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("field", ["is_data_discount_logging_enabled"])
def test_a_setting_that_nothing_reads_cannot_be_switched_on(
    management: APIClient, tenant: Tenant, field: str
) -> None:
    assert_never_stored(management, tenant, field, True, "does not do this yet")


def test_input_output_logging_is_stored(management: APIClient, tenant: Tenant) -> None:
    key = make_key(tenant)
    wanted = {
        "is_observability_io_logging_enabled": True,
        "io_logging_api_key_ids": [key.number],
        "io_logging_retention_days": 7,
        "io_logging_sampling_rate": 0.25,
    }
    path = f"workspaces/{tenant.workspace.pk}"
    response = send(management, "PATCH", path, wanted)
    created = send(management, "POST", "workspaces", {"name": "R", "slug": "research", **wanted})
    assert (response.status_code, created.status_code) == (200, 201)
    for answer in (response, created):
        assert {name: answer.json()["data"][name] for name in wanted} == wanted
    shown_key = management.get(f"/api/v1/keys/{key.digest}").json()["data"]
    assert shown_key["number"] == key.number == key.pk.int % 2**53


@pytest.mark.parametrize(
    ("days", "field", "value", "words"),
    [
        (30, "io_logging_retention_days", 31, "at most 30, which the operator"),
        (0, "is_observability_io_logging_enabled", True, "IO_LOGGING_DAYS is 0"),
        (30, "io_logging_api_key_ids", [5], "no inference key with the number 5"),
        (30, "io_logging_api_key_ids", ["management"], "no inference key with the number"),
        (30, "io_logging_api_key_ids", ["other"], "no inference key with the number"),
    ],
)
def test_logging_that_would_not_happen_is_refused_by_name(
    management: APIClient, tenant: Tenant, settings: Any, days: int, field: str, value: Any,
    words: str,
) -> None:  # fmt: skip
    settings.IO_LOGGING_DAYS = days
    others = {
        "management": make_key(tenant, is_management=True),
        "other": make_key(factories.make_tenant("Other")),
    }
    if isinstance(value, list):
        value = [others[each].number if each in others else each for each in value]
    assert_never_stored(management, tenant, field, value, words)


TEXTS = ("name", "slug", "description", "default_text_model", "default_image_model")
# What the schema of a field refuses is tested with all other bodies in `tests/contract`.
MALFORMED: list[tuple[str, str]] = [
    *((name, '"a\\u0000b"') for name in TEXTS),
    *(("slug", f'"{slug}"') for slug in (
        "", "A", "a_b", "-a", "a-", "a--b", "a b", "a.b", "a/b", "é", "٣", "a\\n", " a", "😀",
    )),
    ("slug", '"01234567-89ab-cdef-0123-456789abcdef"'), ("slug", f'"{"0123456789abcdef" * 2}"'),
    ("io_logging_api_key_ids", "[1.0]"),
    *(("io_logging_sampling_rate", text) for text in ("0.00009", "0.00011", "1.0001", "1e-400")),
    *((name, "true") for name in (
        "id", "include_byok_in_budgets", "is_default", "default_guardrail_id", "created_by",
        "organization_id",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("field", "text"), MALFORMED)
def test_create_and_patch_refuse_invalid_fields_by_name(
    management: APIClient, tenant: Tenant, field: str, text: str
) -> None:
    path = f"workspaces/{tenant.workspace.pk}"
    with snapshots.unchanged():
        rest = ", ".join(f'"{name}": "new"' for name in ("name", "slug") if name != field)
        body = f'{{{rest}, "{field}": {text}}}'
        assert refused(send(management, "POST", "workspaces", body)) == (400, {field})
        assert refused(send(management, "PATCH", path, f'{{"{field}": {text}}}')) == (400, {field})


def test_create_names_the_missing_fields(management: APIClient) -> None:
    assert refused(send(management, "POST", "workspaces", {})) == (400, {"name", "slug"})


def test_a_slug_is_unique_in_an_organization(management: APIClient, tenant: Tenant) -> None:
    make_workspace(factories.make_tenant("Other").organization, slug="research")
    mine = make_workspace(tenant.organization, slug="mine")
    body = {"name": "Research", "slug": "research"}
    assert send(management, "POST", "workspaces", body).status_code == 201
    before = snapshots.everything()
    again = send(management, "POST", "workspaces", body)
    assert again.json() == {
        "error": {
            "code": 400,
            "message": "slug: Is taken by another workspace.",
            "metadata": {
                "error_type": "invalid_request",
                "fields": {"slug": "Is taken by another workspace."},
            },
        }
    }
    moved = send(management, "PATCH", f"workspaces/{mine.pk}", {"name": "x", "slug": "research"})
    assert moved.json() == again.json()
    assert snapshots.everything() == before
    same = send(management, "PATCH", f"workspaces/{mine.pk}", {"slug": "mine"})
    assert same.status_code == 200
    assert snapshots.everything() == before


def test_the_list_is_paged_oldest_first(management: APIClient, tenant: Tenant) -> None:
    rows = [tenant.workspace, *(make_workspace(tenant.organization) for _ in range(101))]
    make_workspace(factories.make_tenant("Other").organization)
    rows.pop(5).close()
    ids = [str(row.pk) for row in rows]

    def page(query: str) -> tuple[list[str], int]:
        body = management.get(f"/api/v1/workspaces{query}").json()
        return [row["id"] for row in body["data"]], body["total_count"]

    assert page("") == (ids[:50], 101)
    assert page("?limit=100") == (ids[:100], 101)
    assert page("?limit=1&offset=100") == (ids[100:], 101)
    assert page("?offset=101") == ([], 101)
    assert management.get("/api/v1/workspaces?limit=1").json()["data"] == [shown(tenant.workspace)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *((f"offset={value}", "offset") for value in ("-1", "x", "1.0")),
        *((f"limit={value}", "limit") for value in ("0", "101", "", "x")),
    ],
)
@pytest.mark.parametrize("path", ["workspaces", "workspaces/default/members"])
def test_lists_refuse_a_malformed_query(
    management: APIClient, path: str, query: str, field: str
) -> None:
    assert refused(management.get(f"/api/v1/{path}?{query}")) == (400, {field})


def test_a_workspace_is_found_by_id_or_slug(management: APIClient, tenant: Tenant) -> None:
    workspace = make_workspace(tenant.organization, name="Research", slug="research")
    for ref in (workspace.pk, str(workspace.pk).upper(), "research"):
        assert management.get(f"/api/v1/workspaces/{ref}").json() == {"data": shown(workspace)}
    renamed = send(management, "PATCH", "workspaces/research", {"slug": "lab"})
    assert renamed.json() == {"data": shown(workspace, slug="lab")}
    assert management.get("/api/v1/workspaces/research").json() == missing("workspace")


def test_foreign_deleted_and_unknown_workspaces_are_not_found(
    management: APIClient, tenant: Tenant
) -> None:
    foreign = make_workspace(factories.make_tenant("Other").organization, slug="foreign")
    gone = make_workspace(tenant.organization, slug="gone")
    gone.close()
    member = make_member(tenant.organization)
    with snapshots.unchanged():
        for ref in (
            foreign.pk, "foreign", gone.pk, "gone", gone.pk.hex, uuid4(), "DEFAULT", "%00",
            "x" * 99, tenant.workspace.pk.hex, "default%0A", "%F0%9F%98%80",
        ):  # fmt: skip
            path = f"workspaces/{ref}"
            ids = {"user_ids": [str(member.pk)]}
            for response in (
                send(management, "GET", path),
                send(management, "PATCH", path, {"name": "new"}),
                send(management, "DELETE", path),
                send(management, "DELETE", f"{path}?confirm_default_workspace_deletion=true"),
                send(management, "GET", f"{path}/members"),
                send(management, "POST", f"{path}/members/add", ids),
                send(management, "POST", f"{path}/members/remove", ids),
                send(management, "GET", f"{path}/budgets"),
                send(management, "GET", f"{path}/budgets/daily"),
                send(management, "PUT", f"{path}/budgets/daily", {"limit_usd": 1}),
                send(management, "DELETE", f"{path}/budgets/daily"),
            ):
                assert (ref, response.status_code) == (ref, 404)
                assert response.json() == missing("workspace")


def test_an_empty_patch_changes_nothing(management: APIClient, tenant: Tenant) -> None:
    with snapshots.unchanged():
        response = send(management, "PATCH", "workspaces/default", {})
        assert response.json() == {"data": shown(tenant.workspace)}


def test_delete_removes_budgets_guardrails_presets_and_members(
    management: APIClient, tenant: Tenant
) -> None:
    workspace = make_workspace(tenant.organization, slug="research")
    other = make_workspace(tenant.organization)
    for row in (workspace, other):
        row.set_budget(BudgetInterval.DAILY, limit_nano=1)
        row.add_members([make_member(tenant.organization)])
        make_guardrail(row).assign_keys([make_key(tenant)], by="test")
        Guardrail.objects.edit_workspace_default(row, description="of all")
        for text in ("Be kind.", "Be brief."):
            make_preset(row, system=text)
    response = send(management, "DELETE", "workspaces/research")
    assert (response.status_code, response.json()) == (200, {"deleted": True})
    workspace.refresh_from_db()
    assert (workspace.slug, workspace.deleted_at is None) == (workspace.pk.hex, False)
    assert WorkspaceBudget.objects.get().workspace == other
    assert WorkspaceMember.objects.get().workspace == other
    assert {row.workspace for row in Guardrail.objects.all()} == {other}
    assert KeyAssignment.objects.get().guardrail.workspace == other
    assert Preset.objects.get().workspace == other
    kept = PresetVersion.objects.values_list("preset__workspace", "system_prompt")
    assert set(kept) == {(other.pk, "Be kind."), (other.pk, "Be brief.")}
    again = send(management, "DELETE", f"workspaces/{workspace.pk}")
    assert (again.status_code, again.json()) == (404, missing("workspace"))
    body = {"name": "Research", "slug": "research"}
    assert send(management, "POST", "workspaces", body).status_code == 201


def test_delete_is_refused_while_the_workspace_has_an_active_key(
    management: APIClient, tenant: Tenant
) -> None:
    workspace = make_workspace(tenant.organization, slug="research")
    key = make_key(tenant, workspace=workspace)
    generation = factories.make_generation(tenant, api_key=key, workspace=workspace)
    with snapshots.unchanged():
        for query in ("", "?confirm_default_workspace_deletion=true"):
            response = send(management, "DELETE", f"workspaces/research{query}")
            assert told(response) == (
                400,
                "The workspace has active API keys. Delete, disable or move them first.",
            )
    key.edit(disabled=True)
    assert send(management, "DELETE", "workspaces/research").status_code == 200
    assert Generation.objects.get() == generation


@pytest.mark.parametrize("state", ["revoked", "expired", "moved", "management"])
def test_delete_ignores_inactive_moved_and_management_keys(tenant: Tenant, state: str) -> None:
    workspace = make_workspace(tenant.organization)
    key = make_key(tenant, workspace=workspace, is_management=state == "management")
    if state == "revoked":
        key.revoke()
    elif state == "expired":
        ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=30))
    elif state == "moved":
        key.edit(workspace_id=tenant.workspace.pk)
    workspace.close()
    key.refresh_from_db()
    assert key.disabled is (state in ("revoked", "expired"))


def test_a_management_key_of_a_deleted_workspace_is_paused_and_resumed(tenant: Tenant) -> None:
    workspace = make_workspace(tenant.organization)
    key, secret = issue_key(tenant, workspace=workspace, is_management=True)
    workspace.close()
    assert (key.pause(), status_of(secret)) == (True, 401)
    assert (key.resume(), status_of(secret)) == (True, 200)


def test_delete_of_the_default_workspace_needs_confirmation(
    management: APIClient, inference: APIClient
) -> None:
    with snapshots.unchanged():
        for query in ("", "?confirm_default_workspace_deletion=false"):
            response = send(management, "DELETE", f"workspaces/default{query}")
            assert refused(response) == (400, {"confirm_default_workspace_deletion"})
        bad = send(management, "DELETE", "workspaces/default?confirm_default_workspace_deletion=1")
    assert refused(bad) == (400, {"confirm_default_workspace_deletion"})
    path = "workspaces/default?confirm_default_workspace_deletion=true"
    assert send(management, "DELETE", path).json() == {"deleted": True}
    assert inference.get("/api/v1/key").status_code == 401
    current = management.get("/api/v1/key")
    assert (current.status_code, current.json()["data"]["workspace_id"]) == (200, None)
    assert management.get("/api/v1/workspaces").json() == {"data": [], "total_count": 0}


def test_requests_must_name_a_workspace_if_there_is_no_default(
    management: APIClient, tenant: Tenant
) -> None:
    factories.make_provider("acme")
    other = make_workspace(tenant.organization)
    credential = {"provider": "acme", "key": "test-credential-0123456789"}
    path = "workspaces/default?confirm_default_workspace_deletion=true"
    assert send(management, "DELETE", path).status_code == 200
    with snapshots.unchanged():
        for method, path, body in (
            ("GET", "keys", None),
            ("GET", "guardrails", None),
            ("POST", "keys", {"name": "key"}),
            ("POST", "guardrails", {"name": "rail"}),
            ("POST", "byok", credential),
        ):
            response = send(management, method, path, body)
            assert refused(response) == (400, {"workspace_id"}), path
            assert "there is no default workspace" in response.json()["error"]["message"]
    for path, body in (
        ("keys", {"name": "key"}),
        ("guardrails", {"name": "r"}),
        ("byok", credential),
    ):
        named = {**body, "workspace_id": str(other.pk)}
        assert send(management, "POST", path, named).status_code == 201
        assert management.get(f"/api/v1/{path}?workspace_id={other.pk}").status_code == 200


def test_a_deleted_workspace_refuses_every_change(tenant: Tenant) -> None:
    workspace = make_workspace(tenant.organization)
    key = make_key(tenant, workspace=workspace, disabled=True)
    elsewhere = make_key(tenant)
    stale = Workspace.objects.get(pk=workspace.pk)
    workspace.close()
    member = make_member(factories.make_tenant("Other").organization)
    with snapshots.unchanged():
        for attempt in (
            lambda: make_key(tenant, workspace=stale),
            lambda: make_guardrail(stale),
            lambda: Guardrail.objects.edit_workspace_default(stale),
            lambda: key.edit(disabled=False),
            lambda: elsewhere.edit(workspace_id=workspace.pk),
            lambda: stale.edit(name="new"),
            lambda: stale.set_budget(BudgetInterval.DAILY, limit_nano=1),
            lambda: stale.lift_budget(BudgetInterval.DAILY),
            lambda: stale.add_members([member]),
            lambda: stale.remove_members([member]),
            lambda: stale.close(),
        ):
            with pytest.raises(WorkspaceNotFound):
                attempt()


def test_close_locks_a_key_enabled_meanwhile_before_the_organization(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    tenant = factories.make_tenant()
    workspace = tenant.workspace
    late = make_key(tenant, disabled=True)

    def close() -> None:
        try:
            Workspace.objects.get(pk=workspace.pk).close(confirm_default=True)
        finally:
            connection.close()

    def admit() -> bool:
        """Locks the rows that an admission locks, in the same order."""
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    "SELECT disabled FROM accounts_apikey WHERE id = %s FOR SHARE", [late.pk]
                )
                [disabled] = cursor.fetchone()
                # Gives the closing thread time to lock the organization.
                cursor.execute("SELECT pg_sleep(0.5)")
                cursor.execute(
                    "SELECT id FROM accounts_organization WHERE id = %s FOR SHARE",
                    [tenant.organization.pk],
                )
                return bool(disabled)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            assert late.edit(disabled=False)
            closing = pool.submit(close)
            eventually(lambda: waiting() == 1)
            admitted = pool.submit(admit)
            eventually(lambda: waiting() == 2)
        assert admitted.result() is False
        closing.result()
    workspace.refresh_from_db()
    assert workspace.deleted_at is not None
    usable = ApiKey.objects.filter(workspace=workspace, is_management=False, disabled=False)
    assert not usable.exists()


@pytest.mark.parametrize("rate", ["0", "1.0001"])
def test_the_database_refuses_an_invalid_sampling_rate(tenant: Tenant, rate: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Workspace.objects.update(io_logging_sampling_rate=rate)


def test_concurrent_creates_give_the_slug_to_one_workspace(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    create = caller(server, tenant, "POST", "workspaces", {"name": "x", "slug": "research"})
    assert Counter(together(*[create] * 16)) == {201: 1, 400: 15}
    assert Workspace.objects.filter(slug="research").count() == 1


def test_keys_that_race_a_delete_leave_no_active_key_in_a_deleted_workspace(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    for _ in range(10):
        workspace = make_workspace(tenant.organization)
        moved = make_key(tenant, disabled=True)
        body = {"name": "key", "workspace_id": str(workspace.pk)}
        move = {"workspace_id": str(workspace.pk), "disabled": False}
        created, patched, closed = together(
            caller(server, tenant, "POST", "keys", body),
            caller(server, tenant, "PATCH", f"keys/{moved.digest}", move),
            caller(server, tenant, "DELETE", f"workspaces/{workspace.pk}"),
        )
        assert (created, patched, closed) in [(201, 200, 400), (404, 404, 200)]
        workspace.refresh_from_db()
        left = ApiKey.objects.filter(workspace=workspace).enabled().count()
        assert (workspace.deleted_at is None) == (left > 0) == (closed == 400)
