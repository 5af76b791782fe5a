"""``/keys``: inference keys are created, listed with their usage, changed, moved and deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import ApiKey, ApiKeyNotFound, LimitReset
from accounts.rotation import rotate_key
from config.secrets import digest_api_key, is_well_formed
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.limits import NO_LIMITS
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    caller,
    issue_key,
    make_key,
    make_keys,
    make_workspace,
    missing,
    named,
    refusal,
    send,
    stamp,
    usage_of,
)

ROUTE = "/api/v1/keys"
NO_KEY = missing("API key")


def post(client: APIClient, body: Any) -> Any:
    return send(client, "POST", "keys", body)


def patch(client: APIClient, key: ApiKey, body: Any) -> Any:
    return send(client, "PATCH", f"keys/{key.digest}", body)


def shown(key: ApiKey, **changes: Any) -> dict[str, Any]:
    key.refresh_from_db()
    return {
        "hash": key.digest,
        "number": key.pk.int % 2**53,
        "rotated_to": None,
        "name": key.name,
        "label": key.label,
        "workspace_id": str(key.workspace_id),
        "creator_user_id": None,
        "external_user": None,
        "disabled": False,
        "limit": None,
        "limit_remaining": None,
        "limit_reset": None,
        "include_byok_in_limit": False,
        "rate_limits": NO_LIMITS,
        **usage_of(0.0),
        "expires_at": None,
        "last_used_at": None,
        "created_at": stamp(key.created_at),
        "updated_at": stamp(key.updated_at),
        **changes,
    }


def test_create_shows_the_key_once(management: APIClient, tenant: Tenant) -> None:
    response = post(management, {"name": "CI"})
    assert response.status_code == 201
    stored = ApiKey.objects.get(name="CI")
    secret = response.json()["key"]
    assert response.json() == {"data": shown(stored), "key": secret}
    assert is_well_formed(secret)
    assert secret.startswith("sk-cw-")
    assert stored.digest == digest_api_key(secret)
    assert (stored.organization, stored.workspace) == (tenant.organization, tenant.workspace)
    assert stored.is_management is False
    assert factories.client(secret).get("/api/v1/key").status_code == 200
    listed = management.get(ROUTE).content + management.get(f"{ROUTE}/{stored.digest}").content
    assert secret not in listed.decode()


def test_create_stores_every_field(management: APIClient, tenant: Tenant) -> None:
    workspace = make_workspace(tenant.organization)
    body = {
        "name": "n" * 255,
        "workspace_id": str(workspace.pk),
        "limit": 12.5,
        "limit_reset": "weekly",
        "include_byok_in_limit": True,
        "expires_at": "2099-01-02T05:04:05.678+02:00",
        "external": {"user": "customer-42"},
        "creator_user_id": None,
    }
    data = post(management, body).json()["data"]
    stored = ApiKey.objects.get(name="n" * 255)
    assert data == shown(
        stored,
        limit=12.5,
        limit_remaining=12.5,
        limit_reset="weekly",
        include_byok_in_limit=True,
        expires_at="2099-01-02T03:04:05.678000Z",
        external_user="customer-42",
    )
    assert stored.workspace == workspace
    assert stored.limit_nano == 12_500_000_000
    assert stored.expires_at == datetime(2099, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fraction", "microseconds"),
    [(".1", 100_000), (".1234567", 123_456), (".999999999", 999_999)],
)
def test_an_expiry_may_have_up_to_nine_decimals(
    management: APIClient, fraction: str, microseconds: int
) -> None:
    body = {"name": "key", "expires_at": f"2099-01-02T03:04:05{fraction}Z"}
    assert post(management, body).status_code == 201
    stored = ApiKey.objects.get(name="key").expires_at
    assert stored == datetime(2099, 1, 2, 3, 4, 5, microseconds, tzinfo=UTC)


@pytest.mark.parametrize("field", ["expires_at", "limit", "limit_reset", "creator_user_id"])
def test_create_accepts_null(management: APIClient, field: str) -> None:
    assert post(management, {"name": "key", field: None}).status_code == 201
    stored = ApiKey.objects.get(name="key")
    assert (stored.expires_at, stored.limit_nano, stored.limit_reset) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("-0.0", 0),
        ("0.000000001", 1),
        ("1e-9", 1),
        ("0.1", 100_000_000),
        ("0.123456789", 123_456_789),
        ("5", 5_000_000_000),
        ("1.10000000000000000000000000", 1_100_000_000),
        ("1E2", 100_000_000_000),
        ("123456.789012345", 123_456_789_012_345),
        ("999999999.999999999", 999_999_999_999_999_999),
        ("1000000000", 10**18),
    ],
)
def test_a_limit_is_stored_exactly(management: APIClient, text: str, nano: int) -> None:
    response = post(management, f'{{"name": "key", "limit": {text}}}')
    assert response.status_code == 201
    assert ApiKey.objects.get(name="key").limit_nano == nano
    assert response.json()["data"]["limit"] == nano / 10**9


# What the schema of a field refuses is tested with all other bodies in `tests/contract`.
MALFORMED: list[tuple[str, str]] = [
    *(("limit", text) for text in (
        "0.0000000001", "0.1234567891", "1000000000.000000001", "1e-400", "1e-999999999",
    )),
    *(("name", text) for text in ('"a\\u0000b"', '"a\\n"', '"\\ud800"')),
    *(("workspace_id", text) for text in ('""', '"x"')),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *MALFORMED,
        *(("expires_at", f'"{text}"') for text in (
            "2099-01-02T03:04Z", "2099-01-02T03:04:05", "2099-01-02", "2099-01-02 03:04:05Z",
            "2099-01-02T03:04:05z", "2099-01-02T03:04:05+0200", "2099-01-02T03:04:60Z",
            "2099-02-30T03:04:05Z", "2099-01-02T24:00:00Z", "2099-01-02T03:04:05+24:00",
            "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", "2020-01-01T00:00:00Z", "",
            "2099-01-02T03:04:05Z\\n", "２099-01-02T03:04:05Z", "2099-01-02T03:04:05.1234567890Z",
            "20990102T030405Z",
        )),
        *(("external", f'{{"user": {text}}}') for text in (
            "null", '""', "5", '" a"', '"a "', '"a\\u0000b"',
        )),
        ("external", f'{{"user": "a", "api_key": "{"k" * 32}"}}'),
        *(("creator_user_id", text) for text in ('"user-1"', '""')),
        *((name, "true") for name in ("disabled", "is_management", "hash", "key", "usage")),
    ],
)  # fmt: skip
def test_create_refuses_invalid_fields_by_name(
    management: APIClient, field: str, text: str
) -> None:
    start = "{" if field == "name" else '{"name": "key", '
    with snapshots.unchanged():
        response = post(management, f'{start}"{field}": {text}}}')
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["metadata"]["error_type"] == "invalid_request"
    assert {name.partition(".")[0] for name in error["metadata"]["fields"]} == {field}


def test_create_requires_a_name(management: APIClient) -> None:
    response = post(management, {})
    assert response.json()["error"]["metadata"]["fields"] == {"name": "This field is required."}


def test_an_external_user_has_up_to_512_characters(management: APIClient) -> None:
    user = "😀" * 512
    data = post(management, {"name": "key", "external": {"user": user}}).json()["data"]
    assert data["external_user"] == ApiKey.objects.get(name="key").external_user == user


def test_create_and_list_and_move_refuse_a_foreign_workspace(
    management: APIClient, tenant: Tenant
) -> None:
    key = make_key(tenant)
    foreign = factories.make_tenant("Other").workspace.pk
    with snapshots.unchanged():
        for workspace_id in (foreign, uuid4()):
            for response in (
                post(management, {"name": "key", "workspace_id": str(workspace_id)}),
                management.get(f"{ROUTE}?workspace_id={workspace_id}"),
                patch(management, key, {"name": "new", "workspace_id": str(workspace_id)}),
            ):
                assert (response.status_code, response.json()) == (404, missing("workspace"))


def test_the_list_shows_the_inference_keys_of_the_default_workspace_latest_first(
    management: APIClient, tenant: Tenant
) -> None:
    first = ApiKey.objects.get(name="inference", organization=tenant.organization)
    second, third = make_key(tenant, "second"), make_key(tenant, "third")
    make_key(tenant, "manager", is_management=True)
    make_key(tenant, "elsewhere", workspace=make_workspace(tenant.organization))
    make_key(factories.make_tenant("Other"), "foreign")
    assert management.get(ROUTE).json() == {"data": [shown(third), shown(second), shown(first)]}


def test_the_list_filters(management: APIClient, tenant: Tenant) -> None:
    now = timezone.now()
    workspace = make_workspace(tenant.organization)
    ApiKey.objects.for_organization(tenant.organization.pk).for_inference().get().revoke()
    make_key(tenant, "plain")
    make_key(tenant, "disabled", disabled=True)
    make_key(tenant, "expired", expires_at=now - timedelta(seconds=1))
    make_key(tenant, "both", expires_at=now - timedelta(seconds=1), disabled=True)
    make_key(tenant, "later", expires_at=now + timedelta(hours=1))
    make_key(tenant, "elsewhere", workspace=workspace)

    def listed(query: str) -> list[str]:
        return [row["name"] for row in management.get(f"{ROUTE}?{query}").json()["data"]]

    assert listed("") == ["later", "plain"]
    assert listed("include_disabled=true") == ["later", "disabled", "plain"]
    assert listed("include_expired=true") == ["later", "expired", "plain"]
    every = ["later", "both", "expired", "disabled", "plain"]
    assert listed("include_expired=true&include_disabled=true") == every
    assert listed("include_disabled=false&unknown=1") == ["later", "plain"]
    assert listed(f"workspace_id={workspace.pk}") == ["elsewhere"]
    assert listed(f"workspace_id={tenant.workspace.pk}") == ["later", "plain"]
    ApiKey.objects.get(name="elsewhere").pause()
    workspace.close()
    assert listed(f"workspace_id={workspace.pk}&include_disabled=true") == ["elsewhere"]
    assert listed("offset=1") == ["plain"]
    assert listed("offset=2") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *((f"offset={value}", "offset") for value in ("-1", "x", "1.0", "1" * 19)),
        *((f"workspace_id={value}", "workspace_id") for value in ("", "x", "1")),
        *((f"include_disabled={value}", "include_disabled") for value in ("", "1", "yes")),
        *((f"include_expired={value}", "include_expired") for value in ("", "True", "0")),
    ],
)
def test_the_list_refuses_a_malformed_query(management: APIClient, query: str, field: str) -> None:
    assert named(management.get(f"{ROUTE}?{query}")) == (400, {field})


def test_the_list_names_the_least_offset(management: APIClient) -> None:
    error = management.get(f"{ROUTE}?offset=-1").json()["error"]
    assert error["message"] == "offset: Must be at least 0."
    assert management.get(f"{ROUTE}?offset=").status_code == 200


def test_the_list_refuses_a_field_by_which_it_cannot_be_filtered(management: APIClient) -> None:
    assert named(management.get(f"{ROUTE}?disabled=true")) == (400, {"disabled"})


def test_the_list_has_pages_of_100(management: APIClient, tenant: Tenant) -> None:
    start = timezone.now() + timedelta(hours=1)
    for key in make_keys(tenant, 101):
        ApiKey.objects.filter(pk=key.pk).update(created_at=start - timedelta(seconds=int(key.name)))

    def page(query: str) -> list[str]:
        return [row["name"] for row in management.get(f"{ROUTE}{query}").json()["data"]]

    assert page("") == [str(number) for number in range(100)]
    assert page("?offset=100") == ["100", "inference"]
    assert page("?offset=102") == []


def test_the_list_shows_the_usage_of_each_key(management: APIClient, tenant: Tenant) -> None:
    first = ApiKey.objects.get(name="inference", organization=tenant.organization)
    second = make_key(tenant, "second", limit_nano=10**9, limit_reset="daily")
    third = make_key(tenant, "third", limit_nano=10**9, include_byok_in_limit=True)
    now = timezone.now()
    long_ago = now - timedelta(days=40)
    factories.make_generation(tenant, api_key=first, cost_nano=1, created_at=long_ago)
    factories.make_generation(tenant, api_key=first, cost_nano=10**9, created_at=now)
    factories.make_generation(tenant, api_key=second, cost_nano=5 * 10**9, created_at=long_ago)
    factories.make_generation(tenant, api_key=second, cost_nano=250_000_000, created_at=now)
    for is_byok in (True, False):
        factories.make_generation(
            tenant,
            api_key=third,
            cost_nano=400_000_000,
            upstream_cost_nano=700_000_000,
            is_byok=is_byok,
            created_at=now,
        )
    assert management.get(ROUTE).json()["data"] == [
        shown(
            third,
            limit=1.0,
            limit_remaining=-0.5,
            include_byok_in_limit=True,
            last_used_at=stamp(now),
            **usage_of(0.8, byok=0.7),
        ),
        shown(
            second,
            limit=1.0,
            limit_remaining=0.75,
            limit_reset="daily",
            last_used_at=stamp(now),
            **usage_of(0.25) | {"usage": 5.25},
        ),
        shown(first, last_used_at=stamp(now), **usage_of(1.0) | {"usage": 1.000000001}),
    ]


def test_the_list_makes_the_same_queries_for_1_key_and_for_50(
    management: APIClient, tenant: Tenant, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(5):
        management.get(ROUTE)
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    for number in range(48):
        key = make_key(tenant, str(number))
        factories.make_generation(tenant, api_key=key, model_endpoint=endpoint, cost_nano=1)
    rotate_key(key, overlap=60)
    with django_assert_num_queries(5):
        assert len(management.get(ROUTE).json()["data"]) == 50


def test_get_finds_a_disabled_and_expired_key(management: APIClient, tenant: Tenant) -> None:
    expires_at = timezone.now() - timedelta(days=1)
    key = make_key(
        tenant, disabled=True, expires_at=expires_at, workspace=make_workspace(tenant.organization)
    )
    assert management.get(f"{ROUTE}/{key.digest}").json() == {
        "data": shown(key, disabled=True, expires_at=stamp(expires_at))
    }


def test_foreign_management_deleted_and_unknown_keys_are_not_found(
    management: APIClient, tenant: Tenant
) -> None:
    gone = make_key(tenant)
    gone.revoke()
    mine = make_key(tenant)
    wanted = [
        make_key(factories.make_tenant("Other")).digest, digest_api_key(tenant.management_key),
        gone.digest, "0" * 64, mine.digest.upper(), mine.digest[:-1], f"{mine.digest}0",
        f"{mine.digest}%0A", str(mine.pk), "x", "%00",
    ]  # fmt: skip
    with snapshots.unchanged():
        for digest in wanted:
            path = f"keys/{digest}"
            for method, body in (("GET", None), ("PATCH", {"disabled": True}), ("DELETE", None)):
                response = send(management, method, path, body)
                assert (digest, response.status_code, response.json()) == (digest, 404, NO_KEY)


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({"name": "new"}, {"name": "new"}),
        ({"disabled": True}, {"disabled": True}),
        *(({"limit": value}, {"limit": value, "limit_remaining": value}) for value in (2, 0, None)),
        ({"limit_reset": "monthly"}, {"limit_reset": "monthly"}),
        ({"limit_reset": None}, {"limit_reset": None}),
        ({"include_byok_in_limit": True}, {"include_byok_in_limit": True}),
    ],
)
def test_patch_changes_only_the_given_fields(
    management: APIClient, tenant: Tenant, body: dict[str, Any], changes: dict[str, Any]
) -> None:
    key = make_key(tenant, limit_nano=10**9, limit_reset="daily", external_user="a")
    before = shown(key, limit=1.0, limit_remaining=1.0, limit_reset="daily", external_user="a")
    response = patch(management, key, body)
    assert response.status_code == 200
    key.refresh_from_db()
    assert stamp(key.updated_at) > before["updated_at"]
    assert response.json() == {"data": before | changes | {"updated_at": stamp(key.updated_at)}}
    with snapshots.unchanged():
        assert patch(management, key, body).json() == response.json()


def test_patch_moves_a_key_and_keeps_its_value(management: APIClient, tenant: Tenant) -> None:
    secret = tenant.api_key
    key = ApiKey.objects.get(digest=digest_api_key(secret))
    factories.make_generation(tenant, cost_nano=10**9)
    workspace = make_workspace(tenant.organization)
    moved = patch(management, key, {"workspace_id": str(workspace.pk)}).json()["data"]
    assert (moved["workspace_id"], moved["usage"]) == (str(workspace.pk), 1.0)
    assert management.get(ROUTE).json() == {"data": []}
    assert management.get(f"{ROUTE}?workspace_id={workspace.pk}").json() == {"data": [moved]}
    current = factories.client(secret).get("/api/v1/key").json()["data"]
    assert current["workspace_id"] == str(workspace.pk)
    with snapshots.unchanged():
        assert patch(management, key, {"workspace_id": str(workspace.pk)}).json() == {"data": moved}
    assert Generation.objects.get().workspace == tenant.workspace


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *MALFORMED,
        *((name, "null") for name in (
            "expires_at", "external", "creator_user_id", "external_user", "hash", "updated_at",
        )),
    ],
)  # fmt: skip
def test_patch_refuses_invalid_fields_by_name(
    management: APIClient, tenant: Tenant, field: str, text: str
) -> None:
    key = make_key(tenant, limit_nano=10**9, limit_reset="daily")
    rest = "" if field == "name" else '"name": "new", '
    with snapshots.unchanged():
        response = patch(management, key, f'{{{rest}"{field}": {text}}}')
    assert named(response) == (400, {field})


def test_patch_refuses_an_empty_body(management: APIClient, tenant: Tenant) -> None:
    response = patch(management, make_key(tenant), {})
    assert response.status_code == 400
    message = "No update fields were provided."
    assert response.json() == refusal(400, "invalid_request", message)


def test_a_disabled_key_works_again_once_it_is_enabled(
    management: APIClient, inference: APIClient, tenant: Tenant
) -> None:
    key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
    statuses = []
    for disabled in (True, False):
        patch(management, key, {"disabled": disabled})
        statuses.append(inference.get("/api/v1/key").status_code)
    assert statuses == [401, 200]


def test_a_deleted_key_is_refused_and_keeps_its_generations(
    management: APIClient, inference: APIClient, tenant: Tenant
) -> None:
    key = ApiKey.objects.get(digest=digest_api_key(tenant.api_key))
    generation = factories.make_generation(tenant, cost_nano=1)
    response = management.delete(f"{ROUTE}/{key.digest}")
    assert (response.status_code, response.json()) == (200, {"deleted": True})
    assert inference.get("/api/v1/key").status_code == 401
    generation.refresh_from_db()
    assert generation.api_key == key
    again = management.delete(f"{ROUTE}/{key.digest}")
    assert (again.status_code, again.json()) == (404, NO_KEY)
    assert management.get(f"{ROUTE}?include_disabled=true").json() == {"data": []}


def test_a_credential_cannot_name_a_deleted_key(management: APIClient, tenant: Tenant) -> None:
    factories.make_provider("acme")
    key = make_key(tenant)
    key.revoke()
    body = {"provider": "acme", "key": "secret-0123456789", "allowed_api_key_hashes": [key.digest]}
    assert send(management, "POST", "byok", body).status_code == 400


def test_a_deleted_key_cannot_be_changed(tenant: Tenant) -> None:
    key = make_key(tenant)
    stale = ApiKey.objects.get(pk=key.pk)
    assert [key.revoke(), key.revoke()] == [True, False]
    with snapshots.unchanged(), pytest.raises(ApiKeyNotFound):
        stale.edit(disabled=False)


@pytest.mark.parametrize(
    "columns", [{"limit_nano": -1}, {"deleted_at": datetime(2026, 1, 1, tzinfo=UTC)}]
)
def test_the_database_refuses_an_invalid_key(tenant: Tenant, columns: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ApiKey.objects.update(**columns)


@pytest.mark.parametrize(
    ("reset", "now", "began", "ends"),
    [
        ("daily", (2026, 3, 1, 0, 0), (2026, 3, 1), (2026, 3, 2)),
        ("daily", (2026, 2, 28, 23, 59), (2026, 2, 28), (2026, 3, 1)),
        ("weekly", (2026, 3, 1, 23, 59), (2026, 2, 23), (2026, 3, 2)),
        ("weekly", (2026, 3, 2, 0, 0), (2026, 3, 2), (2026, 3, 9)),
        ("monthly", (2026, 1, 31, 12, 0), (2026, 1, 1), (2026, 2, 1)),
        ("monthly", (2024, 2, 29, 23, 59), (2024, 2, 1), (2024, 3, 1)),
        ("monthly", (2026, 12, 1, 0, 0), (2026, 12, 1), (2027, 1, 1)),
    ],
)
def test_limits_are_reset_at_midnight_utc(
    reset: str, now: tuple[int, ...], began: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    found = LimitReset(reset)
    moment = datetime(*now, tzinfo=UTC)  # type: ignore[arg-type]
    assert found.began_at(moment) == datetime(*began, tzinfo=UTC)  # type: ignore[arg-type]
    assert found.ends_at(moment) == datetime(*ends, tzinfo=UTC)  # type: ignore[arg-type]


def test_the_current_key_shows_its_limit_as_a_budget(tenant: Tenant) -> None:
    limits = {"limit_nano": 2 * 10**9, "limit_reset": "monthly", "include_byok_in_limit": True}
    key, secret = issue_key(tenant, **limits)
    now = timezone.now()
    began_at = LimitReset.MONTHLY.began_at(now)
    before = began_at - timedelta(microseconds=1)
    factories.make_generation(tenant, api_key=key, cost_nano=500_000_000, created_at=began_at)
    factories.make_generation(tenant, api_key=key, cost_nano=9 * 10**9, created_at=before)
    factories.make_generation(
        tenant, api_key=key, is_byok=True, upstream_cost_nano=250_000_000, created_at=now
    )
    data = factories.client(secret).get("/api/v1/key").json()["data"]
    budget = {
        "scope": "key_limit",
        "budget_id": None,
        "guardrail_id": None,
        "include_byok": True,
        "limit_usd": 2.0,
        "spend_usd": 0.75,
        "remaining_usd": 1.25,
        "reset_interval": "monthly",
        "resets_at": stamp(LimitReset.MONTHLY.ends_at(now)),
    }
    assert data["budgets"] == [budget]
    assert data["effective_budget"] == budget
    assert (data["limit"], data["limit_remaining"], data["limit_reset"]) == (2.0, 1.25, "monthly")
    assert data["include_byok_in_limit"] is True


def test_a_limit_without_reset_counts_all_spend(tenant: Tenant) -> None:
    key, secret = issue_key(tenant, limit_nano=10**9)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    factories.make_generation(tenant, api_key=key, cost_nano=2 * 10**9, created_at=long_ago)
    factories.make_generation(
        tenant, api_key=key, is_byok=True, upstream_cost_nano=10**9, created_at=long_ago
    )
    budget = factories.client(secret).get("/api/v1/key").json()["data"]["budgets"][0]
    assert (budget["spend_usd"], budget["remaining_usd"]) == (2.0, -1.0)
    assert (budget["reset_interval"], budget["resets_at"]) == (None, None)


def test_concurrent_deletes_delete_once(server: str, together: Callable[..., list[Any]]) -> None:
    tenant = factories.make_tenant()
    key = make_key(tenant)
    delete = caller(server, tenant, "DELETE", f"keys/{key.digest}")
    assert Counter(together(*[delete] * 32)) == {200: 1, 404: 31}


def test_patches_that_race_a_delete_never_restore_the_key(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    key = make_key(tenant)
    path = f"keys/{key.digest}"
    enable = caller(server, tenant, "PATCH", path, {"disabled": False, "name": "new"})
    answers = together(*[enable] * 31, caller(server, tenant, "DELETE", path))
    assert answers[-1] == 200
    assert set(answers[:-1]) <= {200, 404}
    key.refresh_from_db()
    assert (key.disabled, key.deleted_at is not None) == (True, True)
    assert enable() == 404


def test_concurrent_patches_of_different_fields_are_all_stored(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    key = make_key(tenant)
    bodies = [
        {"name": "new"},
        {"limit": 5},
        {"limit_reset": "daily"},
        {"include_byok_in_limit": True},
    ]
    path = f"keys/{key.digest}"
    calls = [caller(server, tenant, "PATCH", path, body) for body in bodies * 8]
    assert Counter(together(*calls)) == {200: 32}
    key.refresh_from_db()
    assert (key.name, key.limit_nano, key.limit_reset, key.include_byok_in_limit) == (
        "new", 5 * 10**9, "daily", True,
    )  # fmt: skip
