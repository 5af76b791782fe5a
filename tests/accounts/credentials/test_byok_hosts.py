"""More hosts for a stored secret need the secret itself."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from config.credentials import Secret
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import send

SECRET = "test-credential-0123456789"
OTHER = "another-credential-0123456789"
OWN: frozenset[str] = frozenset()


@pytest.fixture
def credential(tenant: Tenant) -> ByokCredential:
    return factories.make_credential(tenant, factories.make_provider("acme"), SECRET)


def patch(client: APIClient, credential: ByokCredential, **body: Any) -> Any:
    response = send(client, "PATCH", f"byok/{credential.pk}", body)
    credential.refresh_from_db()
    return response


def assert_refused(client: APIClient, credential: ByokCredential, **body: Any) -> None:
    with snapshots.unchanged():
        response = patch(client, credential, **body)
    error = response.json()["error"]
    assert (response.status_code, error["metadata"]["error_type"]) == (422, "secret_required")
    assert list(error["metadata"]["fields"]) == ["allowed_hosts"]
    assert error["message"] == (
        "allowed_hosts: The secret may not go to more hosts without being entered again, in the "
        "same request (the API's field is `key`). Without it, the list may only shrink."
    )


def test_a_list_shrinks_without_the_secret_and_grows_with_it(
    management: APIClient, credential: ByokCredential
) -> None:
    hosts = ["a.example", "b.example"]
    assert patch(management, credential, allowed_hosts=hosts).status_code == 200
    assert patch(management, credential, allowed_hosts=["b.example"]).status_code == 200
    assert_refused(management, credential, allowed_hosts=hosts)
    assert_refused(management, credential, allowed_hosts=None)
    assert_refused(management, credential, allowed_hosts=None, name="renamed")
    assert patch(management, credential, allowed_hosts=hosts, key=SECRET).status_code == 200
    assert (credential.allowed_hosts, credential.version) == (hosts, 1)
    assert patch(management, credential, allowed_hosts=None, key=OTHER).status_code == 200
    assert (credential.allowed_hosts, credential.version) == (None, 2)
    assert credential.reveal() == Secret(OTHER)


def test_a_bound_credential_names_its_own_host_alone(
    management: APIClient, credential: ByokCredential
) -> None:
    assert credential.record_use("llm.corp.example", own_hosts=OWN) is None
    for host in ("listener.example", "other.corp.example"):
        assert_refused(management, credential, allowed_hosts=[host])
    hosts = ["llm.corp.example"]
    assert patch(management, credential, allowed_hosts=hosts).status_code == 200
    assert_refused(management, credential, allowed_hosts=None)


def test_the_first_use_binds_and_the_second_does_not(credential: ByokCredential) -> None:
    twin = ByokCredential.objects.get(pk=credential.pk)
    assert credential.record_use("llm.corp.example", own_hosts=OWN) is None
    reason = twin.record_use("listener.example", own_hosts=OWN)
    assert reason is not None
    assert reason.startswith("The credential is bound by its first use to llm.corp.example; ")
    # On shared hosting, a neighbour has the same domain.
    for neighbour in ("api.corp.example", "corp.example", "a.llm.corp.example"):
        assert twin.record_use(neighbour, own_hosts=OWN) is not None
    assert twin.record_use("api.acme.example", own_hosts=frozenset(("api.acme.example",))) is None
    twin.refresh_from_db()
    assert twin.bound_domains == ["llm.corp.example"]


def test_the_secret_with_null_forgets_the_first_use(
    management: APIClient, credential: ByokCredential
) -> None:
    credential.record_use("llm.corp.example", own_hosts=OWN)
    assert patch(management, credential, allowed_hosts=None).status_code == 200
    assert credential.bound_domains == ["llm.corp.example"]
    assert patch(management, credential, allowed_hosts=None, key=SECRET).status_code == 200
    assert (credential.bound_domains, credential.version) == (None, 1)
    assert credential.record_use("llm.moved.example", own_hosts=OWN) is None
    assert credential.bound_domains == ["llm.moved.example"]


def test_a_new_secret_keeps_the_binding(management: APIClient, credential: ByokCredential) -> None:
    credential.record_use("llm.corp.example", own_hosts=OWN)
    assert patch(management, credential, key=OTHER).status_code == 200
    assert (credential.bound_domains, credential.version) == (["llm.corp.example"], 2)
    assert credential.record_use("listener.example", own_hosts=OWN) is not None


@pytest.mark.parametrize("rule", ["named", "off"])
def test_every_rule_demands_the_secret_for_more_hosts(
    management: APIClient, credential: ByokCredential, settings: Any, rule: str
) -> None:
    settings.CREDENTIALS_REQUIRE_HOSTS = rule
    with_secret = patch(management, credential, allowed_hosts=["a.example"], key=SECRET)
    assert with_secret.status_code == 200
    assert_refused(management, credential, allowed_hosts=["b.example"])
    assert_refused(management, credential, allowed_hosts=None)
