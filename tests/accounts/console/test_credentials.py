"""Credentials of organizations on the console."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import ByokCredential
from accounts.rotation import rotate_key
from catalog.models import Provider
from config.audit.entries import AuditEntry
from config.changes.kinds import ChangeKind
from config.credentials import Secret
from endpoints.models import PrivateProvider
from tests.support import factories
from tests.support.console import SECRET, fingerprint, listing, messages_of, page
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_member
from tests.support.operators.four_eyes import WHY, approve, demand, press, sign_in
from tests.support.simulator.server import Simulator


def _byok_form(tenant: Tenant, provider: Provider, **fields: str) -> dict[str, str]:
    return {
        "owner": str(tenant.organization.pk),
        "workspace": str(tenant.workspace.pk),
        "provider": str(provider.pk),
        "secret": SECRET,
        "declared_zdr": "unknown",
        **fields,
    }


def test_add_credential_encrypts_the_secret(operator: Client, tenant: Tenant) -> None:
    provider = factories.make_provider()

    form = _byok_form(tenant, provider, allowed_hosts="llm.example.com", name="main")
    response = operator.post(listing(ByokCredential, "add"), form)

    credential = ByokCredential.objects.get()
    assert response.status_code == 302
    assert credential.reveal() == Secret(SECRET)
    assert credential.organization == tenant.organization
    assert credential.workspace == tenant.workspace
    assert (credential.provider_slug, credential.label) == (provider.slug, "…3210")
    assert (credential.allowed_hosts, credential.allowed_models) == (["llm.example.com"], None)
    assert (credential.declared_zdr, credential.declared_region) == (None, None)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"secret": "too-few"}, "secret", "Must be a bare key of 8 to 4096"),
        ({"secret": f"{SECRET} two words"}, "secret", "Must be a bare key of 8 to 4096"),
        ({"is_fallback": "on", "is_byok_only": "on"}, "is_fallback", "Cannot be combined with"),
        (
            {"allowed_hosts": "HTTPS://x"},
            "allowed_hosts",
            "Each entry must be a lower-case host name",
        ),
        ({"allowed_models": "falcon"}, "allowed_models", "falcon is not a model of the catalogue."),
        ({"allowed_models": "acme/*"}, "allowed_models", "acme/* is no model"),
    ],
)
def test_add_credential_refuses_invalid_fields(
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
        "workspace": ["The workspace belongs to another organization."]
    }


def test_change_credential_keeps_a_key_that_was_revoked_later(
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
    more = {"allowed_api_key_hashes": [key.digest, "f" * 64]}
    response = operator.post(page(credential), {**lists, **more, "declared_zdr": "unknown"})
    assert list(response.context["adminform"].form.errors) == ["allowed_api_key_hashes"]
    assert fingerprint() == before
    member = str(make_member(tenant.organization).pk)
    sent = {**lists, "allowed_user_ids": member.upper(), "declared_zdr": "unknown"}
    operator.post(page(credential), sent)
    credential.refresh_from_db()
    assert credential.allowed_user_ids == [member]


def test_change_credential_keeps_a_model_that_left(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(
        tenant, factories.make_provider(), SECRET, allowed_models=["acme/gone"]
    )
    factories.make_model("acme/falcon")
    form = {"sort_order": "0", "declared_zdr": "unknown"}
    operator.post(page(credential), {**form, "allowed_models": "acme/gone,acme/falcon"})
    credential.refresh_from_db()
    assert credential.allowed_models == ["acme/gone", "acme/falcon"]

    before = fingerprint()
    response = operator.post(page(credential), {**form, "allowed_models": "acme/gone,acme/none"})
    assert list(response.context["adminform"].form.errors) == ["allowed_models"]
    assert fingerprint() == before


def test_a_credential_names_no_model_of_another_organization(
    operator: Client, tenant: Tenant
) -> None:
    globex = factories.make_tenant("Globex").organization
    foreign = factories.make_model("globex/support-7b", organization=globex)
    own = factories.make_model("acme/support-7b", organization=tenant.organization)
    refusal = {"allowed_models": ["globex/support-7b is not a model of the catalogue."]}
    form = _byok_form(tenant, factories.make_provider(), allowed_models=foreign.slug)
    add = listing(ByokCredential, "add")
    assert operator.post(add, form).context["adminform"].form.errors == refusal
    operator.post(add, {**form, "allowed_models": own.slug})
    credential = ByokCredential.objects.get()
    assert credential.allowed_models == [own.slug]
    before = fingerprint()
    form = {"sort_order": "0", "declared_zdr": "unknown", "allowed_models": foreign.slug}
    assert operator.post(page(credential), form).context["adminform"].form.errors == refusal
    assert fingerprint() == before


def test_what_was_proposed_before_a_rotation_names_the_new_hash(
    operator: Client, tenant: Tenant
) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)
    key, bob = make_key(tenant), sign_in("bob")
    former = key.digest
    demand(ChangeKind.CREDENTIALS)
    form = {"allowed_api_key_hashes": [former], "sort_order": "0", "declared_zdr": "unknown"}
    operator.post(page(credential), {**form, **WHY})
    rotate_key(key, overlap=60)
    change_set, text = approve(bob)
    assert (change_set.status, text) == ("applied", "It is changed.")
    credential.refresh_from_db()
    assert credential.allowed_api_key_hashes == [former, key.digest]


def test_pickers_of_a_credential_search_its_organization(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)
    key, other = make_key(tenant, "mine"), make_key(factories.make_tenant("Other"), "foreign")
    keys = operator.get(page(credential, "keys")).json()["results"]
    assert {"id": key.digest, "text": f"mine · {key.label}"} in keys
    assert other.digest not in {each["id"] for each in keys}
    assert operator.get(page(credential, "members")).json()["results"] == []
    assert "Keys and members are chosen" in operator.get(listing(ByokCredential, "add")).text


def test_change_credential_keeps_the_secret(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)
    form = {"name": "renamed", "sort_order": "0", "declared_zdr": "unknown", "disabled": "on"}

    operator.post(page(credential), form)

    kept = ByokCredential.objects.get()
    assert (kept.name, kept.version, kept.reveal()) == ("renamed", 1, Secret(SECRET))
    assert kept.disabled


def test_rotate_credential_replaces_the_secret(operator: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider(), SECRET)

    press(operator, credential, "rotate", secret=f"{SECRET}-new")

    rotated = ByokCredential.objects.get()
    assert (rotated.version, rotated.reveal()) == (2, Secret(f"{SECRET}-new"))


def test_the_secret_of_an_own_provider_is_judged_by_that_provider(
    operator: Client, tenant: Tenant
) -> None:
    own: Any = PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk, name="Acme Rack"
    )
    credential = factories.make_credential(tenant, own, SECRET)
    # The catalogue got the slug later.
    factories.make_provider("acme-rack", dialect="azure", base_url=None)
    misspelled = '{"apikey": "sk-0123456789"}'
    before = fingerprint()
    refused = press(operator, credential, "rotate", secret=misspelled)
    assert messages_of(refused) == [
        "The credential has an unknown member; remove it. Nothing was changed."
    ]
    form = {"sort_order": "0", "declared_zdr": "unknown"}
    shown = operator.post(page(credential), {**form, "secret": misspelled})
    assert list(shown.context["adminform"].form.errors) == ["secret"]
    assert fingerprint() == before
    assert "<div>the host of its first use</div>" in operator.get(page(credential)).text
    press(operator, credential, "rotate", secret=f"{SECRET}-new")
    assert ByokCredential.objects.get().reveal() == Secret(f"{SECRET}-new")

    own.edit(is_keyless=True)
    [text] = messages_of(press(operator, credential, "rotate", secret=SECRET))
    assert text.startswith("The provider's servers take no key")
    assert ByokCredential.objects.get().reveal() == Secret(f"{SECRET}-new")


def test_rotate_credential_can_revalidate_dependent_endpoints(
    operator: Client, tenant: Tenant, simulator: Simulator
) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider, SECRET)
    endpoint = factories.make_active(
        tenant, factories.make_model(), provider, base_url=simulator.base_url
    )
    form = {"secret": "bad-credential-0123456789", "revalidate": "on"}

    refused = press(operator, credential, "rotate", **form)

    assert str(endpoint) in operator.get(page(credential)).content.decode()
    assert "does not pass with the new secret" in refused.content.decode()
    assert ByokCredential.objects.get().reveal() == Secret(SECRET)
    press(operator, credential, "rotate", **{**form, "secret": f"{SECRET}-new"})
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

    response = press(operator, credential, "remove")
    assert messages_of(response) == [f"{credential} is deleted."]
    assert response.redirect_chain == [(listing(ByokCredential), 302)]
    assert list(response.context["cl"].result_list) == []
    credential.refresh_from_db()
    assert (bytes(credential.sealed), credential.deleted_at is not None) == (b"", True)
    assert AuditEntry.objects.get().object_id == str(credential.pk)
