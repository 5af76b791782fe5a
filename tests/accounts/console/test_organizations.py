"""An organization on the console."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.test import Client

from accounts.models import Organization, workspace_for
from endpoints.models import PrivateProvider
from tests.support import factories
from tests.support.console import change, fingerprint, listing
from tests.support.factories import Tenant


def test_add_organization_creates_its_default_workspace(operator: Client) -> None:
    operator.post(listing(Organization, "add"), {"name": "Globex", "endpoint_limit": "5"})

    organization = Organization.objects.get()
    assert (organization.name, organization.slug, organization.endpoint_limit) == (
        "Globex", "globex", 5,
    )  # fmt: skip
    assert workspace_for(organization.pk, None).name == "Default"


@pytest.mark.django_db(transaction=True)
def test_organizations_of_one_name_at_once_get_slugs_of_their_own(
    together: Callable[..., list[Any]],
) -> None:
    create = partial(Organization.objects.create_organization, name="Globex")
    first, *others = sorted(made.slug for made in together(*[create] * 8))
    assert first == "globex"
    assert all(slug.startswith("globex-") for slug in others)


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
        stored.is_filtered_model_catalog_enabled, stored.requires_zdr, stored.forbids_training,
        stored.allowed_providers, stored.ignored_providers,
    ) == (True, True, True, ["acme", "globex"], None)  # fmt: skip


def test_change_organization_keeps_a_provider_that_has_left(
    operator: Client, tenant: Tenant
) -> None:
    factories.make_provider("acme")
    Organization.objects.update(allowed_providers=["gone"])
    fields = {"name": "Ajax", "allowed_providers": "acme,gone", "ignored_providers": ""}
    change(operator, tenant.organization, _preferences(**fields))
    stored = Organization.objects.get()
    assert (stored.name, stored.allowed_providers) == ("Ajax", ["acme", "gone"])

    before = fingerprint()
    fields = {"allowed_providers": "gone", "ignored_providers": "gone"}
    response = change(operator, tenant.organization, _preferences(**fields))
    assert response.context["adminform"].form.errors == {
        "ignored_providers": ["gone is not a provider of the catalogue."]
    }
    assert fingerprint() == before


def test_change_organization_refuses_an_unknown_provider(operator: Client, tenant: Tenant) -> None:
    before = fingerprint()
    response = change(operator, tenant.organization, _preferences(ignored_providers="initech"))

    assert response.context["adminform"].form.errors == {
        "ignored_providers": ["initech is not a provider of the catalogue."]
    }
    assert fingerprint() == before


def test_preferences_name_no_provider_of_another_organization(
    operator: Client, tenant: Tenant
) -> None:
    globex = factories.make_tenant("Globex").organization
    for owner, name in ((tenant.organization, "Acme Rack"), (globex, "Globex Rack")):
        PrivateProvider.objects.create_provider(organization_id=owner.pk, name=name)
    answer = change(operator, tenant.organization, _preferences(ignored_providers="globex-rack"))
    assert answer.context["adminform"].form.errors == {
        "ignored_providers": ["globex-rack is not a provider of the catalogue."]
    }
    change(operator, tenant.organization, _preferences(ignored_providers="acme-rack"))
    tenant.organization.refresh_from_db()
    assert tenant.organization.ignored_providers == ["acme-rack"]
