"""``/guardrails``: limits of keys and members, and how ``GET /key`` shows them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import (
    ApiKey,
    BudgetInterval,
    Guardrail,
    GuardrailNotFound,
    LimitReset,
    Workspace,
    policy_of,
)
from accounts.policy import Family, Policy
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import (
    issue_key,
    make_guardrail,
    make_key,
    make_member,
    make_workspace,
    missing,
    refused,
    send,
    stamp,
)

ZDR = [f"enforce_zdr_{name}" for name in ("anthropic", "google", "openai", "xai", "other")]
SWITCHES = [
    "allow_safety_retention_google", "allow_safety_retention_other",
    "enable_free_model_publication", "enable_free_model_training", "enable_paid_model_training",
    "require_private",
]  # fmt: skip
PLAIN: dict[str, Any] = {
    "description": None,
    "allowed_models": None,
    "ignored_models": None,
    "allowed_providers": None,
    "ignored_providers": None,
    "allowed_data_regions": None,
    "enforce_zdr": None,
    **dict.fromkeys(ZDR),
    **dict.fromkeys(SWITCHES),
    "content_filters": None,
    "content_filter_builtins": None,
    "limit_usd": None,
    "reset_interval": None,
    "include_byok_in_budgets": False,
}


@pytest.fixture
def _catalogue(db: None) -> None:
    factories.make_model("acme/falcon")
    factories.make_model("acme/kestrel")
    factories.make_provider("acme")
    factories.make_provider("globex", is_listed=False)


@pytest.fixture
def guardrail(tenant: Tenant) -> Guardrail:
    return make_guardrail(tenant.workspace)


def shown(guardrail: Guardrail, **changes: Any) -> dict[str, Any]:
    guardrail.refresh_from_db()
    return {
        "id": str(guardrail.pk),
        "workspace_id": str(guardrail.workspace_id),
        "name": guardrail.name,
        **PLAIN,
        "created_at": stamp(guardrail.created_at),
        "updated_at": stamp(guardrail.updated_at),
        **changes,
    }


def patch(client: APIClient, guardrail: Guardrail, body: Any) -> Any:
    return send(client, "PATCH", f"guardrails/{guardrail.pk}", body)


def test_create_requires_only_a_name(management: APIClient, tenant: Tenant) -> None:
    response = send(management, "POST", "guardrails", {"name": "Strict"})
    stored = Guardrail.objects.get()
    assert response.status_code == 201
    assert response.json() == {"data": shown(stored)}
    assert (stored.organization, stored.workspace) == (tenant.organization, tenant.workspace)
    assert stored.policy == Policy()


@pytest.mark.usefixtures("_catalogue")
def test_create_stores_every_field(management: APIClient, tenant: Tenant) -> None:
    workspace = make_workspace(tenant.organization)
    fields: dict[str, Any] = {
        "name": "n" * 255,
        "description": "d" * 4096,
        "allowed_models": ["acme/falcon", "acme/kestrel-2026-01-01", "acme/falcon-2026-01-01"],
        "ignored_models": ["acme/kestrel"],
        "allowed_providers": ["globex", "acme", "globex"],
        "ignored_providers": [],
        "allowed_data_regions": ["us", "europe", "us"],
        **dict.fromkeys(ZDR, False),
        "enforce_zdr": True,
        **dict.fromkeys(SWITCHES, False),
        "content_filters": [
            {"action": "redact", "pattern": "p" * 512},
            {"action": "block", "pattern": "secret-[0-9]+", "label": "[PROJECT]"},
            {"action": "block", "pattern": "x", "label": "X", "block_unreadable": True},
            {"action": "flag", "pattern": "y", "label": "Y", "block_unreadable": False},
        ],
        "content_filter_builtins": [
            {"action": "flag", "slug": "email", "label": "mine", "scan_scope": "user_only"},
            {"action": "block", "slug": "ssn", "block_unreadable": True},
            {"action": "block", "slug": "regex-prompt-injection"},
        ],
        "limit_usd": 12.5,
        "reset_interval": "weekly",
        "include_byok_in_budgets": True,
        "workspace_id": str(workspace.pk),
    }
    response = send(management, "POST", "guardrails", fields)
    assert response.status_code == 201, response.json()
    stored = Guardrail.objects.get()
    answered = fields | {
        "allowed_models": ["acme/falcon-2026-01-01", "acme/kestrel-2026-01-01"],
        "ignored_models": ["acme/kestrel-2026-01-01"],
        "allowed_providers": ["globex", "acme"],
        "allowed_data_regions": ["us", "europe"],
        "content_filters": [
            {"action": "redact", "pattern": "p" * 512, "label": None},
            {"action": "block", "pattern": "secret-[0-9]+", "label": "[PROJECT]"},
            {"action": "block", "pattern": "x", "label": "X", "block_unreadable": True},
            {"action": "flag", "pattern": "y", "label": "Y"},
        ],
        "content_filter_builtins": [
            {"action": "flag", "slug": "email", "label": "[EMAIL]"},
            {"action": "block", "slug": "ssn", "label": "[SSN]", "block_unreadable": True},
            {
                "action": "block",
                "slug": "regex-prompt-injection",
                "label": "[PROMPT_INJECTION]",
                "scan_scope": "all_messages",
            },
        ],
    }
    assert response.json() == {"data": shown(stored, **answered)}
    assert stored.limit_nano == 12_500_000_000
    assert management.get(f"/api/v1/guardrails/{stored.pk}").json() == response.json()
    assert stored.policy == Policy.of(
        only=["acme", "globex"],
        models=["acme/falcon-2026-01-01", "acme/kestrel-2026-01-01"],
        ignored_models=["acme/kestrel-2026-01-01"],
        no_retention=Family,
        no_free_retention=True,
        no_training=True,
        ingress_regions=["us", "europe"],
    )


@pytest.mark.parametrize("value", [True, False, None])
def test_enforce_zdr_sets_the_families_that_are_not_sent(
    management: APIClient, guardrail: Guardrail, value: bool | None
) -> None:
    sent = {"enforce_zdr": value, "enforce_zdr_google": True, "enforce_zdr_other": False}
    expected = dict.fromkeys(ZDR, value) | sent
    created = send(management, "POST", "guardrails", {"name": "x", **sent}).json()["data"]
    assert {name: created[name] for name in expected} == expected
    assert patch(management, guardrail, dict.fromkeys(ZDR, True)).status_code == 200
    changed = patch(management, guardrail, sent).json()["data"]
    assert {name: changed[name] for name in expected} == expected
    guardrail.refresh_from_db()
    wanted = set(Family) if value else {Family.GOOGLE}
    assert guardrail.policy.zdr == wanted - {Family.OTHER}


LABELS = {
    "email": "EMAIL", "phone": "PHONE", "ssn": "SSN", "credit-card": "CREDIT_CARD",
    "ip-address": "IP_ADDRESS", "secrets": "SECRET",
}  # fmt: skip
# An entry as it is sent, and what differs of it as it is stored.
BUILTINS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"action": "redact", "slug": slug}, {"label": f"[{LABELS[slug]}]"}) for slug in LABELS),
    (
        {"action": "flag", "slug": "phone", "regions": ["DE", "AT", "DE"]},
        {"label": "[PHONE]", "regions": ["DE", "AT"]},
    ),
]


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize(
    ("body", "changes"),
    [
        *(
            (fields, fields)
            for fields in (
                {"name": "new"},
                {"description": ""},
                {"allowed_models": []},
                {"allowed_models": None},
                {"allowed_providers": ["globex"]},
                {"ignored_providers": None},
                {"allowed_data_regions": ["global", "europe", "us"]},
                {"allowed_data_regions": None},
                *({name: False} for name in (*ZDR, *SWITCHES)),
                {"content_filters": []},
                {"content_filters": None},
                {"content_filter_builtins": None},
                {"limit_usd": 0},
                {"reset_interval": "monthly"},
                {"limit_usd": None, "reset_interval": None},
                {"include_byok_in_budgets": True},
            )
        ),
        ({"ignored_models": ["acme/falcon"]}, {"ignored_models": ["acme/falcon-2026-01-01"]}),
        *(
            ({"content_filter_builtins": [sent]}, {"content_filter_builtins": [{**sent, **stored}]})
            for sent, stored in BUILTINS
        ),
    ],
)
def test_patch_changes_only_the_given_fields(
    management: APIClient, tenant: Tenant, body: dict[str, Any], changes: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {
        "allowed_models": ["acme/kestrel-2026-01-01"],
        "ignored_providers": ["acme"],
        "allowed_data_regions": ["us"],
        "content_filters": [{"action": "flag", "pattern": "x", "label": None}],
        "content_filter_builtins": [{"slug": "ssn", "action": "block", "label": "[SSN]"}],
        "reset_interval": "daily",
    }
    guardrail = make_guardrail(tenant.workspace, limit_nano=10**9, **fields)
    before = shown(guardrail, limit_usd=1.0, **fields)
    response = patch(management, guardrail, body)
    assert response.status_code == 200
    guardrail.refresh_from_db()
    assert stamp(guardrail.updated_at) > before["updated_at"]
    updated = {"updated_at": stamp(guardrail.updated_at)}
    assert response.json() == {"data": before | changes | updated}
    with snapshots.unchanged():
        assert patch(management, guardrail, body).json() == response.json()


LISTS = ("allowed_models", "ignored_models", "allowed_providers", "ignored_providers")
BLOCK = '"action": "block"'
TOO_LARGE = "Must be simpler: use fewer repetitions or smaller character classes."
UNRUNNABLE = {
    "(": "Must be a pattern in the syntax of RE2: missing ): (.",
    "a(?=b)": "Must be a pattern in the syntax of RE2: invalid perl operator: (?=.",
    r"(a)\1": r"Must be a pattern in the syntax of RE2: invalid escape sequence: \1.",
    "x{1001}": "Must be a pattern in the syntax of RE2: invalid repetition size: {1001}.",
    r"\pL{1,100}": TOO_LARGE,
    r"(?i)[\pL\pN]{30}": TOO_LARGE,
    "a*": "Must not match the empty text.",
    "a|": "Must not match the empty text.",
}
# What the schema of a field refuses is tested with all other bodies in `tests/contract`.
MALFORMED: list[tuple[str, str]] = [
    ("name", '"a\\n"'),
    *((name, '["acme/none"]') for name in LISTS),
    ("allowed_data_regions", "[]"),
    *(("content_filters", text) for text in (
        "[{}]", f"[{{{BLOCK}}}]", '[{"pattern": "x"}]',
        '[{"action": "drop", "pattern": "x"}]', f'[{{{BLOCK}, "pattern": ""}}]',
        f'[{{{BLOCK}, "pattern": 5}}]', f'[{{{BLOCK}, "pattern": "{"p" * 513}"}}]',
        f'[{{{BLOCK}, "pattern": "a\\u0000"}}]', f'[{{{BLOCK}, "pattern": "x", "more": 1}}]',
        f'[{{{BLOCK}, "pattern": "x", "label": 5}}]',
        f'[{{{BLOCK}, "pattern": "x", "block_unreadable": "yes"}}]',
        '[{"action": "redact", "pattern": "x", "block_unreadable": true}]',
        f'[{{{BLOCK}, "pattern": "x", "label": "{"l" * 256}"}}]',
        *(f'[{{{BLOCK}, "pattern": {json.dumps(pattern)}}}]' for pattern in UNRUNNABLE),
    )),
    *(("content_filter_builtins", text) for text in (
        "[{}]", '[{"slug": "email"}]', f"[{{{BLOCK}}}]",
        f'[{{{BLOCK}, "slug": "person-name"}}]', f'[{{{BLOCK}, "slug": "address"}}]',
        f'[{{{BLOCK}, "slug": "Email"}}]', '[{"action": "drop", "slug": "email"}]',
        f'[{{{BLOCK}, "slug": "email"}}, {{"action": "flag", "slug": "email"}}]',
        f'[{{{BLOCK}, "slug": "email", "more": 1}}]',
        '[{"action": "flag", "slug": "email", "block_unreadable": true}]',
        f'[{{{BLOCK}, "slug": "regex-prompt-injection", "scan_scope": "all"}}]',
        f'[{{{BLOCK}, "slug": "phone", "regions": ["XX"]}}]',
        f'[{{{BLOCK}, "slug": "phone", "regions": ["us"]}}]',
        f'[{{{BLOCK}, "slug": "phone", "regions": []}}]',
        f'[{{{BLOCK}, "slug": "phone", "regions": "US"}}]',
        f'[{{{BLOCK}, "slug": "phone", "regions": {json.dumps(["US"] * 21)}}}]',
        f'[{{{BLOCK}, "slug": "email", "regions": ["US"]}}]',
    )),
    ("limit_usd", "0.0000000001"),
    *((name, "true") for name in ("id", "organization_id", "created_at", "policy")),
]  # fmt: skip


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize(("field", "text"), MALFORMED)
def test_create_and_patch_refuse_invalid_fields_by_name(
    management: APIClient, tenant: Tenant, field: str, text: str
) -> None:
    guardrail = make_guardrail(tenant.workspace, limit_nano=1, reset_interval="daily")
    name = "" if field == "name" else '"name": "new", '
    body = f'{{{name}"{field}": {text}}}'
    with snapshots.unchanged():
        assert refused(send(management, "POST", "guardrails", body)) == (400, {field})
        assert refused(patch(management, guardrail, f'{{"{field}": {text}}}')) == (400, {field})


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize("field", LISTS)
def test_a_list_keeps_what_has_left_the_catalogue(
    management: APIClient, tenant: Tenant, field: str
) -> None:
    known = "globex" if field.endswith("providers") else "acme/kestrel-2026-01-01"
    guardrail = make_guardrail(tenant.workspace, **{field: ["gone"]})
    with snapshots.unchanged():
        answer = patch(management, guardrail, {field: ["gone", known, "unknown"]})
        assert refused(answer) == (400, {field})
    answer = patch(management, guardrail, {field: ["gone", known]})
    assert (answer.status_code, answer.json()["data"][field]) == (200, ["gone", known])


@pytest.mark.parametrize(("pattern", "message"), UNRUNNABLE.items())
def test_a_pattern_that_cannot_be_run_is_refused_with_the_reason(
    management: APIClient, guardrail: Guardrail, pattern: str, message: str
) -> None:
    entries = [{"action": "flag", "pattern": "fine"}, {"action": "flag", "pattern": pattern}]
    with snapshots.unchanged():
        answer = patch(management, guardrail, {"content_filters": entries})
    assert answer.status_code == 400
    metadata = {"error_type": "invalid_request", "fields": {"content_filters.1.pattern": message}}
    assert answer.json()["error"]["metadata"] == metadata


def test_create_refuses_a_missing_name_and_a_malformed_workspace(management: APIClient) -> None:
    assert refused(send(management, "POST", "guardrails", {})) == (400, {"name"})
    for text in ("null", '"default"', "5"):
        body = f'{{"name": "x", "workspace_id": {text}}}'
        assert refused(send(management, "POST", "guardrails", body)) == (400, {"workspace_id"})


def test_patch_refuses_to_move_a_guardrail(management: APIClient, guardrail: Guardrail) -> None:
    body = {"workspace_id": str(guardrail.workspace_id)}
    assert refused(patch(management, guardrail, body)) == (400, {"workspace_id"})


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("allowed_models", "acme/none", "acme/none is not a model of the catalogue."),
        ("ignored_models", "acme", "acme is not a model of the catalogue."),
        ("allowed_providers", "initech", "initech is not a provider of the catalogue."),
        ("ignored_providers", "Acme", "Acme is not a provider of the catalogue."),
    ],
)
def test_the_error_names_models_and_providers_outside_the_catalogue(
    management: APIClient, field: str, name: str, message: str
) -> None:
    body = {"name": "x", field: [name]}
    error = send(management, "POST", "guardrails", body).json()["error"]
    assert (error["code"], error["message"]) == (400, f"{field}: {message}")


@pytest.mark.usefixtures("_catalogue")
def test_lists_have_at_most_1000_entries_and_100_filters(management: APIClient) -> None:
    entry = {"action": "flag", "pattern": "x"}
    for field, item, most in (("allowed_providers", "acme", 1000), ("content_filters", entry, 100)):
        for length, status in ((most - 1, 201), (most, 201), (most + 1, 400)):
            body = {"name": "x", field: [item] * length}
            assert send(management, "POST", "guardrails", body).status_code == status


@pytest.mark.parametrize(
    ("body", "field"),
    [({"limit_usd": 1}, "reset_interval"), ({"reset_interval": "daily"}, "limit_usd")],
)
def test_limit_and_reset_interval_require_each_other(
    management: APIClient, tenant: Tenant, guardrail: Guardrail, body: dict[str, Any], field: str
) -> None:
    whole = make_guardrail(tenant.workspace, limit_nano=1, reset_interval="daily")
    with snapshots.unchanged():
        created = send(management, "POST", "guardrails", {"name": "x", **body})
        default = f"guardrails/{tenant.workspace.default_guardrail_id}"
        for response in (
            created,
            send(management, "POST", "guardrails", {"name": "x", **body, field: None}),
            patch(management, guardrail, body),
            patch(management, whole, {field: None}),
            send(management, "PATCH", default, body),
        ):
            assert refused(response) == (400, {field})
    assert created.json()["error"]["message"] == (
        f"{field}: Must go together with {next(iter(body))}."
    )


@pytest.mark.parametrize(
    "columns", [{"limit_nano": -1}, {"limit_nano": None}, {"reset_interval": None}]
)
def test_the_database_refuses_an_invalid_guardrail(tenant: Tenant, columns: dict[str, Any]) -> None:
    make_guardrail(tenant.workspace, limit_nano=1, reset_interval="daily")
    with pytest.raises(IntegrityError), transaction.atomic():
        Guardrail.objects.update(**columns)


def test_the_list_is_paged_and_shows_one_workspace(management: APIClient, tenant: Tenant) -> None:
    rows = [make_guardrail(tenant.workspace, name=str(number)) for number in range(51)]
    other = make_workspace(tenant.organization)
    elsewhere = make_guardrail(other)
    make_guardrail(factories.make_tenant("Other").workspace)

    def page(query: str) -> tuple[list[str], int]:
        body = management.get(f"/api/v1/guardrails{query}").json()
        return [row["id"] for row in body["data"]], body["total_count"]

    ids = [str(row.pk) for row in rows]
    assert page("") == (ids[:50], 51)
    assert page("?limit=1&offset=50") == (ids[50:], 51)
    assert page(f"?workspace_id={tenant.workspace.pk}&limit=100") == (ids, 51)
    assert page(f"?workspace_id={other.pk}") == ([str(elsewhere.pk)], 1)
    for query, field in (
        ("offset=-1", "offset"), ("limit=0", "limit"), ("limit=101", "limit"),
        ("workspace_id=default", "workspace_id"),
    ):  # fmt: skip
        assert refused(management.get(f"/api/v1/guardrails?{query}")) == (400, {field})


def test_foreign_workspaces_are_not_found(management: APIClient) -> None:
    foreign = factories.make_tenant("Other").workspace.pk
    with snapshots.unchanged():
        for workspace_id in (foreign, uuid4()):
            body = {"name": "x", "workspace_id": str(workspace_id)}
            for response in (
                send(management, "POST", "guardrails", body),
                management.get(f"/api/v1/guardrails?workspace_id={workspace_id}"),
            ):
                assert (response.status_code, response.json()) == (404, missing("workspace"))


def test_foreign_and_unknown_guardrails_are_not_found(
    management: APIClient, tenant: Tenant, guardrail: Guardrail
) -> None:
    other = factories.make_tenant("Other")
    foreign = make_guardrail(other.workspace)
    key = ApiKey.objects.get(name="inference", organization=tenant.organization)
    keys = {"key_hashes": [key.digest]}
    members = {"member_user_ids": [str(make_member(tenant.organization).pk)]}
    with snapshots.unchanged():
        for wanted in (
            foreign.pk, other.workspace.default_guardrail_id, uuid4(), guardrail.pk.hex,
            f"{guardrail.pk}%0A", "x", "%00",
        ):  # fmt: skip
            path = f"guardrails/{wanted}"
            for response in (
                send(management, "GET", path),
                send(management, "PATCH", path, {"name": "new"}),
                send(management, "DELETE", path),
                send(management, "GET", f"{path}/assignments/keys"),
                send(management, "POST", f"{path}/assignments/keys", keys),
                send(management, "POST", f"{path}/assignments/keys/remove", keys),
                send(management, "GET", f"{path}/assignments/members"),
                send(management, "POST", f"{path}/assignments/members", members),
                send(management, "POST", f"{path}/assignments/members/remove", members),
            ):
                assert (wanted, response.status_code) == (wanted, 404)
                assert response.json() == missing("guardrail")


def test_the_first_change_creates_the_default_guardrail_of_a_workspace(
    management: APIClient, tenant: Tenant
) -> None:
    workspace = Workspace.objects.get(pk=tenant.workspace.pk)
    shown_id = management.get("/api/v1/workspaces/default").json()["data"]["default_guardrail_id"]
    path = f"guardrails/{shown_id}"
    for method in ("GET", "DELETE"):
        assert send(management, method, path).json() == missing("guardrail")
    assert send(management, "PATCH", path, {"limit_usd": -1}).status_code == 400
    assert Guardrail.objects.count() == 0
    made = send(management, "PATCH", path, {"enforce_zdr": True})
    stored = Guardrail.objects.get()
    expected = dict.fromkeys((*ZDR, "enforce_zdr"), True)
    assert (made.status_code, made.json()) == (200, {"data": shown(stored, **expected)})
    assert (str(stored.pk), stored.workspace) == (shown_id, workspace)
    assert stored.name == "Workspace default"
    changed = send(management, "PATCH", path, {"name": "For all"})
    assert changed.json() == {"data": shown(stored, **expected, name="For all")}
    key = ApiKey.objects.get(name="inference")
    assert policy_of(key).zdr == set(Family)
    assert send(management, "DELETE", path).json() == {"deleted": True}
    assert policy_of(key) == Policy()
    assert send(management, "PATCH", path, {}).status_code == 200


def test_a_deleted_guardrail_no_longer_applies(management: APIClient, guardrail: Guardrail) -> None:
    key = ApiKey.objects.get(name="inference")
    guardrail.edit(ignored_providers=["acme"])
    guardrail.assign_keys([key], by="test")
    assert policy_of(key).ignore == {"acme"}
    stale = Guardrail.objects.get()
    response = send(management, "DELETE", f"guardrails/{guardrail.pk}")
    assert (response.status_code, response.json()) == (200, {"deleted": True})
    assert policy_of(key) == Policy()
    with snapshots.unchanged():
        again = send(management, "DELETE", f"guardrails/{guardrail.pk}")
        assert (again.status_code, again.json()) == (404, missing("guardrail"))
        for attempt in (
            lambda: stale.edit(name="new"),
            lambda: stale.assign_keys([key], by="test"),
            lambda: stale.unassign_keys([key]),
            stale.remove,
        ):
            with pytest.raises(GuardrailNotFound):
                attempt()


def test_the_current_key_lists_its_budgets_in_the_order_of_enforcement(tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    key, secret = issue_key(tenant, creator=member, limit_nano=8 * 10**9)
    sibling = make_key(tenant, "second", creator=member)
    default = Guardrail.objects.edit_workspace_default(
        tenant.workspace, limit_nano=10**9, reset_interval="daily", include_byok_in_budgets=True
    )
    of_member = make_guardrail(tenant.workspace, limit_nano=2 * 10**9, reset_interval="weekly")
    of_key = make_guardrail(tenant.workspace, limit_nano=3 * 10**9, reset_interval="monthly")
    of_member.assign_members([member], by="test")
    of_key.assign_keys([key], by="test")
    lifetime = tenant.workspace.set_budget(BudgetInterval.LIFETIME, limit_nano=7 * 10**9)
    daily = tenant.workspace.set_budget(BudgetInterval.DAILY, limit_nano=4 * 10**9)
    now = timezone.now()
    long_ago = now - timedelta(days=40)
    spent: list[dict[str, Any]] = [
        {"api_key": key, "cost_nano": 10**8},
        {"api_key": key, "cost_nano": 10**8, "is_byok": True, "upstream_cost_nano": 10**9},
        {"api_key": sibling, "cost_nano": 3 * 10**8},
        {"cost_nano": 10**9},
        {"api_key": key, "cost_nano": 5 * 10**9, "created_at": long_ago},
    ]
    for fields in spent:
        factories.make_generation(tenant, **{"created_at": now, **fields})
    data = factories.client(secret).get("/api/v1/key").json()["data"]
    assert [
        tuple(budget[name] for name in (
            "scope", "guardrail_id", "budget_id", "include_byok", "limit_usd", "spend_usd",
            "remaining_usd", "reset_interval",
        ))
        for budget in data["budgets"]
    ] == [
        ("workspace_default_member", str(default.pk), None, True, 1.0, 1.5, -0.5, "daily"),
        ("workspace_default_key", str(default.pk), None, True, 1.0, 1.2, -0.2, "daily"),
        ("member", str(of_member.pk), None, False, 2.0, 0.5, 1.5, "weekly"),
        ("api_key", str(of_key.pk), None, False, 3.0, 0.2, 2.8, "monthly"),
        ("workspace", None, str(daily.pk), False, 4.0, 1.5, 2.5, "daily"),
        ("workspace", None, str(lifetime.pk), False, 7.0, 6.5, 0.5, None),
        ("key_limit", None, None, False, 8.0, 5.2, 2.8, None),
    ]  # fmt: skip
    assert data["effective_budget"] == data["budgets"][0]
    assert [budget["resets_at"] for budget in data["budgets"]] == [
        None if reset is None else stamp(LimitReset(reset).ends_at(now))
        for reset in ("daily", "daily", "weekly", "monthly", "daily", None, None)
    ]


def test_the_current_key_shows_the_regions_that_all_guardrails_allow(
    inference: APIClient, tenant: Tenant
) -> None:
    def regions() -> Any:
        return inference.get("/api/v1/key").json()["data"]["allowed_data_regions"]

    assert regions() == ["global", "europe", "us"]
    guardrail = make_guardrail(tenant.workspace, allowed_data_regions=["us", "global"])
    guardrail.assign_keys([ApiKey.objects.get(name="inference")], by="test")
    assert regions() == ["global", "us"]
    Guardrail.objects.edit_workspace_default(
        tenant.workspace, allowed_data_regions=["europe", "us"]
    )
    assert regions() == ["us"]
    guardrail.edit(allowed_data_regions=["global"])
    assert regions() == []
