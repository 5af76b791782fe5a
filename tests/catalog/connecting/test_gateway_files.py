"""Readers of other gateways' files find servers, keys, names and prices, and name the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.connecting.gateways.deployments import Deployment, GatewayFile, GatewayServer
from catalog.connecting.gateways.known import bundled_servers
from catalog.connecting.gateways.litellm import read_config
from catalog.connecting.gateways.new_api import read_channels

KEY = "sk-0123456789abcdef"
ENVIRON = {
    "OPENAI_API_KEY": "sk-of-openai-0123456789", "OPENROUTER_API_KEY": "sk-of-router-0123456789",
    "HOSTED_VLLM_API_KEY": "sk-of-vllm-0123456789", "OLLAMA_API_BASE": "http://ollama.lan:11434",
    "DEEPSEEK_API_KEY": "sk-of-deepseek-0123456789",
    "AZURE_API_BASE": "https://one.openai.azure.com", "AZURE_AI_API_BASE": "https://two.azure.com",
}  # fmt: skip


def read_lite(*entries: dict[str, Any], **settings: Any) -> GatewayFile:
    listed = [{"model_name": "ours", **entry} for entry in entries]
    return read_config(json.dumps({"model_list": listed, **settings}), ENVIRON, bundled_servers())


def read_entry(model: str, **params: Any) -> GatewayFile:
    return read_lite({"litellm_params": {"model": model, **params}})


def read_channel(kind: int, **members: Any) -> GatewayFile:
    channel = {"type": kind, "name": "k", "key": KEY, "models": "gpt-4o", **members}
    return read_channels(json.dumps([channel]), bundled_servers())


def key_of(deployment: Deployment) -> str | None:
    return None if deployment.secret is None else deployment.secret.reveal()


def own(base_url: str) -> GatewayServer:
    return GatewayServer("", "openai", base_url)


def bundled(slug: str) -> GatewayServer:
    return bundled_servers()[slug]


def reasons(found: GatewayFile) -> list[str]:
    return [each.reason for each in found.left_out]


@pytest.mark.parametrize(
    ("model", "params", "server", "key"),
    [
        ("openai/m", {}, bundled("openai"), ENVIRON["OPENAI_API_KEY"]),
        # The key of one provider is not that of another, nor of a server of one's own.
        ("openai/m", {"api_base": "https://API.deepseek.com/v1/"}, bundled("deepseek"), None),
        # Without the version, an address is still the provider's.
        (
            "deepseek/m", {"api_base": "https://api.deepseek.com"}, bundled("deepseek"),
            ENVIRON["DEEPSEEK_API_KEY"],
        ),
        ("mistral/m", {"api_base": "https://api.mistral.ai/"}, bundled("mistral"), None),
        ("openai/m", {"api_base": "https://api.deepseek.com"}, bundled("deepseek"), None),
        ("openai/m", {"api_base": "http://GPU.lan:8000/v1"}, own("http://gpu.lan:8000/v1"), ""),
        (
            "openrouter/m", {}, own("https://openrouter.ai/api/v1"),
            ENVIRON["OPENROUTER_API_KEY"],
        ),
        ("openrouter/m", {"api_base": "https://r.example/v1"}, own("https://r.example/v1"), ""),
        # Public servers need a key.
        ("novita/m", {}, own("https://api.novita.ai/v3/openai"), None),
        ("novita/m", {"api_key": "none"}, own("https://api.novita.ai/v3/openai"), None),
        (
            "hosted_vllm/m", {"api_base": "http://gpu.lan/v1"}, own("http://gpu.lan/v1"),
            ENVIRON["HOSTED_VLLM_API_KEY"],
        ),
        ("ollama/m", {"api_key": "ollama"}, own("http://ollama.lan:11434/v1"), ""),
    ],
)  # fmt: skip
def test_a_deployment_has_the_server_and_the_key_that_are_meant(
    model: str, params: dict[str, str], server: GatewayServer, key: str | None
) -> None:
    [found] = read_entry(model, **params).deployments
    assert (found.server, found.upstream_id, key_of(found)) == (server, "m", key)


@pytest.mark.parametrize(
    ("model", "params", "unsent"),
    [
        ("openai/m", {}, "OPENAI_API_KEY"),
        ("openrouter/m", {}, "OPENROUTER_API_KEY"),
        ("deepseek/m", {}, "DEEPSEEK_API_KEY"),
        ("openai/m", {"api_key": "none"}, ""),
        ("openai/m", {"api_key": KEY}, ""),
        ("groq/m", {}, ""),
        ("hosted_vllm/m", {}, ""),
    ],
)
def test_a_key_that_is_not_sent_to_another_address_is_named(
    model: str, params: dict[str, str], unsent: str
) -> None:
    found = read_entry(model, api_base="https://gpu.example/v1", **params)
    assert [each.server for each in found.deployments] == [own("https://gpu.example/v1")]
    told = [f"its key: {unsent} is not sent to this address; state api_key"] if unsent else []
    assert reasons(found) == told


@pytest.mark.parametrize(
    ("model", "address"),
    [("azure/m", ENVIRON["AZURE_API_BASE"]), ("azure_ai/m", ENVIRON["AZURE_AI_API_BASE"])],
)
def test_azure_and_foundry_have_addresses_of_their_own(model: str, address: str) -> None:
    [found] = read_entry(model, api_key=KEY).deployments
    assert found.place == {"endpoint_url": address}
    assert json.loads(key_of(found) or "") == {"endpoint_url": address, "api_key": KEY}


def test_a_cloud_without_a_key_says_where_its_key_must_be_for() -> None:
    entries = [
        {"model": "azure/m", "api_base": "https://b.example"},
        {"model": "bedrock/eu-west-1/m"},
        {"model": "vertex_ai/m", "vertex_location": "europe-west1", "vertex_credentials": "/a"},
    ]
    found = read_lite(*({"litellm_params": each} for each in entries)).deployments
    assert [(key_of(each), each.place) for each in found] == [
        (None, {"endpoint_url": "https://b.example"}),
        (None, {"region": "eu-west-1"}),
        (None, {"location": "europe-west1"}),
    ]


@pytest.mark.parametrize(
    ("model", "upstream_id"),
    [
        ("fireworks_ai/gpt-oss-20b", "accounts/fireworks/models/gpt-oss-20b"),
        ("fireworks_ai/kimi-k2-fast", "accounts/fireworks/routers/kimi-k2-fast"),
        ("fireworks_ai/accounts/us/models/m", "accounts/us/models/m"),
        ("fireworks_ai/m#accounts/us/deployments/d", "m#accounts/us/deployments/d"),
    ],
)
def test_short_names_of_fireworks_get_their_beginning(model: str, upstream_id: str) -> None:
    assert [each.upstream_id for each in read_entry(model, api_key=KEY).deployments] == [
        upstream_id
    ]


ARN = "arn:aws:bedrock:us-east-1:123456789012:imported-model/m"


@pytest.mark.parametrize(
    ("model", "upstream_id"),
    [
        ("azure/gpt5_series/gpt-5-mini", "gpt-5-mini"),
        ("azure/o_series/o3-mini", "o3-mini"),
        ("azure_ai/model_router/ours", "ours"),
        ("bedrock/chat_completions/openai.gpt-oss-120b-1:0", "openai.gpt-oss-120b-1:0"),
        ("bedrock/converse/us.amazon.nova-pro-v1:0", "us.amazon.nova-pro-v1:0"),
        (f"bedrock/deepseek_r1/{ARN}", ARN),
        (f"bedrock/eu-west-1/{ARN}", ARN),
        ("vertex_ai/gemini-3-flash", "google/gemini-3-flash"),
        ("vertex_ai/gemma-3-27b-it", "google/gemma-3-27b-it"),
        ("vertex_ai/imagen-4.0-generate-001", "google/imagen-4.0-generate-001"),
        ("vertex_ai/text-multilingual-embedding-002", "google/text-multilingual-embedding-002"),
        ("vertex_ai/multimodalembedding@001", "google/multimodalembedding@001"),
        ("vertex_ai/mistral-large@2407", "mistral-large@2407"),
        ("vertex_ai/claude-opus-4-5@20251101", "claude-opus-4-5@20251101"),
        ("vertex_ai/openai/gpt-oss-120b-maas", "openai/gpt-oss-120b-maas"),
    ],
)
def test_a_cloud_has_the_name_without_what_leads_to_it(model: str, upstream_id: str) -> None:
    found = read_entry(model, aws_region_name="eu-west-1", vertex_location="global", api_key=KEY)
    assert [each.upstream_id for each in found.deployments] == [upstream_id]


@pytest.mark.parametrize("route", ["mantle", "agent", "agentcore"])
def test_a_route_to_another_interface_of_a_cloud_is_left_out(route: str) -> None:
    found = read_entry(f"bedrock/{route}/m", aws_region_name="us-east-1", api_key=KEY)
    reason = f"litellm_params.model: the route {route!r} has no counterpart"
    assert (found.deployments, reasons(found)) == ([], [reason])


@pytest.mark.parametrize(
    ("mode", "prices", "pricing", "left"),
    [
        # LiteLLM means the seconds that an answer takes.
        ("chat", {"input_cost_per_second": 0.1}, None, ["input_cost_per_second"]),
        ("chat", {"output_cost_per_character": 0.1}, None, ["output_cost_per_character"]),
        ("chat", {"input_cost_per_audio_token": 0.1}, {"audio": "0.1"}, []),
        (
            "chat",
            {"input_cost_per_token": 0, "output_cost_per_image": 0.1},
            {"prompt": "0", "image_output": "0.1"},
            [],
        ),
        (
            "audio_transcription",
            {"input_cost_per_second": 0.1},
            {"prompt": "0", "completion": "0"},
            [],
        ),
        ("audio_transcription", {"input_cost_per_token": 0.1}, {"prompt": "0.1"}, []),
        ("audio_speech", {"input_cost_per_token": 0.1}, {"prompt": "0.1"}, []),
        (
            "audio_speech",
            {"output_cost_per_audio_token": 0.1},
            {"completion": "0.1", "audio_output": "0.1"},
            [],
        ),
        ("image_generation", {"input_cost_per_token": 0.1}, {"prompt": "0.1"}, []),
        # The tokens of a picture in the prompt are no price of the answer.
        (
            "image_generation",
            {"input_cost_per_token": 0.1, "input_cost_per_image_token": 0.2},
            {"prompt": "0.1"},
            [],
        ),
        (
            "image_generation",
            {"input_cost_per_token": 0, "output_cost_per_token": 0},
            {"prompt": "0", "completion": "0"},
            [],
        ),
        (
            "image_generation",
            {"input_cost_per_token": 0.1, "output_cost_per_image": 0.2},
            {"prompt": "0.1", "completion": "0", "image_output": "0.2"},
            [],
        ),
        (
            "image_generation",
            {"input_cost_per_request": 0.1},
            {"prompt": "0", "completion": "0", "request": "0.1"},
            [],
        ),
        ("embedding", {"input_cost_per_token": 0.1}, {"prompt": "0.1", "completion": "0"}, []),
    ],
)
def test_a_rate_that_is_not_stated_is_left_to_the_catalogue(
    mode: str, prices: dict[str, float], pricing: dict[str, str] | None, left: list[str]
) -> None:
    params = {"model": "openai/m", "api_key": KEY, **prices}
    found = read_lite({"litellm_params": params, "model_info": {"mode": mode}})
    assert [each.pricing for each in found.deployments] == [pricing]
    assert reasons(found) == [f"litellm_params.{name}: no counterpart" for name in left]


def test_lengths_may_be_texts() -> None:
    info = {"max_input_tokens": "128000", "max_output_tokens": 1e4}
    found = read_lite({"litellm_params": {"model": "openai/m"}, "model_info": info})
    [deployment] = found.deployments
    assert (deployment.context_length, deployment.max_completion_tokens) == (128_000, 10_000)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"rpm": "1e999999999"}, "rpm: must be a number from 1 to 2147483647"),
        ({"rpm": ".nan"}, "rpm: must be a number"),
        (
            {"model": "azure/m", "api_key": KEY, "api_version": "newest"},
            "api_version: must be a date such as 2024-10-21, or latest",
        ),
        (
            {"model": "bedrock/us-east-1/m", "api_key": KEY, "api_base": "https://aws.example"},
            "api_base: amazon-bedrock is called at its own address alone",
        ),
        (
            {"model": "vertex_ai/m", "base_url": "https://google.example"},
            "api_base: google-vertex is called at its own address alone",
        ),
    ],
)
def test_a_value_that_means_nothing_leaves_its_entry_out(
    params: dict[str, str], reason: str
) -> None:
    found = read_lite({"litellm_params": {"model": "openai/m", **params}})
    assert (found.deployments, reasons(found)) == ([], [reason])


def test_numbers_of_a_service_account_are_no_error() -> None:
    account = {"type": "service_account", "client_id": 1.5}
    [found] = read_entry("vertex_ai/m", vertex_credentials=account).deployments
    assert json.loads(key_of(found) or "")["service_account"]["type"] == "service_account"


def test_fallbacks_with_parameters_show_no_secret_and_the_first_ones_count() -> None:
    secret = {"model": "b", "api_key": KEY}
    settings = {"default_fallbacks": [secret, "c"], "fallbacks": [{"a": ["b"]}, {"a": ["c"]}]}
    found = read_lite(litellm_settings=settings)
    assert {name: names for name, (_, names) in found.fallbacks.items()} == {"*": ["c"], "a": ["b"]}
    assert reasons(found) == [
        "fallbacks with parameters of their own",
        "the name has fallbacks already, the first of which count",
    ]


def test_credentials_that_become_nothing_are_named() -> None:
    listed = [
        {"credential_name": "a", "credential_values": {"api_key": f"{KEY}-1"}},
        {"credential_name": "a", "credential_values": {"api_key": f"{KEY}-2"}},
        {
            "credential_name": "b", "credential_values": {"api_key": KEY, "client_id": "c"},
            "credential_info": {"description": "d"},
        },
    ]  # fmt: skip
    params = {"model": "openai/m", "litellm_credential_name": "a"}
    found = read_lite({"litellm_params": params}, credential_list=listed)
    assert list(map(key_of, found.deployments)) == [f"{KEY}-1"]
    assert [(each.name, each.reason) for each in found.left_out] == [
        ("a", "the name has a credential already; the first one counts"),
        ("b", "credential_values.client_id, credential_info: no counterpart"),
        ("b", "no entry of model_list names the credential"),
    ]


def test_a_star_in_a_name_alone_is_a_name() -> None:
    entries = [("claude-*", "openai/gpt-4o"), ("*", "openai/gpt-4o-mini"), ("o/*", "openai/*")]
    found = read_lite(
        *({"model_name": name, "litellm_params": {"model": model}} for name, model in entries)
    )
    assert [each.name for each in found.deployments] == ["claude-*", "*"]
    assert [each.name for each in found.wildcards] == ["o/*"]


@pytest.mark.parametrize(
    ("kind", "members", "server", "key"),
    [
        (1, {"base_url": "https://api.anthropic.com"}, bundled("anthropic"), KEY),
        # An answer of new-api's lacks the keys: a provider without one would refuse each request.
        (20, {"key": ""}, own("https://openrouter.ai/api/v1"), None),
        (1, {"key": "", "base_url": "http://gpu.lan"}, own("http://gpu.lan/v1"), None),
        (1, {"key": "none", "base_url": "http://gpu.lan"}, own("http://gpu.lan/v1"), ""),
        (8, {"base_url": "https://api.deepseek.com/chat/completions"}, bundled("deepseek"), KEY),
        (20, {"key": "none"}, own("https://openrouter.ai/api/v1"), None),
        (4, {"key": ""}, own("http://localhost:11434/v1"), ""),
        (
            1, {"base_url": "https://gateway.ai.cloudflare.com/v1/a/g/openai"},
            own("https://gateway.ai.cloudflare.com/v1/a/g/openai"), KEY,
        ),
        (
            8, {"base_url": "https://gateway.ai.cloudflare.com/v1/a/g/compat/chat/completions"},
            own("https://gateway.ai.cloudflare.com/v1/a/g/compat"), KEY,
        ),
        (
            8, {"base_url": "https://h.example/v1/chat/completions"},
            own("https://h.example/v1"), KEY,
        ),
        (46, {"key": f"{KEY}|app"}, own("https://qianfan.baidubce.com/v2"), KEY),
    ],
)  # fmt: skip
def test_a_channel_has_the_server_and_the_key_that_are_meant(
    kind: int, members: dict[str, str], server: GatewayServer, key: str | None
) -> None:
    found = read_channel(kind, **members)
    assert [(each.server, key_of(each)) for each in found.deployments] == [(server, key)]
    is_told = "the application behind its key" in reasons(found)
    assert is_told == ("|" in members.get("key", ""))


def test_models_of_vertex_have_locations_of_their_own() -> None:
    other = json.dumps({"default": "us-central1", "claude-opus-4-5": "europe-west1"})
    found = read_channel(
        41, key='{"project_id": "p"}', other=other,
        models="claude-opus-4-5,gemini-3-flash,mistral-large@2407",
    )  # fmt: skip
    assert [(each.upstream_id, each.place) for each in found.deployments] == [
        ("claude-opus-4-5", {"location": "europe-west1"}),
        ("google/gemini-3-flash", {"location": "us-central1"}),
        ("mistral-large@2407", {"location": "us-central1"}),
    ]


@pytest.mark.parametrize(
    ("created", "name"), [(1_746_835_199, "gpt-41"), (1_746_835_200, "gpt-4.1")]
)
def test_names_of_azures_deployments_had_no_dots(created: int, name: str) -> None:
    found = read_channel(3, models="gpt-4.1", base_url="https://a.example", created_time=created)
    assert [(each.upstream_id, each.hint) for each in found.deployments] == [(name, "gpt-4.1")]


def test_the_rows_of_a_table_have_objects_as_texts() -> None:
    info = json.dumps({"is_multi_key": True, "multi_key_status_list": {"0": 2}})
    found = read_channel(1, key=f"{KEY}-1\n{KEY}-2", channel_info=info)
    assert list(map(key_of, found.deployments)) == [f"{KEY}-2"]


def test_numbers_of_a_table_may_be_texts() -> None:
    numbers = {"status": 1, "auto_ban": 1, "priority": 5, "created_time": 1_746_835_199}
    members = {"models": "gpt-4.1", "base_url": "https://a.example"}
    found = read_channel(3, **members, **numbers)
    texts = {name: str(value) for name, value in {"type": 3, **numbers}.items()}
    assert read_channel(3, **members, **texts) == found
    assert [(each.upstream_id, each.routing) for each in found.deployments] == [
        ("gpt-41", {"priority": 5})
    ]


def test_groups_and_teams_have_the_same_words_from_both() -> None:
    words = "guardrails and keys say who may use a model, see docs/guardrails.md"
    info = {"access_groups": ["a"], "team_id": "t", "id": "i"}
    found = read_lite({"litellm_params": {"model": "openai/m"}, "model_info": info})
    assert reasons(found) == [
        "model_info.id: no counterpart",
        f"model_info.access_groups, model_info.team_id: {words}",
    ]
    assert reasons(read_channel(1, group="vip")) == [f"group: {words}"]


@pytest.mark.parametrize(
    ("members", "named"),
    [
        (
            {
                "setting": '{"proxy": "", "force_format": false}', "settings": '{"azure": true}',
                "tag": None, "param_override": "{ }", "header_override": {}, "auto_ban": 1,
                "need_reconcile": 0, "status_code_mapping": "",
            },
            "settings",
        ),
        # What overrides a parameter says something whatever its value is.
        ({"param_override": '{"enable_thinking": false}'}, "param_override"),
        ({"param_override": {"temperature": 0}}, "param_override"),
        ({"header_override": {"Referer": ""}}, "header_override"),
        ({"auto_ban": 0}, "auto_ban"),
        ({"auto_ban": "0"}, "auto_ban"),
    ],
)  # fmt: skip
def test_switches_that_are_off_are_not_named(members: dict[str, Any], named: str) -> None:
    assert reasons(read_channel(1, **members)) == [f"{named}: no counterpart"]


def test_a_name_that_cannot_be_used_leaves_the_others() -> None:
    found = read_channel(1, models=f"gpt-4o,{'x' * 256},gpt-4o-mini")
    assert [each.name for each in found.deployments] == ["gpt-4o", "gpt-4o-mini"]
    assert reasons(found) == ["the model's name there must be plain, of 1 to 255 characters"]


def test_a_channel_of_very_many_keys_and_models_is_left_out() -> None:
    keys = "\n".join(f"{KEY}-{number}" for number in range(101))
    models = ",".join(f"m-{number}" for number in range(100))
    found = read_channel(1, key=keys, models=models, channel_info={"is_multi_key": True})
    assert (found.deployments, reasons(found)) == (
        [],
        ["models: with its keys they are more than 10,000"],
    )
