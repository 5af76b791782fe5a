"""Lists show what a key can call: each is compared with the calls themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from accounts.models import ApiKey, ByokCredential
from catalog.models import Provider
from config.credentials import NO_SECRET, Secret
from endpoints import validation
from endpoints.models import PrivateEndpoint, PrivateProvider
from tests.support import factories
from tests.support.catalogue import EMBEDDINGS, ROUTE, USER_ROUTE, ids
from tests.support.governance import make_workspace
from tests.support.inference.site import Site

COUNT = f"{ROUTE}/count"
ALL = "?all=true"
SECRET = "own-credential-0123456789"


@pytest.fixture(autouse=True)
def _callable_listed(settings: Any, _everything_listed: None) -> None:
    settings.MODEL_LISTS = "callable"


def publish(site: Site, name: str, *, has_credential: bool = False, **fields: Any) -> Provider:
    """Publishes the model ``acme/NAME`` at a provider of its own."""
    provider = factories.make_provider(name, base_url=site.upstream.base_url, **fields)
    if has_credential:
        provider.set_credential(Secret(SECRET))
    factories.make_endpoint(factories.make_model(f"acme/{name}"), provider)
    return provider


def make_private(site: Site, provider: Provider, **fields: Any) -> PrivateEndpoint:
    model = provider.endpoints.get().model
    return factories.make_active(
        site.tenant, model, provider, base_url=site.upstream.base_url, **fields
    )


def get(site: Site, key: str | None, path: str) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = requests.get(f"{site.server}{path}", headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def listed(site: Site, key: str | None, path: str = ROUTE) -> set[str]:
    return {row["id"] for row in get(site, key, path)}


def reasons_of(answer: requests.Response) -> set[str]:
    metadata = answer.json()["error"]["metadata"]
    return {reason for each in metadata["excluded"] for reason in each["excluded_by"]}


@contextmanager
def without_keys(site: Site, is_keyless: bool = True) -> Iterator[None]:
    """Lets the upstream refuse keys meanwhile, as a server does that takes none."""
    site.upstream.is_keyless = is_keyless
    yield
    site.upstream.is_keyless = False


def set_up(site: Site) -> tuple[str, str]:
    """Makes a model for each way to have a credential, and returns keys of another workspace."""
    tenant = site.tenant
    other = make_workspace(tenant.organization, name="Other")
    _, elsewhere = ApiKey.objects.create_key(workspace=other, name="elsewhere")
    _, second = ApiKey.objects.create_key(workspace=tenant.workspace, name="second")
    first = ApiKey.objects.get(name="inference")
    publish(site, "operated", has_credential=True)
    publish(site, "bare")
    publish(site, "keyless").set_credential(NO_SECRET)
    factories.make_credential(tenant, publish(site, "brought"), workspace=None)
    factories.make_credential(tenant, publish(site, "bound"))
    factories.make_credential(
        tenant, publish(site, "chosen"), allowed_api_key_hashes=[first.digest]
    )
    factories.make_credential(tenant, publish(site, "limited"), allowed_models=["acme/limited"])
    factories.make_credential(tenant, publish(site, "unlimited"), allowed_models=["acme/bare"])
    factories.make_credential(
        tenant, publish(site, "closed", has_credential=True), is_byok_only=True,
        allowed_models=["acme/bare"],
    )  # fmt: skip
    disabled = factories.make_credential(tenant, publish(site, "disabled"))
    disabled.edit(disabled=True)
    deleted = factories.make_credential(tenant, publish(site, "deleted"))
    deleted.remove()
    broken = factories.make_credential(tenant, publish(site, "broken"))
    ByokCredential.objects.filter(pk=broken.pk).update(sealed=b"broken")
    return elsewhere.reveal(), second.reveal()


def set_up_private(site: Site) -> None:
    """Makes private endpoints that can be called, and such that keep their model from others."""
    own = PrivateProvider.objects.create_provider(
        organization_id=site.tenant.organization.pk,
        name="Rack",
        base_url=site.upstream.base_url,
        is_keyless=True,
    )
    rack, _ = PrivateEndpoint.objects.create_draft(
        organization_id=site.tenant.organization.pk,
        model_permaslug=factories.make_model("acme/racked").canonical_slug,
        provider_slug=own.slug,
        base_url=None,
        upstream_model_id="sim-echo",
    )
    with without_keys(site):
        assert validation.run(rack, workspace_id=site.tenant.workspace.pk).passed
    rack.activate()
    make_private(site, publish(site, "private"))
    make_private(site, publish(site, "lost", has_credential=True))
    ByokCredential.objects.get(provider_slug="lost").edit(disabled=True)
    make_private(site, publish(site, "retired", has_credential=True)).disable()
    distant = publish(site, "distant")
    make_private(site, distant)
    ByokCredential.objects.filter(provider_slug="distant").update(allowed_hosts=["far.example"])
    Provider.objects.filter(pk=distant.pk).update(base_url="https://far.example/v1")
    opened = make_private(site, publish(site, "opened", has_credential=True), fallback="any")
    ByokCredential.objects.get(provider_slug="opened").edit(disabled=True)
    assert opened.fallback == "any"


EVERYBODY = {"acme/operated", "acme/keyless"}
SHARED = EVERYBODY | {"acme/brought", "acme/racked", "acme/opened"}
OF_WORKSPACE = SHARED | {"acme/bound", "acme/limited", "acme/private"}
REASONS = {"no_credential", "credential_host", "byok_required", "private_only"}


def test_a_model_is_listed_exactly_if_the_key_can_call_it(site: Site) -> None:
    elsewhere, second = set_up(site)
    set_up_private(site)
    expected = {
        site.tenant.api_key: OF_WORKSPACE | {"acme/chosen"},
        second: OF_WORKSPACE,
        elsewhere: SHARED | {"acme/closed"},
    }
    assert listed(site, None) == EVERYBODY | {
        "acme/closed", "acme/lost", "acme/retired", "acme/opened",
    }  # fmt: skip
    for key, models in expected.items():
        found = listed(site, key)
        for model in listed(site, key, f"{ROUTE}{ALL}") | {"acme/racked"}:
            with without_keys(site, model in {"acme/keyless", "acme/racked"}):
                answer = site.post({**site.chat_body(), "model": model}, key=key)
            is_listed = model in found
            assert answer.ok == is_listed, (model, answer.text)
            if not is_listed:
                assert reasons_of(answer) & REASONS, (model, answer.text)
        assert found == models
        assert get(site, key, COUNT) == {"count": len(models)}


def test_a_management_key_sees_what_its_workspace_can_call(site: Site) -> None:
    set_up(site)
    set_up_private(site)
    key = site.tenant.management_key
    expected = OF_WORKSPACE | {"acme/chosen"}
    assert listed(site, key) == listed(site, key, USER_ROUTE) == expected
    stranger = factories.make_tenant("Stranger")
    operated = {"acme/closed", "acme/lost", "acme/retired", "acme/opened"} | EVERYBODY
    assert listed(site, stranger.management_key, USER_ROUTE) == operated
    assert listed(site, stranger.api_key) == listed(site, None) == operated


@pytest.mark.parametrize("path", [ROUTE, USER_ROUTE])
def test_a_credential_counts_from_the_next_request_on(site: Site, path: str) -> None:
    provider, key = publish(site, "solo"), site.tenant.management_key
    assert listed(site, key, path) == set()
    credential = factories.make_credential(site.tenant, provider)
    assert listed(site, key, path) == {"acme/solo"}
    credential.edit(disabled=True)
    assert listed(site, key, path) == set()
    credential.edit(disabled=False)
    assert listed(site, key, path) == {"acme/solo"}
    credential.edit(allowed_models=["acme/other"])
    assert listed(site, key, path) == set()
    credential.edit(allowed_models=["acme/solo-2026-01-01"])
    assert listed(site, key, path) == {"acme/solo"}
    credential.remove()
    assert listed(site, key, path) == set()
    provider.set_credential(Secret(SECRET))
    assert listed(site, key, path) == {"acme/solo"}
    private = make_private(site, provider)
    assert listed(site, key, path) == {"acme/solo"}
    private.disable()
    assert listed(site, key, path) == set()
    site.allow_fallback()
    assert listed(site, key, path) == {"acme/solo"}


def test_a_policy_judges_an_endpoint_with_its_credential(site: Site) -> None:
    tenant = site.tenant
    factories.make_credential(tenant, publish(site, "kept"), declared_zdr=True)
    factories.make_credential(tenant, publish(site, "loose"), declared_zdr=False)
    tenant.organization.edit(requires_zdr=True)
    assert listed(site, tenant.management_key, USER_ROUTE) == {"acme/kept"}
    for model, status in (("acme/kept", 200), ("acme/loose", 404)):
        assert site.post({**site.chat_body(), "model": model}).status_code == status


@pytest.mark.django_db
def test_one_request_may_ask_for_the_whole_catalogue(
    anonymous: APIClient, management: APIClient, settings: Any
) -> None:
    outputs = ["text", "embeddings", "image"]
    model = factories.make_model("acme/bare", output_modalities=outputs)
    endpoint = factories.make_endpoint(model, factories.make_provider("bare"), zdr=True)
    one, path = "/api/v1/model/acme/bare", f"{ROUTE}/acme/bare"
    wide = "&output_modalities=all"
    for client in (anonymous, management):
        assert ids(client) == ids(client, route=EMBEDDINGS) == []
        assert ids(client, ALL) == ids(client, ALL + wide) == ["acme/bare"]
        assert ids(client, ALL, route=EMBEDDINGS) == ["acme/bare"]
        assert client.get(COUNT).json()["data"] == {"count": 0}
        assert client.get(COUNT + ALL).json()["data"] == {"count": 1}
        for route in (one, path):
            refused = client.get(route)
            assert refused.status_code == 404
            assert refused.json()["error"]["message"] == (
                "No endpoint that you may use serves the model 'acme/bare'. The query parameter "
                "all=true shows the catalogue."
            )
            assert client.get(route + ALL).status_code == 200
        for route in (f"{path}/endpoints", "/api/v1/endpoints/zdr"):
            assert endpoints_at(client, route) == []
            assert endpoints_at(client, route + ALL) == [endpoint.provider.slug]
        images = "/api/v1/images/models"
        assert client.get(images).json() == {"data": []}
        assert [row["id"] for row in client.get(images + ALL).json()["data"]] == ["acme/bare"]
        assert client.get(f"{images}/acme/bare/endpoints").status_code == 404
        assert client.get(f"{images}/acme/bare/endpoints{ALL}").status_code == 200
    assert ids(management, ALL, route=USER_ROUTE) == ["acme/bare"]
    settings.MODEL_LISTS = "all"
    assert ids(anonymous) == ids(management, route=USER_ROUTE) == ["acme/bare"]
    assert anonymous.get(COUNT).json()["data"] == {"count": 1}


def endpoints_at(client: APIClient, route: str) -> list[str]:
    data = client.get(route).json()["data"]
    return [row["tag"] for row in (data if isinstance(data, list) else data["endpoints"])]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    [
        ROUTE, COUNT, USER_ROUTE, EMBEDDINGS, "/api/v1/model/acme/bare", f"{ROUTE}/acme/bare",
        f"{ROUTE}/acme/bare/endpoints", "/api/v1/endpoints/zdr", "/api/v1/images/models",
        "/api/v1/images/models/acme/bare/endpoints",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["false", "1", "True", "", "true,true"])
@pytest.mark.parametrize("setting", ["callable", "all"])
def test_other_values_of_all_are_refused(
    management: APIClient, settings: Any, path: str, value: str, setting: str
) -> None:
    settings.MODEL_LISTS = setting
    factories.make_endpoint(factories.make_model("acme/bare"), factories.make_provider())
    answer = management.get(path, {"all": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["fields"].keys() == {"all"}


@pytest.mark.django_db
def test_a_filter_by_provider_finds_what_can_be_called_there(anonymous: APIClient) -> None:
    paid, bare = factories.make_provider("paid"), factories.make_provider("bare")
    paid.set_credential(Secret(SECRET))
    model = factories.make_model("acme/falcon")
    factories.make_endpoint(model, bare, price=factories.make_price("0.0000001"))
    factories.make_endpoint(model, paid)
    [row] = anonymous.get(ROUTE).json()["data"]
    assert row["pricing"]["prompt"] == "0.000001"
    assert ids(anonymous, "?providers=bare") == []
    assert ids(anonymous, "?providers=paid") == ids(anonymous, "?providers=bare&all=true")
    assert endpoints_at(anonymous, f"{ROUTE}/acme/falcon/endpoints") == ["paid"]


def test_a_name_is_listed_only_for_the_model_that_it_means(site: Site) -> None:
    paid, bare = publish(site, "falcon-1", has_credential=True), publish(site, "falcon-2")
    newest = bare.endpoints.get().model
    factories.change(newest, created=newest.created + 1)
    name = "~acme/falcon-latest"
    assert listed(site, None) == {"acme/falcon-1"}
    refused = site.post({**site.chat_body(), "model": name})
    assert reasons_of(refused) == {"no_credential"}
    factories.make_credential(site.tenant, bare)
    assert listed(site, site.tenant.api_key) == {"acme/falcon-1", "acme/falcon-2", name}
    assert site.post({**site.chat_body(), "model": name}).status_code == 200
    paid.delist()
    assert listed(site, site.tenant.api_key) == {"acme/falcon-2", name}


@pytest.mark.django_db(transaction=True)
def test_credentials_cost_no_query_until_they_change(management: APIClient, tenant: Any) -> None:
    def queries(path: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert management.get(path).status_code == 200
        return len(captured)

    provider = factories.make_provider()
    factories.make_endpoint(factories.make_model(), provider)
    factories.make_credential(tenant, provider)
    for path in (ROUTE, USER_ROUTE):
        queries(path)
    # The key with its organization, the version and the aliases; for the caller's own list the
    # guardrails too.
    assert [queries(path) for path in (ROUTE, USER_ROUTE)] == [3, 4]
    factories.make_credential(tenant, provider)
    assert [queries(path) for path in (ROUTE, USER_ROUTE, ROUTE)] == [4, 4, 3]


@pytest.mark.django_db
def test_an_import_says_what_waits_for_a_credential(
    capsys: pytest.CaptureFixture[str], settings: Any, tmp_path: Path
) -> None:
    file = tmp_path / "catalogue.json"
    file.write_text("{}")
    paid, bare = factories.make_provider("paid"), factories.make_provider("bare")
    paid.set_credential(Secret(SECRET))
    for slug, providers in (("acme/a", (paid, bare)), ("acme/b", (bare,)), ("acme/c", (bare,))):
        model = factories.make_model(slug)
        for provider in providers:
            factories.make_endpoint(model, provider)

    def import_nothing(**options: Any) -> str:
        call_command("import_catalog", str(file), **options)
        return capsys.readouterr().err

    providers = "These providers have no credential yet: bare."
    assert import_nothing(json=True).endswith(
        f"{providers} The lists leave out 2 of 3 models until they have one "
        "(set_provider_credential) or an organization brings its own.\n"
    )
    assert providers not in import_nothing(dry_run=True)
    settings.MODEL_LISTS = "all"
    assert import_nothing().endswith(f"{providers}\n")
    bare.set_credential(NO_SECRET)
    assert providers not in import_nothing()
