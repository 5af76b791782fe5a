"""Tests the export of the catalogue, import plans and imports from a URL."""

from __future__ import annotations

import codecs
import io
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalog import imports
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.bulk.report import RowOutcome
from tests.support import factories
from tests.support.database import snapshots
from tests.support.operators.commands import refuse, run, run_json
from tests.support.upstreams.tls import Script, Server, answering, sending, serving

BUNDLED = (Path(imports.__file__).with_name("data") / "catalogue.json").read_bytes()
NONE = {"providers": 0, "models": 0, "endpoints": 0}
SMALL = {
    "providers": [
        {
            "slug": "acme",
            "name": "Acme AI",
            "dialect": "openai",
            "base_url": "https://api.acme.example/v1",
            "data_policy": {"training": True, "retains_prompts": False},
        }
    ],
    "models": [
        {
            "id": "acme/falcon",
            "canonical_slug": "acme/falcon-2026-06-01",
            "name": "Acme: Falcon",
            "created": 1780272000,
            "context_length": None,
            "architecture": {
                "input_modalities": ["text"],
                "output_modalities": ["text"],
                "modality": "text->text",
            },
            "knowledge_cutoff": "2026-01-31",
        }
    ],
    "endpoints": [
        {
            "model": "acme/falcon-2026-06-01",
            "provider": "acme",
            "upstream_model_id": "falcon",
            "pricing": {
                "prompt": "0.00000050",
                "completion": "1",
                "image": "0.1",
                "input_cache_read": "0",
                "image_token": "0.000030",
            },
            "zdr": True,
        }
    ],
}
ONE = {"providers": 1, "models": 1, "endpoints": 1}
CREATED = {"created": ONE, "updated": NONE, "unchanged": NONE}


def load(file: dict[str, Any]) -> None:
    imports.apply(imports.parse(json.dumps(file).encode()))


def test_import_of_an_export_changes_nothing(db: None) -> None:
    imports.apply(imports.parse(BUNDLED))
    data, counts = imports.export()
    assert counts == {
        "providers": Provider.objects.count(),
        "models": LanguageModel.objects.count(),
        "endpoints": ModelEndpoint.objects.count(),
    }
    before = snapshots.everything()
    report = imports.apply(imports.parse(data))
    assert (report.created, report.updated, report.unchanged) == (NONE, NONE, counts)
    assert snapshots.everything() == before
    assert imports.export() == (data, counts)


def test_an_export_that_an_editor_has_marked_changes_nothing(db: None) -> None:
    load(SMALL)
    data, counts = imports.export()
    report = imports.apply(imports.parse(codecs.BOM_UTF8 + data))
    assert (report.created, report.updated, report.unchanged) == (NONE, NONE, counts)


def test_export_contains_every_field(db: None) -> None:
    load(SMALL)
    data, counts = imports.export()
    assert counts == ONE
    assert json.loads(data) == {
        "providers": [
            SMALL["providers"][0]
            | {
                "datacenters": [],
                "headquarters": None,
                "privacy_policy_url": None,
                "terms_of_service_url": None,
                "status_page_url": None,
            }
        ],
        "models": [
            SMALL["models"][0]
            | {
                "architecture": {
                    "input_modalities": ["text"],
                    "output_modalities": ["text"],
                    "modality": "text->text",
                    "tokenizer": None,
                    "instruct_type": None,
                },
                "description": "",
                "supported_parameters": [],
                "default_parameters": None,
                "expiration_date": None,
                "supported_voices": None,
                "per_request_limits": None,
                "capabilities": {
                    "native_format": "openai",
                    "thinking": "effort",
                    "thinks_between_tools": False,
                    "combines_sampling": False,
                },
            }
        ],
        "endpoints": [
            SMALL["endpoints"][0]
            | {
                "pricing": {
                    "prompt": "0.0000005",
                    "completion": "1",
                    "image": "0.1",
                    "request": "0",
                    "input_cache_read": "0",
                    "image_token": "0.00003",
                },
                "context_length": None,
                "max_completion_tokens": None,
                "quantization": None,
                "is_moderated": False,
                "region": "global",
                "supported_parameters": [],
            }
        ],
    }


@pytest.mark.parametrize(
    ("table", "counts"),
    [
        (Provider, {"providers": 1, "models": 2, "endpoints": 1}),
        (LanguageModel, {"providers": 2, "models": 1, "endpoints": 1}),
        (ModelEndpoint, {"providers": 2, "models": 2, "endpoints": 1}),
    ],
)
def test_export_leaves_out_unlisted_rows(
    db: None, table: type[Provider | LanguageModel | ModelEndpoint], counts: dict[str, int]
) -> None:
    for _ in range(2):
        factories.make_endpoint(factories.make_model(), factories.make_provider())
    gone = table._default_manager.earliest("created_at")
    factories.change(gone, is_listed=False)
    data, exported = imports.export()
    assert exported == counts
    before = snapshots.everything()
    assert imports.apply(imports.parse(data)).unchanged == counts
    assert snapshots.everything() == before


def test_export_of_an_empty_catalogue_can_be_imported(db: None) -> None:
    data, counts = imports.export()
    assert counts == NONE
    assert imports.apply(imports.parse(data)).unchanged == NONE


def test_apply_reports_the_outcome_of_each_row(db: None) -> None:
    load(SMALL)
    provider = SMALL["providers"][0] | {"name": "Acme 2"}
    endpoints = [SMALL["endpoints"][0], SMALL["endpoints"][0] | {"region": "us"}]
    file = SMALL | {"providers": [provider], "endpoints": endpoints}
    planned: list[tuple[str, str, RowOutcome]] = []
    imports.apply(
        imports.parse(json.dumps(file).encode()), on_row=lambda *row: planned.append(row[:3])
    )
    assert planned == [
        ("providers", "acme", RowOutcome.UPDATE),
        ("models", "acme/falcon-2026-06-01", RowOutcome.UNCHANGED),
        ("endpoints", "acme/falcon-2026-06-01 acme falcon global", RowOutcome.UNCHANGED),
        ("endpoints", "acme/falcon-2026-06-01 acme falcon us", RowOutcome.CREATE),
    ]


def count_of(kinds: dict[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def test_import_command_lists_its_plan_and_changes_nothing(db: None, tmp_path: Path) -> None:
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps(SMALL))
    before = snapshots.everything()
    report = CREATED | {"dry_run": True}
    rates = {
        "prompt": "0.0000005", "completion": "1", "image": "0.1", "input_cache_read": "0",
        "image_token": "0.00003",
    }  # fmt: skip
    made = {
        ("providers", "acme"): {"dialect": "openai", "base_url": "https://api.acme.example/v1"},
        ("models", "acme/falcon-2026-06-01"): {"slug": "acme/falcon"},
        ("endpoints", "acme/falcon-2026-06-01 acme falcon global"): {
            f"pricing.{name}": rate for name, rate in rates.items()
        },
    }
    steps = [
        {
            "kind": kind,
            "row": row,
            "fate": "create",
            "changes": [
                {"column": column, "old": None, "new": value, "percent": None}
                for column, value in columns.items()
            ],
        }
        for (kind, row), columns in made.items()
    ]
    assert run_json("import_catalog", str(file), "--plan") == (report | {"plan": steps}, "")
    for option in ("--plan", "--dry-run"):
        out, err = run("import_catalog", str(file), option)
        assert out.splitlines() == [
            f"created: {count_of(report['created'])}",
            f"updated: {count_of(report['updated'])}",
            f"unchanged: {count_of(report['unchanged'])}",
            "dry_run: yes",
        ]
        assert err.splitlines() == [
            (
                "create: providers 'acme': Dialect: – → openai; "
                "Base URL: – → https://api.acme.example/v1"
            ),
            "create: models 'acme/falcon-2026-06-01': Public name: – → acme/falcon",
            (
                "create: endpoints 'acme/falcon-2026-06-01 acme falcon global': "
                "Prompt: – → $0.5 per million; Completion: – → $1,000,000 per million; "
                "Image in the prompt: – → $0.1 per image; Cache read: – → $0 per million; "
                "Tokens of generated images: – → $30 per million"
            ),
        ]
    assert run_json("import_catalog", str(file), "--dry-run")[0] == report
    assert snapshots.everything() == before


def test_import_command_reads_the_file_of_the_export_command(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(SMALL)
    file = tmp_path / "catalogue.json"
    assert run_json("export_catalog", str(file))[0] == {"exported": ONE}
    assert run_json("import_catalog", str(file))[0]["unchanged"] == ONE
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output))
    assert run("export_catalog", "-") == ("", "1 providers, 1 models, 1 endpoints\n")
    assert output.getvalue() == file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-", "--json"), 2, "--json needs a FILE: standard output has the rows."),
        (("/nowhere/at/all",), 1, "/nowhere/at/all: No such file or directory"),
    ],
)
def test_export_command_refuses_an_invalid_destination(
    db: None, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert refuse("export_catalog", *arguments) == (code, message)


def test_import_command_fetches_a_catalogue(db: None, context: ssl.SSLContext) -> None:
    with serving(answering(json.dumps(SMALL).encode()), context) as server:
        url = f"https://127.0.0.1:{server.port}/catalogue.json"
        report, _ = run_json("import_catalog", "--from-url", url)
    assert report == CREATED | {"dry_run": False}
    assert server.requests[0][0].startswith(b"GET /catalogue.json HTTP/1.1\r\n")


UNFETCHED = "The catalogue could not be fetched: "


def fetch(server: Server, scheme: str = "https") -> tuple[int, str]:
    """Imports a catalogue from a server, which must fail; returns the exit code and the message."""
    url = f"{scheme}://127.0.0.1:{server.port}/catalogue.json"
    return refuse("import_catalog", "--from-url", url)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (answering(status="404 Not Found"), "its server answered 404."),
        (
            answering(status="302 Found", headers=("Location: https://127.0.0.1/other",)),
            "the answer is a redirect.",
        ),
        (answering(b"x" * 100_001), "the answer is too large."),
        (sending(), "could not connect: closed before the answer."),
    ],
)
def test_import_command_reports_a_failed_fetch(
    db: None, context: ssl.SSLContext, script: Script, message: str
) -> None:
    before = snapshots.everything()
    with serving(script, context) as server:
        assert fetch(server) == (1, UNFETCHED + message)
    assert len(server.requests) == 1
    assert snapshots.everything() == before


def test_import_command_refuses_a_malformed_fetched_file(db: None, context: ssl.SSLContext) -> None:
    with serving(answering(b"{"), context) as server:
        code, message = fetch(server)
    assert code == 1
    assert message.startswith("not a catalogue file: ")
    assert Provider.objects.count() == 0


def test_import_command_refuses_a_url_without_https(db: None, context: ssl.SSLContext) -> None:
    with serving(answering()) as server:
        assert fetch(server, "http") == (1, "The URL must begin with https://")
    assert server.connections == 0


def test_import_command_does_not_connect_to_a_forbidden_address(
    db: None, context: ssl.SSLContext, settings: Any
) -> None:
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    with serving(answering(), context) as server:
        assert fetch(server) == (1, f"{UNFETCHED}refused by the egress policy: URL.")
    assert server.connections == 0


@pytest.mark.parametrize("arguments", [(), ("-", "--from-url", "https://catalogue.example/x")])
def test_import_command_requires_either_a_file_or_a_url(
    db: None, arguments: tuple[str, ...]
) -> None:
    message = "Name a FILE, --from-url URL or --bundled."
    assert refuse("import_catalog", *arguments) == (2, message)
