"""``import_gateway --organization``: keys of several places, and files that grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accounts.models import ByokCredential
from catalog.models import ModelAlias, Provider
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.operators.gateways import (
    UNTIL,
    lacking,
    left_out,
    load,
    load_twice,
    write_entries,
)

KEY = "sk-0123456789abcdef"
PLACES = ("https://eu.openai.azure.com", "https://ca.openai.azure.com")


@pytest.fixture
def azure(db: None) -> Provider:
    """Azure, with two models of the catalogue."""
    provider = factories.make_provider("azure", dialect="azure", base_url=None)
    for name in ("falcon-9", "hawk"):
        model = factories.make_model(f"acme/{name}")
        factories.make_endpoint(model, provider, upstream_model_id=name)
    return provider


@pytest.fixture
def owner(tenant: Tenant) -> tuple[str, str]:
    """The option that imports for an organization."""
    return "--organization", str(tenant.organization.pk)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def at_azure(name: str, place: int, model: str, **more: Any) -> tuple[str, dict[str, Any]]:
    base = {"model": f"azure/{name}", "base_model": model, "api_base": PLACES[place]}
    return name, {**base, "api_key": f"{KEY}-{place}", **more}


def test_a_model_at_two_resources_of_azure_has_one_of_them(
    azure: Provider, owner: tuple[str, str], file: Path
) -> None:
    rows = [
        at_azure("falcon-eu", 0, "falcon-9"),
        at_azure("falcon-ca", 1, "falcon-9"),
        at_azure("hawk-ca", 1, "hawk"),
    ]
    file.write_text(write_entries(*rows))
    [(line, name, reason)] = lacking(load_twice(file, *owner))
    assert (line, name) == (3, "falcon-ca")
    assert reason == (
        "another key of the organization is for this model in another resource or region, and "
        "every endpoint of the provider would be called with both"
    )
    found = PrivateEndpoint.objects.order_by("created_at")
    assert list(found.values_list("upstream_model_id", flat=True)) == ["falcon-eu", "hawk-ca"]
    credentials = ByokCredential.objects.order_by("sort_order")
    assert [each.allowed_models for each in credentials] == [["acme/falcon-9"], ["acme/hawk"]]


def test_a_key_is_for_the_models_that_a_file_adds(
    azure: Provider, owner: tuple[str, str], file: Path
) -> None:
    first = [at_azure("falcon-eu", 0, "falcon-9"), at_azure("hawk-ca", 1, "hawk")]
    file.write_text(write_entries(*first))
    load(file, *owner)
    model = factories.make_model("acme/kite")
    factories.make_endpoint(model, azure, upstream_model_id="kite")
    file.write_text(write_entries(*first, at_azure("kite-eu", 0, "kite")))
    report = load(file, *owner)
    assert (report["created"]["private_endpoints"], report["updated"]["credentials"]) == (1, 1)
    credentials = ByokCredential.objects.order_by("sort_order")
    assert [each.allowed_models for each in credentials] == [
        ["acme/falcon-9", "acme/kite"],
        ["acme/hawk"],
    ]
    with snapshots.unchanged():
        load(file, *owner)


def test_a_key_of_another_place_is_none(
    azure: Provider, owner: tuple[str, str], file: Path
) -> None:
    rows = [at_azure("falcon-eu", 0, "falcon-9"), at_azure("hawk-ca", 1, "hawk", api_key=None)]
    file.write_text(write_entries(*rows))
    [(line, name, reason)] = lacking(load_twice(file, *owner))
    assert (line, name) == (3, "hawk-ca")
    assert reason == "its key: api_key is missing, and AZURE_API_KEY is not set"


def test_an_endpoint_that_cannot_be_changed_stays_behind_its_name(
    azure: Provider, owner: tuple[str, str], file: Path
) -> None:
    rows = [at_azure("falcon-eu", 0, "falcon-9"), at_azure("hawk-eu", 0, "hawk")]
    settings = {"fallbacks": [{"hawk-eu": ["falcon-eu"]}]}
    file.write_text(write_entries(*rows, router_settings=settings))
    load(file, *owner)
    endpoint = PrivateEndpoint.objects.get(upstream_model_id="falcon-eu")
    factories.make_validation(endpoint, ByokCredential.objects.get())
    endpoint.activate()
    aliases = dict(ModelAlias.objects.values_list("name", "targets"))
    rows[0][1]["stream_timeout"] = 20
    file.write_text(write_entries(*rows, router_settings=settings))
    reason = "the endpoint is active; only a draft can be changed"
    assert lacking(load(file, *owner)) == [(2, "falcon-eu", reason)]
    assert dict(ModelAlias.objects.values_list("name", "targets")) == aliases
    assert aliases["hawk-eu"] == ["acme/hawk", "acme/falcon-9"]


def test_the_catalogue_serves_a_name_until_its_draft_is_activated(
    azure: Provider, file: Path
) -> None:
    owner = "--organization", str(factories.make_tenant("Own Team").organization.pk)
    own = {
        "model": "hosted_vllm/own-x", "api_base": "https://gpu.acme.example/v1",
        "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6,
    }  # fmt: skip
    # What follows a model of the organization's own is not public either.
    mixed = [("mixed", own), ("mixed", at_azure("hawk-eu", 0, "hawk")[1])]
    file.write_text(write_entries(at_azure("falcon-eu", 0, "falcon-9"), *mixed))
    told = (2, "falcon-eu", f"{UNTIL} azure of the catalogue")
    assert left_out(load_twice(file, *owner)) == [told]
    endpoint = PrivateEndpoint.objects.get(upstream_model_id="falcon-eu")
    factories.make_validation(endpoint, ByokCredential.objects.get())
    endpoint.activate()
    assert left_out(load(file, *owner)) == []
    endpoint.disable()
    assert left_out(load(file, *owner)) == []
    endpoint.remove(release=True)
    assert left_out(load(file, *owner)) == [told]


def claude(**params: str) -> tuple[str, dict[str, Any]]:
    return "claude", {"model": "anthropic/claude-haiku-4-5", "api_key": "relay-key-0123", **params}


@pytest.fixture
def anthropic(db: None) -> Provider:
    provider = factories.make_provider(
        "anthropic", dialect="anthropic", base_url="https://api.anthropic.com/v1"
    )
    model = factories.make_model("anthropic/claude-haiku-4.5")
    factories.make_endpoint(model, provider, upstream_model_id="claude-haiku-4-5")
    return provider


def test_a_snapshot_that_takes_the_price_of_another_one_says_so(
    anthropic: Provider, owner: tuple[str, str], file: Path
) -> None:
    file.write_text(write_entries(claude(model="anthropic/claude-haiku-4-5-20251001")))
    reason = "its own price: that of anthropic/claude-haiku-4.5-2026-01-01 is taken"
    assert lacking(load_twice(file, *owner)) == [(2, "claude", reason)]


def test_the_names_of_a_wildcard_are_told_together(
    anthropic: Provider, owner: tuple[str, str], file: Path
) -> None:
    model = factories.make_model("anthropic/claude-zeta-9")
    factories.make_endpoint(model, anthropic, upstream_model_id="claude-zeta-9")
    entry = ("anthropic/*", {"model": "anthropic/*", "api_key": "sk-ant-0123456789"})
    file.write_text(write_entries(entry))
    told = [each for each in left_out(load_twice(file, *owner)) if each[2].startswith(UNTIL)]
    assert told == [(2, "anthropic/*", f"{UNTIL} anthropic of the catalogue")]


def test_lengths_become_those_of_the_endpoint(
    anthropic: Provider, owner: tuple[str, str], file: Path
) -> None:
    document = json.loads(write_entries(claude()))
    lengths = {"max_input_tokens": 100_000, "max_output_tokens": 4_000}
    document["model_list"][0]["model_info"] = lengths
    file.write_text(json.dumps(document))
    assert lacking(load_twice(file, *owner)) == []
    endpoint = PrivateEndpoint.objects.get()
    assert endpoint.settings == {"context_length": 100_000, "max_completion_tokens": 4_000}
    lengths["max_input_tokens"] = 200_000
    file.write_text(json.dumps(document))
    assert load(file, *owner)["updated"]["private_endpoints"] == 1
    assert PrivateEndpoint.objects.get().settings["context_length"] == 200_000


ALONE = "the address: an organization's own provider speaks OpenAI's format alone"


def test_a_relay_gets_no_key_of_the_provider_whose_format_it_speaks(
    anthropic: Provider, owner: tuple[str, str], file: Path
) -> None:
    relay = claude(api_base="https://relay.acme.example")
    file.write_text(write_entries(claude(api_key="sk-ant-0123456789"), relay))
    assert lacking(load_twice(file, *owner)) == [(3, "claude", ALONE)]
    endpoint, credential = PrivateEndpoint.objects.get(), ByokCredential.objects.get()
    assert endpoint.base_url == "https://api.anthropic.com/v1"
    assert credential.reveal().reveal() == "sk-ant-0123456789"


def test_a_provider_gets_no_key_of_a_relay(
    anthropic: Provider, owner: tuple[str, str], file: Path
) -> None:
    with snapshots.unchanged():
        file.write_text(write_entries(claude(api_base="https://relay.acme.example")))
        assert left_out(load(file, *owner)) == [(2, "claude", ALONE)]
        channel = {
            "type": 14, "name": "relay", "key": "relay-key-0123", "models": "claude-haiku-4-5",
            "base_url": "https://relay.acme.example",
        }  # fmt: skip
        file.write_text(json.dumps([channel]))
        report = load(file, *owner, source="new-api")
        assert left_out(report) == [(1, "claude-haiku-4-5", ALONE)]


def test_a_provider_that_an_operator_has_elsewhere_gets_no_key(
    anthropic: Provider, owner: tuple[str, str], file: Path
) -> None:
    Provider.objects.update(base_url="https://relay.operator.example/v1")
    file.write_text(write_entries(claude()))
    with snapshots.unchanged():
        reason = "the catalogue has the provider 'anthropic' at another address"
        assert left_out(load(file, *owner)) == [(2, "claude", reason)]
