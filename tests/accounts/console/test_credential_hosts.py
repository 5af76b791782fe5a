"""The console shows where a secret may go and went, and asks for it before more hosts."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import ByokCredential
from catalog.models import Provider
from config.credentials import Secret
from tests.support import factories
from tests.support.console import SECRET, fingerprint, page
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator


@pytest.fixture
def provider(db: None) -> Provider:
    return factories.make_provider("acme", base_url="https://api.acme.example/v1")


@pytest.fixture
def credential(tenant: Tenant, provider: Provider) -> ByokCredential:
    return factories.make_credential(tenant, provider, SECRET)


def change(operator: Client, credential: ByokCredential, **fields: str) -> dict[str, list[str]]:
    """Posts the page's form and returns its errors."""
    form = {"sort_order": "0", "declared_zdr": "unknown", **fields}
    response = operator.post(page(credential), form)
    credential.refresh_from_db()
    if response.status_code == 302:
        return {}
    errors: dict[str, list[str]] = response.context["adminform"].form.errors
    return {name: list(texts) for name, texts in errors.items()}


def test_more_hosts_need_the_secret_on_the_page_too(
    operator: Client, credential: ByokCredential
) -> None:
    assert change(operator, credential, allowed_hosts="a.example,b.example") == {}
    assert change(operator, credential, allowed_hosts="a.example") == {}
    for hosts in ("a.example,b.example", ""):
        before = fingerprint()
        [[message]] = change(operator, credential, allowed_hosts=hosts).values()
        assert message.startswith("allowed_hosts: The secret may not go to more hosts")
        assert fingerprint() == before
    assert change(operator, credential, allowed_hosts="b.example", secret=SECRET) == {}
    assert (credential.allowed_hosts, credential.version) == (["b.example"], 1)
    assert change(operator, credential, secret=f"{SECRET}-new") == {}
    assert (credential.allowed_hosts, credential.version) == (None, 2)
    assert credential.reveal() == Secret(f"{SECRET}-new")


def test_the_secret_without_hosts_forgets_the_first_use(
    operator: Client, credential: ByokCredential
) -> None:
    credential.record_use("llm.corp.example", own_hosts=frozenset())
    assert change(operator, credential, name="renamed") == {}
    assert credential.bound_domains == ["llm.corp.example"]
    assert change(operator, credential, secret=SECRET) == {}
    assert credential.bound_domains is None


def test_the_page_shows_where_the_secret_may_go_and_went(
    operator: Client, viewer: Client, tenant: Tenant, credential: ByokCredential,
    provider: Provider, simulator: Simulator,
) -> None:  # fmt: skip
    shown = operator.get(page(credential)).content.decode()
    assert "<div>api.acme.example (of the provider)</div>" in shown
    assert "<div>the host of its first use</div>" in shown
    assert "no host yet" in shown
    factories.make_active(tenant, factories.make_model(), provider, base_url=simulator.base_url)
    for reader in (operator, viewer):
        shown = reader.get(page(credential)).content.decode()
        assert "<div>127.0.0.1 (first use)</div>" in shown
        assert "<div>127.0.0.1, last at 20" in shown
        assert "(validations: 1)</div>" in shown
    credential.refresh_from_db()
    change(operator, credential, allowed_hosts="127.0.0.1")
    assert "<div>127.0.0.1 (allowed host)</div>" in operator.get(page(credential)).content.decode()


def test_only_who_may_change_a_credential_sees_the_field_of_its_secret(
    operator: Client, viewer: Client, credential: ByokCredential
) -> None:
    assert 'name="secret"' in operator.get(page(credential)).content.decode()
    assert 'name="secret"' not in viewer.get(page(credential)).content.decode()
