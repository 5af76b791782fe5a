from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, reverse
from django.utils import timezone
from django_otp.plugins.otp_totp.models import TOTPDevice

from accounts.models import (
    ApiKey,
    BudgetInterval,
    ByokCredential,
    Guardrail,
    KeyAssignment,
    Member,
    MemberAssignment,
    Organization,
    Workspace,
    WorkspaceBudget,
    workspace_for,
)
from accounts.policy import Family
from billing.models import Account, ChainState, Deposit, GrantRequest, TopUp, Transfer
from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider
from config.audit import context as audit
from config.credentials import Secret
from config.local.simulator.server import Simulator
from config.models import AuditEntry
from endpoints.models import PrivateEndpoint, Validation
from endusers.models import EndUser
from inference.models import EndpointHealth, Feedback, Generation
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key, make_member, make_workspace

SECRET = "canary-provider-secret-9f8e7d6c5b4a3210"
KEY = re.compile(r"(?:sk|mk)-cw-[0-9A-Za-z]{49}")
SUBMIT = {"_form_submitted": "True"}
TOKEN = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
SENDER = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
SECOND_FACTOR = "c0ffee" * 6

# What answers otherwise than with a page, to an operator who may do everything.
STATUSES = {
    "login": 302,
    "logout": 405,
    "view_on_site": 404,
    "": 302,
    **{
        f"{model}_delete": 403
        for model in (
            "accounts_organization",
            "accounts_workspace",
            "accounts_apikey",
            "accounts_byokcredential",
            "accounts_member",
            "accounts_guardrail",
            "catalog_provider",
            "catalog_languagemodel",
            "catalog_modelendpoint",
            "catalog_priceversion",
            "endpoints_privateendpoint",
            "endpoints_validation",
            "endusers_enduser",
            "inference_generation",
            "inference_feedback",
            "billing_account",
            "billing_transfer",
            "billing_grantrequest",
            "billing_topup",
            "billing_deposit",
            "billing_chainstate",
            "config_auditentry",
            "otp_totp_totpdevice",
        )
    },
    **{
        f"{model}_add": 403
        for model in (
            "catalog_priceversion",
            "endpoints_validation",
            "inference_generation",
            "inference_feedback",
            "billing_account",
            "billing_transfer",
            "billing_grantrequest",
            "billing_topup",
            "billing_deposit",
            "billing_chainstate",
            "config_auditentry",
            "otp_totp_totpdevice",
        )
    },
}


@pytest.fixture
def world(tenant: Tenant) -> dict[str, Any]:
    """A row of every kind that has a page; secrets are the canary."""
    model, provider = factories.make_model(), factories.make_provider()
    provider.set_credential(Secret(SECRET))
    credential = factories.make_credential(tenant, provider, SECRET)
    public = factories.make_endpoint(model, provider)
    draft = factories.make_draft(tenant, model, provider, declared_region="europe")
    generation = factories.make_generation(tenant)
    somebody = User.objects.create_user("somebody")
    chain = ChainState.objects.create(chain_id=8453)
    payment = {
        "chain_id": chain.chain_id,
        "token": TOKEN,
        "token_symbol": "USDC",
        "token_decimals": 6,
        "sender": SENDER,
        "recipient": SENDER,
        "units": 5_000_123,
        "amount_nano": 5_000_123_000,
    }
    now = timezone.now()
    top_up = TopUp.objects.create(
        organization=tenant.organization, expires_at=now, payable_until=now, **payment
    )
    deposit = Deposit.objects.create(
        status="under",
        finding="under",
        ordinal=0,
        tx_hash="0x" + "1" * 64,
        block_number=1,
        block_hash="0x" + "2" * 64,
        mined_at=now,
        top_up=top_up,
        **payment,
    )
    rows = (
        tenant.organization,
        tenant.workspace,
        ApiKey.objects.order_by("name")[0],
        credential,
        make_member(tenant.organization),
        make_guardrail(tenant.workspace),
        provider,
        model,
        public,
        public.price,
        draft,
        factories.make_validation(draft, credential),
        EndUser.objects.register(organization_id=tenant.organization.pk, user="customer-1"),
        generation,
        Feedback.objects.submit(generation, category="latency", comment="slow", by="key"),
        Account.objects.order_by("pk")[0],
        Transfer.objects.order_by("pk")[0],
        GrantRequest.objects.create(
            organization=tenant.organization, amount_nano=1, requested_by="operator ann"
        ),
        chain,
        top_up,
        deposit,
        somebody,
        Group.objects.create(name="Helpers"),
        TOTPDevice.objects.create(user=somebody, name="app", key=SECOND_FACTOR),
        audit.record_import("ann", "test", organization_id=None, counts={"created": 1}),
    )
    return {row._meta.label_lower: row for row in rows}


def page(row: Any, verb: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{verb}", args=[str(row.pk)])


def listing(model: type[Any], verb: str = "changelist") -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{verb}")


def fingerprint() -> dict[str, Any]:
    """Every version of every row of every table: even a write of the same values shows.

    What a service that other tests had may still tell of its endpoints' health is none of it.
    """
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if table == EndpointHealth._meta.db_table:
                continue
            name = connection.ops.quote_name(table)
            cursor.execute(f"SELECT ctid::text, xmin::text, t::text FROM {name} t ORDER BY 1")
            found[table] = cursor.fetchall()
    return found


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def urls(world: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name and an address of every route of the console."""
    for pattern in admin.site.get_urls():
        if isinstance(pattern, URLResolver):
            prefix = str(pattern.pattern)
            row = world[prefix.strip("/").replace("/", ".")]
            for inner in pattern.url_patterns:
                assert isinstance(inner, URLPattern)
                path = str(inner.pattern)
                path = path.replace("<path:object_id>", str(row.pk)).replace("<id>", str(row.pk))
                yield inner.name or "", f"/admin/{prefix}{path}"
        elif pattern.name == "app_list":
            for label in sorted({model._meta.app_label for model in admin.site._registry}):
                yield "app_list", reverse("admin:app_list", args=[label])
        elif pattern.name == "view_on_site":
            kind = ContentType.objects.get_for_model(Organization)
            row = world["accounts.organization"]
            yield "view_on_site", reverse("admin:view_on_site", args=[kind.pk, row.pk])
        elif pattern.name == "autocomplete":
            query = "?app_label=accounts&model_name=apikey&field_name=workspace&term=def"
            yield "autocomplete", reverse("admin:autocomplete") + query
        elif pattern.name == "search":
            yield "search", reverse("admin:search") + "?s=keys"
        elif pattern.name is not None:
            yield pattern.name, reverse(f"admin:{pattern.name}")


def test_get_of_every_page_answers_and_changes_no_row(
    operator: Client, world: dict[str, Any]
) -> None:
    before = fingerprint()

    answers = [(name, path, operator.get(path).status_code) for name, path in urls(world)]

    assert [
        (path, status) for name, path, status in answers if status != STATUSES.get(name, 200)
    ] == []
    assert fingerprint() == before
    assert {name for name, *_ in answers} >= {
        "accounts_apikey_revoke",
        "endpoints_privateendpoint_activate",
        "endpoints_privateendpoint_remove",
    }


def test_every_page_sends_a_stranger_to_the_login(db: None, world: dict[str, Any]) -> None:
    stranger = Client()

    for name, path in urls(world):
        if name in ("login", "logout", "jsi18n"):
            continue
        response = stranger.get(path)
        assert (response.status_code, path) == (302, path)
        assert response["Location"].startswith(("/admin/login/", path))


def test_pages_have_a_policy_of_their_own_and_nothing_from_other_hosts(
    operator: Client, world: dict[str, Any]
) -> None:
    for path in ("/admin/", "/admin/login/", page(world["endpoints.privateendpoint"])):
        response = operator.get(path)
        assert "script-src 'self' 'unsafe-eval';" in response["Content-Security-Policy"] + ";"
        assert "Content-Security-Policy-Report-Only" not in response
        sources = re.findall(r'(?:src|<link[^>]+href|hx-get)="([^"]+)"', response.content.decode())
        assert [source for source in sources if not source.startswith("/")] == []

    assert "unsafe-eval" not in operator.get("/docs")["Content-Security-Policy"]


def test_index_lists_the_sections_in_the_order_of_the_sidebar(operator: Client) -> None:
    response = operator.get("/admin/")

    names = ["Customers", "Endpoints", "Catalogue", "Traffic", "Money", "Operators"]
    assert [section["name"] for section in response.context["app_list"]] == names
    assert [section["title"] for section in response.context["sidebar_navigation"]] == names


def test_index_offers_only_what_the_operator_may_see(db: None) -> None:
    user = User.objects.create_user("auditor", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_generation"))
    client = Client()
    client.force_login(user)

    response = client.get("/admin/")

    assert [section["name"] for section in response.context["app_list"]] == ["Traffic"]


def _organizations(tenant: Tenant, count: int) -> None:
    for number in range(count):
        Organization.objects.create_organization(name=f"Organization {number}")


def _workspaces(tenant: Tenant, count: int) -> None:
    for number in range(count):
        organization = Organization.objects.create_organization(name=f"Of workspace {number}")
        Workspace.objects.create(organization=organization, name="More", slug="more")


def _keys(tenant: Tenant, count: int) -> None:
    for number in range(count):
        other = Organization.objects.create_organization(name=f"Of key {number}")
        ApiKey.objects.create_key(workspace=workspace_for(other.pk, None), name="key")


def _credentials(tenant: Tenant, count: int) -> None:
    for _ in range(count):
        factories.make_credential(tenant, factories.make_provider())


def _members(tenant: Tenant, count: int) -> None:
    for number in range(count):
        make_member(Organization.objects.create_organization(name=f"Of member {number}"))


def _guardrails(tenant: Tenant, count: int) -> None:
    for number in range(count):
        other = Organization.objects.create_organization(name=f"Of guardrail {number}")
        guardrail = make_guardrail(workspace_for(other.pk, None))
        guardrail.assign_members([make_member(other)], by="test")


def _endpoints(tenant: Tenant, count: int) -> None:
    for _ in range(count):
        model, provider = factories.make_model(), factories.make_provider()
        factories.make_endpoint(model, provider)
        draft = factories.make_draft(tenant, model, provider)
        credential = factories.make_credential(tenant, provider)
        validation = factories.make_validation(draft, credential)
        factories.make_generation(tenant)
        draft.validation = validation
        draft.save_fields("validation")


def _end_users(tenant: Tenant, count: int) -> None:
    for _ in range(count):
        user = f"user {EndUser.objects.count()}"
        EndUser.objects.register(organization_id=tenant.organization.pk, user=user)


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (Organization, _organizations),
        (Workspace, _workspaces),
        (ApiKey, _keys),
        (ByokCredential, _credentials),
        (Member, _members),
        (Guardrail, _guardrails),
        (Provider, _endpoints),
        (LanguageModel, _endpoints),
        (ModelEndpoint, _endpoints),
        (PriceVersion, _endpoints),
        (PrivateEndpoint, _endpoints),
        (Validation, _endpoints),
        (EndUser, _end_users),
        (Generation, _endpoints),
    ],
)
def test_list_makes_the_same_queries_for_3_rows_and_for_30(
    operator: Client, tenant: Tenant, model: type[Any], make: Callable[[Tenant, int], None]
) -> None:
    counts = []
    for added in (3, 27):
        make(tenant, added)
        operator.get(listing(model))
        with CaptureQueriesContext(
            connection,
        ) as queries:
            response = operator.get(listing(model))
        assert response.status_code == 200
        counts.append(len(queries))

    assert counts[0] == counts[1]
    assert response.context["cl"].result_count >= 30


@pytest.mark.parametrize("label", sorted(m._meta.label for m in admin.site._registry))
def test_search_takes_any_text(operator: Client, world: dict[str, Any], label: str) -> None:
    model = apps.get_model(label)
    pk = world[model._meta.label_lower].pk

    for term in ("%", "1", "ünï'\"\\", "acme default", str(pk)):
        assert operator.get(listing(model), {"q": term}).status_code == 200


def test_search_finds_a_row_by_its_id(operator: Client, world: dict[str, Any]) -> None:
    for label in ("accounts.apikey", "endpoints.privateendpoint", "endusers.enduser"):
        row = world[label]
        response = operator.get(listing(type(row)), {"q": str(row.pk)})
        assert list(response.context["cl"].result_list) == [row]


def test_add_organization_makes_its_default_workspace(operator: Client) -> None:
    operator.post(listing(Organization, "add"), {"name": "Globex", "endpoint_limit": "5"})

    organization = Organization.objects.get()
    assert (organization.name, organization.slug, organization.endpoint_limit) == (
        "Globex",
        "globex",
        5,
    )
    assert workspace_for(organization.pk, None).name == "Default"


def test_add_key_shows_the_secret_once(operator: Client, tenant: Tenant) -> None:
    response = operator.post(
        listing(ApiKey, "add"),
        {"workspace": str(tenant.workspace.pk), "name": "CI", "is_management": "on"},
    )

    [secret] = set(KEY.findall(response.content.decode()))
    assert secret.startswith("mk-cw-")
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    assert response.cookies.get("messages") is None
    assert secret not in str(response.cookies)
    key = ApiKey.objects.get(name="CI")
    assert (key.organization, key.is_management) == (tenant.organization, True)
    assert factories.client(secret).get("/api/v1/key").status_code == 200
    assert not any(secret in str(rows) for rows in fingerprint().values())
    for path in (page(key), page(key, "history"), listing(ApiKey), "/admin/"):
        assert not KEY.search(operator.get(path).content.decode())


def test_change_key_keeps_everything_but_name_and_expiry(operator: Client, tenant: Tenant) -> None:
    key, secret = ApiKey.objects.create_key(workspace=tenant.workspace, name="before")
    operator.post(
        page(key),
        {
            "name": "after",
            "expires_at_0": "2100-01-01",
            "expires_at_1": "00:00:00",
            "is_management": "on",
            "disabled": "on",
        },
    )

    found = ApiKey.objects.get(pk=key.pk)
    assert (found.name, str(found.expires_at)) == ("after", "2100-01-01 00:00:00+00:00")
    assert (found.is_management, found.disabled, found.digest) == (False, False, key.digest)
    assert factories.client(secret.reveal()).get("/api/v1/key").status_code == 200


def test_revoke_refuses_the_key_from_then_on(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")

    response = operator.post(page(key, "revoke"), SUBMIT, follow=True)

    assert messages_of(response) == ["The key is revoked."]
    assert ApiKey.objects.get(pk=key.pk).disabled
    assert factories.client(tenant.api_key).get("/api/v1/key").status_code == 401
    assert AuditEntry.objects.get(object_id=str(key.pk)).actor == "operator operator"
    assert not LogEntry.objects.exists()
    again = operator.post(page(key, "revoke"), SUBMIT, follow=True)
    assert messages_of(again) == ["The key was revoked already."]


def test_revoke_selected_asks_before_it_acts(operator: Client, tenant: Tenant) -> None:
    keys = list(ApiKey.objects.all())
    form = {"action": "revoke_selected", "_selected_action": [str(key.pk) for key in keys]}

    asked = operator.post(listing(ApiKey), form)

    assert "Revoke these keys?" in asked.content.decode()
    assert ApiKey.objects.filter(disabled=True).count() == 0
    done = operator.post(listing(ApiKey), {**form, "confirmed": "yes"}, follow=True)
    assert sorted(messages_of(done)) == sorted(f"{key}: done." for key in keys)
    assert ApiKey.objects.filter(disabled=True).count() == 2


def _byok_form(tenant: Tenant, provider: Provider, **fields: str) -> dict[str, str]:
    return {
        "owner": str(tenant.organization.pk),
        "workspace": str(tenant.workspace.pk),
        "provider": str(provider.pk),
        "secret": SECRET,
        "declared_zdr": "unknown",
        **fields,
    }


def test_add_credential_seals_the_secret(operator: Client, tenant: Tenant) -> None:
    provider = factories.make_provider()

    response = operator.post(
        listing(ByokCredential, "add"),
        _byok_form(tenant, provider, allowed_hosts="llm.example.com", name="main"),
    )

    credential = ByokCredential.objects.get()
    assert response.status_code == 302
    assert credential.reveal() == Secret(SECRET)
    assert (credential.organization, credential.workspace) == (
        tenant.organization,
        tenant.workspace,
    )
    assert (credential.provider_slug, credential.label) == (provider.slug, "…3210")
    assert (credential.allowed_hosts, credential.allowed_models) == (["llm.example.com"], None)
    assert (credential.declared_zdr, credential.declared_region) == (None, None)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"secret": "short"}, "secret", "Must be a bare key of 8 to 4096"),
        ({"secret": f"{SECRET} two words"}, "secret", "Must be a bare key of 8 to 4096"),
        ({"is_fallback": "on", "is_byok_only": "on"}, "is_fallback", "Cannot be combined with"),
        ({"allowed_hosts": "HTTPS://x"}, "allowed_hosts", "Must be lower-case host names"),
        ({"allowed_api_key_hashes": "f" * 64}, "allowed_api_key_hashes", "Names a key that"),
    ],
)
def test_add_credential_refuses(
    operator: Client, tenant: Tenant, fields: dict[str, str], field: str, message: str
) -> None:
    form = _byok_form(tenant, factories.make_provider(), **fields)

    response = operator.post(listing(ByokCredential, "add"), form)

    assert message in str(response.context["adminform"].form.errors[field])
    assert form["secret"] not in response.content.decode()
    assert not ByokCredential.objects.exists()


def test_add_credential_refuses_a_workspace_of_another_organization(
    operator: Client, tenant: Tenant
) -> None:
    other = factories.make_tenant("Other")
    form = _byok_form(tenant, factories.make_provider(), workspace=str(other.workspace.pk))

    response = operator.post(listing(ByokCredential, "add"), form)

    assert response.context["adminform"].form.errors == {
        "workspace": ["Belongs to another organization."]
    }


def test_change_credential_keeps_the_key_that_was_revoked_since(
    operator: Client, tenant: Tenant
) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)
    key = make_key(tenant, "short-lived")
    credential.allowed_api_key_hashes = [key.digest]
    credential.allowed_user_ids = [str(tenant.organization.pk)]
    credential.save_fields("allowed_api_key_hashes", "allowed_user_ids")
    key.revoke()
    lists = {
        "allowed_api_key_hashes": key.digest, "allowed_user_ids": str(tenant.organization.pk),
        "sort_order": "0",
    }  # fmt: skip
    operator.post(page(credential), {**lists, "declared_zdr": "unknown", "disabled": "on"})
    credential.refresh_from_db()
    assert (credential.disabled, credential.allowed_api_key_hashes) == (True, [key.digest])

    before = fingerprint()
    more = {"allowed_api_key_hashes": f"{key.digest},{'f' * 64}"}
    response = operator.post(page(credential), {**lists, **more, "declared_zdr": "unknown"})
    assert list(response.context["adminform"].form.errors) == ["allowed_api_key_hashes"]
    assert fingerprint() == before


def test_change_credential_keeps_the_secret(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)
    form = {"name": "renamed", "sort_order": "0", "declared_zdr": "unknown", "disabled": "on"}

    operator.post(page(credential), form)

    kept = ByokCredential.objects.get()
    assert (kept.name, kept.version, kept.reveal()) == ("renamed", 1, Secret(SECRET))
    assert kept.disabled


def test_rotate_credential_replaces_the_secret(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)

    operator.post(page(credential, "rotate"), {**SUBMIT, "secret": f"{SECRET}-new"})

    rotated = ByokCredential.objects.get()
    assert (rotated.version, rotated.reveal()) == (2, Secret(f"{SECRET}-new"))


def test_rotate_credential_may_try_the_secret_on_its_dependants(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider, SECRET)
    endpoint = factories.make_active(
        tenant, factories.make_model(), provider, base_url=simulator.base_url
    )
    form = {**SUBMIT, "secret": "bad-credential-0123456789", "revalidate": "on"}

    refused = operator.post(page(credential, "rotate"), form, follow=True)

    assert str(endpoint) in operator.get(page(credential)).content.decode()
    assert "does not pass with the new secret" in refused.content.decode()
    assert ByokCredential.objects.get().reveal() == Secret(SECRET)
    operator.post(page(credential, "rotate"), {**form, "secret": f"{SECRET}-new"})
    assert ByokCredential.objects.get().reveal() == Secret(f"{SECRET}-new")
    endpoint.refresh_from_db()
    assert endpoint.validation is not None
    assert endpoint.validation.credential_version == 2


def test_delete_credential_wipes_its_secret(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider("acme"))

    asked = operator.get(page(credential, "remove"))
    assert asked.status_code == 200
    credential.refresh_from_db()
    assert credential.deleted_at is None

    response = operator.post(page(credential, "remove"), SUBMIT, follow=True)
    assert messages_of(response) == [f"{credential} is deleted."]
    assert response.redirect_chain == [(listing(ByokCredential), 302)]
    assert list(response.context["cl"].result_list) == []
    credential.refresh_from_db()
    assert (bytes(credential.sealed), credential.deleted_at is not None) == (b"", True)
    assert AuditEntry.objects.get().object_id == str(credential.pk)


def test_keys_are_listed_by_their_state(operator: Client, tenant: Tenant) -> None:
    for name in ("disabled", "revoked", "expired"):
        ApiKey.objects.create_key(
            workspace=tenant.workspace,
            name=name,
            expires_at=timezone.now() if name == "expired" else None,
            limit_nano=1_500_000_000,
        )
    ApiKey.objects.get(name="disabled").edit(disabled=True)
    ApiKey.objects.get(name="revoked").revoke()

    for state in ("disabled", "revoked", "expired"):
        listed = operator.get(f"{listing(ApiKey)}?status={state}").context["cl"].result_list
        assert [key.name for key in listed] == [state]
        shown = operator.get(page(ApiKey.objects.get(name=state)))
        assert "$1.5" in shown.content.decode()
        actions = [action["title"] for action in shown.context["actions_detail"]]
        assert actions == ([] if state == "revoked" else ["Revoke"])


def test_secrets_are_on_no_page(operator: Client, world: dict[str, Any], tenant: Tenant) -> None:
    held = (SECRET, tenant.api_key, tenant.management_key)

    for _, path in urls(world):
        content = operator.get(path).getvalue().decode()
        assert not [secret for secret in held if secret in content]


def test_change_provider_stores_the_credential_of_the_operator(operator: Client, db: None) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI")
    form = {
        "name": "Acme AI",
        "dialect": "openai",
        "base_url": "https://API.example.com/v1/",
        "is_listed": "on",
        "secret": SECRET,
    }

    response = operator.post(page(provider), form)

    found = Provider.objects.get()
    assert response.status_code == 302
    assert (found.slug, found.base_url) == ("acme-ai", "https://api.example.com/v1")
    assert found.reveal_credential() == Secret(SECRET)
    operator.post(page(provider), {**form, "secret": ""})
    assert Provider.objects.get().reveal_credential() == Secret(SECRET)


def test_change_provider_needs_the_address_that_its_dialect_needs(
    operator: Client, db: None
) -> None:
    provider = factories.make_provider()

    response = operator.post(page(provider), {"name": "X", "dialect": "openai", "base_url": ""})

    assert response.context["adminform"].form.errors == {"base_url": ["This dialect needs one."]}


@pytest.mark.parametrize("created", ["-1", "100000000001", "1767225600000"])
def test_model_is_published_in_seconds(operator: Client, db: None, created: str) -> None:
    model = factories.make_model()
    before = fingerprint()
    response = change(operator, model, {"created": created})
    errors = response.context["adminform"].form.errors
    assert errors["created"] == ["Must be in seconds, not milliseconds."]
    assert fingerprint() == before


def test_models_are_listed_whatever_their_time(operator: Client, db: None) -> None:
    model = factories.make_model()
    for created, shown in (
        (10**11, "5138-11-16"),
        (1767225600000, "1767225600000, which is no time in seconds"),
        (-(10**15), "-1000000000000000, which is no time in seconds"),
    ):
        LanguageModel.objects.filter(pk=model.pk).update(created=created)
        for path in (listing(LanguageModel), page(model)):
            assert shown in operator.get(path).content.decode()


def test_change_of_rates_is_a_new_price_version(operator: Client, db: None) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    first = endpoint.price
    form = {
        "prompt": "0.000001",
        "completion": "0.000002",
        "image": "0",
        "request": "0",
        "is_listed": "on",
        "context_length": "131072",
    }

    operator.post(page(endpoint), form)

    assert ModelEndpoint.objects.get().price == first
    operator.post(page(endpoint), {**form, "completion": "0.0000000000000000000000000003"})
    price = ModelEndpoint.objects.get().price
    assert (price.price.text("prompt"), price.price.text("completion")) == (
        "0.000001",
        "0.0000000000000000000000000003",
    )
    assert PriceVersion.objects.get(pk=first.pk).price.text("completion") == "0.000002"


def test_add_model_endpoint_stores_its_price(operator: Client, db: None) -> None:
    model, provider = factories.make_model(), factories.make_provider()

    response = operator.post(
        listing(ModelEndpoint, "add"),
        {
            "model": str(model.pk),
            "provider": str(provider.pk),
            "upstream_model_id": "m-1",
            "region": "global",
            "prompt": "0.0000025",
            "completion": "0.00001",
            "image": "0",
            "request": "0",
            "image_output": "0.00003",
            "is_listed": "on",
        },
    )

    endpoint = ModelEndpoint.objects.select_related("price").get()
    assert response.status_code == 302
    assert endpoint.price.subject_id == endpoint.pk
    assert endpoint.price.price.text("image_output") == "0.00003"
    assert endpoint.price.price.text("prompt") == "0.0000025"


def _draft_form(tenant: Tenant, **fields: str) -> dict[str, str]:
    return {
        "organization": str(tenant.organization.pk),
        "upstream_model_id": "sim-echo",
        "base_url": "https://llm.example.com/v1",
        "declared_zdr": "true",
        "declared_region": "europe",
        **fields,
    }


def test_add_private_endpoint_makes_a_draft(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_endpoint(model, provider, price=factories.make_price("0.000003"))

    response = operator.post(
        listing(PrivateEndpoint, "add"),
        _draft_form(tenant, model=str(model.pk), provider=str(provider.pk)),
    )

    endpoint = PrivateEndpoint.objects.get()
    assert response["Location"] == page(endpoint)
    assert (endpoint.status, endpoint.base_url) == ("draft", "https://llm.example.com/v1")
    assert (endpoint.declared_zdr, endpoint.declared_region) == (True, "europe")
    assert endpoint.price.price.text("prompt") == "0.000003"


def test_add_private_endpoint_takes_a_negotiated_price(operator: Client, tenant: Tenant) -> None:
    places = {
        "model": str(factories.make_model().pk),
        "provider": str(factories.make_provider().pk),
    }

    half = operator.post(
        listing(PrivateEndpoint, "add"), _draft_form(tenant, **places, prompt="0.000001")
    )
    assert list(half.context["adminform"].form.errors) == ["completion"]
    operator.post(
        listing(PrivateEndpoint, "add"),
        _draft_form(tenant, **places, prompt="0.000001", completion="0.00000005"),
    )
    assert PrivateEndpoint.objects.get().price.price.text("completion") == "0.00000005"


@pytest.mark.parametrize(
    ("base_url", "message"),
    [
        ("", "base_url is required for"),
        ("http://llm.example.com", "invalid_base_url"),
        ("https://169.254.169.254/v1", "invalid_base_url"),
    ],
)
def test_add_private_endpoint_shows_the_refusal_at_its_field(
    operator: Client, tenant: Tenant, base_url: str, message: str
) -> None:
    form = _draft_form(
        tenant,
        model=str(factories.make_model().pk),
        provider=str(factories.make_provider().pk),
        base_url=base_url,
    )

    response = operator.post(listing(PrivateEndpoint, "add"), form)

    assert response.status_code == 200
    assert message in str(response.context["adminform"].form.errors["base_url"])
    assert not PrivateEndpoint.objects.exists()
    assert not AuditEntry.objects.exists()


def test_add_private_endpoint_refuses_more_than_the_limit(operator: Client) -> None:
    tenant = factories.make_tenant("Small", endpoint_limit=1)
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_draft(tenant, model, provider)

    response = operator.post(
        listing(PrivateEndpoint, "add"),
        _draft_form(tenant, model=str(model.pk), provider=str(provider.pk)),
    )

    assert "has 1 private endpoints" in str(
        response.context["adminform"].form.errors["organization"]
    )


def _draft_at(tenant: Tenant, simulator: Simulator, upstream: str = "sim-echo") -> PrivateEndpoint:
    provider = factories.make_provider()
    factories.make_credential(tenant, provider, SECRET)
    return factories.make_draft(
        tenant,
        factories.make_model(),
        provider,
        base_url=simulator.base_url,
        upstream_model_id=upstream,
    )


def test_private_endpoint_goes_through_its_life(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator)
    steps = [
        ("validate", {"workspace": str(tenant.workspace.pk)}, "The validation passed.", "draft"),
        ("activate", {}, "The endpoint is active.", "active"),
        ("disable", {}, "The endpoint is disabled.", "disabled"),
        ("enable", {}, "The endpoint is active again.", "active"),
    ]

    for verb, fields, message, status in steps:
        response = operator.post(page(endpoint, verb), {**SUBMIT, **fields}, follow=True)
        assert messages_of(response) == [message]
        assert response.redirect_chain == [(page(endpoint), 302)]
        endpoint.refresh_from_db()
        assert endpoint.status == status
    assert endpoint.activated_by == "operator operator"

    response = operator.post(page(endpoint, "remove"), SUBMIT, follow=True)
    assert response.redirect_chain == [(listing(PrivateEndpoint), 302)]
    endpoint.refresh_from_db()
    assert (endpoint.deleted_at is not None, endpoint.deleted_by) == (True, "operator operator")
    assert AuditEntry.objects.filter(object_id=str(endpoint.pk)).count() == 5
    assert not LogEntry.objects.exists()
    assert list(response.context["cl"].result_list) == []


def test_private_endpoint_page_offers_what_its_state_allows(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator)

    def offered() -> list[str]:
        actions = operator.get(page(endpoint)).context["actions_detail"]
        return [action["title"] for action in actions]

    assert offered() == ["Edit", "Validate", "Activate", "Delete"]
    operator.post(page(endpoint, "validate"), {**SUBMIT, "workspace": str(tenant.workspace.pk)})
    operator.post(page(endpoint, "activate"), SUBMIT)
    assert offered() == ["Disable", "Delete"]
    operator.post(page(endpoint, "disable"), SUBMIT)
    assert offered() == ["Enable", "Delete"]


def test_validate_shows_every_check_latest_first(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    endpoint = _draft_at(tenant, simulator, "sim-echo-key")
    form = {**SUBMIT, "workspace": str(tenant.workspace.pk)}

    response = operator.post(page(endpoint, "validate"), form, follow=True)

    assert messages_of(response) == ["The validation failed: completion (upstream_error)."]
    endpoint.edit(upstream_model_id="sim-wrong-model")
    operator.post(page(endpoint, "validate"), form)
    text = re.sub(r"<[^>]*>|\s+", " ", operator.get(page(endpoint)).content.decode())
    text = re.sub(r"\s+", " ", text)
    later = text.index("model failed model_mismatch another-model")
    earlier = text.index("completion failed upstream_error 401 Incorrect API key")
    assert later < earlier
    assert SECRET not in text


def test_validate_offers_the_workspaces_of_the_organization(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    other = factories.make_tenant("Other")
    endpoint = _draft_at(tenant, simulator)

    response = operator.get(page(endpoint, "validate"))
    refused = operator.post(
        page(endpoint, "validate"), {**SUBMIT, "workspace": str(other.workspace.pk)}
    )

    choices = list(response.context["form"].fields["workspace"].queryset)
    assert choices == [tenant.workspace]
    assert "Select a valid choice" in refused.content.decode()
    assert not Validation.objects.exists()


def test_a_dialog_sends_the_browser_on_in_a_header(operator: Client, tenant: Tenant) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())

    response = operator.post(page(endpoint, "activate"), SUBMIT, headers={"HX-Request": "true"})

    assert response["HX-Redirect"] == page(endpoint)
    assert messages_of(operator.get(page(endpoint))) == [
        "The endpoint has no passed validation: call validate first."
    ]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("verb", ["validate", "activate", "disable", "enable", "remove"])
def test_action_on_what_is_not_there_changes_nothing(
    operator: Client, tenant: Tenant, verb: str
) -> None:
    path = reverse(f"admin:endpoints_privateendpoint_{verb}", args=["no-such-id"])

    assert operator.get(path).status_code == 200
    response = operator.post(path, SUBMIT)

    assert response.status_code == (200 if verb == "validate" else 302)


@pytest.mark.parametrize("verb", ["validate", "activate", "disable", "enable", "remove"])
def test_action_is_refused_without_permission(viewer: Client, tenant: Tenant, verb: str) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    before = fingerprint()

    response = viewer.post(page(endpoint, verb), {**SUBMIT, "workspace": str(tenant.workspace.pk)})

    assert response.status_code == 403
    assert fingerprint() == before
    assert viewer.get(page(endpoint)).context["actions_detail"] == []


@pytest.mark.parametrize(
    ("label", "action"),
    [
        ("accounts.apikey", "revoke_selected"),
        ("endpoints.privateendpoint", "activate_selected"),
        ("endpoints.privateendpoint", "disable_selected"),
        ("endpoints.privateendpoint", "enable_selected"),
        ("endpoints.privateendpoint", "remove_selected"),
        ("endusers.enduser", "activate_selected"),
        ("endusers.enduser", "deactivate_selected"),
    ],
)
def test_bulk_action_is_refused_without_permission(
    viewer: Client, world: dict[str, Any], label: str, action: str
) -> None:
    row = world[label]
    before = fingerprint()

    viewer.post(
        listing(type(row)),
        {"action": action, "_selected_action": str(row.pk), "confirmed": "yes"},
    )

    after = fingerprint()
    sessions = "django_session"
    assert {**after, sessions: None} == {**before, sessions: None}


@pytest.mark.parametrize(
    ("label", "verb"),
    [
        ("accounts.apikey", "revoke"),
        ("accounts.apikey", "change"),
        ("accounts.byokcredential", "change"),
        ("accounts.byokcredential", "remove"),
        ("catalog.provider", "change"),
        ("endusers.enduser", "change"),
    ],
)
def test_change_is_refused_without_permission(
    viewer: Client, world: dict[str, Any], label: str, verb: str
) -> None:
    before = fingerprint()

    response = viewer.post(page(world[label], verb), {**SUBMIT, "name": "x", "secret": SECRET})

    assert response.status_code == 403
    assert fingerprint() == before


def test_action_needs_the_token_of_its_page(tenant: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("operator"))
    key = ApiKey.objects.all()[0]

    response = client.post(page(key, "revoke"), SUBMIT)

    assert response.status_code == 403
    assert not ApiKey.objects.filter(disabled=True).exists()


def test_private_endpoint_cannot_be_written_by_its_form(operator: Client, tenant: Tenant) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    before = fingerprint()

    response = operator.post(page(endpoint), {"status": "active", "base_url": "https://x.example"})

    assert response.status_code == 403
    assert fingerprint() == before


def test_bulk_action_reports_each_row(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    good = factories.make_active(
        tenant, factories.make_model(), factories.make_provider(), base_url=simulator.base_url
    )
    draft = factories.make_draft(tenant, factories.make_model(), factories.make_provider())

    response = operator.post(
        listing(PrivateEndpoint),
        {
            "action": "disable_selected",
            "_selected_action": [str(good.pk), str(draft.pk)],
            "confirmed": "yes",
        },
        follow=True,
    )

    assert sorted(messages_of(response)) == sorted(
        [
            f"{good}: done.",
            f"{draft}: The private endpoint is draft; this needs it to be active.",
        ]
    )
    good.refresh_from_db()
    assert (good.status, good.disabled_by) == ("disabled", "operator operator")
    assert AuditEntry.objects.get().object_id == str(good.pk)


def test_add_end_user_registers_it_as_it_is(operator: Client, tenant: Tenant) -> None:
    form = {"organization": str(tenant.organization.pk), "user": " Ann "}

    operator.post(listing(EndUser, "add"), form)

    assert EndUser.objects.get().user == " Ann "
    again = operator.post(listing(EndUser, "add"), form)
    assert "already" in str(again.context["adminform"].form.errors)
    control = operator.post(listing(EndUser, "add"), {**form, "user": "a\x07b"})
    assert list(control.context["adminform"].form.errors) == ["user"]
    assert EndUser.objects.count() == 1


def _everybody(tenant: Tenant, count: int) -> dict[str, str]:
    EndUser.objects.bulk_create(
        EndUser(organization=tenant.organization, user=f"user-{number:05}")
        for number in range(count)
    )
    selected = str(EndUser.objects.filter(user="user-00000").get().pk)
    return {
        "action": "deactivate_selected", "select_across": "1", "_selected_action": selected,
    }  # fmt: skip


def test_all_rows_of_a_list_are_confirmed_without_their_keys(
    operator: Client, tenant: Tenant
) -> None:
    form = _everybody(tenant, 1_200)
    other = EndUser.objects.register(organization_id=tenant.organization.pk, user="another")
    address = f"{listing(EndUser)}?q=user-"
    asked = operator.post(address, {**form, "index": "0"})
    assert (len(asked.context["rows"]), asked.context["hidden"]) == (200, 1_000)
    text = asked.content.decode()
    assert "… and 1000 more" in text
    assert 'name="select_across" value="1"' in text
    assert text.count('name="_selected_action"') == 1
    assert EndUser.objects.filter(is_active=True).count() == 1_201

    assert f'name="digest" value="{asked.context["digest"]}"' in text
    carried = {
        **form, "_selected_action": "all", "digest": asked.context["digest"], "confirmed": "yes",
    }  # fmt: skip
    done = operator.post(address, carried, follow=True)
    assert messages_of(done)[-1] == "1,200 rows: 1,200 done, 0 refused."
    assert len(messages_of(done)) == 201
    assert list(EndUser.objects.filter(is_active=True)) == [other]


@pytest.mark.parametrize("change", ["appears", "leaves", "unasked"])
def test_all_rows_of_a_list_that_has_changed_are_left_alone(
    operator: Client, tenant: Tenant, change: str
) -> None:
    keys = [make_key(tenant, f"late-{number}") for number in range(3)]
    form = {"action": "revoke_selected", "select_across": "1", "_selected_action": str(keys[0].pk)}
    address = f"{listing(ApiKey)}?q=late-"
    asked = operator.post(address, {**form, "index": "0"})
    carried = {**form, "_selected_action": "all", "confirmed": "yes"}
    if change == "appears":
        keys.append(make_key(tenant, "late-3"))
    elif change == "leaves":
        keys.pop().edit(name="other")
    if change != "unasked":
        carried["digest"] = asked.context["digest"]
    done = operator.post(address, carried, follow=True)
    assert messages_of(done) == [
        "The list has changed since you selected it. Nothing was changed; select again."
    ]
    assert not ApiKey.objects.filter(disabled=True).exists()

    again = operator.post(address, {**form, "index": "0"})
    done = operator.post(address, {**carried, "digest": again.context["digest"]}, follow=True)
    assert sorted(messages_of(done)) == sorted(f"{key}: done." for key in keys)
    assert set(ApiKey.objects.filter(disabled=True)) == set(keys)


@pytest.mark.parametrize("confirmed", ["", "yes"])
def test_too_many_rows_for_an_action_are_refused_before_any(
    operator: Client, tenant: Tenant, confirmed: str
) -> None:
    form = _everybody(tenant, 10_001)
    done = operator.post(listing(EndUser), {**form, "confirmed": confirmed}, follow=True)
    assert messages_of(done) == [
        "At most 10,000 rows at a time. Narrow the list. Nothing was changed."
    ]
    assert EndUser.objects.filter(is_active=True).count() == 10_001
    assert not AuditEntry.objects.exists()


def test_end_user_is_switched_on_and_off(operator: Client, tenant: Tenant) -> None:
    end_user = EndUser.objects.register(organization_id=tenant.organization.pk, user="ann")
    form = {"_selected_action": str(end_user.pk), "confirmed": "yes"}

    operator.post(page(end_user), {"user": "bob"})
    end_user.refresh_from_db()
    assert (end_user.user, end_user.is_active) == ("ann", False)
    operator.post(listing(EndUser), {**form, "action": "activate_selected"})
    end_user.refresh_from_db()
    assert end_user.is_active
    operator.post(listing(EndUser), {**form, "action": "deactivate_selected"})
    end_user.refresh_from_db()
    assert not end_user.is_active


def test_money_is_written_out(operator: Client, tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, cost_nano=12_000)

    assert "$0.000012" in operator.get(page(generation)).content.decode()
    assert "$0.000012" in operator.get(listing(Generation)).content.decode()


def change(client: Client, row: Any, form: dict[str, str]) -> Any:
    """Sends the form of a page, with what its read-only tables send along."""
    formsets = [shown.formset for shown in client.get(page(row)).context["inline_admin_formsets"]]
    counts = {
        f"{formset.prefix}-{name}": str(count)
        for formset in formsets
        for name, count in (
            ("TOTAL_FORMS", formset.total_form_count()),
            ("INITIAL_FORMS", formset.initial_form_count()),
        )
    }
    return client.post(page(row), form | counts)


def _preferences(**fields: str) -> dict[str, str]:
    return {"name": "Acme", "endpoint_limit": "", **fields}


def test_change_organization_stores_its_preferences(operator: Client, tenant: Tenant) -> None:
    for slug in ("acme", "globex"):
        factories.make_provider(slug)
    fields = {
        "is_filtered_model_catalog_enabled": "on",
        "requires_zdr": "on",
        "forbids_training": "on",
        "allowed_providers": "acme,globex,acme",
        "ignored_providers": "",
    }
    change(operator, tenant.organization, _preferences(**fields))

    stored = Organization.objects.get()
    assert (
        stored.is_filtered_model_catalog_enabled,
        stored.requires_zdr,
        stored.forbids_training,
        stored.allowed_providers,
        stored.ignored_providers,
    ) == (True, True, True, ["acme", "globex"], None)


def test_change_organization_refuses_an_unknown_provider(operator: Client, tenant: Tenant) -> None:
    before = fingerprint()
    response = change(operator, tenant.organization, _preferences(ignored_providers="initech"))

    assert response.context["adminform"].form.errors == {
        "ignored_providers": ["initech is not a provider of the catalogue."]
    }
    assert fingerprint() == before


def test_member_is_refused_the_address_of_another(operator: Client, tenant: Tenant) -> None:
    ada, ben = (
        Member.objects.create(organization=tenant.organization, email=email)
        for email in ("ada@example.com", "ben@example.com")
    )
    elsewhere = factories.make_tenant("Other").organization
    fields = {"email": "ada@example.com", "first_name": "", "last_name": "", "role": "member"}
    owner = {"organization": str(tenant.organization.pk)}
    before = fingerprint()
    for path, form in ((page(ben), fields), (listing(Member, "add"), {**fields, **owner})):
        response = operator.post(path, form)
        assert response.context["adminform"].form.errors == {
            "email": ["Another member of the organization has it."]
        }
    assert fingerprint() == before

    operator.post(page(ada), {**fields, "first_name": "Ada"})
    ada.refresh_from_db()
    assert ada.first_name == "Ada"
    operator.post(listing(Member, "add"), {**fields, "organization": str(elsewhere.pk)})
    assert Member.objects.filter(email="ada@example.com").count() == 2


def test_add_member_and_change_it(operator: Client, tenant: Tenant) -> None:
    fields = {"email": "ada@example.com", "first_name": "", "last_name": "", "role": "admin"}
    organization = str(tenant.organization.pk)
    operator.post(listing(Member, "add"), {"organization": organization, **fields})
    member = Member.objects.get()
    assert (member.organization, member.email, member.first_name, member.role) == (
        tenant.organization,
        "ada@example.com",
        None,
        "admin",
    )

    operator.post(page(member), {**fields, "first_name": "Ada", "role": "member"})
    member.refresh_from_db()
    assert (member.organization, member.first_name, member.role) == (
        tenant.organization,
        "Ada",
        "member",
    )


def test_add_workspace_says_who_made_it(operator: Client, tenant: Tenant) -> None:
    form = {"organization": str(tenant.organization.pk), "name": "Research", "slug": "research"}
    operator.post(listing(Workspace, "add"), form)
    workspace = Workspace.objects.get(slug="research")
    assert (workspace.name, workspace.created_by) == ("Research", "operator operator")

    before = fingerprint()
    for slug in ("research", "a_b", "A", "0123456789abcdef" * 2):
        response = operator.post(listing(Workspace, "add"), {**form, "slug": slug})
        assert response.context["adminform"].form.errors
    assert fingerprint() == before
    change(operator, workspace, {"name": "Lab", "slug": "lab"})
    workspace.refresh_from_db()
    assert (workspace.name, workspace.slug) == ("Lab", "lab")


def test_a_deleted_workspace_is_on_no_page(operator: Client, tenant: Tenant) -> None:
    gone = make_workspace(tenant.organization, name="Gone workspace")
    gone.close()

    assert list(operator.get(listing(Workspace)).context["cl"].result_list) == [tenant.workspace]
    assert "Gone workspace" not in operator.get(page(tenant.organization)).content.decode()
    assert operator.get(page(gone)).status_code == 302


def test_workspace_budget_is_set_and_lifted(operator: Client, tenant: Tenant) -> None:
    action = page(tenant.workspace, "budget")
    operator.post(action, {**SUBMIT, "interval": "daily", "limit": "12.5"})
    budget = WorkspaceBudget.objects.get()
    assert (budget.workspace, budget.interval, budget.limit_nano) == (
        tenant.workspace,
        "daily",
        12_500_000_000,
    )
    assert "$12.5" in operator.get(page(tenant.workspace)).content.decode()

    before = WorkspaceBudget.objects.values().get()
    for interval, limit in (("weekly", "12.5"), ("daily", "0"), ("hourly", "1"), ("daily", "-1")):
        operator.post(action, {**SUBMIT, "interval": interval, "limit": limit})
        assert WorkspaceBudget.objects.values().get() == before

    operator.post(action, {**SUBMIT, "interval": "daily", "limit": ""})
    assert not WorkspaceBudget.objects.exists()
    assert BudgetInterval.DAILY not in tenant.workspace.budgets.values_list("interval", flat=True)


def _guardrail_form(**fields: str) -> dict[str, str]:
    unknown = {
        field.name: "unknown"
        for field in Guardrail._meta.concrete_fields
        if field.name.startswith(("enforce_", "allow_safety_", "enable_"))
    }
    return {"name": "Strict", "limit": "", "reset_interval": "", **unknown, **fields}


def test_add_guardrail_and_change_it(operator: Client, tenant: Tenant) -> None:
    factories.make_model("acme/falcon")
    form = _guardrail_form(
        workspace=str(tenant.workspace.pk),
        allowed_models="acme/falcon",
        allowed_data_regions="us,europe",
        enforce_zdr_google="true",
        limit="0.000000001",
        reset_interval="daily",
    )
    operator.post(listing(Guardrail, "add"), form)
    guardrail = Guardrail.objects.get()
    assert (guardrail.organization, guardrail.workspace, guardrail.name) == (
        tenant.organization,
        tenant.workspace,
        "Strict",
    )
    assert (guardrail.allowed_models, guardrail.allowed_data_regions, guardrail.limit_nano) == (
        ["acme/falcon-2026-01-01"],
        ["us", "europe"],
        1,
    )
    assert (guardrail.enforce_zdr_google, guardrail.enforce_zdr_xai) == (True, None)

    change(operator, guardrail, _guardrail_form(name="Loose"))
    guardrail.refresh_from_db()
    assert (guardrail.name, guardrail.allowed_models, guardrail.limit_nano) == ("Loose", None, None)
    assert (guardrail.reset_interval, guardrail.enforce_zdr_google) == (None, None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"allowed_models": "acme/none"}, "allowed_models"),
        ({"ignored_providers": "acme"}, "ignored_providers"),
        ({"allowed_data_regions": "asia"}, "allowed_data_regions"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "0.0000000001"}, "limit"),
        ({"name": ""}, "name"),
        ({"workspace": ""}, "workspace"),
        ({"limit": "1"}, "__all__"),
        ({"reset_interval": "daily"}, "__all__"),
    ],
)
def test_add_guardrail_refuses(
    operator: Client, tenant: Tenant, fields: dict[str, str], field: str
) -> None:
    before = fingerprint()
    form = _guardrail_form(**{"workspace": str(tenant.workspace.pk), **fields})
    response = operator.post(listing(Guardrail, "add"), form)

    assert set(response.context["adminform"].form.errors) == {field}
    assert fingerprint() == before


def test_enforce_zdr_of_a_guardrail_is_enforced(operator: Client, tenant: Tenant) -> None:
    form = _guardrail_form(
        workspace=str(tenant.workspace.pk), enforce_zdr="true", enforce_zdr_xai="false"
    )
    operator.post(listing(Guardrail, "add"), form)
    guardrail = Guardrail.objects.get()
    assert guardrail.policy.zdr == set(Family) - {Family.XAI}

    change(operator, guardrail, _guardrail_form())
    guardrail.refresh_from_db()
    assert guardrail.policy.zdr == set()

    change(operator, guardrail, _guardrail_form(enforce_zdr="true"))
    guardrail.refresh_from_db()
    assert guardrail.policy.zdr == set(Family)


@pytest.mark.parametrize("switch", ["unknown", "false"])
def test_families_that_a_form_has_at_yes_outlive_the_deprecated_switch(
    operator: Client, tenant: Tenant, switch: str
) -> None:
    guardrail = make_guardrail(tenant.workspace, enforce_zdr=True)
    assert guardrail.policy.zdr == set(Family)
    shown = {f"enforce_zdr_{family}": "true" for family in Family}

    change(operator, guardrail, _guardrail_form(enforce_zdr=switch, **shown))
    guardrail.refresh_from_db()
    assert not guardrail.enforce_zdr
    assert guardrail.policy.zdr == set(Family)

    shown["enforce_zdr_xai"] = "unknown"
    change(operator, guardrail, _guardrail_form(enforce_zdr=switch, **shown))
    guardrail.refresh_from_db()
    assert guardrail.policy.zdr == set(Family) - {Family.XAI}


def test_families_that_a_form_has_at_no_are_not_overwritten(
    operator: Client, tenant: Tenant
) -> None:
    guardrail = make_guardrail(
        tenant.workspace, enforce_zdr=False, enforce_zdr_google=None, enforce_zdr_other=None
    )
    shown = {f"enforce_zdr_{family}": "false" for family in ("anthropic", "openai", "xai")}

    change(operator, guardrail, _guardrail_form(enforce_zdr="true", **shown))
    guardrail.refresh_from_db()
    assert guardrail.policy.zdr == {Family.GOOGLE, Family.OTHER}
    assert guardrail.enforce_zdr_xai is False


def test_guardrail_is_assigned_and_taken_away(operator: Client, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    key, member = make_key(tenant, "governed"), make_member(tenant.organization)
    for verb, said in (("assign", "got"), ("unassign", "lost")):
        keys = {**SUBMIT, "verb": verb, "keys": f" {key.digest}\n"}
        shown = operator.post(page(guardrail, "assign_keys"), keys, follow=True)
        assert messages_of(shown) == [f"1 keys have {said} the guardrail."]
        members = {**SUBMIT, "verb": verb, "members": member.email}
        shown = operator.post(page(guardrail, "assign_members"), members, follow=True)
        assert messages_of(shown) == [f"1 members have {said} the guardrail."]
        text = shown.content.decode()
        assert ("governed" in text, member.email in text) == (verb == "assign",) * 2
        found = [
            row.assigned_by
            for row in (*KeyAssignment.objects.all(), *MemberAssignment.objects.all())
        ]
        assert found == (["operator operator"] * 2 if verb == "assign" else [])


def test_guardrail_is_assigned_to_nobody_elses(operator: Client, tenant: Tenant) -> None:
    guardrail, other = make_guardrail(tenant.workspace), factories.make_tenant("Other")
    mine, foreign = make_key(tenant), make_key(other)
    stranger = make_member(other.organization)
    operator.post(
        page(guardrail, "assign_keys"),
        {**SUBMIT, "verb": "assign", "keys": f"{mine.digest} {foreign.digest}"},
    )
    operator.post(
        page(guardrail, "assign_members"),
        {**SUBMIT, "verb": "assign", "members": stranger.email},
    )

    assert not KeyAssignment.objects.exists()
    assert not MemberAssignment.objects.exists()


def test_guardrail_is_deleted_with_its_assignments(operator: Client, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_keys([make_key(tenant)], by="test")
    shown = operator.post(page(guardrail, "remove"), SUBMIT, follow=True)

    assert messages_of(shown) == ["Strict is deleted."]
    assert not Guardrail.objects.exists()
    assert not KeyAssignment.objects.exists()


@pytest.mark.parametrize("verb", ["assign_keys", "assign_members", "remove"])
def test_guardrail_action_is_refused_without_permission(
    viewer: Client, tenant: Tenant, verb: str
) -> None:
    guardrail = make_guardrail(tenant.workspace)
    before = Guardrail.objects.values().get()
    form = {**SUBMIT, "verb": "assign", "keys": make_key(tenant).digest, "members": "x"}

    assert viewer.post(page(guardrail, verb), form).status_code == 403
    assert Guardrail.objects.values().get() == before
    assert not KeyAssignment.objects.exists()


def test_a_key_is_made_for_a_member_of_its_organization(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    stranger = make_member(factories.make_tenant("Other").organization)
    form = {"workspace": str(tenant.workspace.pk), "name": "Hers"}
    response = operator.post(listing(ApiKey, "add"), {**form, "creator": str(stranger.pk)})
    assert response.context["adminform"].form.errors == {
        "creator": ["Belongs to another organization."]
    }

    operator.post(listing(ApiKey, "add"), {**form, "creator": str(member.pk)})
    assert ApiKey.objects.get(name="Hers").creator == member
