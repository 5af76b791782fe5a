"""Model lists show aliases beside their models, and a model is found by each of its names."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from rest_framework.test import APIClient

from catalog.aliases import changes
from catalog.models import LanguageModel
from tests.support import factories
from tests.support.factories import Tenant

MODELS = "/api/v1/models"


@pytest.fixture(autouse=True)
def models(db: None) -> dict[str, LanguageModel]:
    provider = factories.make_provider("acme")
    made = {
        slug: factories.make_model(slug, created=created)
        for slug, created in (("acme/falcon-1", 1), ("acme/falcon-2", 2), ("acme/hawk", 3))
    }
    for model in made.values():
        factories.make_endpoint(model, provider, upstream_model_id=f"up-{model.slug[5:]}")
    return made


def alias(owner: Tenant | None, name: str, *targets: str) -> None:
    organization_id = None if owner is None else owner.organization.pk
    changes.create_alias(organization_id=organization_id, name=name, targets=targets)


def listed(client: APIClient, path: str = MODELS, **query: Any) -> list[str]:
    answer = client.get(path, query).json()
    assert answer["total_count"] >= len(answer["data"])
    return [row["id"] for row in answer["data"]]


def test_a_list_shows_the_newest_of_a_family_behind_its_model() -> None:
    client = APIClient()
    assert listed(client) == [
        "acme/hawk", "acme/falcon-2", "~acme/falcon-latest", "acme/falcon-1",
    ]  # fmt: skip
    entry, newest = (client.get(MODELS).json()["data"][place] for place in (1, 2))
    assert newest == {
        **entry,
        "id": "~acme/falcon-latest",
        "alias_target": {"name": "Model acme/falcon-2", "slug": "acme/falcon-2"},
    }
    assert "alias_target" not in entry
    assert client.get(f"{MODELS}/count").json()["data"]["count"] == 4


def test_a_list_shows_the_aliases_of_the_operator_and_the_callers_own(
    tenant: Tenant, models: dict[str, LanguageModel]
) -> None:
    other = factories.make_tenant("Other")
    alias(None, "claude-of-ours", "acme/hawk")
    alias(None, "claude-*", "acme/hawk")
    alias(tenant, "claude-opus-9", "acme/falcon-1")
    alias(tenant, "claude-of-ours", "acme/falcon-1")
    alias(other, "claude-secret", "acme/hawk")
    common = ["acme/hawk", "acme/falcon-2", "~acme/falcon-latest", "acme/falcon-1"]
    assert listed(APIClient()) == [common[0], "claude-of-ours", *common[1:]]
    for key in (tenant.api_key, tenant.management_key):
        assert listed(factories.client(key), limit=1000) == [
            *common, "claude-of-ours", "claude-opus-9",
        ]  # fmt: skip
    assert listed(factories.client(other.api_key)) == [
        common[0], "claude-of-ours", "claude-secret", *common[1:],
    ]  # fmt: skip
    assert "claude-opus-9" in listed(factories.client(tenant.management_key), f"{MODELS}/user")
    # A page has aliases like models.
    assert listed(factories.client(tenant.api_key), offset=2, limit=2) == common[2:]
    models["acme/hawk"].endpoints.update(is_listed=False)
    assert listed(APIClient()) == common[1:]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("model/acme/falcon-1", "acme/falcon-1"),
        ("model/acme/FALCON_1", "acme/falcon-1"),
        ("model/~acme/falcon-latest", "~acme/falcon-latest"),
        ("models/falcon-1", "acme/falcon-1"),
        ("models/up-hawk", "acme/hawk"),
        ("models/hawk[1m]", "acme/hawk"),
        ("models/quick", "quick"),
        ("models/quick:nitro", "quick:nitro"),
        ("models/acme%2Ffalcon-1", "acme/falcon-1"),
    ],
)
def test_a_model_is_found_by_each_of_its_names(path: str, shown: str) -> None:
    alias(None, "quick", "acme/falcon-1")
    answer = APIClient().get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    body = answer.json()
    body = body.get("data", body)
    assert body["id"] == shown
    assert ("alias_target" in body) == (shown.startswith(("~", "quick")))


def test_the_endpoints_of_a_model_are_listed_by_each_of_its_names() -> None:
    found = APIClient().get(f"{MODELS}/~acme/falcon-latest/endpoints").json()["data"]
    assert (found["id"], len(found["endpoints"])) == ("acme/falcon-2", 1)


@pytest.mark.parametrize("name", ["no-such", "secret", "%00", "*", "a" * 2_000, "%ff"])
def test_an_unknown_name_is_not_found(tenant: Tenant, name: str) -> None:
    alias(factories.make_tenant("Other"), "secret", "acme/hawk")
    for path in (f"models/{name}", f"model/acme/{name}", f"models/acme/{name}/endpoints"):
        answer = factories.client(tenant.api_key).get(f"/api/v1/{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["metadata"]["error_type"] == "model_not_found"


def test_an_unknown_name_says_what_was_meant() -> None:
    error = APIClient().get(f"{MODELS}/facon-1").json()["error"]
    assert error["metadata"]["did_you_mean"] == ["acme/falcon-1"]


def test_the_openai_sdk_retrieves_an_alias(server: str, tenant: Tenant) -> None:
    alias(tenant, "claude-opus-9", "acme/falcon-1")
    with openai.OpenAI(base_url=f"{server}/api/v1", api_key=tenant.api_key) as client:
        found = client.models.retrieve("claude-opus-9")
        assert (found.id, found.owned_by) == ("claude-opus-9", "acme")
        assert "claude-opus-9" in [model.id for model in client.models.list()]
