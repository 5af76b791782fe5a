"""The console's pages of own models and private providers: their forms refuse what the API does."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from config.apps import Role
from config.changes.kinds import ChangeKind
from endpoints.models import OwnModel, PrivateEndpoint, PrivateProvider, create_own_model
from tests.support import factories
from tests.support.console import SUBMIT
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import WHY, approve, demand, sign_in


def address(label: str, verb: str, row: Any = None) -> str:
    return reverse(f"admin:endpoints_{label}_{verb}", args=[] if row is None else [row.pk])


def errors_of(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, response.content
    errors: dict[str, list[str]] = response.context["adminform"].form.errors
    return {name: list(texts) for name, texts in errors.items()}


def make_model(tenant: Tenant, name: str = "support-7b", **fields: Any) -> OwnModel:
    slug = f"{tenant.organization.slug}/{name}"
    made = create_own_model(tenant.organization.pk, slug, "Support 7B", **fields)
    found: OwnModel = OwnModel.objects.get(pk=made.pk)
    return found


def make_provider(tenant: Tenant, name: str, **fields: Any) -> PrivateProvider:
    return PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk, name=name, **fields
    )


def assert_refused(response: Any, field: str, text: str) -> None:
    """Asserts that one field alone has an error, which begins with the text."""
    errors = errors_of(response)
    assert list(errors) == [field]
    assert errors[field][0].startswith(text)


def test_a_model_is_made_changed_and_deleted(operator: Client, tenant: Tenant) -> None:
    base = factories.make_model("maker/falcon", context_length=32_768)
    slug = f"{tenant.organization.slug}/support-7b"
    form = {"slug": slug, "name": "Support 7B", "made_from": "maker/falcon"}
    assert operator.post(address("ownmodel", "add"), form).status_code == 302
    made = OwnModel.objects.get(slug=slug)
    assert (made.organization, made.context_length) == (tenant.organization, 32_768)
    assert made.base_model == base.canonical_slug
    page = address("ownmodel", "change", made)
    assert b"32768" in operator.get(page).content
    # A base that has left the catalogue is no obstacle, unless another one is asked for.
    base.delist()
    form = {"name": "Support 8B", "made_from": base.canonical_slug}
    assert operator.post(page, form).status_code == 302
    assert OwnModel.objects.get(pk=made.pk).name == "Support 8B"
    assert operator.post(page, {"name": "Support 8B", "made_from": ""}).status_code == 302
    changed = OwnModel.objects.get(pk=made.pk)
    assert (changed.base_model, changed.context_length) == ("", None)
    assert operator.post(address("ownmodel", "remove", made), SUBMIT).status_code == 302
    assert not OwnModel.objects.exists()
    assert operator.get(page).status_code == 302


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"slug": "nobody/x"}, "slug", "Must begin with the slug of an organization, and a slash."),
        ({"slug": "{own}/a b"}, "slug", "slug: After the organization's slug"),
        ({"slug": "{own}/taken"}, "slug", "slug: the organization has a model"),
        ({"name": " \t "}, "name", "This field is required."),
        ({"name": "a\u0007b"}, "name", "Must not contain control characters."),
        ({"made_from": "maker/none"}, "made_from", "base_model: There is no model 'maker/none'"),
    ],
)
def test_a_model_is_refused_beside_its_field(
    operator: Client, tenant: Tenant, fields: dict[str, str], field: str, text: str
) -> None:
    make_model(tenant, "taken")
    own = tenant.organization.slug
    given = {"slug": "{own}/new", "name": "New", **fields}
    with snapshots.unchanged():
        form = {name: value.replace("{own}", own) for name, value in given.items()}
        assert_refused(operator.post(address("ownmodel", "add"), form), field, text)


def test_a_model_in_use_stays(operator: Client, tenant: Tenant) -> None:
    model = make_model(tenant)
    draft = factories.make_draft(tenant, model, factories.make_provider())
    PrivateEndpoint.objects.filter(pk=draft.pk).update(
        status="active", activated_at=draft.created_at, activated_by="ann"
    )
    factories.make_model("maker/falcon")
    with snapshots.unchanged():
        form = {"name": "Support 7B", "made_from": "maker/falcon"}
        errors = errors_of(operator.post(address("ownmodel", "change", model), form))
        assert list(errors) == ["made_from"]
        operator.post(address("ownmodel", "remove", model), SUBMIT)


def test_the_list_has_the_models_of_the_tenant_alone(operator: Client, tenant: Tenant) -> None:
    factories.make_model("maker/falcon")
    mine, theirs = make_model(tenant), make_model(factories.make_tenant("Other"), "hidden")
    narrowed = {"organization__id__exact": str(tenant.organization.pk)}
    rows = operator.get(address("ownmodel", "changelist"), narrowed).context["cl"].result_list
    assert list(rows) == [mine]
    rows = operator.get(address("ownmodel", "changelist")).context["cl"].result_list
    assert set(rows) == {mine, theirs}
    query = f"_changelist_filters=organization__id__exact%3D{tenant.organization.pk}"
    form = operator.get(f"{address('ownmodel', 'add')}?{query}").context["adminform"].form
    assert form.initial["slug"] == f"{tenant.organization.slug}/"


def test_a_provider_is_made_changed_and_deleted(operator: Client, tenant: Tenant) -> None:
    form = {"organization": str(tenant.organization.pk), "name": "My Rack", "base_url": ""}
    assert operator.post(address("privateprovider", "add"), form).status_code == 302
    made = PrivateProvider.objects.get()
    assert (made.slug, made.display_name, made.base_url) == ("my-rack", "My Rack", None)
    page = address("privateprovider", "change", made)
    form = {
        "display_name": "Rack 7", "base_url": "https://llm.example.com/v1/", "is_keyless": "on",
    }  # fmt: skip
    assert operator.post(page, form).status_code == 302
    made.refresh_from_db()
    assert (made.display_name, made.is_keyless) == ("Rack 7", True)
    assert made.base_url == "https://llm.example.com/v1"
    assert operator.post(address("privateprovider", "remove", made), SUBMIT).status_code == 302
    made.refresh_from_db()
    assert made.deleted_at is not None
    assert operator.get(page).status_code == 302


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"name": "x"}, "name", "name: Must be 2 to 64 letters"),
        ({"slug": "A--b"}, "slug", "slug: Must be 2 to 64 lowercase letters"),
        ({"name": "ACME ai"}, "name", "provider_exists: a public provider has"),
        ({"name": "taken"}, "name", "provider_exists: the organization has a provider"),
        ({"base_url": "http://llm.example.com"}, "base_url", "invalid_base_url"),
        ({"display_name": "a\u0007b"}, "display_name", "Must not contain control characters."),
        ({"organization": ""}, "organization", "This field is required."),
    ],
)
def test_a_provider_is_refused_beside_its_field(
    operator: Client, tenant: Tenant, fields: dict[str, str], field: str, text: str
) -> None:
    factories.make_provider("acme", name="Acme AI")
    make_provider(tenant, "Taken")
    with snapshots.unchanged():
        form = {"organization": str(tenant.organization.pk), "name": "New One", **fields}
        assert_refused(operator.post(address("privateprovider", "add"), form), field, text)


def test_a_provider_in_use_stays_and_support_does_not_move_secrets(
    operator: Client, tenant: Tenant
) -> None:
    url = "https://llm.example.com/v1"
    provider = make_provider(tenant, "My Rack", base_url=url)
    page = address("privateprovider", "change", provider)
    support = sign_in("sue", Role.SUPPORT)
    form = {"display_name": "Rack 7", "base_url": "https://thief.example.com/v1"}
    assert support.post(page, form).status_code == 302
    provider.refresh_from_db()
    assert (provider.display_name, provider.base_url) == ("Rack 7", url)
    named: Any = provider
    factories.make_draft(tenant, factories.make_model(), named, base_url=None)
    with snapshots.unchanged():
        errors = errors_of(operator.post(page, {"display_name": "Rack 7", "base_url": ""}))
        assert list(errors) == ["base_url"]
        operator.post(address("privateprovider", "remove", provider), SUBMIT)


def test_support_does_not_move_a_provider_by_delete_and_add(tenant: Tenant) -> None:
    former = make_provider(tenant, "My Rack", base_url="https://llm.example.com/v1")
    support = sign_in("sue", Role.SUPPORT)
    assert support.post(address("privateprovider", "remove", former), SUBMIT).status_code == 302
    form = {
        "organization": str(tenant.organization.pk), "name": "My Rack",
        "base_url": "https://thief.example.com/v1",
    }  # fmt: skip
    assert support.post(address("privateprovider", "add"), form).status_code == 302
    made = PrivateProvider.objects.get(deleted_at=None)
    assert (made.slug, made.base_url) == (former.slug, None)


def test_a_new_provider_needs_a_second_person_where_credentials_do(tenant: Tenant) -> None:
    ann, bob = sign_in("ann"), sign_in("bob")
    demand(ChangeKind.CREDENTIALS)
    form = {
        "organization": str(tenant.organization.pk), "name": "Rack",
        "base_url": "https://llm.example.com/v1",
    }  # fmt: skip
    ann.post(address("privateprovider", "add"), {**form, **WHY})
    assert not PrivateProvider.objects.exists()
    made, _ = approve(bob)
    assert made.status == "applied"
    assert PrivateProvider.objects.get().base_url == form["base_url"]


def test_another_address_of_a_provider_needs_a_second_person_where_credentials_do(
    tenant: Tenant,
) -> None:
    ann, bob = sign_in("ann"), sign_in("bob")
    demand(ChangeKind.CREDENTIALS)
    provider = make_provider(tenant, "My Rack")
    page = address("privateprovider", "change", provider)
    form = {"display_name": "Rack 7", "base_url": "https://llm.example.com/v1"}
    ann.post(page, {**form, **WHY})
    provider.refresh_from_db()
    assert (provider.display_name, provider.base_url) == ("My Rack", None)
    made, text = approve(bob)
    provider.refresh_from_db()
    assert (made.status, text) == ("applied", "It is changed.")
    assert (provider.display_name, provider.base_url) == ("Rack 7", form["base_url"])
    # A name alone needs nobody else.
    ann.post(page, {**form, "display_name": "Rack 8"})
    provider.refresh_from_db()
    assert provider.display_name == "Rack 8"
