"""Management keys and a second person: who issues them, and what an issued one may not do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, ByokCredential, Guardrail, Preset
from catalog.models import ModelAlias
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeSet
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.broadcast.destinations import make_destination
from tests.support.console import fingerprint, listing, messages_of, page
from tests.support.database.locks import at_once
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_preset, make_workspace
from tests.support.operators.four_eyes import WHY, demand, press, proposed, sign_in

ADD = "admin:accounts_apikey_add"
KEY = re.compile(r"[sm]k-cw-\w{40,}")


@pytest.fixture
def ann(db: None) -> Client:
    return sign_in("ann")


@pytest.fixture
def bob(ann: Client) -> Client:
    return sign_in("bob")


def form_of(tenant: Tenant, **fields: str) -> dict[str, str]:
    form = {"workspace": str(tenant.workspace.pk), "name": "issued", "creator": ""}
    return {**form, "expires_at_0": "", "expires_at_1": "", **fields}


def issue(client: Client, tenant: Tenant) -> str:
    """Issues a management key in the console, and returns it."""
    shown = client.post(reverse(ADD), form_of(tenant, is_management="on"))
    return KEY.findall(shown.content.decode())[0]


def test_a_management_key_waits_for_a_second_person_who_sees_it_once(
    ann: Client, bob: Client, tenant: Tenant
) -> None:
    demand(ChangeKind.MANAGEMENT_KEYS)
    with unchanged():
        ann.post(reverse(ADD), form_of(tenant, is_management="on"))
    shown = ann.post(reverse(ADD), form_of(tenant, is_management="on", **WHY), follow=True)
    made = proposed()
    assert (made.kind, made.needs) == ("management_keys", "accounts.add_apikey")
    assert not KEY.search(shown.content.decode())
    assert not ApiKey.objects.filter(name="issued").exists()

    [text] = messages_of(press(ann, made, "approve"))
    assert "Another operator" in text or "may not" in text
    chosen = {"action": "approve_selected", "_selected_action": made.pk, "confirmed": "yes"}
    bob.post(listing(ChangeSet), chosen)
    assert not ApiKey.objects.filter(name="issued").exists()

    shown = press(bob, made, "approve")
    assert "no-store" in shown["Cache-Control"]
    secret = KEY.findall(shown.content.decode())[0]
    made.refresh_from_db()
    assert (made.status, made.decided_by) == ("applied", "operator bob")
    key = ApiKey.objects.get(name="issued")
    assert (key.is_management, key.issued_by_operator) == (True, True)
    assert factories.client(secret).get("/api/v1/keys").status_code == 200
    assert secret not in str(fingerprint())
    for client in (ann, bob):
        assert not KEY.search(client.get(page(made)).content.decode())


def test_the_rotation_of_a_management_key_waits_for_a_second_person(
    ann: Client, bob: Client, tenant: Tenant
) -> None:
    demand(ChangeKind.MANAGEMENT_KEYS)
    key = ApiKey.objects.get(name="management")
    shown = press(ann, key, "rotate", overlap="0", **WHY)
    assert not KEY.search(shown.content.decode())
    assert ApiKey.objects.get(pk=key.pk).digest == key.digest
    made = proposed()
    assert (made.kind, made.needs) == ("management_keys", "accounts.add_apikey")
    assert made.changes[0]["changes"] == [
        ["API key", key.label, "a new secret", "", ""],
        ["The former secret works for", "–", "no time: it has leaked", "", ""],
    ]
    shown = press(bob, made, "approve")
    [secret] = set(KEY.findall(shown.content.decode()))
    assert factories.client(secret).get("/api/v1/keys").status_code == 200
    assert factories.client(tenant.management_key).get("/api/v1/keys").status_code == 401
    # An inference key needs nobody else.
    shown = press(ann, ApiKey.objects.get(name="inference"), "rotate", overlap="0")
    assert KEY.search(shown.content.decode())


def test_an_inference_key_needs_nobody_else(ann: Client, tenant: Tenant) -> None:
    demand(ChangeKind.MANAGEMENT_KEYS)
    shown = ann.post(reverse(ADD), form_of(tenant))
    assert KEY.search(shown.content.decode())
    assert not ChangeSet.objects.exists()
    key = ApiKey.objects.get(name="issued")
    ann.post(page(key), {"name": "renamed", "expires_at_0": "", "expires_at_1": ""})
    assert ApiKey.objects.get(pk=key.pk).name == "renamed"


@pytest.fixture
def world(tenant: Tenant) -> Tenant:
    """The tenant with a row of each kind that the API changes."""
    provider, model = factories.make_provider("acme"), factories.make_model("acme/falcon")
    factories.make_credential(tenant, provider)
    make_guardrail(tenant.workspace)
    make_preset(tenant.workspace)
    make_destination(tenant.workspace)
    make_workspace(tenant.organization, id=ELSEWHERE, slug="elsewhere")
    ModelAlias.objects.create(organization=tenant.organization, name="fast", targets=[model.slug])
    factories.make_draft(tenant, model, provider)
    return tenant


ELSEWHERE = "00000000-0000-4000-8000-000000000001"
PRICING = {"prompt": "0.000001", "completion": "0.000002"}
DRAFT = {
    "model_permaslug": "acme/falcon-2026-01-01", "provider_slug": "acme",
    "upstream_model_id": "falcon", "base_url": "https://llm.example.com/v1",
}  # fmt: skip
OPEN = {"settings": {"fallback": "any"}}
# The kind, the method, the path and the body of each change that operators make four-eyed.
CHANGES: list[tuple[ChangeKind, str, str, Any]] = [
    (ChangeKind.DELETIONS, "delete", "guardrails/{guardrail}", None),
    (ChangeKind.GUARDRAILS, "delete", "guardrails/{guardrail}", None),
    (ChangeKind.GUARDRAILS, "patch", "guardrails/{guardrail}", {"name": "loose"}),
    (ChangeKind.GUARDRAILS, "patch", "organization/settings", {"fallback": "none"}),
    (ChangeKind.GUARDRAILS, "patch", "workspaces/{workspace}", {"fallback": "any"}),
    (ChangeKind.CREDENTIALS, "post", "byok", {"provider": "acme", "key": "another-secret-01234"}),
    (ChangeKind.CREDENTIALS, "patch", "byok/{credential}", {"key": "another-secret-01234"}),
    (ChangeKind.DELETIONS, "delete", "byok/{credential}", None),
    (ChangeKind.CREDENTIALS, "post", "private-providers", {"name": "Rack", "keyless": True}),
    (ChangeKind.DELETIONS, "delete", "presets/{preset}", None),
    (ChangeKind.DELETIONS, "delete", "observability/destinations/{destination}", None),
    (ChangeKind.DELETIONS, "delete", "aliases/{alias}", None),
    (ChangeKind.DELETIONS, "delete", "private-endpoints/{endpoint}", None),
    (ChangeKind.PRICES, "put", "private-endpoints/{endpoint}/pricing", {"pricing": PRICING}),
    (ChangeKind.PRICES, "patch", "private-endpoints/{endpoint}", {"pricing": PRICING}),
    (ChangeKind.MANAGEMENT_KEYS, "post", "keys/{management}/rotate", {}),
    *(
        (ChangeKind.GUARDRAILS, "post", f"guardrails/{{guardrail}}/assignments/{path}", body)
        for whose, body in (("keys", {"key_hashes": []}), ("members", {"member_user_ids": []}))
        for path in (whose, f"{whose}/remove")
    ),
    (ChangeKind.DELETIONS, "delete", "workspaces/elsewhere", None),
    (ChangeKind.GUARDRAILS, "delete", "workspaces/elsewhere", None),
    (ChangeKind.GUARDRAILS, "patch", "keys/{inference}", {"workspace_id": ELSEWHERE}),
    (ChangeKind.GUARDRAILS, "patch", "private-endpoints/{endpoint}", OPEN),
    (ChangeKind.GUARDRAILS, "post", "private-endpoints", {**DRAFT, **OPEN}),
    (ChangeKind.GUARDRAILS, "post", "workspaces", {"name": "W", "slug": "open", "fallback": "any"}),
]


def call(tenant: Tenant, key: str, method: str, path: str, body: Any) -> Any:
    rows = {
        "guardrail": Guardrail.objects.first(), "credential": ByokCredential.objects.first(),
        "alias": ModelAlias.objects.first(), "endpoint": PrivateEndpoint.objects.first(),
    }  # fmt: skip
    names = {name: str(row.pk) for name, row in rows.items() if row is not None}
    names["workspace"] = str(tenant.workspace.pk)
    names["preset"] = Preset.objects.get().slug
    names["destination"] = str(tenant.organization.destinations.get().pk)
    names |= dict(ApiKey.objects.values_list("name", "digest"))
    send = getattr(factories.client(key), method)
    return send(f"/api/v1/{path.format(**names)}", body, format="json")


@pytest.mark.parametrize(("kind", "method", "path", "body"), CHANGES)
def test_an_issued_key_makes_no_change_alone(
    ann: Client, world: Tenant, kind: ChangeKind, method: str, path: str, body: Any
) -> None:
    issued = issue(ann, world)
    demand(kind)
    with unchanged():
        refused = call(world, issued, method, path, body)
    assert refused.status_code == 403, refused.content
    error = refused.json()["error"]
    assert error["metadata"]["error_type"] == "second_person_needed"
    assert error["message"].startswith(f"{kind.label}: another operator must approve")
    own = call(world, world.management_key, method, path, body)
    assert own.status_code in (200, 201), own.content


def test_an_issued_key_makes_other_changes_and_all_without_a_rule(
    ann: Client, world: Tenant
) -> None:
    issued = issue(ann, world)
    demand(ChangeKind.DELETIONS)
    for kind, method, path, body in CHANGES[2:6]:
        assert kind != ChangeKind.DELETIONS
        assert call(world, issued, method, path, body).status_code in (200, 201)
    demand(ChangeKind.GUARDRAILS)
    for method, path, body in (
        ("patch", "workspaces/{workspace}", {"name": "renamed"}),
        ("patch", "private-endpoints/{endpoint}", {"settings": {"context_length": 4_096}}),
        ("post", "guardrails", {"name": "added"}),
        ("post", "private-endpoints", DRAFT),
        ("post", "workspaces", {"name": "Added", "slug": "added"}),
    ):
        answer = call(world, issued, method, path, body)
        assert answer.status_code in (200, 201), answer.content


@pytest.mark.parametrize(
    ("path", "name", "after"),
    [
        ("workspaces/{workspace}", "fallback", "none"),
        ("keys/{inference}", "workspace_id", ELSEWHERE),
    ],
)
def test_an_issued_key_restores_nothing_that_is_changed_meanwhile(
    transactional_db: None,
    ann: Client,
    world: Tenant,
    path: str,
    name: str,
    after: str,
) -> None:
    issued = issue(ann, world)
    demand(ChangeKind.GUARDRAILS)
    shown = call(world, issued, "get", path, None).json()["data"]
    before = {name: shown.get(name, str(world.workspace.pk))}
    # What is sent back as it is needs nobody else.
    assert call(world, issued, "patch", path, before).status_code == 200
    own, refused = at_once(
        lambda: call(world, world.management_key, "patch", path, {name: after}),
        lambda: call(world, issued, "patch", path, before),
        held="SELECT 1 FROM accounts_apikey, accounts_organization FOR UPDATE",
    )
    assert (own.status_code, refused.status_code) == (200, 403)
    assert refused.json()["error"]["metadata"]["error_type"] == "second_person_needed"
    world.workspace.refresh_from_db()
    stored = {
        "fallback": world.workspace.fallback,
        "workspace_id": str(ApiKey.objects.get(name="inference").workspace_id),
    }
    assert stored[name] == after


def test_an_issued_key_restores_no_level_of_an_endpoint(
    transactional_db: None, ann: Client, world: Tenant
) -> None:
    issued, path = issue(ann, world), "private-endpoints/{endpoint}"
    demand(ChangeKind.GUARDRAILS)
    before, after = ({"settings": {"fallback": level}} for level in (None, "none"))
    # What is sent back as it is needs nobody else.
    assert call(world, issued, "patch", path, before).status_code == 200
    own, refused = at_once(
        lambda: call(world, world.management_key, "patch", path, after),
        lambda: call(world, issued, "patch", path, before),
        held="SELECT 1 FROM endpoints_privateendpoint FOR UPDATE",
    )
    assert (own.status_code, refused.status_code) == (200, 403)
    assert PrivateEndpoint.objects.get().fallback == "none"


def test_creating_an_endpoint_with_a_price_needs_a_second_person(
    ann: Client, world: Tenant
) -> None:
    issued = issue(ann, world)
    demand(ChangeKind.PRICES)
    with unchanged():
        priced = call(world, issued, "post", "private-endpoints", {**DRAFT, "pricing": PRICING})
    assert priced.status_code == 403, priced.content
    assert call(world, issued, "post", "private-endpoints", DRAFT).status_code == 201
