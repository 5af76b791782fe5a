"""Own models: five operations, names that nobody else sees, and endpoints made with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from accounts.models import Organization
from catalog.models import CatalogVersion, LanguageModel
from config.bulk.problems import ImportRefused
from endpoints import imports
from endpoints.models import PrivateEndpoint, PrivateProvider, Validation, create_own_model
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import KEY, assert_refused
from tests.support.endpoints.creating import ROUTE as ENDPOINTS
from tests.support.endpoints.importing import encoded, load_bytes
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.simulator.server import Simulator

ROUTE = "/api/v1/private-models"
SLUG = "rack/support-7b"
ADDRESS = f"{ROUTE}/{SLUG}"
PLAIN = ["max_tokens", "stop", "temperature", "top_p"]


@pytest.fixture(autouse=True)
def slugged(tenant: Tenant) -> Tenant:
    """Gives the organization a slug that is no author of the catalogue."""
    tenant.organization.slug = "rack"
    tenant.organization.save_fields("slug")
    return tenant


@pytest.fixture
def rack(site: Site) -> Iterator[Site]:
    """Returns a site whose tenant has that slug, and a keyless provider of its own."""
    organization = site.tenant.organization
    Organization.objects.exclude(pk=organization.pk).filter(slug="rack").update(slug="elsewhere")
    organization.slug = "rack"
    organization.save_fields("slug")
    PrivateProvider.objects.create_provider(
        organization_id=organization.pk,
        name="My Rack",
        base_url=site.upstream.base_url,
        is_keyless=True,
    )
    site.upstream.is_keyless = True
    yield site
    site.upstream.is_keyless = False


@pytest.fixture
def manager(site: Site) -> APIClient:
    """Returns a client with the management key of the site's tenant."""
    return factories.client(site.tenant.management_key)


def body_of(site: Site, **fields: Any) -> dict[str, Any]:
    return {
        "model_permaslug": SLUG,
        "provider_slug": "my-rack",
        "upstream_model_id": "sim-echo",
        "model": {"name": "Support 7B"},
        "activate": {"workspace_id": str(site.tenant.workspace.pk)},
        **fields,
    }


def activate(site: Site, **fields: Any) -> str:
    """Makes the model and an active endpoint of it; returns the endpoint's id."""
    manager = factories.client(site.tenant.management_key)
    created = manager.post(ENDPOINTS, body_of(site, **fields))
    assert created.status_code == 201, created.content
    return str(created.json()["data"]["id"])


def ids_of(response: Any) -> list[str]:
    return [each["id"] for each in response.json()["data"]]


def test_the_five_operations(management: APIClient) -> None:
    assert management.get(ROUTE).json() == {"data": []}
    created = management.post(ROUTE, {"slug": SLUG, "name": "Support 7B"})
    assert created.status_code == 201, created.content
    data = created.json()["data"]
    assert data == {
        "slug": SLUG,
        "name": "Support 7B",
        "base_model": None,
        "context_length": None,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "tokenizer": None,
        "supported_parameters": PLAIN,
        "created_at": data["created_at"],
    }
    assert management.get(ADDRESS).json() == created.json()
    assert management.get(ROUTE).json() == {"data": [data]}
    changed = management.patch(ADDRESS, {"name": "Support 8B"})
    assert changed.json() == {"data": data | {"name": "Support 8B"}}
    assert management.patch(ADDRESS, {}).json() == changed.json()
    assert management.delete(ADDRESS).json() == {"data": {"slug": SLUG}}
    assert_refused(management.get(ADDRESS), 404, "model_not_found")
    assert_refused(management.delete(ADDRESS), 404, "model_not_found")
    again = management.post(ROUTE, {"slug": SLUG, "name": "Support 7B"})
    assert again.status_code == 201


@pytest.mark.parametrize("name", ["acme/falcon", "acme/falcon-2026-01-01"])
def test_a_base_model_gives_everything_else(management: APIClient, name: str) -> None:
    base = factories.make_model(
        "acme/falcon",
        context_length=32_768,
        input_modalities=["text", "image"],
        modality="text+image->text",
        tokenizer="Mistral",
        supported_parameters=["tools", "tool_choice"],
    )
    made = management.post(ROUTE, {"slug": SLUG, "name": "Support", "base_model": name})
    data = made.json()["data"]
    assert data["base_model"] == "acme/falcon-2026-01-01"
    assert (data["context_length"], data["tokenizer"]) == (32_768, "Mistral")
    assert data["input_modalities"] == ["text", "image"]
    assert data["supported_parameters"] == ["tools", "tool_choice"]
    plain = management.patch(ADDRESS, {"base_model": None}).json()["data"]
    assert (plain["base_model"], plain["context_length"]) == (None, None)
    assert plain["supported_parameters"] == PLAIN
    base.refresh_from_db()
    assert base.context_length == 32_768


def test_a_model_is_spoken_to_as_its_base_is(tenant: Tenant) -> None:
    factories.make_model("mistralai/mixtral", tokenizer="Mistral")
    own = create_own_model(tenant.organization.pk, SLUG, "Support", "mistralai/mixtral")
    assert own.capabilities.has_short_call_ids
    [copy] = load_organization(tenant.organization.pk).own_models.values()
    assert copy.capabilities.has_short_call_ids


@pytest.mark.parametrize(
    ("fields", "status", "error_type", "named"),
    [
        *(
            ({"slug": slug}, 400, "invalid_request", "slug: Must begin with 'rack/'")
            for slug in ("acme/x", "rack", "Rack/x")
        ),
        *(
            ({name: value}, 400, "invalid_request", name)
            for name, values in (
                ("slug", ("rack/", "rack/a/b", "rack/a:free", "rack/a b", "rack/-a", "rack/é",
                          "rack/a\n", "rack/" + "a" * 251, None, 7)),
                ("name", ("", " \u3000", "x" * 256, "a\u0000b", None)),
                ("base_model", ("", 7)),
            )
            for value in values
        ),
        ({"base_model": "acme/none"}, 404, "model_not_found", "base_model"),
        ({"base_model": "acme/gone"}, 404, "model_not_found", "base_model"),
        ({"base_model": "other/secret"}, 404, "model_not_found", "base_model"),
        ({"created": 1}, 400, "invalid_request", "created"),
        ({"slug": "rack/taken"}, 409, "model_exists", "slug"),
        ({"slug": "rack/TAKEN"}, 409, "model_exists", "slug"),
    ],
)  # fmt: skip
def test_a_wrong_model_is_refused_and_changes_nothing(
    management: APIClient,
    tenant: Tenant,
    fields: dict[str, Any],
    status: int,
    error_type: str,
    named: str,
) -> None:
    factories.make_model("acme/gone", is_listed=False)
    create_own_model(factories.make_tenant("Other").organization.pk, "other/secret", "Secret")
    create_own_model(tenant.organization.pk, "rack/taken", "Taken")
    with snapshots.unchanged():
        sent = {"slug": SLUG, "name": "Support 7B", **fields}
        error = assert_refused(management.post(ROUTE, sent), status, error_type)
        assert named in error["message"]


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_author_of_the_catalogue_owns_its_slugs(management: APIClient, is_listed: bool) -> None:
    factories.make_model("RACK/falcon", is_listed=is_listed)
    with snapshots.unchanged():
        refused = management.post(ROUTE, {"slug": SLUG, "name": "Support 7B"})
        assert_refused(refused, 409, "model_exists")


def test_slugs_never_change(management: APIClient, tenant: Tenant) -> None:
    create_own_model(tenant.organization.pk, SLUG, "Support")
    with snapshots.unchanged():
        for fields in ({"slug": "rack/other"}, {"name": ""}, {"name": None}):
            assert_refused(management.patch(ADDRESS, fields), 400, "invalid_request")
        for base in (SLUG, "acme/none"):
            assert_refused(management.patch(ADDRESS, {"base_model": base}), 404, "model_not_found")
    tenant.organization.slug = "shelf"
    tenant.organization.save_fields("slug")
    assert management.get(ADDRESS).status_code == 200
    refused = management.post(ROUTE, {"slug": "rack/new", "name": "New"})
    assert "shelf/" in assert_refused(refused, 400, "invalid_request")["message"]


def test_the_database_keeps_names_apart(tenant: Tenant) -> None:
    own = create_own_model(tenant.organization.pk, SLUG, "Support")
    with pytest.raises(IntegrityError, match="own_model_slug_unique"), transaction.atomic():
        LanguageModel.objects.create(
            organization=tenant.organization,
            slug="rack/SUPPORT-7b",
            canonical_slug="rack/SUPPORT-7b",
            name="x",
            created=1,
            input_modalities=["text"],
            output_modalities=["text"],
        )
    factories.make_model(own.slug)
    with pytest.raises(IntegrityError, match="model_slug_unique"), transaction.atomic():
        factories.make_model(own.slug, canonical_slug="rack/another")


def test_only_management_keys_of_the_organization_reach_a_model(
    management: APIClient, inference: APIClient, tenant: Tenant
) -> None:
    create_own_model(tenant.organization.pk, SLUG, "Support")
    other = factories.client(factories.make_tenant("Other").management_key)
    before = snapshots.everything()
    new = {"slug": "rack/new", "name": "New"}
    for client, status in ((inference, 403), (APIClient(), 401)):
        for response in (
            client.get(ROUTE),
            client.post(ROUTE, new),
            client.get(ADDRESS),
            client.patch(ADDRESS, {"name": "x"}),
            client.delete(ADDRESS),
        ):
            assert response.status_code == status
    assert other.get(ROUTE).json() == {"data": []}
    for response in (
        other.get(ADDRESS),
        other.patch(ADDRESS, {"name": "x"}),
        other.delete(ADDRESS),
    ):
        assert_refused(response, 404, "model_not_found")
    assert_refused(other.post(ROUTE, new), 400, "invalid_request")
    assert snapshots.everything() == before


def test_a_change_of_an_own_model_is_no_change_of_the_catalogue(tenant: Tenant) -> None:
    version = CatalogVersion.objects.values_list("version", flat=True).first()
    with transaction.atomic():
        create_own_model(tenant.organization.pk, SLUG, "Support")
    assert CatalogVersion.objects.values_list("version", flat=True).first() == version
    assert read_catalog_on_orm().models == {}


def test_a_model_and_its_endpoint_are_made_at_once(rack: Site, manager: APIClient) -> None:
    activate(rack)
    answer = rack.chat("one two", model=SLUG)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["model"], answer.json()["provider"]) == (SLUG, "My Rack")
    assert rack.settled().model == SLUG
    assert manager.get(ADDRESS).json()["data"]["name"] == "Support 7B"


def test_lists_of_the_owner_show_a_model_that_is_served(rack: Site, manager: APIClient) -> None:
    rack.publish()
    endpoint = activate(rack)
    owner = factories.client(rack.tenant.api_key)
    other = factories.client(factories.make_tenant("Other").management_key)
    for client in (owner, manager):
        assert SLUG in ids_of(client.get("/api/v1/models"))
        assert ids_of(client.get("/api/v1/models?q=support")) == [SLUG]
        assert client.get("/api/v1/models/count").json()["data"]["count"] == 2
        assert client.get(f"/api/v1/models/{SLUG}").json()["id"] == SLUG
        assert client.get(f"/api/v1/model/{SLUG}").json()["data"]["name"] == "Support 7B"
        assert client.get("/api/v1/models/support-7b").json()["id"] == SLUG
        shown = client.get(f"/api/v1/models/{SLUG}/endpoints").json()["data"]
        assert shown["id"] == SLUG
        [served] = shown["endpoints"]
        assert (served["provider_name"], served["tag"]) == ("My Rack", "my-rack")
        assert served["model_id"] == SLUG
        assert {"max_tokens", "temperature"} <= set(served["supported_parameters"])
    assert SLUG in ids_of(manager.get("/api/v1/models/user"))
    assert [each["model_slug"] for each in manager.get(ENDPOINTS).json()["data"]] == [SLUG]
    for client in (other, APIClient()):
        assert ids_of(client.get("/api/v1/models")) == [rack.model.slug]
        assert ids_of(client.get("/api/v1/models?q=support")) == []
        assert client.get("/api/v1/models/count").json()["data"]["count"] == 1
        for path in ("models/{}", "model/{}", "models/{}/endpoints"):
            hidden = client.get("/api/v1/" + path.format(SLUG))
            unknown = client.get("/api/v1/" + path.format("rack/support-9z"))
            assert hidden.status_code == 404
            assert hidden.content == unknown.content.replace(b"support-9z", b"support-7b")
    assert ids_of(other.get("/api/v1/models/user")) == [rack.model.slug]
    assert manager.post(f"{ENDPOINTS}/{endpoint}/disable").status_code == 200
    assert SLUG not in ids_of(owner.get("/api/v1/models"))


def test_the_endpoints_of_a_model_show_what_a_private_one_states(
    rack: Site, manager: APIClient
) -> None:
    rows = PrivateEndpoint.objects.filter(pk=activate(rack))
    Validation.objects.filter(endpoint__in=rows).update(parameters={})
    stated = {"max_prompt_tokens": 8_000, "tool_choice": {"required": False}}
    declared = ["tools", "tool_choice"]
    rows.update(settings={**stated, "context_length": 9_000}, declared_parameters=declared)

    def read_served() -> dict[str, Any]:
        [served] = manager.get(f"/api/v1/models/{SLUG}/endpoints").json()["data"]["endpoints"]
        return dict(served)

    served = read_served()
    assert (served["context_length"], served["max_prompt_tokens"]) == (9_000, 8_000)
    assert served["supports_tool_choice"] == {
        "auto": True, "function": True, "none": True, "required": False,
    }  # fmt: skip
    assert served["abilities"] == stated

    rows.update(settings={"excluded_parameters": served["supported_parameters"]})
    assert read_served()["supported_parameters"] == []


def test_an_own_image_model_stands_in_the_lists_of_images(
    tenant: Tenant, management: APIClient, inference: APIClient, upstream: Simulator
) -> None:
    painter = factories.make_model("acme/painter", output_modalities=["image"], created=1)
    model = create_own_model(tenant.organization.pk, SLUG, "Painter", "acme/painter")
    provider = factories.make_provider("acme")
    factories.make_credential(tenant, provider)
    fields: dict[str, Any] = {
        "tenant": tenant, "provider": provider, "base_url": upstream.base_url,
    }  # fmt: skip
    endpoint = factories.make_active(model=model, **fields)
    # A model of the catalogue that a private endpoint alone serves is listed like it.
    factories.make_active(model=painter, **fields)
    listed = "/api/v1/images/models"
    for client in (management, inference):
        assert ids_of(client.get(listed)) == [SLUG, "acme/painter"]
        [row] = client.get(f"{listed}/{SLUG}/endpoints").json()["endpoints"]
        assert (row["provider_name"], row["provider_slug"]) == ("Acme", "acme")
        assert "n" in row["supported_parameters"]
    other = factories.client(factories.make_tenant("Other").management_key)
    for client in (other, APIClient()):
        assert ids_of(client.get(listed)) == []
        assert client.get(f"{listed}/{SLUG}/endpoints").status_code == 404
    endpoint.disable()
    assert ids_of(inference.get(listed)) == ["acme/painter"]


def test_an_own_model_whose_images_are_refused_stands_in_no_list_of_images(
    tenant: Tenant, inference: APIClient, upstream: Simulator
) -> None:
    factories.make_model("acme/artist", output_modalities=["text", "image"])
    model = create_own_model(tenant.organization.pk, SLUG, "Artist", "acme/artist")
    endpoint = factories.make_active(
        tenant, model, factories.make_provider("acme"), base_url=upstream.base_url
    )
    listed = "/api/v1/images/models"
    assert ids_of(inference.get(listed)) == [SLUG]
    validation = endpoint.validation
    assert validation is not None
    assert validation.operations == {"chat/completions": "proven", "images/generations": "proven"}
    validation.evidence["operations"]["images/generations"] = "refused"
    validation.save_fields("evidence")
    assert ids_of(inference.get(listed)) == []
    assert inference.get(f"{listed}/{SLUG}/endpoints").status_code == 404
    assert inference.get(f"/api/v1/models/{SLUG}/endpoints").json()["data"]["endpoints"]


def test_to_others_a_model_is_an_unknown_one(rack: Site) -> None:
    rack.publish()
    activate(rack)
    other = factories.make_tenant("Other")
    rack.upstream.clear()
    for path in ("/api/v1/chat/completions", "/api/v1/routing/explain"):
        answers = [
            rack.post(rack.chat_body("one", model=name), path=path, key=other.api_key)
            for name in (SLUG, "rack/support-9z")
        ]
        texts = [answer.text.replace("9z", "7b") for answer in answers]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert texts[0] == texts[1]
    assert rack.dialled() == []
    explained = rack.post(rack.chat_body("one", model=SLUG), path="/api/v1/routing/explain")
    assert explained.status_code == 200, explained.text
    assert explained.json()["data"]["candidates"][0]["model"] == SLUG
    manager = factories.client(other.management_key)
    foreign = {
        "model_permaslug": SLUG,
        "provider_slug": "acme",
        "upstream_model_id": "x",
        "base_url": "https://llm.example.com/v1",
    }
    assert_refused(manager.post(ENDPOINTS, foreign), 404, "model_not_found")
    alias = {"name": "mine", "targets": [SLUG]}
    assert_refused(manager.post("/api/v1/aliases", alias), 404, "model_not_found")
    named = {"name": "Limit", "allowed_models": [SLUG]}
    assert manager.post("/api/v1/guardrails", named).status_code == 400
    owner = factories.client(rack.tenant.management_key)
    assert owner.post("/api/v1/aliases", alias).status_code == 201
    assert owner.post("/api/v1/guardrails", named).status_code == 201
    assert rack.chat("one two", model="mine").json()["model"] == SLUG


@pytest.mark.parametrize(
    ("fields", "status", "error_type"),
    [
        ({"model_permaslug": "acme/other"}, 400, "invalid_request"),
        ({"model": {"name": " "}}, 400, "invalid_request"),
        ({"model": {}}, 400, "invalid_request"),
        ({"model": "Support"}, 400, "invalid_request"),
        ({"model": {"name": "Support", "slug": SLUG}}, 400, "invalid_request"),
        ({"model": {"name": "Support", "base_model": "acme/none"}}, 404, "model_not_found"),
        ({"model": None}, 404, "model_not_found"),
        ({"provider_slug": "nobody"}, 404, "provider_not_found"),
        ({"settings": {"max_prompt_tokens": 0}}, 400, "invalid_request"),
    ],
)
def test_a_refused_endpoint_leaves_no_model(
    rack: Site, fields: dict[str, Any], status: int, error_type: str, manager: APIClient
) -> None:
    with snapshots.unchanged():
        refused = manager.post(ENDPOINTS, body_of(rack, **fields))
        assert refused.status_code == status, refused.content
        assert refused.json()["error"]["metadata"]["error_type"] == error_type


def test_a_repeated_create_makes_one_model(rack: Site, manager: APIClient) -> None:
    body = body_of(rack)
    del body["activate"]
    first, again = (manager.post(ENDPOINTS, body, headers=KEY) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert_refused(manager.post(ENDPOINTS, body), 409, "model_exists")
    second = manager.post(ENDPOINTS, body | {"model": None})
    assert second.status_code == 201
    assert LanguageModel.objects.owned_by(rack.tenant.organization.pk).count() == 1


def test_of_two_concurrent_creates_one_makes_the_model(
    rack: Site, together: Callable[..., list[Any]]
) -> None:
    headers = {"Authorization": f"Bearer {rack.tenant.management_key}"}
    body = {"slug": SLUG, "name": "Support 7B"}

    def create() -> int:
        answer = requests.post(f"{rack.server}{ROUTE}", json=body, headers=headers, timeout=60)
        return answer.status_code

    assert sorted(together(*[create] * 4)) == [201, 409, 409, 409]
    assert LanguageModel.objects.owned_by(rack.tenant.organization.pk).count() == 1


def test_a_model_in_use_stays(rack: Site, manager: APIClient) -> None:
    factories.make_model("acme/base")
    endpoint = activate(rack)
    with snapshots.unchanged():
        for response in (
            manager.delete(ADDRESS),
            manager.patch(ADDRESS, {"name": "Other", "base_model": "acme/base"}),
        ):
            error = assert_refused(response, 409, "model_in_use")
            assert error["metadata"]["endpoint_id"] == endpoint
    assert manager.patch(ADDRESS, {"name": "Other", "base_model": None}).status_code == 200
    assert manager.post(f"{ENDPOINTS}/{endpoint}/disable").status_code == 200
    assert manager.patch(ADDRESS, {"base_model": "acme/base"}).status_code == 200
    # It has been proven with other abilities.
    assert_refused(manager.post(f"{ENDPOINTS}/{endpoint}/enable"), 409, "validation_stale")
    assert_refused(manager.delete(ADDRESS), 409, "model_in_use")
    assert manager.delete(f"{ENDPOINTS}/{endpoint}").status_code == 200
    assert manager.delete(ADDRESS).status_code == 200


def test_a_later_model_of_the_catalogue_captures_no_slug(rack: Site, manager: APIClient) -> None:
    """A prompt for an own model reaches the own deployment, or nobody."""
    endpoint = activate(rack)
    public = factories.make_model(SLUG)
    provider = rack.another_provider("captor")
    rack.publish(model=public, provider=provider)
    rack.tenant.organization.edit(fallback="any")
    other = factories.make_tenant("Other")
    rack.upstream.is_keyless = False
    assert rack.post(rack.chat_body("x", model=SLUG), key=other.api_key).status_code == 200
    rack.upstream.is_keyless = True
    listed = {"provider": {"order": ["captor"]}}
    for fields in ({}, listed):
        answer = rack.chat("one two", model=SLUG, **fields)
        assert (answer.status_code, answer.json().get("provider")) == (200, "My Rack")
    owner = factories.client(rack.tenant.api_key)
    assert ids_of(owner.get("/api/v1/models?q=support")) == [SLUG]
    assert owner.get(f"/api/v1/model/{SLUG}").json()["data"]["name"] == "Support 7B"
    assert manager.post(f"{ENDPOINTS}/{endpoint}/disable").status_code == 200
    rack.upstream.clear()
    rack.upstream.is_keyless = False
    for fields in ({}, listed):
        assert rack.chat("one two", model=SLUG, **fields).status_code == 404
    assert manager.delete(f"{ENDPOINTS}/{endpoint}").status_code == 200
    assert manager.delete(ADDRESS).status_code == 200
    rack.publish(model=factories.make_model(f"{SLUG}-2"), provider=provider)
    for name in (SLUG, "Rack/Support.7B", f"~{SLUG}-latest"):
        for fields in ({}, listed):
            assert rack.chat("one two", model=name, **fields).status_code == 404
    assert rack.dialled() == []
    assert manager.delete(f"{ENDPOINTS}/{endpoint}?release=true").status_code == 200
    assert rack.chat("one two", model=SLUG).json()["provider"] == "Captor"


def test_a_deleted_model_may_come_back(rack: Site, manager: APIClient) -> None:
    twin = factories.make_model("meta/support-7b")
    rack.publish(model=twin)
    endpoint = activate(rack)
    manager.delete(f"{ENDPOINTS}/{endpoint}")
    assert manager.delete(ADDRESS).status_code == 200
    rack.upstream.clear()
    for name in (SLUG, "support-7b", "Rack/Support.7B:nitro", "support-7b-20250101"):
        assert_refused_as_unknown(rack, name)
        assert rack.chat("one two", model=name, models=[name, twin.slug]).status_code == 404
    assert rack.dialled() == []
    activate(rack)
    for name in (SLUG, "support-7b"):
        assert rack.chat("one two", model=name).json()["model"] == SLUG


def assert_refused_as_unknown(site: Site, name: str) -> None:
    answer = site.chat("one two", model=name)
    assert answer.status_code == 404
    assert answer.json()["error"]["metadata"]["error_type"] == "model_not_found"


def test_a_model_without_an_endpoint_stays_private(rack: Site) -> None:
    rack.publish()
    create_own_model(rack.tenant.organization.pk, SLUG, "Support")
    body = rack.chat_body("one two", model=SLUG, models=[SLUG, rack.model.slug])
    rack.upstream.clear()
    assert rack.post(body).status_code == 404
    assert rack.dialled() == []


def test_other_spellings_mean_an_own_model_first(rack: Site) -> None:
    rack.publish(model=factories.make_model("acme/support-7b"))
    activate(rack)
    for name in ("support-7b", "Rack/Support.7B", f"{SLUG}:nitro"):
        assert rack.chat("one two", model=name).json()["model"] == SLUG
    snapshot = load_organization(rack.tenant.organization.pk).resolve(read_catalog_on_orm())
    assert snapshot.own_slugs == {SLUG}


LINE = {
    "model_permaslug": SLUG,
    "provider_slug": "acme",
    "upstream_model_id": "support",
    "base_url": "https://llm.example.com/v1",
    "model": {"name": "Support 7B", "base_model": "acme/falcon-2026-01-01"},
}


def test_an_import_makes_models_once(tenant: Tenant) -> None:
    factories.make_provider("acme")
    factories.make_model("acme/falcon")
    second = LINE | {"upstream_model_id": "canary"}
    report = load_bytes(tenant, encoded(LINE, second))
    assert report.created == {"private_endpoints": 2}
    [own] = LanguageModel.objects.owned_by(tenant.organization.pk)
    assert (own.slug, own.base_model) == (SLUG, "acme/falcon-2026-01-01")
    assert {each.model for each in PrivateEndpoint.objects.all()} == {own}
    with snapshots.unchanged():
        exported = b"".join(imports.export(tenant.organization.pk))
        assert load_bytes(tenant, exported).unchanged == {"private_endpoints": 2}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([LINE | {"model_permaslug": "acme/x"}], "line 1: model_permaslug: Must begin with"),
        ([LINE | {"model": {"name": " "}}], "line 1: model.name"),
        ([LINE | {"model": {"name": "x", "base_model": "acme/none"}}], "line 1: base_model"),
        (
            [LINE, LINE | {"upstream_model_id": "b", "model": {"name": "Other"}}],
            "line 2: model: line 1 makes it with other members",
        ),
        (
            [LINE | {"model_permaslug": "rack/taken", "model": {"name": "Other"}}],
            "line 1: model_permaslug: the organization has a model 'rack/taken' already",
        ),
    ],
)
def test_an_import_with_a_wrong_model_changes_nothing(
    tenant: Tenant, lines: list[dict[str, Any]], problem: str
) -> None:
    factories.make_provider("acme")
    factories.make_model("acme/falcon")
    create_own_model(tenant.organization.pk, "rack/taken", "Taken")
    with snapshots.unchanged():
        with pytest.raises(ImportRefused) as caught:
            load_bytes(tenant, encoded(*lines))
        assert caught.value.problems[0].startswith(problem)
