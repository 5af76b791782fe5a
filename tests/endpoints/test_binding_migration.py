"""The upgrade binds stored credentials to the domains of their endpoints."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps
from django.db import connection

from accounts.models import ByokCredential
from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.factories import Tenant

migration = import_module("endpoints.migrations.0003_bind_credentials")


@pytest.fixture
def neighbour(db: None) -> Tenant:
    return factories.make_tenant("Neighbour")


def activate(tenant: Tenant, model: LanguageModel, provider: Provider, host: str) -> None:
    endpoint = factories.make_draft(tenant, model, provider, base_url=f"https://{host}/v1")
    factories.make_validation(endpoint, ByokCredential.objects.earliest("created_at"))
    endpoint.activate()


def bound_domains() -> dict[str, list[str] | None]:
    migration.bind_credentials(apps, connection.schema_editor())
    return dict(ByokCredential.objects.values_list("name", "bound_domains"))


def test_every_credential_keeps_the_domains_of_its_providers_active_endpoints(
    tenant: Tenant, neighbour: Tenant, model: LanguageModel, provider: Provider
) -> None:
    other = factories.make_provider("other")
    factories.make_credential(tenant, provider, name="first")
    factories.make_credential(tenant, provider, name="fallback", is_fallback=True, workspace=None)
    factories.make_credential(tenant, other, name="other")
    factories.make_credential(neighbour, provider, name="neighbour's")
    named = {"name": "named", "allowed_hosts": ["llm.corp.example"]}
    factories.make_credential(tenant, provider, **named)
    removed = factories.make_credential(tenant, provider, name="removed")
    removed.remove()
    for host in ("llm.corp.example", "api.corp.example", "llm.partner.co.uk"):
        activate(tenant, model, provider, host)
    PrivateEndpoint.objects.filter(base_url__contains="partner").get().disable()
    deleted = factories.make_draft(tenant, model, provider, base_url="https://gone.example/v1")
    deleted.remove()
    factories.make_draft(tenant, model, provider, base_url="https://draft.example/v1")
    domains = [".corp.example", ".partner.co.uk"]
    assert bound_domains() == {
        "first": domains,
        "fallback": domains,
        "other": None,
        "neighbour's": None,
        "named": None,
        "removed": None,
    }


def test_a_credential_keeps_the_domain_of_a_draft_that_it_validated(
    tenant: Tenant, model: LanguageModel, provider: Provider
) -> None:
    credential = factories.make_credential(tenant, provider, name="first")
    factories.make_credential(tenant, provider, name="second")
    draft = factories.make_draft(tenant, model, provider, base_url="https://127.0.0.1/v1")
    factories.make_validation(draft, credential)
    assert bound_domains() == {"first": ["127.0.0.1"], "second": None}
    assert bound_domains() == {"first": ["127.0.0.1"], "second": None}
