"""``import_gateway``: what an entry has from others, names of clouds, and what is kept."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from catalog.models import ModelAlias, ModelEndpoint, Provider
from catalog.rows import endpoint_row
from config.egress import EgressPolicy
from tests.support import factories
from tests.support.operators.gateways import UNKNOWN, left_out, load, load_twice, write_entries
from tests.support.upstreams import clouds

KEY = "sk-0123456789abcdef"
AWS = "AKIAIOSFODNN7EXAMPLE|wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY00"
PRICES = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
SERVERS = [f"http://10.9.0.{number}:8000/v1" for number in range(4)]


@pytest.fixture(autouse=True)
def environment(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.EGRESS_POLICY = EgressPolicy(allowed_networks=(ip_network("10.9.0.0/16"),))
    for name in ("AZURE_API_KEY", "OPENAI_API_KEY", "VOYAGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway"


def aliases() -> dict[str, list[str]]:
    return dict(ModelAlias.objects.values_list("name", "targets"))


def test_an_entry_may_lack_what_a_later_one_has(file: Path) -> None:
    file.write_text(
        write_entries(
            ("keyless", {"model": "openai/gpt-4o"}),
            ("keyed", {"model": "openai/gpt-4o-mini", "api_key": KEY}),
            ("own", {"model": "hosted_vllm/own-x", "api_base": SERVERS[0]}),
            ("own", {"model": "hosted_vllm/own-x", "api_base": SERVERS[1], **PRICES}),
            ("nobodys", {"model": "hosted_vllm/own-y", "api_base": SERVERS[0]}),
        )
    )
    report = load_twice(file)
    assert left_out(report) == [(6, "nobodys", UNKNOWN)]
    rows = ModelEndpoint.objects.order_by("provider__base_url", "upstream_model_id")
    found = rows.values_list("provider__base_url", "upstream_model_id", "price__prompt")
    assert [(url, name, f"{price:f}".rstrip("0")) for url, name, price in found][:2] == [
        (SERVERS[0], "own-x", "0.000001"),
        (SERVERS[1], "own-x", "0.000001"),
    ]
    [provider] = Provider.objects.filter(slug__startswith="openai")
    assert provider.reveal_credential().reveal() == KEY
    assert aliases()["own"] == [rows[0].model.slug]


REPEATED = "its price, lengths, time limits and share: an entry before has the same endpoint"


def test_of_two_entries_for_an_endpoint_the_earlier_one_counts_though_it_waits(file: Path) -> None:
    params = {"model": "openai/gpt-4o", "stream_timeout": 30}
    later = {**params, "api_key": KEY, "stream_timeout": 60}
    file.write_text(write_entries(("ours", {**params, **PRICES}), ("ours", later)))
    assert left_out(load_twice(file)) == [(3, "ours", REPEATED)]
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.first_event_timeout, endpoint.price.price.text("prompt")) == (30, "0.000001")


def test_an_entry_that_waits_for_its_price_has_its_own_limits(file: Path) -> None:
    params = {"model": "hosted_vllm/own-x", "api_base": SERVERS[0]}
    priced = {**params, **PRICES, "stream_timeout": 60}
    file.write_text(
        write_entries(
            ("own", {**params, "stream_timeout": 30}), ("own", priced), ("own", {**params})
        )
    )
    assert left_out(load_twice(file)) == [(3, "own", REPEATED)]
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.first_event_timeout, endpoint.price.price.text("prompt")) == (30, "0.000001")


OWN = {"model": "hosted_vllm/openai/gpt-oss-20b", "api_base": SERVERS[0]}
BOUGHT = ("bought", {"model": "novita/openai/gpt-oss-20b", "api_key": KEY})


def own_at(rate: float) -> tuple[str, dict[str, Any]]:
    return "own", {**OWN, "input_cost_per_token": rate, "output_cost_per_token": rate}


def prices() -> dict[str, tuple[str, str]]:
    """The rates of a prompt and of a completion, by the providers that ask for them."""
    found = ModelEndpoint.objects.select_related("provider", "price")
    return {
        each.provider.slug: (each.price.price.text("prompt"), each.price.price.text("completion"))
        for each in found
    }


@pytest.mark.parametrize(("rate", "text"), [(0, "0"), (1e-9, "0.000000001")])
@pytest.mark.parametrize("step", [1, -1])
def test_the_price_of_a_server_of_ones_own_is_no_other_ones(
    file: Path, rate: float, text: str, step: int
) -> None:
    file.write_text(write_entries(*[own_at(rate), BOUGHT][::step]))
    load_twice(file)
    assert prices() == {"server": (text, text), "novita": ("0.00000003", "0.00000014")}


def test_a_server_that_was_free_before_makes_no_other_one_free(file: Path) -> None:
    for entry in (own_at(0), BOUGHT):
        file.write_text(write_entries(entry))
        load(file)
    assert prices() == {"server": ("0", "0"), "novita": ("0.00000003", "0.00000014")}


@pytest.mark.parametrize(
    ("model", "rates"),
    [
        # Of the two in the catalogue, the first one is ten times as dear.
        ("Qwen/Qwen3-Embedding-8B", ["0.00000001"]),
        ("openai/tts-1-hd", ["0", "0.00003"]),
    ],
)
def test_a_price_that_is_not_of_completions_is_the_cheapest_too(
    file: Path, model: str, rates: list[str]
) -> None:
    file.write_text(write_entries(("ours", {"model": f"novita/{model}", "api_key": KEY})))
    load_twice(file)
    price = ModelEndpoint.objects.get().price.price
    assert [price.text("prompt"), *(f"{rule.price:f}" for rule in price.rules)] == rates


def test_what_a_partly_stated_price_does_not_say_is_that_of_the_catalogue(file: Path) -> None:
    params = {"model": "perplexity/sonar-deep-research", "api_key": KEY}
    file.write_text(write_entries(("research", {**params, "input_cost_per_token": 1.8e-6})))
    load_twice(file)
    row = endpoint_row(ModelEndpoint.objects.select_related("price").get())
    assert (row.pricing.prompt, row.pricing.completion) == ("0.0000018", "0.000008")
    assert [(line.billable, line.variant, line.price, line.most) for line in row.lines or ()] == [
        ("prompt", "citation", "0.000002", 100_000),
        ("reasoning", "research", "0.000003", 400_000),
        ("search", "unasked", "0.005", 60),
    ]


def write_generator(file: Path, params: dict[str, Any]) -> None:
    entry = {"model_name": "draw", "litellm_params": {"api_key": KEY, **params}}
    listed = [{**entry, "model_info": {"mode": "image_generation"}}]
    file.write_text(json.dumps({"model_list": listed}))


def test_pictures_without_a_price_in_the_file_cost_what_the_catalogue_says(file: Path) -> None:
    stated = {"input_cost_per_token": 4e-6, "input_cost_per_image_token": 7e-6}
    write_generator(file, {"model": "openai/gpt-image-2", **stated})
    load_twice(file)
    row = endpoint_row(ModelEndpoint.objects.select_related("price").get())
    assert (row.pricing.prompt, row.pricing.completion) == ("0.000004", "0.00003")
    assert row.pricing.image_token == "0.00003"
    assert [(line.variant, line.price) for line in row.lines or ()] == [("image", "0.000007")]


def test_pictures_that_nobody_has_a_price_for_are_left_out(file: Path) -> None:
    own = {"model": "hosted_vllm/sdxl", "api_base": SERVERS[0], "input_cost_per_token": 4e-6}
    write_generator(file, own)
    [(_, _, reason)] = left_out(load_twice(file))
    assert "the file lacks the price of the prompt and of the completion" in reason
    assert not ModelEndpoint.objects.exists()


@pytest.mark.parametrize(
    ("cloud", "keyed", "keyless"),
    [
        ("azure", {"api_base": "https://a.example"}, {"api_base": "https://b.example"}),
        (
            "bedrock",
            {"aws_region_name": "us-east-1"},
            {"aws_region_name": "eu-west-1"},
        ),
    ],
)
def test_a_key_of_another_place_is_not_taken(
    file: Path, cloud: str, keyed: dict[str, str], keyless: dict[str, str]
) -> None:
    model = {"azure": "azure/gpt-4o", "bedrock": "bedrock/us.amazon.nova-pro-v1:0"}[cloud]
    file.write_text(
        write_entries(
            ("there", {"model": model, "api_key": KEY, **keyed}),
            ("same", {"model": model, **keyed}),
            ("elsewhere", {"model": model, **keyless}),
        )
    )
    report = load_twice(file)
    [(line, name, reason)] = left_out(report)
    assert (line, name) == (4, "elsewhere")
    assert reason.startswith("api_key is missing, and ")
    assert aliases().keys() == {"there", "same"}


def write_channels(file: Path, *channels: dict[str, Any]) -> None:
    file.write_text(json.dumps([{"name": "k", "key": KEY, **each} for each in channels]))


@pytest.mark.parametrize(
    ("region", "model", "upstream_id", "endpoint_region"),
    [
        ("eu-west-1", "claude-haiku-4-5-20251001", "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
         "europe"),
        ("ap-south-1", "claude-haiku-4-5-20251001", "apac.anthropic.claude-haiku-4-5-20251001-v1:0",
         "global"),
        ("us-west-2", "claude-haiku-4-5-20251001", "us.anthropic.claude-haiku-4-5-20251001-v1:0",
         "us"),
        ("ca-central-1", "claude-haiku-4-5-20251001",
         "global.anthropic.claude-haiku-4-5-20251001-v1:0", "global"),
        ("eu-west-1", "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
         "eu.anthropic.claude-haiku-4-5-20251001-v1:0", "europe"),
        ("us-east-1", "anthropic.claude-haiku-4-5-20251001-v1:0",
         "anthropic.claude-haiku-4-5-20251001-v1:0", "global"),
    ],
)  # fmt: skip
def test_a_model_has_the_name_that_bedrock_knows(
    file: Path, region: str, model: str, upstream_id: str, endpoint_region: str
) -> None:
    write_channels(file, {"type": 33, "key": f"{AWS}|{region}", "models": model})
    assert left_out(load_twice(file, source="new-api")) == []
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.model.slug, endpoint.upstream_model_id, endpoint.region) == (
        "anthropic/claude-haiku-4.5",
        upstream_id,
        endpoint_region,
    )


def test_a_name_that_bedrock_may_not_know_is_left_out(file: Path) -> None:
    write_channels(file, {"type": 33, "key": f"{AWS}|sa-east-1", "models": "nova-pro-v1"})
    reason = "the name that Bedrock has for 'nova-pro-v1' in 'sa-east-1' is not known"
    assert left_out(load_twice(file, source="new-api")) == [(1, "nova-pro-v1", reason)]
    assert not Provider.objects.exists()


def test_a_model_of_a_channel_that_nobody_knows_is_taken_once_it_has_a_price(file: Path) -> None:
    write_channels(file, {"type": 1, "models": "own-x"})
    assert left_out(load(file, source="new-api")) == [(1, "own-x", UNKNOWN)]
    assert not Provider.objects.exists()
    endpoint = factories.make_endpoint(
        factories.make_model("acme/own-x"), factories.make_provider("acme")
    )
    [(_, _, reason)] = left_out(load(file, source="new-api"))
    assert reason.startswith("that its requests go to openai alone: the model is served by acme")
    found = ModelEndpoint.objects.get(upstream_model_id="own-x")
    assert (found.model, found.price.prompt) == (endpoint.model, endpoint.price.prompt)


def test_a_model_of_vertex_has_its_date_behind_an_at(file: Path) -> None:
    account = json.dumps(clouds.account())
    write_channels(
        file, {"type": 41, "key": account, "other": "global", "models": "claude-opus-4-5-20251101"}
    )
    assert left_out(load_twice(file, source="new-api")) == []
    assert ModelEndpoint.objects.get().upstream_model_id == "claude-opus-4-5@20251101"


def test_a_snapshot_that_takes_the_price_of_another_one_says_so(file: Path) -> None:
    names = ["gpt-4o-2024-05-13", "gpt-4o-2024-08-06", "gpt-4o-mini-2024-01-01"]
    entries = [(name, {"model": f"openai/{name}", "api_key": KEY}) for name in names]
    entries[2][1].update(PRICES)
    azure = {"model": "azure/ours", "api_base": "https://a.example", "api_key": KEY}
    named = ("azure", {**azure, "base_model": "azure/gpt-4o-2024-11-20"})
    file.write_text(write_entries(*entries, named))
    told = [(line, text) for line, _, text in left_out(load(file)) if "price" in text]
    reason = "its own price: that of openai/gpt-4o-2024-08-06 is taken"
    assert told == [(2, reason), (5, reason)]
    # The stored price is that of the endpoint itself.
    report = load(file)
    assert report["unchanged"]["endpoints"] == 4
    assert not [text for _, _, text in left_out(report) if "price" in text]


def test_the_base_model_of_a_deployment_at_azure_comes_before_its_name(file: Path) -> None:
    params = {"model": "azure/gpt-4o", "api_base": "https://a.example", "api_key": KEY}
    file.write_text(write_entries(("ours", {**params, "base_model": "azure/gpt-4.1"})))
    load_twice(file)
    assert ModelEndpoint.objects.get().model.slug == "openai/gpt-4.1"


def test_names_with_a_star_become_patterns(file: Path) -> None:
    own = {"model": "hosted_vllm/Qwen/own-qwen", "api_base": SERVERS[0], **PRICES}
    file.write_text(
        write_entries(("claude-*", {"model": "openai/gpt-4o", "api_key": KEY}), ("*", own))
    )
    assert left_out(load_twice(file)) == []
    assert aliases() == {"claude-*": ["openai/gpt-4o"], "*": ["server/own-qwen"]}


def test_the_models_of_a_wildcard_have_one_limit(file: Path) -> None:
    file.write_text(write_entries(("voyage/*", {"model": "voyage/*", "api_key": KEY, "rpm": 100})))
    assert len(left_out(load_twice(file))) == 1
    assert Provider.objects.get().requests_per_minute == 100


def test_a_wildcard_that_lacks_its_key_says_so_once(file: Path) -> None:
    file.write_text(write_entries(("voyage/*", {"model": "voyage/*"})))
    missing = "api_key is missing, and VOYAGE_API_KEY is not set"
    assert left_out(load(file)) == [
        (2, "voyage/*", f"{missing}; nor does the catalogue have a key for it")
    ]


def test_limits_of_time_that_a_file_does_not_state_stay(file: Path) -> None:
    params = {"model": "openai/gpt-4o", "api_key": KEY}
    file.write_text(write_entries(("ours", params)))
    load(file)
    ModelEndpoint.objects.update(idle_timeout=40, headers_timeout=50)
    file.write_text(write_entries(("ours", {**params, "timeout": 30})))
    assert load(file)["updated"]["endpoints"] == 1
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.idle_timeout, endpoint.headers_timeout) == (40, 30)


def test_a_fallback_may_be_another_name(file: Path) -> None:
    params = [{"model": f"openai/{name}", "api_key": KEY} for name in ("gpt-4o", "gpt-4o-mini")]
    router = {"model_group_alias": {"second": "b"}, "fallbacks": [{"a": ["second"]}]}
    file.write_text(write_entries(("a", params[0]), ("b", params[1]), router_settings=router))
    assert left_out(load_twice(file)) == []
    assert aliases() == {
        "a": ["openai/gpt-4o", "openai/gpt-4o-mini"],
        "b": ["openai/gpt-4o-mini"],
        "second": ["openai/gpt-4o-mini"],
    }


def test_a_name_of_a_wildcard_has_its_line(file: Path) -> None:
    models = [("openai/*", {"model": "openai/*", "api_key": KEY})]
    settings = {"default_fallbacks": ["openai/gpt-4o"]}
    file.write_text(write_entries(*models, litellm_settings=settings))
    lines = {line for line, _, reason in left_out(load_twice(file)) if "name of a model" in reason}
    assert lines <= {2}
