"""Private providers: five operations, names that nobody else sees, and endpoints under them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from accounts.admin.credentials import ByokAddForm
from accounts.models import ApiKey, ByokCredential
from accounts.policy import Policy
from catalog.models import Provider
from catalog.visibility import exclusions
from config.clocks.clock import clock
from config.credentials import Secret
from endpoints.models import PrivateEndpoint, PrivateProvider
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from tests.support import factories
from tests.support.database import snapshots
from tests.support.database.locks import at_once
from tests.support.endpoints.creating import ROUTE as ENDPOINTS
from tests.support.endpoints.creating import assert_refused
from tests.support.factories import Tenant
from tests.support.inference.site import Site

ROUTE = "/api/v1/private-providers"
OWN = {"name": "Acme Inference", "base_url": "https://llm.example.com/v1"}


def create(management: APIClient, **fields: Any) -> Any:
    return management.post(ROUTE, {**OWN, **fields})


def make_own(tenant: Tenant, name: str = "My Rack", **fields: Any) -> PrivateProvider:
    return PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk, name=name, **fields
    )


def test_the_five_operations(management: APIClient, db: None) -> None:
    assert management.get(ROUTE).json() == {"data": []}
    created = create(management)
    assert created.status_code == 201, created.content
    data = created.json()["data"]
    assert data == {
        "name": "Acme Inference",
        "slug": "acme-inference",
        "display_name": "Acme Inference",
        "base_url": "https://llm.example.com/v1",
        "created_at": data["created_at"],
        "keyless": False,
    }
    address = f"{ROUTE}/acme-inference"
    assert management.get(address).json() == created.json()
    assert management.get(ROUTE).json() == {"data": [data]}
    changed = management.patch(address, {"display_name": "Rack 7", "base_url": None})
    assert changed.status_code == 200
    assert changed.json()["data"] == data | {"display_name": "Rack 7", "base_url": None}
    assert management.delete(address).json() == {"data": {"slug": "acme-inference"}}
    assert management.get(address).status_code == 404
    assert_refused(management.delete(address), 404, "provider_not_found")
    assert create(management).status_code == 201


def test_other_organizations_see_nothing_and_may_use_the_same_name(
    management: APIClient, db: None
) -> None:
    create(management)
    other = factories.client(factories.make_tenant("Other").management_key)
    assert other.get(ROUTE).json() == {"data": []}
    for response in (
        other.get(f"{ROUTE}/acme-inference"),
        other.patch(f"{ROUTE}/acme-inference", {"display_name": "x"}),
        other.delete(f"{ROUTE}/acme-inference"),
    ):
        assert_refused(response, 404, "provider_not_found")
    assert create(other).status_code == 201


@pytest.mark.parametrize(
    ("fields", "slug"),
    [
        ({"name": "A. B_c-d"}, "a-b-c-d"),
        ({"name": "GPU 7", "slug": "rack-7"}, "rack-7"),
        ({"name": "x" * 64}, "x" * 64),
        ({"name": "ab"}, "ab"),
    ],
)
def test_the_slug_comes_from_the_name(
    management: APIClient, fields: dict[str, Any], slug: str
) -> None:
    assert create(management, **fields).json()["data"]["slug"] == slug


@pytest.mark.parametrize(
    ("fields", "status", "error_type"),
    [
        *(
            ({"name": name}, 400, "invalid_request")
            for name in ("a", "x" * 65, "a/b", "  ", "a.", None)
        ),
        *(({"slug": slug}, 400, "invalid_request") for slug in ("A", "a--b", "-ab", "a")),
        ({"data_policy": {}}, 400, "invalid_request"),
        ({"base_url": "http://llm.example.com/v1"}, 422, "invalid_base_url"),
        ({"base_url": "https://10.0.0.1/v1"}, 422, "invalid_base_url"),
        ({"base_url": "https://169.254.169.254/"}, 422, "invalid_base_url"),
        ({"name": "ACME ai"}, 409, "provider_exists"),
        ({"name": "Acme"}, 409, "provider_exists"),
        ({"slug": "acme"}, 409, "provider_exists"),
        ({"name": "my RACK"}, 409, "provider_exists"),
        ({"name": "Other", "slug": "my-rack"}, 409, "provider_exists"),
    ],
)
def test_a_wrong_provider_is_refused_and_changes_nothing(
    management: APIClient, tenant: Tenant, fields: dict[str, Any], status: int, error_type: str
) -> None:
    factories.make_provider("acme", name="Acme AI")
    make_own(tenant)
    with snapshots.unchanged():
        assert_refused(create(management, **fields), status, error_type)


def test_names_never_change(management: APIClient, tenant: Tenant) -> None:
    make_own(tenant)
    with snapshots.unchanged():
        for fields in ({"name": "Other"}, {"slug": "other"}, {"display_name": ""}):
            assert_refused(management.patch(f"{ROUTE}/my-rack", fields), 400, "invalid_request")


def body_of(site: Site, **fields: Any) -> dict[str, Any]:
    return {
        "model_permaslug": site.model.canonical_slug,
        "provider_slug": "my-rack",
        "upstream_model_id": "sim-echo",
        **fields,
    }


@pytest.fixture
def manager(site: Site) -> APIClient:
    """Returns a client with the management key of the site's tenant."""
    return factories.client(site.tenant.management_key)


@pytest.fixture
def open_site(site: Site) -> Iterator[Site]:
    """Returns a site whose upstream refuses every request that has a credential."""
    site.upstream.is_keyless = True
    yield site
    site.upstream.is_keyless = False


def activate(site: Site, manager: APIClient, **fields: Any) -> Any:
    body = body_of(site, activate={"workspace_id": str(site.tenant.workspace.pk)}, **fields)
    return manager.post(ENDPOINTS, body)


def store_key(manager: APIClient) -> None:
    """Stores a secret for the private provider."""
    key = {"provider": "my-rack", "key": "own-secret-0123456789"}
    stored = manager.post("/api/v1/byok", key)
    assert stored.status_code == 201, stored.content


def make_keyless(provider: Provider) -> None:
    provider.is_keyless = True
    provider.sealed_credential = None
    provider.save_fields("is_keyless", "sealed_credential")


def test_an_endpoint_under_a_keyless_provider_inherits_its_address(
    open_site: Site, manager: APIClient
) -> None:
    site = open_site
    make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    created = activate(site, manager)
    assert created.status_code == 201, created.content
    assert created.json()["data"]["provider_name"] == "My Rack"
    answer = site.chat("one two")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["provider"], body["usage"]["is_byok"]) == ("My Rack", True)
    full = manager.get(f"{ENDPOINTS}/{created.json()['data']['id']}").json()["data"]
    assert (full["base_url"], full["provider_slug"]) == (None, "my-rack")
    [shown] = manager.get("/api/v1/models/user").json()["data"]
    assert shown["id"] == site.model.slug
    checks = PrivateEndpoint.objects.get().validation
    assert checks is not None
    assert {"name": "byok_key", "passed": True} in checks.checks


def test_an_endpoint_under_a_provider_uses_its_organizations_key(
    site: Site, manager: APIClient
) -> None:
    make_own(site.tenant, base_url=site.upstream.base_url)
    assert activate(site, manager).status_code == 422
    store_key(manager)
    assert activate(site, manager).status_code == 201
    site.upstream.clear()
    assert site.chat("one two").status_code == 200
    [request] = site.upstream.requests
    assert request.headers["authorization"] == "Bearer own-secret-0123456789"
    named = {"provider": {"only": ["my-rack"]}}
    assert site.post(site.chat_body("one two", **named)).status_code == 200
    ignored = {"provider": {"ignore": ["my-rack"]}}
    assert site.post(site.chat_body("one two", **ignored)).status_code == 404


def test_endpoints_of_a_private_provider_keep_and_train_on_nothing(
    open_site: Site, manager: APIClient
) -> None:
    site = open_site
    make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    assert activate(site, manager).status_code == 201
    own = load_organization(site.tenant.organization.pk).resolve(read_catalog_on_orm())
    [[route]] = own.routes.values()
    assert not exclusions(route.facts, Policy.of(zdr=True, no_training=True))
    strict = {"provider": {"zdr": True, "data_collection": "deny"}}
    assert site.post(site.chat_body("one two", **strict)).status_code == 200


def test_null_takes_the_address_of_the_provider(management: APIClient, tenant: Tenant) -> None:
    provider: Any = make_own(tenant, base_url="https://llm.example.com/v1")
    elsewhere = "https://other.example.com/v1"
    draft = factories.make_draft(tenant, factories.make_model(), provider, base_url=elsewhere)
    path = f"{ENDPOINTS}/{draft.pk}"
    assert management.patch(path, {"base_url": None}).json()["data"]["base_url"] is None
    assert PrivateEndpoint.objects.get().base_url is None
    bare: Any = make_own(tenant, "Bare")
    draft = factories.make_draft(tenant, factories.make_model(), bare, base_url=elsewhere)
    refused = management.patch(f"{ENDPOINTS}/{draft.pk}", {"base_url": None})
    assert_refused(refused, 422, "invalid_base_url")
    draft.refresh_from_db()
    assert draft.base_url == elsewhere


def test_a_provider_in_use_stays(open_site: Site, manager: APIClient) -> None:
    site = open_site
    provider = make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    created = activate(site, manager).json()["data"]
    with snapshots.unchanged():
        address = f"{ROUTE}/my-rack"
        elsewhere = {"base_url": "https://other.example.com/v1"}
        for response in (
            manager.delete(address),
            manager.patch(address, elsewhere),
            manager.patch(address, {"base_url": None}),
            manager.patch(address, {"keyless": False}),
        ):
            error = assert_refused(response, 409, "provider_in_use")
            assert error["metadata"]["endpoint_id"] == created["id"]
    assert manager.post(f"{ENDPOINTS}/{created['id']}/disable").status_code == 200
    assert manager.patch(address, elsewhere).status_code == 200
    assert manager.delete(address).status_code == 409
    assert manager.delete(f"{ENDPOINTS}/{created['id']}").status_code == 200
    assert manager.delete(address).status_code == 200
    provider.refresh_from_db()
    assert provider.deleted_at is not None


def test_a_refusal_advises_what_is_possible(open_site: Site, manager: APIClient) -> None:
    site = open_site
    make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    path = f"{ENDPOINTS}/{activate(site, manager).json()['data']['id']}"
    address, elsewhere = f"{ROUTE}/my-rack", "https://other.example.com/v1"

    def assert_advised(route: str, fields: dict[str, Any], advice: str) -> None:
        with snapshots.unchanged():
            answer = manager.patch(route, fields)
            assert (answer.status_code, answer.json()["error"]["message"].endswith(advice)) == (
                409,
                True,
            ), answer.text

    disable = " is active and uses it. Disable or delete that endpoint first"
    replace = f"{disable}, or replace its deployment by one with a base_url of its own."
    assert_advised(address, {"keyless": False}, f"{disable}.")
    assert_advised(address, {"base_url": elsewhere}, replace)
    delete = "{} and uses it. Delete that endpoint first, or {}."
    nowhere: dict[str, Any] = {"base_url": None}
    replace = "replace its deployment by one with a base_url of its own"
    assert_advised(address, nowhere, delete.format("active", replace))
    assert manager.post(f"{path}/disable").status_code == 200
    again = "enable it and replace its deployment"
    assert_advised(address, nowhere, delete.format("disabled", again))
    draft = f"{ENDPOINTS}/{manager.post(ENDPOINTS, body_of(site)).json()['data']['id']}"
    assert_advised(address, nowhere, delete.format("draft", "give it a base_url of its own"))
    assert manager.delete(draft).status_code == 200
    enable = "Enable it, then send the change with activate; or delete it and create another one."
    own: dict[str, Any] = {"base_url": site.upstream.base_url}
    assert_advised(path, own, f"can be changed in a draft only. {enable}")
    # That is what helps.
    assert manager.post(f"{path}/enable").status_code == 200
    own["activate"] = {"workspace_id": str(site.tenant.workspace.pk)}
    assert manager.patch(path, own).status_code == 200
    assert manager.patch(address, {"base_url": None}).status_code == 200


def test_a_changed_address_makes_a_validation_stale(open_site: Site, manager: APIClient) -> None:
    site = open_site
    provider = make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    draft = manager.post(ENDPOINTS, body_of(site)).json()["data"]["id"]
    where = {"workspace_id": str(site.tenant.workspace.pk)}
    assert manager.post(f"{ENDPOINTS}/{draft}/validate", where).json()["data"]["passed"] is True
    provider.edit(base_url="https://other.example.com/v1")
    refused = manager.post(f"{ENDPOINTS}/{draft}/activate")
    assert_refused(refused, 409, "validation_stale")


@pytest.mark.parametrize(
    "change", [{"base_url": "https://other.example.com/v1"}, {"keyless": False}]
)
def test_what_a_disabled_endpoint_inherits_is_proven_again(
    open_site: Site, manager: APIClient, change: dict[str, Any]
) -> None:
    site = open_site
    provider = make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    path = f"{ENDPOINTS}/{activate(site, manager, declared_zdr=True).json()['data']['id']}"
    assert manager.post(f"{path}/disable").status_code == 200
    assert manager.patch(f"{ROUTE}/my-rack", change).status_code == 200
    with snapshots.unchanged():
        assert_refused(manager.post(f"{path}/enable"), 409, "validation_stale")
    # What was declared was said of the deployment at the old address.
    endpoint = PrivateEndpoint.objects.get()
    assert endpoint.declared_zdr is (None if "base_url" in change else True)
    assert endpoint.attestation is not None
    key = ApiKey.objects.get(name="management")
    assert endpoint.attestation.stated_by == f"key {key.label}"
    provider.edit(base_url=site.upstream.base_url, is_keyless=True)
    assert_refused(manager.post(f"{path}/enable"), 409, "validation_stale")
    again = {"workspace_id": str(site.tenant.workspace.pk), "again": True}
    assert manager.post(f"{path}/validate", again).json()["data"]["passed"] is True
    assert manager.post(f"{path}/enable").status_code == 200
    assert site.chat("one two").status_code == 200


def test_a_stored_secret_does_not_follow_the_address_of_its_provider(
    site: Site, manager: APIClient
) -> None:
    make_own(site.tenant, base_url=site.upstream.base_url)
    store_key(manager)
    created = activate(site, manager).json()["data"]["id"]
    assert manager.delete(f"{ENDPOINTS}/{created}").status_code == 200
    elsewhere = {"base_url": "https://thief.example.com/v1"}
    assert manager.patch(f"{ROUTE}/my-rack", elsewhere).status_code == 200
    draft = manager.post(ENDPOINTS, body_of(site)).json()["data"]["id"]
    where = {"workspace_id": str(site.tenant.workspace.pk)}
    found = manager.post(f"{ENDPOINTS}/{draft}/validate", where).json()["data"]
    [failed] = [check for check in found["checks"] if not check["passed"]]
    assert (failed["name"], failed["reason"]) == ("base_url", "invalid_base_url")
    assert "thief.example.com is elsewhere" in failed["upstream_message"]


def test_a_provider_is_not_deleted_before_its_credentials(site: Site, manager: APIClient) -> None:
    make_own(site.tenant)
    store_key(manager)
    credential = ByokCredential.objects.get()
    with snapshots.unchanged():
        error = assert_refused(manager.delete(f"{ROUTE}/my-rack"), 409, "provider_in_use")
    assert error["metadata"]["credential_id"] == str(credential.pk)
    assert manager.delete(f"/api/v1/byok/{credential.pk}").status_code == 200
    assert manager.delete(f"{ROUTE}/my-rack").status_code == 200


def test_a_credential_is_not_stored_for_a_provider_that_is_deleted_meanwhile(
    transactional_db: None,
) -> None:
    tenant = factories.make_tenant()
    provider, client = make_own(tenant), factories.client(tenant.management_key)
    body = {"provider": "my-rack", "key": "secret-of-the-rack-01234"}
    _, answer = at_once(
        provider.remove,
        lambda: client.post("/api/v1/byok", body, format="json"),
        held="SELECT 1 FROM accounts_organization FOR UPDATE",
    )
    error = assert_refused(answer, 400, "invalid_request")
    assert list(error["metadata"]["fields"]) == ["provider"]
    assert not ByokCredential.objects.exists()


def test_an_endpoint_needs_an_address_of_its_own_where_the_provider_has_none(
    site: Site, manager: APIClient
) -> None:
    make_own(site.tenant)
    with snapshots.unchanged():
        assert_refused(manager.post(ENDPOINTS, body_of(site)), 422, "invalid_base_url")
    other = factories.client(factories.make_tenant("Other").management_key)
    with snapshots.unchanged():
        foreign = body_of(site, base_url="https://llm.example.com/v1")
        assert_refused(other.post(ENDPOINTS, foreign), 404, "provider_not_found")
    assert manager.post(ENDPOINTS, foreign).status_code == 201


def test_a_later_provider_of_the_catalogue_captures_no_slug(site: Site, manager: APIClient) -> None:
    """The slug, and the secret that is stored for it, stay those of the organization."""
    make_own(site.tenant, base_url=site.upstream.base_url)
    store_key(manager)
    captor = site.another_provider("my-rack")
    other = factories.make_model("acme/other")
    site.publish(model=other, provider=captor)
    site.upstream.clear()
    assert site.post(site.chat_body("one two", model=other.slug)).status_code == 200
    [request] = site.upstream.requests
    assert "own-secret" not in request.headers["authorization"]
    assert manager.post(ENDPOINTS, body_of(site)).json()["data"]["provider_name"] == "My Rack"


def test_the_name_of_a_provider_allows_none_of_the_catalogue(
    site: Site, manager: APIClient
) -> None:
    """A rule that names an own provider admits no public one of that name."""
    make_own(site.tenant, base_url=site.upstream.base_url)
    store_key(manager)
    assert activate(site, manager).status_code == 201
    other, captor = factories.make_model("meta/falcon"), site.another_provider("my-rack")
    for model in (other, site.model):
        site.publish(model=model, provider=captor, price=factories.make_price("0.5", "0.5"))
    site.upstream.clear()

    def find_reasons(**fields: Any) -> Any:
        answer = site.chat(model=other.slug, **fields)
        assert answer.status_code == 404, answer.text
        [left_out] = answer.json()["error"]["metadata"]["excluded"]
        return left_out["excluded_by"]

    alone = {"order": ["my-rack"], "allow_fallbacks": False}
    assert find_reasons(provider=alone) == ["order"]
    assert find_reasons(provider={"only": ["My-Rack"]}) == ["provider_not_allowed"]
    assert find_reasons(provider={"ignore": ["my-rack"]}) == ["provider_ignored"]
    guardrail = f"/api/v1/guardrails/{site.tenant.workspace.default_guardrail_id}"
    assert manager.patch(guardrail, {"allowed_providers": ["my-rack"]}).status_code == 200
    assert find_reasons() == ["provider_not_allowed"]
    assert site.dialled() == []
    for name in (site.model.slug, "falcon"):
        answer = site.chat(model=name).json()
        assert (answer["model"], answer["provider"]) == (site.model.slug, "My Rack")
    [shown] = manager.get("/api/v1/models/user").json()["data"]
    assert shown["id"] == site.model.slug
    assert shown["pricing"]["prompt"] != "0.5"


def test_the_name_of_a_provider_lists_none_of_the_catalogue(site: Site) -> None:
    """A private model stays private, whichever own provider a request names."""
    make_own(site.tenant)
    site.own().disable()
    site.publish(provider=site.another_provider("my-rack"))
    for named in ({"order": ["my-rack"]}, {"only": ["my-rack"]}):
        assert site.chat(provider=named).status_code == 404
    assert site.dialled() == []


@pytest.mark.parametrize(
    ("later", "is_disabled"),
    [
        ([], True),
        (["captured"], True),
        (["edited"], True),
        (["captured", "edited"], False),
        (["made anew"], False),
    ],
)
def test_an_upgrade_disables_what_a_deleted_provider_has_left(
    tenant: Tenant, later: list[str], is_disabled: bool
) -> None:
    """Release 1.0.0 deleted a provider whose credentials were stored."""
    provider: Any = make_own(tenant)
    credential = factories.make_credential(tenant, provider)
    stranger = factories.make_tenant("Other")
    factories.make_credential(stranger, provider)
    PrivateProvider.objects.update(deleted_at=clock.now())
    if "captured" in later:
        factories.make_provider("my-rack")
        factories.make_credential(tenant, provider)
    if "edited" in later:
        credential.edit(name="mine")
    if "made anew" in later:
        make_own(tenant)
    orphans = import_module("endpoints.migrations.0002_orphan_credentials").ORPHANS
    with connection.cursor() as cursor:
        cursor.execute(orphans)
    found = ByokCredential.objects.filter(disabled=True)
    assert list(found) == ([credential] if is_disabled else [])


def test_the_name_of_a_deleted_provider_lists_no_later_one_of_the_catalogue(
    open_site: Site, manager: APIClient
) -> None:
    """A request that still names the private provider is meant for no other one."""
    site = open_site
    make_own(site.tenant, base_url=site.upstream.base_url, is_keyless=True)
    created = activate(site, manager).json()["data"]["id"]
    assert manager.delete(f"{ENDPOINTS}/{created}").status_code == 200
    assert manager.delete(f"{ROUTE}/my-rack").status_code == 200
    site.publish(provider=site.another_provider("my-rack", name="My Rack"))
    site.upstream.is_keyless = False
    site.upstream.clear()
    for named in ({"order": ["my-rack"]}, {"only": ["My Rack"]}):
        assert site.chat("one two", provider=named).status_code == 404
    assert site.dialled() == []
    assert manager.delete(f"{ENDPOINTS}/{created}?release=true").status_code == 200
    assert site.chat("one two").status_code == 200


def test_a_private_endpoint_at_a_keyless_catalogue_provider_needs_no_key(
    open_site: Site, manager: APIClient
) -> None:
    site = open_site
    make_keyless(site.provider)
    body = {"provider_slug": site.provider.slug, "base_url": site.upstream.base_url}
    assert activate(site, manager, **body).status_code == 201
    assert site.chat("one two").status_code == 200


def test_a_keyless_server_is_sent_no_credential_of_an_organization(
    open_site: Site, manager: APIClient
) -> None:
    site = open_site
    factories.make_credential(site.tenant, site.provider, "key-of-the-organization")
    make_keyless(site.provider)
    site.publish()
    assert site.chat("one two").status_code == 200
    [request] = site.dialled()
    assert "authorization" not in request.headers
    own = {"name": "Rack", "base_url": site.upstream.base_url, "keyless": True}
    assert manager.post(ROUTE, own).status_code == 201
    for slug in ("rack", site.provider.slug):
        answer = manager.post("/api/v1/byok", {"provider": slug, "key": "key-of-the-organization"})
        assert (answer.status_code, ByokCredential.objects.count()) == (400, 1)
        assert "take no key" in answer.json()["error"]["message"]
    credential = ByokCredential.objects.get()
    answer = manager.patch(f"/api/v1/byok/{credential.pk}", {"key": "another-key-of-the-owner"})
    assert (answer.status_code, "take no key" in answer.text) == (400, True)
    credential.refresh_from_db()
    assert credential.reveal() == Secret("key-of-the-organization")
    assert not ByokAddForm.base_fields["provider"].queryset.exists()
