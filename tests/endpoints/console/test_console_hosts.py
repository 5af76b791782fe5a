"""Support operators point no secret of a tenant at a new host."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import ByokCredential
from config.apps import Role
from endpoints.models import PrivateEndpoint, PrivateProvider, Validation, ValidationSlot
from tests.support import factories
from tests.support.console import SECRET, SUBMIT, fingerprint, messages_of, page
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press, sign_in
from tests.support.simulator.server import Simulator


@pytest.fixture
def support(db: None) -> Client:
    return sign_in("support", Role.SUPPORT)


@pytest.fixture
def draft(tenant: Tenant, simulator: Simulator) -> PrivateEndpoint:
    provider = factories.make_provider("acme")
    factories.make_credential(tenant, provider, SECRET)
    simulator.clear()
    return factories.make_draft(
        tenant, factories.make_model(), provider, base_url=simulator.base_url
    )


def validate(client: Client, draft: PrivateEndpoint) -> list[str]:
    workspace = str(draft.organization.workspaces.get().pk)
    return messages_of(press(client, draft, "validate", workspace=workspace))


def test_support_validates_only_where_an_active_endpoint_points(
    support: Client, operator: Client, tenant: Tenant, draft: PrivateEndpoint, simulator: Simulator
) -> None:
    refused = "No active endpoint sends the secret of acme"
    [message] = validate(support, draft)
    assert message.startswith(refused)
    assert (simulator.requests, Validation.objects.count()) == ([], 0)
    assert validate(operator, draft) == ["The validation passed."]
    [message] = validate(support, draft)
    assert message.startswith(refused)
    draft.refresh_from_db()
    draft.activate()
    second = factories.make_draft(tenant, draft.model, draft.provider, base_url=draft.base_url)
    assert validate(support, second) == ["The validation passed."]


def test_support_changes_a_draft_but_not_its_base_url(
    support: Client, operator: Client, draft: PrivateEndpoint
) -> None:
    shown = {
        **SUBMIT, "upstream_model_id": "sim-echo-2", "base_url": draft.base_url,
        "declared_region": "", "declared_zdr": "",
    }  # fmt: skip
    support.post(page(draft, "edit"), shown)
    draft.refresh_from_db()
    assert draft.upstream_model_id == "sim-echo-2"
    moved = {**shown, "base_url": "https://listener.example/v1"}
    before = fingerprint()
    refused = support.post(page(draft, "edit"), moved)
    assert "Only operators who may change credentials" in refused.content.decode()
    assert fingerprint() == before
    operator.post(page(draft, "edit"), moved)
    draft.refresh_from_db()
    assert draft.base_url == "https://listener.example/v1"


def test_the_page_shows_which_credentials_travel(support: Client, draft: PrivateEndpoint) -> None:
    credential = ByokCredential.objects.get()
    for changes, text in (
        ({}, "is sent to 127.0.0.1, which binds it"),
        ({"bound_domains": ["127.0.0.1"]}, "is sent to 127.0.0.1</div>"),
        ({"bound_domains": ["a.example"]}, "is not sent. The credential is bound by its first"),
        ({"allowed_hosts": ["a.example"]}, "is not sent. The allowed_hosts of the credential"),
    ):
        ByokCredential.objects.update(**changes)
        shown = support.get(page(draft)).content.decode()
        assert f"<div>{credential} in Default: {text}" in shown
    # An endpoint without an address has that of its private provider.
    provider = PrivateProvider.objects.create_provider(
        organization_id=draft.organization_id, name="own", base_url="https://llm.acme.example/v1"
    )
    PrivateEndpoint.objects.update(provider=None, private_provider=provider, base_url=None)
    ByokCredential.objects.update(provider_slug="own", allowed_hosts=["llm.acme.example"])
    assert "is sent to llm.acme.example</div>" in support.get(page(draft)).content.decode()


def test_a_validation_without_a_free_slot_is_a_message(
    operator: Client, draft: PrivateEndpoint
) -> None:
    for _ in range(2):
        ValidationSlot(organization=draft.organization).take()
    [message] = validate(operator, draft)
    assert message.startswith("At most 2 validations of an organization run at a time.")
    assert not Validation.objects.exists()
    form = {"secret": f"{SECRET}-new", "revalidate": "on"}
    [message] = messages_of(press(operator, ByokCredential.objects.get(), "rotate", **form))
    assert message.startswith("At most 2 validations of an organization run at a time.")
    assert ByokCredential.objects.get().version == 1
