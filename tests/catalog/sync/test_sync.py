"""Tests what a sync applies, what waits for a person, and what changes nothing."""

from __future__ import annotations

import json
import ssl
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from catalog.models import CatalogProposal, LanguageModel, ModelEndpoint, PriceVersion
from catalog.pricing.contract import render_lines
from catalog.sync import proposals
from catalog.sync.run import sync_due
from config.api.text import plain_digits
from config.audit.entries import AuditEntry
from config.management.commands.work import DUTIES
from tests.support import factories
from tests.support.database import snapshots
from tests.support.inference.prices import read_pricing
from tests.support.machine.logs import own_lines
from tests.support.operators import commands
from tests.support.upstreams.tls import answering, serving

NONE = {"providers": 0, "models": 0, "endpoints": 0}
ONE = {"providers": 0, "models": 0, "endpoints": 1}


def row(prompt: Any = "0.000001", completion: Any = "0.000002", **members: Any) -> dict[str, Any]:
    rates = {"input_cost_per_token": prompt, "output_cost_per_token": completion}
    return {
        "litellm_provider": "openai",
        "mode": "chat",
        **{name: msgspec.Raw(text.encode()) for name, text in rates.items() if text is not None},
        **members,
    }


def read_list(folder: Path, source: str, document: Any, *arguments: str) -> dict[str, Any]:
    """Runs the command over a list; returns its report."""
    path = folder / "prices.json"
    path.write_bytes(msgspec.json.encode(document))
    named = ("--source", source, "--file", str(path), "--as-of", "2026-11-12")
    return commands.run_json("sync_catalog", *named, *arguments)[0]


def sync(folder: Path, *arguments: str, **rows: Any) -> dict[str, Any]:
    """Runs the command over a list with these rows; returns its report."""
    document = {name.replace("_", "-"): found for name, found in rows.items()}
    return read_list(folder, "litellm", document, *arguments)


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    """An endpoint whose price came from an earlier list: 1 and 2 USD per million."""
    return factories.make_endpoint(
        factories.make_model("openai/gpt-x"),
        factories.make_provider("openai", name="OpenAI"),
        upstream_model_id="gpt-x",
        source="litellm",
        as_of=date(2026, 11, 1),
    )


def price_of(endpoint: ModelEndpoint) -> tuple[str, str]:
    endpoint.refresh_from_db()
    price = endpoint.price.price
    return plain_digits(price.prompt), plain_digits(price.completion)


def waiting() -> list[tuple[str, list[str]]]:
    return [
        (one.reason, [change["column"] for change in one.changes])
        for one in CatalogProposal.objects.filter(status="waiting")
    ]


def test_an_ordinary_change_is_applied_with_its_origin(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    report = sync(tmp_path, gpt_x=row("1.2e-06", max_input_tokens=4096))
    assert report == {
        "source": "litellm",
        "as_of": "2026-11-12",
        "created": NONE,
        "updated": ONE,
        "unchanged": NONE,
        "proposed": 0,
        "refused": 0,
        "ignored": 0,
        "dry_run": False,
    }
    assert price_of(endpoint) == ("0.0000012", "0.000002")
    assert (endpoint.context_length, endpoint.source, endpoint.as_of) == (
        None, "litellm", date(2026, 11, 12),
    )  # fmt: skip
    entry = AuditEntry.objects.get(kind="import")
    assert entry.after["source"] == "litellm"
    again = sync(tmp_path, gpt_x=row("1.2e-06", max_input_tokens=4096))
    assert (again["updated"], again["unchanged"]) == (NONE, ONE)
    assert PriceVersion.objects.filter(subject_id=endpoint.pk).count() == 2


def test_a_new_rate_keeps_the_bound_of_an_operator(tmp_path: Path, db: None) -> None:
    line = {"billable": "search", "variant": "unasked", "unit": "search", "price": "0.005"}
    sonar = factories.make_endpoint(
        factories.make_model("perplexity/sonar-x"),
        factories.make_provider("perplexity"),
        upstream_model_id="sonar-x",
        price=read_pricing({"prompt": "0.000001", "completion": "0.000002"}, line | {"most": 7}),
        source="litellm",
    )
    size = {"search_context_size_low": 0.006}
    found = row(litellm_provider="perplexity", search_context_cost_per_query=size)
    found["citation_cost_per_token"] = 0
    report = sync(tmp_path, sonar_x=found)
    assert report["updated"] == ONE
    sonar.refresh_from_db()
    assert render_lines(sonar.price.price) == [line | {"price": "0.006", "most": 7}]


@pytest.mark.parametrize(
    ("prompt", "completion", "members", "reason", "columns"),
    [
        ("1.21e-06", "0.000002", {}, "rise", ["pricing.prompt"]),
        ("0.0000009", "0.00001", {}, "rise", ["pricing.prompt", "pricing.completion"]),
        ("9.9e-08", "0.000002", {}, "fall", ["pricing.prompt"]),
        ("0.000001", "0", {}, "fall", ["pricing.completion"]),
        ("0", "0", {}, "unpriced", ["pricing.prompt", "pricing.completion"]),
        (None, None, {}, "unpriced", ["pricing.prompt", "pricing.completion"]),
        ("0.000001", "0.000002", {"cache_read_input_token_cost": 0.5}, "rise",
         ["pricing.input_cache_read"]),
        ("0.000001", "0.000002", {"input_cost_per_request": 0.01}, "rise", ["pricing.request"]),
    ],
)  # fmt: skip
def test_a_dearer_or_unpriced_row_waits(
    tmp_path: Path,
    endpoint: ModelEndpoint,
    prompt: str | None,
    completion: str | None,
    members: dict[str, Any],
    reason: str,
    columns: list[str],
) -> None:
    report = sync(tmp_path, gpt_x=row(prompt, completion, **members))
    assert (report["updated"], report["proposed"]) == (NONE, 1)
    assert waiting() == [(reason, columns)]
    assert price_of(endpoint) == ("0.000001", "0.000002")


def test_a_rate_that_is_no_longer_stated_waits_where_another_one_applies(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    cached = row(cache_read_input_token_cost=1e-7, input_cost_per_request=0.01)
    sync(tmp_path, gpt_x=cached)
    proposals.approve(CatalogProposal.objects.get(), by="operator ann")
    for left, reason, column in (
        ("input_cost_per_request", "rise", "pricing.input_cache_read"),
        ("cache_read_input_token_cost", "fall", "pricing.request"),
    ):
        report = sync(tmp_path, gpt_x=row(**{left: cached[left]}))
        assert (report["updated"], report["proposed"]) == (NONE, 1)
        assert waiting() == [(reason, [column])]


def test_the_limit_of_a_rise_is_a_setting(
    tmp_path: Path, endpoint: ModelEndpoint, settings: Any
) -> None:
    settings.CATALOG_RISE_LIMIT = 50
    assert sync(tmp_path, gpt_x=row("1.5e-06"))["updated"] == ONE
    settings.CATALOG_RISE_LIMIT = 0
    assert sync(tmp_path, gpt_x=row("1.5000001e-06"))["proposed"] == 1


def test_a_vanished_endpoint_waits_and_only_the_lists_own(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    factories.make_endpoint(
        factories.make_model("openai/own"), endpoint.provider, upstream_model_id="own"
    )
    report = sync(tmp_path, other=row())
    assert (report["created"]["endpoints"], report["proposed"]) == (1, 1)
    assert waiting() == [("vanished", ["is_listed"])]
    assert ModelEndpoint.objects.filter(is_listed=True).count() == 3


def test_a_price_of_an_operator_is_never_replaced_without_asking(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    ModelEndpoint.objects.update(source="", as_of=None)
    assert sync(tmp_path, gpt_x=row("0.0000009"))["proposed"] == 1
    assert waiting() == [("change", ["pricing.prompt"])]


def test_a_new_model_is_added_and_an_endpoint_of_a_present_one_waits(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    factories.make_model("openai/private")
    report = sync(
        tmp_path,
        gpt_x=row(),
        gpt_new=row(max_input_tokens=4096, max_output_tokens=512),
        private=row(),
        dear=row("0.001"),
        dear_when_long=row(input_cost_per_token_above_200k_tokens=msgspec.Raw(b"0.001")),
        dear_audio=row(input_cost_per_audio_token=msgspec.Raw(b"0.001")),
        free=row("0", "0"),
        elsewhere=row() | {"litellm_provider": "groq"},
    )
    assert report["created"] == {"providers": 0, "models": 1, "endpoints": 1}
    assert (report["proposed"], report["ignored"]) == (5, 1)
    assert sorted(reason for reason, _ in waiting()) == ["new", *["rise"] * 3, "unpriced"]
    made = ModelEndpoint.objects.get(model__slug="openai/gpt-new")
    assert (made.context_length, made.max_completion_tokens) == (4096, 512)
    assert (made.source, made.upstream_model_id, price_of(made)) == (
        "litellm", "gpt-new", ("0.000001", "0.000002"),
    )  # fmt: skip
    assert not LanguageModel.objects.filter(slug__in=("openai/dear", "openai/free")).exists()


@pytest.mark.parametrize(
    ("members", "waits"),
    [
        # Generated text and pictures without a price wait, whatever else is charged.
        ({"mode": "chat", "input_cost_per_token": 0.000001}, True),
        ({"mode": "chat", "input_cost_per_request": 0.1}, True),
        ({"mode": "chat", "input_cost_per_token": 0.000001, "output_cost_per_token": 0.000002,
          "output_cost_per_token_above_128k_tokens": 0}, True),
        ({"mode": "image_generation", "input_cost_per_token": 0.000001}, True),
        ({"mode": "image_generation", "output_cost_per_image_premium_image": 0.2}, True),
        ({"mode": "image_generation", "output_cost_per_image": 0.0004}, True),
        ({"mode": "image_generation", "input_cost_per_image": 0.02}, False),
        ({"mode": "image_generation", "output_cost_per_image_1K": 0.04}, False),
        ({"mode": "audio_speech", "input_cost_per_token": 0.000001}, True),
        ({"mode": "audio_speech", "input_cost_per_character": 0.000015}, False),
        ({"mode": "audio_speech", "input_cost_per_second": 0, "output_cost_per_second": 0.00025},
         False),
        ({"mode": "audio_speech", "input_cost_per_character": 0,
          "output_cost_per_character": 0.00025}, False),
        # These generate nothing that a list could price.
        ({"mode": "embedding", "input_cost_per_token": 0.0000001}, False),
        ({"mode": "embedding", "input_cost_per_token": 0}, True),
        ({"mode": "rerank", "input_cost_per_query": 0.002}, False),
        ({"mode": "audio_transcription", "input_cost_per_second": 0.0001}, False),
    ],
)  # fmt: skip
def test_a_new_model_whose_output_would_be_free_waits(
    tmp_path: Path, endpoint: ModelEndpoint, members: dict[str, Any], waits: bool
) -> None:
    new = {"litellm_provider": "openai"} | {
        name: msgspec.Raw(f"{value:.9f}".encode()) if name != "mode" else value
        for name, value in members.items()
    }
    report = sync(tmp_path, gpt_x=row(), new=new)
    assert (report["created"]["endpoints"], report["proposed"]) == ((0, 1) if waits else (1, 0))
    assert [reason for reason, _ in waiting()] == (["unpriced"] if waits else [])


def test_a_change_that_leaves_the_output_free_waits(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    sync(tmp_path, gpt_x=row("0.000001", "0"))
    [proposal] = CatalogProposal.objects.filter(status="waiting")
    proposals.approve(proposal, by="test")
    assert sync(tmp_path, gpt_x=row("0.0000009", "0"))["proposed"] == 1
    assert waiting() == [("unpriced", ["pricing.prompt"])]


def test_a_plan_names_the_prices_that_cannot_be_charged(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    twelve = {"cache_creation_input_token_cost_above_12hr": msgspec.Raw(b"2.5e-06")}
    report = sync(tmp_path, "--plan", gpt_x=row("9e-07", **twelve), gpt_new=row(**twelve))
    named = {
        "column": "uncharged",
        "old": None,
        "new": "cache_creation_input_token_cost_above_12hr: 0.0000025",
        "percent": None,
    }
    assert [(planned["fate"], planned["changes"][-1]) for planned in report["plan"]] == [
        ("update", named), ("create", named),
    ]  # fmt: skip
    assert sync(tmp_path, "--plan", gpt_x=row(**twelve))["unchanged"] == ONE


@pytest.mark.parametrize("option", ["--dry-run", "--plan"])
def test_a_dry_run_changes_nothing(tmp_path: Path, endpoint: ModelEndpoint, option: str) -> None:
    before = snapshots.everything()
    report = sync(tmp_path, option, gpt_x=row("1.1e-06"), gpt_new=row(), dear=row("9"))
    assert (report["updated"], report["proposed"], report["dry_run"]) == (ONE, 1, True)
    assert snapshots.everything() == before
    if option == "--plan":
        assert [(one["row"], one["fate"]) for one in report["plan"]] == [
            ("openai/gpt-x-2026-01-01 openai gpt-x global", "update"),
            ("openai/gpt-new openai gpt-new global", "create"),
            ("openai/dear openai dear global", "propose"),
        ]
        assert report["plan"][0]["changes"] == [
            {"column": "pricing.prompt", "old": "0.000001", "new": "0.0000011", "percent": "10"}
        ]


def test_options_restrict_what_is_applied(tmp_path: Path, endpoint: ModelEndpoint) -> None:
    report = sync(tmp_path, "--existing", gpt_x=row("1.1e-06"), gpt_new=row())
    assert (report["updated"], report["created"], report["ignored"]) == (ONE, NONE, 1)
    report = sync(tmp_path, "--propose", gpt_x=row(), gpt_new=row())
    assert (report["updated"], report["created"], report["proposed"]) == (NONE, NONE, 2)


@pytest.mark.parametrize(
    ("name", "members", "problem"),
    [
        ("a\x1bb", {}, "Expected `str` matching regex"),
        ("x" * 256, {}, "Expected `str` of length <= 255"),
        ("gpt-x", {"input_cost_per_token": -1}, "input_cost_per_token is negative"),
        ("gpt-x", {"input_cost_per_token": 1e30}, "input_cost_per_token is 1,000,000 or more"),
        ("gpt-x", {"input_cost_per_token": "x"}, "input_cost_per_token is not a number"),
        ("gpt-x", {"max_input_tokens": 10**15}, "max_input_tokens is larger than"),
        ("a b", {}, "Expected `str` matching regex"),
        ("\ud800", {}, "surrogates not allowed"),
    ],
)
def test_a_lying_row_is_refused_by_name_and_the_others_are_used(
    tmp_path: Path, endpoint: ModelEndpoint, name: str, members: dict[str, Any], problem: str
) -> None:
    document = {name: {**row("1", "1"), **members, "litellm_provider": "openai"}, "good": row()}
    path = tmp_path / "prices.json"
    plain = json.loads(msgspec.json.encode({"x": list(document.values())}))["x"]
    path.write_text(json.dumps(dict(zip(document, plain, strict=True))))
    named = ("--source", "litellm", "--file", str(path))
    report, errors = commands.run_json("sync_catalog", *named)
    assert (report["refused"], report["created"]["models"]) == (1, 1)
    assert problem in errors
    assert "\x1b" not in errors
    assert price_of(endpoint) == ("0.000001", "0.000002")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"error": "try later"}', b"\x00" * 9])
def test_a_list_that_is_none_empties_nothing(
    tmp_path: Path, endpoint: ModelEndpoint, data: bytes
) -> None:
    path = tmp_path / "prices.json"
    path.write_bytes(data)
    before = snapshots.everything()
    for source in ("litellm", "openrouter", "models.dev"):
        code, message = commands.refuse("sync_catalog", "--source", source, "--file", str(path))
        assert code == 1
        assert message.endswith("Nothing was changed.")
    assert snapshots.everything() == before


def test_the_command_needs_one_list_and_a_day(db: None) -> None:
    for arguments in ((), ("--file", "-", "--from-url", "https://a.example/"), ("--as-of", "now")):
        assert commands.refuse("sync_catalog", "--source", "litellm", *arguments)[0] == 2


def counted(outcome: str) -> float:
    labels = {"source": "litellm", "outcome": outcome}
    return REGISTRY.get_sample_value("causeway_catalog_syncs_total", labels) or 0.0


@pytest.mark.parametrize("applies", [False, True])
def test_the_daily_duty_proposes_unless_it_may_apply(
    context: ssl.SSLContext, endpoint: ModelEndpoint, settings: Any, applies: bool
) -> None:
    """Nothing that nobody asked for is sold: each new endpoint waits, whatever it costs."""
    body = msgspec.json.encode({"gpt-x": row("1.1e-06"), "gpt-y": row("9"), "gpt-z": row("1e-06")})
    settings.CATALOG_SYNC_APPLIES = applies
    before = counted("succeeded")
    with serving(answering(body), context) as server:
        settings.CATALOG_SYNC = {"litellm": f"https://127.0.0.1:{server.port}/prices.json"}
        assert sync_due() == 3
    assert counted("succeeded") == before + 1
    assert price_of(endpoint)[0] == ("0.0000011" if applies else "0.000001")
    assert CatalogProposal.objects.filter(status="waiting").count() == (2 if applies else 3)
    assert list(ModelEndpoint.objects.all()) == [endpoint]


def test_a_failing_list_is_reported_and_changes_nothing(
    context: ssl.SSLContext,
    endpoint: ModelEndpoint,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, failures = snapshots.everything(), counted("failed")
    for script in (answering(status="503 Busy"), answering(b"x" * 100_001)):
        with serving(script, context) as server:
            settings.CATALOG_SYNC = {"litellm": f"https://127.0.0.1:{server.port}/"}
            assert sync_due() == 0
    assert counted("failed") == failures + 2
    said = "sync_price_lists: litellm was not read, and nothing changed. "
    said += "The list could not be fetched: "
    problems = ("its server answered 503.", "the answer is too large.")
    assert own_lines(caplog) == [said + text for text in problems]
    assert snapshots.everything() == before


def test_the_duty_runs_once_a_day_and_does_nothing_without_a_list(db: None) -> None:
    [duty] = [duty for duty in DUTIES if duty.name == "sync_price_lists"]
    assert (duty.every_seconds, duty.own_thread, duty.run()) == (86_400, True, 0)


FALCON: dict[str, Any] = {
    "id": "acme/falcon-9",
    "canonical_slug": "acme/falcon-9-2026",
    "name": "Falcon",
    "created": 1_780_272_000,
    "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    "pricing": {"prompt": "0.0000005", "completion": "0.0000015"},
}


def test_openrouter_brings_its_provider_and_its_models(db: None, tmp_path: Path) -> None:
    model = FALCON | {"context_length": 1000}
    path = tmp_path / "models.json"
    path.write_text(json.dumps({"data": [model]}))
    arguments = ("sync_catalog", "--source", "openrouter", "--file", str(path))
    commands.run(*arguments)
    [made] = ModelEndpoint.objects.all()
    assert (made.provider.slug, made.upstream_model_id, made.model.canonical_slug) == (
        "openrouter", "acme/falcon-9", "acme/falcon-9-2026",
    )  # fmt: skip
    before = {**snapshots.everything(), "config.AuditEntry": []}
    out, _ = commands.run(*arguments)
    assert "0 rows were created, 0 updated; 1 are unchanged" in out
    assert {**snapshots.everything(), "config.AuditEntry": []} == before
    model["top_provider"] = {"max_completion_tokens": 700}
    path.write_text(json.dumps({"data": [{**model, "context_length": 2000}]}))
    commands.run(*arguments)
    made.refresh_from_db()
    assert (made.context_length, made.max_completion_tokens) == (2000, 700)


@pytest.mark.parametrize(
    ("discounts", "reason", "discount"),
    [
        # Every rate is 1.8 times as high, a tenth, or a half.
        ((0.5, 0.1), "rise", "0.5"),
        ((0.5, None), "rise", "0.5"),
        ((0.9, 0.99), "fall", "0.9"),
        ((None, 0.5), None, "0.5"),
        ((0.25, 0.25), None, "0.25"),
        ((0.25, 0.2), None, "0.2"),
    ],
)
def test_a_discount_is_compared_by_what_it_leaves(
    db: None,
    tmp_path: Path,
    discounts: tuple[float | None, float | None],
    reason: str | None,
    discount: str,
) -> None:
    for each in discounts:
        pricing = FALCON["pricing"] | ({} if each is None else {"discount": each})
        report = read_list(tmp_path, "openrouter", {"data": [FALCON | {"pricing": pricing}]})
    changed = reason is None and discounts[0] != discounts[1]
    assert report["updated"] == (ONE if changed else NONE)
    assert waiting() == ([] if reason is None else [(reason, ["pricing.discount"])])
    assert plain_digits(ModelEndpoint.objects.get().price.price.discount) == discount


def test_variants_of_a_model_do_not_take_its_name(db: None, tmp_path: Path) -> None:
    document = {"data": [FALCON, FALCON | {"id": "acme/falcon-9:extended"}]}
    read_list(tmp_path, "openrouter", document)
    assert LanguageModel.objects.get().slug == "acme/falcon-9"
    assert ModelEndpoint.objects.get().upstream_model_id == "acme/falcon-9"
    read_list(tmp_path, "openrouter", document)
    assert [reason for reason, _ in waiting()] == ["new"]


def test_a_model_of_which_the_list_says_too_little_waits_and_is_not_listed(
    tmp_path: Path, endpoint: ModelEndpoint
) -> None:
    row = {
        "tool_call": True,
        "modalities": {"input": ["text"], "output": ["text"]},
        "cost": {"input": 1, "output": 2},
    }
    models = {"gpt-x": row, "gpt-deep": row, "gpt-y-codex": {**row, "family": "gpt-codex"}}
    report = read_list(tmp_path, "models.dev", {"openai": {"models": models}})
    # What it says of a model that the catalogue has is one of its known format.
    assert (report["created"], report["refused"]) == ({**ONE, "models": 1}, 0)
    codex = LanguageModel.objects.get(slug="openai/gpt-y-codex")
    assert codex.native_format == "responses"
    [proposal] = CatalogProposal.objects.filter(reason="unclear")
    assert proposal.subject == "openai/gpt-deep openai gpt-deep global"
    assert proposal.get_reason_display() == "the list does not say what the model serves"
    assert not LanguageModel.objects.filter(slug="openai/gpt-deep").exists()
    proposals.approve(proposal, by="test")
    assert LanguageModel.objects.get(slug="openai/gpt-deep").native_format == "openai"
