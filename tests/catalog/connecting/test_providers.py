"""``connect`` for the providers of the bundle: a key, a check by a call, the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from catalog.connecting.asking import is_same_place
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.credentials import Secret
from config.egress import EgressPolicy
from config.egress.addresses import PinnedHost
from tests.support import factories
from tests.support.database import snapshots
from tests.support.operators import commands
from tests.support.upstreams.listing import answer_models
from tests.support.upstreams.tls import Authority, Server, serving

KEY = "sk-of-openai-0123456789"


@pytest.fixture
def openai(db: None, settings: Any, tmp_path: Path) -> Iterator[Server]:
    """Stands for api.openai.com, with that name in its certificate."""
    authority = Authority(tmp_path)
    context = authority.server_context("api.openai.com")
    with serving(answer_models([], key=KEY), context) as server:
        settings.EGRESS_POLICY = EgressPolicy(
            allowed_networks=(ip_network("127.0.0.0/8"),),
            hosts={"api.openai.com": PinnedHost("127.0.0.1", server.port)},
            ca_bundle=authority.bundle,
            connect_timeout=5,
        )
        yield server


def connect(*arguments: str) -> dict[str, Any]:
    return commands.run_json("connect", *arguments)[0]


def refuse(*arguments: str) -> str:
    before = snapshots.everything()
    code, message = commands.refuse("connect", *arguments, "--json")
    assert code == 1
    assert snapshots.everything() == before
    return message


def test_a_provider_is_imported_with_its_key_and_its_prices(openai: Server, settings: Any) -> None:
    found = connect("openai", "--key", KEY)
    provider = Provider.objects.get()
    assert (found["provider"], found["network_allowed"]) == ("openai", None)
    assert provider.reveal_credential() == Secret(KEY)
    bundle = json.loads((settings.BASE_DIR / "catalog" / "data" / "catalogue.json").read_bytes())
    rows = [row for row in bundle["endpoints"] if row["provider"] == "openai"]
    assert len(found["endpoints"]) == ModelEndpoint.objects.count() == len(rows)
    assert {"openai/gpt-5.5"} <= set(found["models"])
    endpoint = ModelEndpoint.objects.get(model__slug="openai/gpt-5.5", upstream_model_id="gpt-5.5")
    assert f"{endpoint.price.completion.normalize():f}" == "0.00003"
    assert found["test"]["status"] == 200
    # The cheapest one was asked.
    [request] = openai.requests
    assert json.loads(request[1])["model"] == "gpt-5-nano"


def test_a_provider_that_is_stored_keeps_its_prices(openai: Server) -> None:
    connect("openai", "--key", KEY)
    endpoint = ModelEndpoint.objects.first()
    assert endpoint is not None
    endpoint.reprice(factories.make_price("0.5", "0.5"))
    before = snapshots.everything()
    # Its URL is another name of it, and the stored key is used.
    assert len(connect("https://api.openai.com/v1")["endpoints"]) == len(
        connect("OpenAI")["endpoints"]
    )
    assert snapshots.everything() == before


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://api.openai.com",
        "http://api.openai.com/v1",
        "api.openai.com/v1/models",
    ],
)
def test_each_spelling_of_its_url_is_the_provider(openai: Server, url: str) -> None:
    found, notes = commands.run_json("connect", url, "--key", KEY, "--models", "gpt-5-nano")
    assert (found["provider"], found["models"]) == ("openai", ["openai/gpt-5-nano"])
    is_typed = url == "https://api.openai.com/v1"
    called = "The provider openai of the bundle is called at https://api.openai.com/v1."
    assert notes.splitlines() == ([] if is_typed else [called])
    provider = Provider.objects.get()
    assert (provider.name, provider.base_url) == ("OpenAI", "https://api.openai.com/v1")
    # The policy and the price are those of the bundle.
    assert provider.retains_prompts is True
    endpoint = ModelEndpoint.objects.select_related("model", "price").get()
    assert endpoint.model.canonical_slug == "openai/gpt-5-nano-2025-08-07"
    assert f"{endpoint.price.completion.normalize():f}" == "0.0000004"


@pytest.mark.parametrize("is_also_bundled", [False, True])
def test_a_server_of_ones_own_at_its_url_stays_so(openai: Server, is_also_bundled: bool) -> None:
    url = "https://api.openai.com/v1"
    if is_also_bundled:
        connect("openai", "--key", KEY, "--models", "gpt-5-nano")
    factories.make_provider("our-openai", base_url=url)
    arguments = ("--key", KEY, "--models", "gpt-5-nano")
    for typed in (url, "https://api.openai.com"):
        found = connect(typed, *arguments)
        assert (found["provider"], found["models"]) == ("our-openai", ["our-openai/gpt-5-nano"])
    # Its name is still that of the bundle.
    assert connect("openai", *arguments)["provider"] == "openai"


@pytest.mark.parametrize(
    ("url", "address", "expected"),
    [
        ("https://api.deepseek.com", "https://api.deepseek.com/v1", True),
        ("https://api.z.ai/api/paas", "https://api.z.ai/api/paas/v4", True),
        ("https://g.example/v1beta/openai", "https://g.example/v1beta", True),
        ("https://d.example/v1", "https://d.example/v1/openai", True),
        ("https://api.perplexity.ai/v1", "https://api.perplexity.ai", True),
        # Another product at the same host, and other hosts.
        ("https://api.z.ai/api/coding/paas/v4", "https://api.z.ai/api/paas/v4", False),
        ("https://api.openai.com.evil.example/v1", "https://api.openai.com/v1", False),
        ("https://api.openai.com:8443/v1", "https://api.openai.com/v1", False),
        ("https://eu.api.openai.com/v1", "https://api.openai.com/v1", False),
    ],
)
def test_another_server_is_not_the_provider(url: str, address: str, expected: bool) -> None:
    assert is_same_place(url, address) is expected


def test_models_narrow_what_is_imported(openai: Server) -> None:
    found = connect("openai", "--key", KEY, "--models", "openai/gpt-5.5")
    assert found["models"] == ["openai/gpt-5.5"]
    assert ModelEndpoint.objects.count() == 1


def test_a_provider_connected_again_gets_the_models_that_are_new(openai: Server) -> None:
    connect("openai", "--key", KEY, "--models", "openai/gpt-5.5")
    LanguageModel.objects.update(name="Our GPT")
    Provider.objects.update(name="Our OpenAI")
    assert connect("openai", "--models", "gpt-5-nano")["models"] == ["openai/gpt-5-nano"]
    assert set(ModelEndpoint.objects.values_list("upstream_model_id", flat=True)) == {
        "gpt-5.5", "gpt-5-nano",
    }  # fmt: skip
    assert len(connect("openai")["endpoints"]) == ModelEndpoint.objects.count()
    assert Provider.objects.get().name == "Our OpenAI"
    assert LanguageModel.objects.get(slug="openai/gpt-5.5").name == "Our GPT"
    ModelEndpoint.objects.get(upstream_model_id="gpt-5-nano").delist()
    assert "openai/gpt-5-nano" not in connect("openai")["models"]
    assert refuse("openai", "--models", "gpt-5-nano").startswith(
        "None of these models could be called: an operator took them out of the catalogue"
    )


def test_a_provider_that_has_no_endpoints_yet_stays_as_it_was_set(openai: Server) -> None:
    url = "https://api.openai.com/v1"
    factories.make_provider("openai", name="Our OpenAI", base_url=url, headquarters="IE")
    found = connect("openai", "--key", KEY, "--models", "gpt-5-nano")
    assert found["models"] == ["openai/gpt-5-nano"]
    provider = Provider.objects.get()
    assert (provider.name, provider.headquarters) == ("Our OpenAI", "IE")


def test_a_provider_needs_the_right_key(openai: Server) -> None:
    assert refuse("openai") == "The provider openai needs a key: give it with --key-file FILE."
    assert refuse("openai", "--key", "sk-wrong-0123456789").startswith(
        "The server refuses the key for a test request to the model 'gpt-5-nano' (401). Check "
    )
    assert refuse("openai", "--key", "short").startswith("The key: Must be a bare key of 8 to 4096")
    assert refuse("openai", "--key", KEY, "--models", "llama").startswith(
        "The bundle has no model 'llama' of openai. It has: "
    )


def test_a_provider_with_its_url_in_the_credential_says_what_it_needs(db: None) -> None:
    assert refuse("azure", "--key", "sk-bare-key-0123456789") == (
        "The credential must be one JSON object that names each member once."
    )
    assert refuse("bedrock", "--key", json.dumps({"api_key": KEY})) == (
        "The credential must have region."
    )
