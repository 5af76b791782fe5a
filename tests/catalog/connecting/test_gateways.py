"""``import_gateway``: the files of other gateways become rows of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from catalog import imports
from catalog.models import LanguageModel, ModelAlias, ModelEndpoint, Provider
from config.audit.entries import AuditEntry
from config.egress import EgressPolicy
from tests.support import factories
from tests.support.database import snapshots
from tests.support.database.locks import at_once
from tests.support.operators import commands, gateways
from tests.support.operators.gateways import UNKNOWN, left_out

FILES = Path(__file__).with_name("files")
Write = Callable[[str], Path]
KINDS = ("providers", "models", "endpoints", "credentials", "aliases")
SHARED = "endpoints are shared by price and health, see docs/routing.md"


@pytest.fixture(autouse=True)
def environment(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.EGRESS_POLICY = EgressPolicy(allowed_networks=(ip_network("10.9.0.0/16"),))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment-0123456789")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    monkeypatch.setenv("VOYAGE_API_KEY", "pa-0123456789")
    monkeypatch.delenv("GROQ_KEY_OF_NOBODY", raising=False)


def load(file: str | Path, *options: str, source: str = "litellm") -> dict[str, Any]:
    return gateways.load(FILES / file, *options, source=source)


def counts(*numbers: int) -> dict[str, int]:
    return dict(zip(KINDS, numbers, strict=True))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "gateway"
        path.write_text(text)
        return path

    return write_file


def one(model: str = "openai/gpt-4o", **members: Any) -> str:
    """A file with one deployment; JSON is YAML."""
    params = {"model": model, "api_key": "sk-0123456789abcdef", **members}
    return json.dumps({"model_list": [{"model_name": "ours", "litellm_params": params}]})


def test_deployments_of_one_name_share_a_model(settings: Any) -> None:
    report = load("balanced.yaml")
    assert report["created"] == counts(5, 3, 5, 4, 6)
    assert report["updated"] == report["unchanged"] == counts(0, 0, 0, 0, 0)
    assert report["dry_run"] is False
    rows = ModelEndpoint.objects.order_by("provider__slug").values_list(
        "provider__slug", "upstream_model_id", "model__slug", "price__prompt", "price__completion",
        "headers_timeout", "first_event_timeout",
    )  # fmt: skip
    assert [(*row[:3], f"{row[3]:f}".rstrip("0"), *row[5:]) for row in rows] == [
        ("anthropic", "claude-haiku-4-5", "anthropic/claude-haiku-4.5", "0.000001", None, None),
        ("azure", "team-four", "openai/gpt-4o", "0.0000025", None, None),
        ("openai", "gpt-4o", "openai/gpt-4o", "0.0000025", 30, None),
        ("openai-2", "gpt-4o", "openai/gpt-4o", "0.0000025", None, None),
        ("server", "meta-llama/our-own-llama", "server/llama", "0.00000015", None, 1),
    ]
    providers = {each.slug: each for each in Provider.objects.all()}
    limits = {
        slug: (each.requests_per_minute, each.tokens_per_minute) for slug, each in providers.items()
    }
    assert limits == {
        "anthropic": (None, None), "azure": (None, 20_000), "openai": (600, None),
        "openai-2": (None, None), "server": (None, None),
    }  # fmt: skip
    assert json.loads(providers["azure"].reveal_credential().reveal()) == {
        "api_key": "azure-key-0123456789",
        "endpoint_url": "https://team.openai.azure.com/",
        "api_version": "2024-10-21",
    }
    keys = [providers[slug].reveal_credential().reveal() for slug in ("openai", "openai-2")]
    assert keys == ["sk-of-the-environment-0123456789", "sk-second-account-0123456789"]
    assert (providers["server"].is_keyless, providers["server"].base_url) == (
        True,
        "http://10.9.0.4:8000/v1",
    )
    assert LanguageModel.objects.get(slug="server/llama").context_length == 32_768
    assert dict(ModelAlias.objects.values_list("name", "targets")) == {
        "gpt-4o": ["openai/gpt-4o", "anthropic/claude-haiku-4.5"],
        "gpt-4": ["openai/gpt-4o"],
        "hidden-gpt": ["openai/gpt-4o"],
        "claude": ["anthropic/claude-haiku-4.5"],
        "claude-cheap": ["anthropic/claude-haiku-4.5"],
        "llama": ["server/llama"],
    }


def test_what_has_no_counterpart_is_named_with_its_line() -> None:
    assert left_out(load("balanced.yaml")) == [
        (3, "gpt-4o", "timeout: it bounds streams, not plain answers, see docs/time-limits.md"),
        (3, "gpt-4o", f"litellm_params.weight: {SHARED}"),
        (27, "claude-cheap", "litellm_params.temperature: no counterpart"),
        (31, "llama", "model_info.id: no counterpart"),
        (43, "unpriced", "its key: OPENAI_API_KEY is not sent to this address; state api_key"),
        (43, "unpriced", UNKNOWN),
        (47, "unset", "api_key: the environment variable GROQ_KEY_OF_NOBODY is not set"),
        (52, "router_settings.routing_strategy", SHARED),
        (55, "router_settings.model_group_alias.hidden-gpt", "hidden: no counterpart"),
        (57, "gpt-4o", "no model 'nobody' was taken as a fallback"),
        (59, "litellm_settings.drop_params", "parameters that a model lacks are dropped already"),
        (60, "litellm_settings.context_window_fallbacks", "no counterpart"),
        (
            62,
            "general_settings.master_key",
            "programs that use it go on with import_keys, column key",
        ),
    ]


def test_clouds_take_their_address_from_the_credential() -> None:
    report = load("clouds.yaml")
    assert report["created"] == counts(2, 2, 2, 2, 2)
    bedrock = Provider.objects.get(slug="amazon-bedrock")
    assert json.loads(bedrock.reveal_credential().reveal()) == {
        "region": "us-east-1",
        "access_key_id": "AKIAIOSFODNN7EXAMPLE",
        "secret_access_key": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY00",
    }
    endpoint = ModelEndpoint.objects.get(provider=bedrock)
    assert (endpoint.upstream_model_id, endpoint.region, endpoint.source) == (
        "us.anthropic.claude-haiku-4-5-20251001-v1:0",
        "us",
        "litellm",
    )
    openai = Provider.objects.get(slug="openai")
    assert openai.reveal_credential().reveal() == "sk-of-the-list-0123456789"
    no_account = "vertex_credentials must be the JSON of a service account, not its path"
    assert left_out(report) == [
        (8, "vertex-gemini", f"{no_account}; nor does the catalogue have a key for it"),
        (19, "batch", "no route serves the model_info.mode"),
        (22, "stranger", "the provider 'watsonx' has no counterpart"),
        (28, "finetune_settings", "no counterpart"),
        (32, "mcp_servers.deepwiki", "no counterpart"),
    ]


def test_a_wildcard_takes_the_models_of_the_catalogue() -> None:
    report = load("wildcards.yaml")
    assert left_out(report) == [
        (2, "voyage/*", "the 14 models of the catalogue were taken; later ones are not"),
        (
            6,
            "azure/*",
            "the catalogue has no models for this wildcard; connect lists those of a server",
        ),
    ]
    assert report["created"] == counts(2, 15, 15, 2, 15)
    assert ModelAlias.objects.get(name="voyage/voyage-4").targets == [
        "voyageai/voyage-4",
        "deepseek/deepseek-chat",
    ]
    # The address says whose models they are.
    assert ModelEndpoint.objects.get(upstream_model_id="deepseek-chat").provider.slug == "deepseek"


def test_a_wildcard_takes_the_models_of_the_file_too(write: Write) -> None:
    prices = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    # The catalogue has the model at other providers alone.
    entries = [
        {"model_name": "old", "litellm_params": {"model": "openai/gpt-4o-2024-05-13", **prices}},
        {"model_name": "*", "litellm_params": {"model": "openai/*"}},
    ]
    gateways.load_twice(write(json.dumps({"model_list": entries})))
    slug = ModelEndpoint.objects.get(upstream_model_id="gpt-4o-2024-05-13").model.slug
    assert ModelAlias.objects.get(name="gpt-4o-2024-05-13").targets == [slug]


def test_a_fallback_of_all_names_that_nobody_has_is_named_once(write: Write) -> None:
    params = {"api_key": "sk-0123456789abcdef"}
    entries = [
        {"model_name": name, "litellm_params": {**params, "model": f"openai/{name}"}}
        for name in ("gpt-4o", "gpt-4o-mini")
    ]
    settings = {"default_fallbacks": ["gpt-4o", "nobody"]}
    report = load(write(json.dumps({"model_list": entries, "litellm_settings": settings})))
    assert left_out(report) == [(1, "*", "no model 'nobody' was taken as a fallback")]
    assert dict(ModelAlias.objects.values_list("name", "targets")) == {
        "gpt-4o": ["openai/gpt-4o"],
        "gpt-4o-mini": ["openai/gpt-4o-mini", "openai/gpt-4o"],
    }


@pytest.mark.parametrize(
    ("model", "members", "base_url"),
    [
        ("nvidia_nim/openai/gpt-oss-20b", {}, "https://integrate.api.nvidia.com/v1"),
        ("novita/openai/gpt-oss-20b", {}, "https://api.novita.ai/v3/openai"),
        ("openrouter/openai/gpt-oss-20b", {}, "https://openrouter.ai/api/v1"),
        ("ollama/gpt-oss-20b", {"api_base": "http://10.9.0.4:11434"}, "http://10.9.0.4:11434/v1"),
        (
            "nvidia_nim/openai/gpt-oss-20b",
            {"api_base": "http://10.9.0.4:8000/v1/"},
            "http://10.9.0.4:8000/v1",
        ),
    ],
)
def test_a_provider_with_the_format_of_openai_has_its_address(
    write: Write, model: str, members: dict[str, str], base_url: str
) -> None:
    assert left_out(load(write(one(model, **members)))) == []
    assert Provider.objects.get().base_url == base_url
    assert ModelEndpoint.objects.get().model.slug == "openai/gpt-oss-20b"


def test_values_of_prices_and_limits_come_from_the_environment(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_PRICE", "0.000002")
    monkeypatch.setenv("OUR_LIMIT", "70")
    names = {"input_cost_per_token": "OUR_PRICE", "output_cost_per_token": "OUR_PRICE"}
    members = {name: f"os.environ/{value}" for name, value in {**names, "rpm": "OUR_LIMIT"}.items()}
    assert left_out(load(write(one(**members)))) == []
    price = ModelEndpoint.objects.get().price.price
    assert (price.text("prompt"), price.text("completion")) == ("0.000002", "0.000002")
    assert Provider.objects.get().requests_per_minute == 70


def test_prices_that_cannot_be_charged_are_named(write: Write) -> None:
    tiers = {
        "input_cost_per_token_above_200k_tokens": 0.000004,
        "input_cost_per_token_above_200k_tokens_priority": 0.000005,
        "output_cost_per_token_batches": 0.000002,
        "output_cost_per_video_per_second": 0.1,
        "input_cost_per_image": 0.001,
    }
    prices = {"input_cost_per_token": 0.000002, "output_cost_per_token": 0.000004, **tiers}
    [(_, _, reason)] = left_out(load(write(one(**prices))))
    assert reason == (
        "litellm_params.input_cost_per_token_above_200k_tokens_priority, "
        "litellm_params.output_cost_per_token_batches, "
        "litellm_params.output_cost_per_video_per_second, "
        "litellm_params.input_cost_per_image: no counterpart"
    )
    [rule] = ModelEndpoint.objects.get().price.price.rules
    assert (rule.conditions.min_prompt_tokens, str(rule.price)) == (200_000, "0.000004")


def test_members_of_a_credential_that_become_nothing_are_named(write: Write) -> None:
    document = json.loads(one(api_key=None, litellm_credential_name="theirs"))
    values = {"api_key": "sk-of-the-list-0123456789", "client_id": "c", "tenant_id": "t"}
    document["credential_list"] = [{"credential_name": "theirs", "credential_values": values}]
    report = load(write(json.dumps(document)))
    assert left_out(report) == [
        (1, "theirs", "credential_values.client_id, credential_values.tenant_id: no counterpart")
    ]
    assert Provider.objects.get().reveal_credential().reveal() == values["api_key"]


@pytest.mark.parametrize(("is_blocked", "created"), [(True, 0), (False, 1)])
def test_a_blocked_deployment_is_left_out(write: Write, is_blocked: bool, created: int) -> None:
    document = json.loads(one())
    document["model_list"][0]["model_info"] = {"blocked": is_blocked}
    report = load(write(json.dumps(document)))
    told = [(1, "ours", "the deployment is blocked")]
    assert (left_out(report), report["created"]["endpoints"]) == (told[created:], created)


@pytest.mark.parametrize(
    ("kind", "stated", "base_url", "slug"),
    [
        (25, "", "https://api.moonshot.cn/v1", "moonshot"),
        (25, "https://api.moonshot.ai", "https://api.moonshot.ai/v1", "moonshotai"),
        (35, "", "https://api.minimax.chat/v1", "minimax-2"),
        (35, "https://api.minimax.io", "https://api.minimax.io/v1", "minimax"),
        (43, "", "https://api.deepseek.com/v1", "deepseek"),
        (43, "https://api.deepseek.com/v1", "https://api.deepseek.com/v1", "deepseek"),
    ],
)
def test_a_channel_without_an_address_has_that_of_new_api(
    write: Write, kind: int, stated: str, base_url: str, slug: str
) -> None:
    channel = {"type": kind, "key": "sk-0123456789", "name": "k", "models": "gpt-oss-20b"}
    path = write(json.dumps([channel | {"base_url": stated}]))
    assert left_out(load(path, source="new-api")) == []
    provider = Provider.objects.get()
    assert (provider.base_url, provider.slug) == (base_url, slug)


def test_channels_of_new_api_become_endpoints() -> None:
    report = load("channels.json", source="new-api")
    assert report["created"] == counts(3, 3, 4, 3, 3)
    rows = ModelEndpoint.objects.order_by("provider__slug", "upstream_model_id")
    assert list(rows.values_list("provider__slug", "upstream_model_id", "model__slug")) == [
        ("amazon-bedrock", "us.amazon.nova-2-lite-v1:0", "amazon/nova-2-lite-v1"),
        ("azure", "gpt-4o", "openai/gpt-4o"),
        ("openai", "gpt-4o", "openai/gpt-4o"),
        ("openai", "gpt-4o-mini", "openai/gpt-4o-mini"),
    ]
    openai = Provider.objects.get(slug="openai")
    assert openai.reveal_credential().reveal() == "sk-one-0123456789"
    assert ModelAlias.objects.get(name="fast").targets == ["openai/gpt-4o-mini"]
    assert left_out(report) == [
        (
            2,
            "OpenAI 一",
            "group: guardrails and keys say who may use a model, see docs/guardrails.md",
        ),
        (2, "OpenAI 一", "its disabled keys"),
        (2, "OpenAI 一", f"weight: {SHARED}"),
        (2, "OpenAI 一", f"priority: {SHARED}"),
        (8, "AWS", "header_override: no counterpart"),
        (10, "Midjourney", "channels of the type 2 have no counterpart"),
        (11, "off", "the channel is disabled"),
    ]


@pytest.mark.parametrize("wrapped", ["[%s]", '{"data": [%s]}', '{"items": [%s], "total": 1}'])
def test_the_list_of_channels_stands_alone_or_in_a_member(write: Write, wrapped: str) -> None:
    channel = {"type": 1, "key": "sk-0123456789", "name": "o", "models": "gpt-4o", "weight": 2}
    report = load(write(wrapped % f"\n{json.dumps(channel)}"), source="new-api")
    assert (report["created"], left_out(report)) == (
        counts(1, 1, 1, 1, 1),
        [(2, "o", f"weight: {SHARED}")],
    )


FIRST_FILES = [
    ("balanced.yaml", "litellm"), ("clouds.yaml", "litellm"), ("channels.json", "new-api"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "source"), [*FIRST_FILES, ("wildcards.yaml", "litellm")])
def test_a_second_run_changes_nothing(file: str, source: str) -> None:
    before = snapshots.everything()
    planned = load(file, "--dry-run", source=source)
    assert snapshots.everything() == before
    first = gateways.load_twice(FILES / file, source=source)
    assert planned == first | {"dry_run": True}


@pytest.mark.parametrize("is_empty", [True, False])
def test_of_two_imports_at_once_the_second_changes_nothing(
    transactional_db: None, is_empty: bool
) -> None:
    if not is_empty:
        load("clouds.yaml")
    found = at_once(*[lambda: load("balanced.yaml")] * 2, held=imports._TAKE_TURNS)
    first, second = sorted(found, key=lambda each: each["unchanged"]["endpoints"])
    assert (first["updated"], second["created"], second["updated"]) == (counts(0, 0, 0, 0, 0),) * 3
    assert second["unchanged"] == {
        kind: first["created"][kind] + first["unchanged"][kind] for kind in KINDS
    }


def test_a_new_price_is_planned_and_changes_the_endpoint(write: Write) -> None:
    prices = {"input_cost_per_token": 0.000002, "output_cost_per_token": 0.000004}
    load(write(one()))
    report = load(write(one(**prices)), "--plan")
    [row] = [row for row in report["plan"] if row["fate"] == "update"]
    assert (row["kind"], row["changes"][0]["column"], row["changes"][0]["new"]) == (
        "endpoints",
        "pricing.prompt",
        "0.000002",
    )
    assert load(write(one(**prices)))["updated"] == counts(0, 0, 1, 0, 0)
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.price.price.text("prompt"), endpoint.source) == ("0.000002", "")


def test_another_key_is_another_provider_and_no_key_is_replaced(write: Write) -> None:
    load(write(one()))
    report = load(write(one(api_key="sk-another-0123456789")))
    assert report["created"] == counts(1, 0, 1, 1, 0)
    found = {each.slug: each.reveal_credential().reveal() for each in Provider.objects.all()}
    assert found == {"openai": "sk-0123456789abcdef", "openai-2": "sk-another-0123456789"}


def test_what_an_operator_took_out_stays_out(write: Write) -> None:
    load(write(one()))
    ModelEndpoint.objects.get().delist()
    report = load(write(one()))
    assert left_out(report) == [(1, "ours", "an operator took the endpoint out of the catalogue")]
    assert report["created"] == report["updated"] == counts(0, 0, 0, 0, 0)
    assert not ModelEndpoint.objects.get().is_listed


def test_a_new_model_has_no_name_of_another_one(write: Write) -> None:
    """Neither its public nor its permanent slug, though an operator took it out."""
    factories.make_model("acme/other", canonical_slug="server/ours", is_listed=False)
    factories.make_model("server/ours-2", is_listed=False)
    before = snapshots.everything()["catalog.LanguageModel"]
    prices = {"input_cost_per_token": 1.5e-7, "output_cost_per_token": 6e-7}
    load(write(one("hosted_vllm/our-own", api_base="http://10.9.0.4:8000/v1", **prices)))
    assert LanguageModel.objects.listed().get().slug == "server/ours-3"
    assert set(before) - set(snapshots.everything()["catalog.LanguageModel"]) == set()


def test_a_name_that_meant_one_provider_says_so(write: Write) -> None:
    load(write(one()))
    bedrock = {
        "type": 3, "key": "azure-key-0123456789", "name": "a", "models": "gpt-4o",
        "base_url": "https://a.openai.azure.com",
    }  # fmt: skip
    [(line, name, reason)] = left_out(load(write(json.dumps([bedrock])), source="new-api"))
    assert (line, name) == (1, "gpt-4o")
    assert reason == (
        "that its requests go to azure alone: the model is served by openai too; see "
        "provider.only in docs/routing.md"
    )


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ({"api_base": "http://192.168.1.2/v1"},
         "the address or the port of the URL is not allowed"),
        ({"api_base": "//x"}, "this is not an absolute URL"),
        ({"api_key": "short"}, "Must be a bare key of 8 to 4096 visible ASCII characters"),
        ({"api_key": ["a"]}, "api_key: must be a text"),
        *[
            ({"api_key": each}, "the key: a placeholder stands in its place")
            for each in ("${OPENAI_API_KEY}", "$OPENAI_API_KEY", "{{ openai.key }}", "<your-key>")
        ],
        ({"api_version": "os.environ/GROQ_KEY_OF_NOBODY"},
         "api_version: the environment variable GROQ_KEY_OF_NOBODY is not set"),
        ({"rpm": 0}, "rpm: must be a number from 1 to 2147483647"),
        ({"rpm": "1e999999999"}, "rpm: must be a number from 1 to 2147483647"),
        ({"rpm": "1e99999999999999999999"}, "rpm: must be a number"),
        ({"timeout": "soon"}, "timeout: must be a number"),
        ({"input_cost_per_token": -1}, "input_cost_per_token is negative"),
        ({"model": "openai/strange", "input_cost_per_token": 1},
         "the file lacks the price of the prompt and of the completion"),
        ({"model": "openai/" + "x" * 256}, "of 1 to 255 characters"),
        ({"model": "unheard-of"}, "the provider of 'unheard-of' is not stated"),
        ({"litellm_credential_name": "none"}, "credential_list has no 'none'"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_left_out(
    write: Write, member: dict[str, Any], reason: str
) -> None:
    before = snapshots.everything()
    report = load(write(one(**member)))
    [(line, name, text)] = left_out(report)
    assert (line, name) == (1, "ours")
    assert reason in text
    assert report["created"] == counts(0, 0, 0, 0, 0)
    assert snapshots.everything() == before


def test_a_file_of_channels_with_a_number_of_any_exponent_is_refused(
    write: Write,
) -> None:
    path = write('[{"type": 1e99999999999999999999}]')
    _, said = commands.refuse("import_gateway", "--from", "new-api", str(path))
    assert "has a huge number" in said


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"models": " , "}, "models: it names none"),
        ({"models": "gpt-4o", "type": 1.5}, "channels of the type 1.5 have no counterpart"),
        ({"models": "gpt-4o", "type": "OpenAI"}, "channels of the type OpenAI have no counterpart"),
        ({"models": "gpt-4o", "type": "1", "status": "2"}, "the channel is disabled"),
    ],
)
def test_a_channel_that_cannot_be_used_is_left_out(
    write: Write, members: dict[str, Any], reason: str
) -> None:
    channel = {"type": 1, "name": "Ours", "key": "sk-0123456789abcdef", **members}
    report = load(write(json.dumps([channel])), source="new-api")
    assert left_out(report) == [(1, "Ours", reason)]
    assert report["created"] == counts(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("litellm", "model_list:\n  - model_name: [a", "Line 2: not YAML"),
        ("litellm", "model_list:\n  - {model_name: a, model_name: b}", "Line 2: 'model_name' is"),
        ("litellm", "a: 1\nmodel_list: 5", "Line 2: model_list must be a list"),
        ("litellm", "a: 1\ninclude: [b]", "Line 2: put the included files' model_list into this"),
        ("litellm", "model_list:\n  - 5", "Line 2: an entry of model_list must be an object"),
        ("litellm", "a: &a\n  b: *a\nmodel_list: []", "Line 1: not YAML: found unconstructable"),
        ("litellm", "a: !!python/object:os.system x", "Line 1: not YAML: could not determine a"),
        ("litellm", "a: 1\nb: !!binary eA==", "Line 2: not YAML: could not determine a"),
        ("litellm", "a: 1\n? [b]\n: 2", "Line 2: the name of a member must be a text"),
        ("litellm", "a: &a {b: 1}\nc:\n  <<: 5", "Line 3: << must name an object"),
        ("litellm", "- a", "Line 1: the file must be an object"),
        ("litellm", "a: \x01", "Line 1: a character that YAML does not allow"),
        ("new-api", '[\n{"models": "a",}]', "Line 2: not JSON"),
        ("new-api", '{\n"data": 5}', "Line 1: the file must be a list of channels"),
        ("new-api", '[{"models": "a"},\n{"models": 5}]', "Line 2: a channel must be an object"),
        ("new-api", '[\n{"models": "a", "models": "b"}]', "Line 2: not JSON: a member is named"),
        ("new-api", "[" * 100_000, "nested too deeply"),
        ("new-api", "[] []", "Line 1: not JSON: Extra data"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    write: Write, source: str, text: str, message: str
) -> None:
    path = write(text)
    before = snapshots.everything()
    code, said = commands.refuse("import_gateway", "--from", source, str(path), "--json")
    assert code == 1
    assert message in said
    assert said.endswith("Nothing was changed.")
    assert snapshots.everything() == before


def test_no_secret_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    for options in (["--plan"], [], ["--dry-run"]):
        for file, source in FIRST_FILES:
            name = str(FILES / file)
            said += "".join(commands.run("import_gateway", "--from", source, name, *options))
    assert "left out: line 3: gpt-4o: litellm_params.weight" in said
    assert "0123456789" not in said
    assert "wJalrXUtnFEMI" not in said
    assert not any("0123456789" in json.dumps(each.after) for each in AuditEntry.objects.all())
