"""Tests that the bundled catalogue is complete and consistent."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[2] / "catalog" / "data" / "catalogue.json"


def _words(text: str) -> set[str]:
    return set(text.split())


_PRICE = re.compile(r"(0|[1-9]\d*)(\.\d*[1-9])?")
_MODEL_ID = re.compile(r"[a-z0-9._:-]+/[a-z0-9._:-]+")
_DIALECTS = {"openai", "anthropic", "gemini", "azure", "bedrock", "vertex"}
_URL_FROM_CREDENTIAL = {"azure", "bedrock", "vertex"}
_INPUTS = {"text", "image", "file", "audio", "video"}
_OUTPUTS = _words("text image embeddings audio rerank speech transcription")
_TOKENIZERS = _words(
    "Router Media Other GPT Claude Gemini Gemma Grok Cohere Nova Qwen Yi DeepSeek Mistral"
    " Llama2 Llama3 Llama4 PaLM RWKV Qwen3"
)
_INSTRUCT_TYPES = _words(
    "none airoboros alpaca alpaca-modif chatml claude code-llama gemma llama2 llama3 mistral"
    " nemotron neural openchat phi3 rwkv vicuna zephyr deepseek-r1 deepseek-v3.1 qwq qwen3"
)
_PARAMETERS = _words(
    "temperature top_p top_k min_p top_a frequency_penalty presence_penalty repetition_penalty"
    " max_tokens max_completion_tokens logit_bias logprobs top_logprobs prediction spec"
    " response_format structured_outputs stop tools tool_choice parallel_tool_calls"
    " include_reasoning reasoning reasoning_effort web_search_options verbosity seed"
)
_QUANTIZATIONS = _words("int4 int8 fp4 mxfp4 nvfp4 fp6 fp8 mxfp8 fp16 bf16 fp32 unknown")
_PROVIDER_FIELDS = [
    "slug", "name", "dialect", "base_url", "data_policy", "datacenters", "headquarters",
    "privacy_policy_url", "terms_of_service_url", "status_page_url",
]  # fmt: skip
_MODEL_FIELDS = [
    "id", "canonical_slug", "name", "created", "description", "context_length", "architecture",
    "supported_parameters", "default_parameters", "expiration_date", "knowledge_cutoff",
    "supported_voices", "per_request_limits",
]  # fmt: skip
_ENDPOINT_FIELDS = [
    "model", "provider", "upstream_model_id", "pricing", "context_length", "max_completion_tokens",
    "quantization", "is_moderated", "region", "zdr", "supported_parameters",
]  # fmt: skip


@cache
def _catalogue() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return data


def _providers() -> dict[str, dict[str, Any]]:
    return {provider["slug"]: provider for provider in _catalogue()["providers"]}


def _models() -> dict[str, dict[str, Any]]:
    return {model["canonical_slug"]: model for model in _catalogue()["models"]}


def _endpoints() -> list[dict[str, Any]]:
    endpoints: list[dict[str, Any]] = _catalogue()["endpoints"]
    return endpoints


def test_catalogue_states_its_date_and_source() -> None:
    about = _catalogue()["about"]
    assert list(_catalogue()) == ["about", "providers", "models", "endpoints"]
    assert date.fromisoformat(about["as_of"])
    assert about["source"]
    assert "check them against your contract" in about["note"]


def test_catalogue_has_a_minimum_size() -> None:
    assert len(_catalogue()["providers"]) >= 14
    assert len(_catalogue()["models"]) >= 150
    assert len(_endpoints()) >= 400
    assert {"azure", "amazon-bedrock", "google-vertex"} <= _providers().keys()


def test_catalogue_has_the_models_that_people_call_first() -> None:
    names = {model["id"] for model in _models().values()}
    assert names >= _words(
        "openai/gpt-4o openai/gpt-4o-mini openai/gpt-4.1 openai/gpt-5 openai/gpt-5-mini openai/o3"
        " openai/o4-mini openai/whisper-1 openai/tts-1 openai/gpt-image-2 openai/gpt-audio"
        " openai/text-embedding-3-small openai/text-embedding-3-large anthropic/claude-sonnet-4.5"
        " anthropic/claude-sonnet-5 anthropic/claude-opus-5.5 google/gemini-2.5-pro"
        " google/gemini-2.5-flash meta-llama/llama-3.3-70b-instruct qwen/qwen3-coder"
        " deepseek/deepseek-r1 deepseek/deepseek-v3.2 mistralai/mistral-large-2512"
        " cohere/embed-v4.0 cohere/rerank-v3.5 openai/gpt-5.1-codex openai/gpt-5.3-codex"
        " openai/gpt-5.5-pro"
    )


def test_models_of_responses_say_so() -> None:
    alone = {
        model["id"]
        for model in _models().values()
        if model.get("capabilities", {}).get("native_format") == "responses"
    }
    assert alone == {
        model["id"]
        for model in _models().values()
        if re.fullmatch(r"openai/gpt-.*-(codex.*|pro)", model["id"])
    }
    assert len(alone) == 10
    providers = {endpoint["provider"] for endpoint in _endpoints() if endpoint["model"] in alone}
    assert providers <= {"azure", "openai"}


def test_some_prices_have_tiers() -> None:
    tiered = [endpoint for endpoint in _endpoints() if "overrides" in endpoint["pricing"]]
    assert len(tiered) >= 40
    [gpt] = [
        endpoint
        for endpoint in tiered
        if (endpoint["provider"], endpoint["upstream_model_id"]) == ("openai", "gpt-5.5")
    ]
    assert gpt["pricing"]["overrides"] == [
        {
            "min_prompt_tokens": 272_000,
            "prompt": "0.00001",
            "completion": "0.000045",
            "input_cache_read": "0.000001",
        }
    ]


def test_catalogue_covers_every_output_modality() -> None:
    offered = {
        output
        for model in _models().values()
        for output in model["architecture"]["output_modalities"]
    }
    assert offered == _OUTPUTS


def test_rows_have_the_documented_fields_in_the_documented_order() -> None:
    assert all(list(entry) == _PROVIDER_FIELDS for entry in _catalogue()["providers"])
    for entry in _catalogue()["models"]:
        assert [name for name in entry if name != "capabilities"] == _MODEL_FIELDS
    for entry in _endpoints():
        named = [name for name in entry if name not in ("lines", "abilities")]
        assert named == _ENDPOINT_FIELDS


def test_natural_keys_are_unique() -> None:
    catalogue = _catalogue()
    assert len(_providers()) == len(catalogue["providers"])
    assert len({provider["name"] for provider in catalogue["providers"]}) == len(_providers())
    assert len(_models()) == len(catalogue["models"])
    assert len({model["id"] for model in catalogue["models"]}) == len(_models())
    keys = {
        (entry["model"], entry["provider"], entry["upstream_model_id"], entry["region"])
        for entry in _endpoints()
    }
    assert len(keys) == len(_endpoints())


def test_rows_are_sorted() -> None:
    slugs = [provider["slug"] for provider in _catalogue()["providers"]]
    ids = [model["id"] for model in _catalogue()["models"]]
    pairs = [(endpoint["model"], endpoint["provider"]) for endpoint in _endpoints()]
    assert slugs == sorted(slugs)
    assert ids == sorted(ids)
    assert pairs == sorted(pairs)


def test_each_provider_and_model_has_an_endpoint() -> None:
    assert {endpoint["model"] for endpoint in _endpoints()} == _models().keys()
    assert {endpoint["provider"] for endpoint in _endpoints()} == _providers().keys()


def test_providers_have_a_base_url_unless_the_credential_names_the_host() -> None:
    for slug, provider in _providers().items():
        assert provider["dialect"] in _DIALECTS, slug
        if provider["dialect"] in _URL_FROM_CREDENTIAL:
            assert provider["base_url"] is None, slug
        else:
            assert provider["base_url"].startswith("https://"), slug
            assert not provider["base_url"].endswith("/"), slug
    assert {provider["dialect"] for provider in _providers().values()} == _DIALECTS


def test_providers_have_valid_facts() -> None:
    for slug, provider in _providers().items():
        assert set(provider["data_policy"]) == {"training", "retains_prompts"}, slug
        assert all(isinstance(value, bool) for value in provider["data_policy"].values()), slug
        countries = [*provider["datacenters"], provider["headquarters"]]
        assert all(re.fullmatch("[A-Z]{2}", country) for country in countries), slug
        for field in ("privacy_policy_url", "terms_of_service_url", "status_page_url"):
            assert provider[field] is None or provider[field].startswith("https://"), slug


def _rates(endpoint: dict[str, Any]) -> dict[str, str]:
    """Returns the unconditional rates of an endpoint by name."""
    lines = {
        f"line {line['billable']} {line.get('variant', '')}": line["price"]
        for line in endpoint.get("lines", [])
    }
    named = {name: rate for name, rate in endpoint["pricing"].items() if name != "overrides"}
    return {**named, **lines}


def test_prices_are_plain_decimals() -> None:
    for endpoint in _endpoints():
        assert {"prompt", "completion", "image", "request"} <= endpoint["pricing"].keys(), endpoint
        assert all(_PRICE.fullmatch(price) for price in _rates(endpoint).values()), endpoint


def test_every_endpoint_has_a_price_above_zero() -> None:
    for endpoint in _endpoints():
        assert any(Decimal(price) > 0 for price in _rates(endpoint).values()), endpoint


def test_token_prices_are_per_token() -> None:
    for endpoint in _endpoints():
        pricing = endpoint["pricing"]
        assert Decimal(pricing["prompt"]) < Decimal("0.001"), endpoint
        assert Decimal(pricing["completion"]) < Decimal("0.001"), endpoint
        read = pricing.get("input_cache_read", pricing["prompt"])
        assert Decimal(read) <= Decimal(pricing["prompt"]), endpoint


def test_models_use_the_vocabulary_of_the_interface() -> None:
    for slug, model in _models().items():
        architecture = model["architecture"]
        assert _MODEL_ID.fullmatch(model["id"]), slug
        assert slug.startswith(model["id"]), slug
        assert set(architecture["input_modalities"]) <= _INPUTS, slug
        assert set(architecture["output_modalities"]) <= _OUTPUTS, slug
        inputs = "+".join(architecture["input_modalities"])
        outputs = "+".join(architecture["output_modalities"])
        assert architecture["modality"] == f"{inputs}->{outputs}", slug
        assert architecture["tokenizer"] in _TOKENIZERS, slug
        assert architecture["instruct_type"] in _INSTRUCT_TYPES | {None}, slug
        assert set(model["supported_parameters"]) <= _PARAMETERS, slug


def test_models_have_valid_dates() -> None:
    as_of = date.fromisoformat(_catalogue()["about"]["as_of"])
    for slug, model in _models().items():
        released = datetime.fromtimestamp(model["created"], UTC)
        assert model["created"] % 86400 == 0, slug
        assert date(2020, 1, 1) < released.date() <= as_of, slug
        if model["expiration_date"] is not None:
            assert date.fromisoformat(model["expiration_date"]) > as_of, slug
        if model["knowledge_cutoff"] is not None:
            assert date.fromisoformat(model["knowledge_cutoff"]) <= released.date(), slug


def test_endpoints_agree_with_their_model() -> None:
    for endpoint in _endpoints():
        model = _models()[endpoint["model"]]
        assert endpoint["region"] in {"us", "europe", "global"}, endpoint
        assert endpoint["quantization"] in _QUANTIZATIONS | {None}, endpoint
        assert set(endpoint["supported_parameters"]) <= set(model["supported_parameters"]), endpoint
        if model["context_length"] is None:
            assert endpoint["context_length"] is None, endpoint
        else:
            assert 0 < endpoint["context_length"] <= model["context_length"], endpoint
        if endpoint["max_completion_tokens"] is not None:
            assert endpoint["max_completion_tokens"] > 0, endpoint


def test_grok_lists_no_parameter_that_it_refuses() -> None:
    """xAI answers 400 to penalties for any model, and to ``stop`` for one that thinks."""
    refused = {"frequency_penalty", "presence_penalty", "stop"}
    listed = {
        (each["model"], name)
        for each in _endpoints()
        if each["model"].startswith("x-ai/grok-")
        for name in refused & {*each["supported_parameters"]}
    }
    assert listed == {("x-ai/grok-4.20-non-reasoning-0309", "stop")}


def test_zdr_endpoints_belong_to_providers_that_keep_no_prompts() -> None:
    for endpoint in _endpoints():
        if endpoint["zdr"]:
            assert not _providers()[endpoint["provider"]]["data_policy"]["retains_prompts"], (
                endpoint
            )


def test_some_models_have_many_endpoints() -> None:
    served: dict[str, set[str]] = {}
    for endpoint in _endpoints():
        served.setdefault(endpoint["model"], set()).add(endpoint["provider"])
    assert sum(len(providers) >= 4 for providers in served.values()) >= 5
