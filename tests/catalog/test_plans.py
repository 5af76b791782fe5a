"""What an import changes: only what differs, in words, per million tokens, risky rows first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from catalog import imports
from catalog.models import ModelEndpoint
from catalog.sync.plans.comparing import find_changes
from config.bulk.report import ImportPlan, PlanRow
from tests.support import factories
from tests.support.database import snapshots
from tests.support.operators import commands

Edit = Callable[[dict[str, Any]], None]
HALF, DOUBLE = "0.0000005", "0.000002"
NAMES = [f"parameter_{number:02}" for number in range(20)]


@pytest.fixture
def stored(db: None) -> dict[str, Any]:
    """The file of a catalogue with three endpoints of one model."""
    model, provider = factories.make_model("acme/falcon"), factories.make_provider("acme")
    for name in ("a", "b", "c"):
        factories.make_endpoint(model, provider, upstream_model_id=name)
    file: dict[str, Any] = json.loads(imports.export()[0])
    return file


def plan_of(file: dict[str, Any]) -> list[PlanRow]:
    plan = ImportPlan(100)
    data = json.dumps(file).encode()
    imports.apply(imports.parse(data), dry_run=True, on_row=plan.add)
    return plan.rows


def lines_of(row: PlanRow) -> list[str]:
    return [str(change) for change in row.changes]


def test_an_equal_file_has_an_empty_plan(stored: dict[str, Any]) -> None:
    assert plan_of(stored) == []


@pytest.mark.parametrize(
    ("kind", "members", "lines"),
    [
        ("providers", {"name": "New"}, ["Name: Acme → New"]),
        ("providers", {"datacenters": ["US", "DE"]}, ["Countries of data centres: – → US, DE"]),
        ("providers", {"data_policy": {"training": True, "retains_prompts": False}},
         ["Trains on prompts: no → yes"]),
        ("models", {"context_length": 1_000_000}, ["Context length: 131,072 → 1,000,000"]),
        ("models", {"supported_voices": ["a"]}, ["Supported voices: – → a"]),
        ("models", {"default_parameters": {"top_p": 0.9}},
         ['Default parameters: – → {"top_p": 0.9}']),
        ("models", {"capabilities": {"thinking": "budget"}}, ["Thinking: effort → budget"]),
        ("models", {"expiration_date": "2027-01-01"}, ["Expiration date: – → 2027-01-01"]),
        ("endpoints", {"zdr": True}, ["Zero data retention: no → yes"]),
        ("endpoints", {"max_completion_tokens": 512}, ["Largest completion: – → 512"]),
    ],
)  # fmt: skip
def test_a_column_is_named_with_both_values(
    stored: dict[str, Any], kind: str, members: dict[str, Any], lines: list[str]
) -> None:
    stored[kind][0] |= members
    [row] = plan_of(stored)
    assert (row.kind, row.outcome, lines_of(row)) == (kind, "update", lines)


def change_column(stored: dict[str, Any], kind: str, column: str, values: list[Any]) -> list[str]:
    """Stores the first value in the first row of a kind; returns the lines of the second one."""
    row = stored[kind][0]
    row[column] = values[0]
    imports.apply(imports.parse(json.dumps(stored).encode()))
    row[column] = values[1]
    [planned] = plan_of(stored)
    return lines_of(planned)


@pytest.mark.parametrize(
    ("kind", "column", "values", "line"),
    [
        ("endpoints", "supported_parameters", [NAMES, NAMES[:-1]],
         "Supported parameters: removed → added: parameter_19 → –"),
        ("endpoints", "supported_parameters", [NAMES[1:], [*NAMES[2:], "new"]],
         "Supported parameters: removed → added: parameter_01 → new"),
        ("models", "default_parameters",
         [dict.fromkeys(NAMES, 0), {**dict.fromkeys(NAMES, 0), "parameter_19": {"a": 1}}],
         'Default parameters: removed → added: "parameter_19": 0 → "parameter_19": {"a": 1}'),
        ("models", "supported_voices", [None, NAMES],
         f"Supported voices: removed → added: – → {', '.join(NAMES)}"),
    ],
)  # fmt: skip
def test_of_a_long_list_or_object_the_entries_that_change_are_shown(
    stored: dict[str, Any], kind: str, column: str, values: list[Any], line: str
) -> None:
    assert change_column(stored, kind, column, values) == [line]


@pytest.mark.parametrize(
    ("kind", "column", "values", "texts"),
    [
        ("models", "description", ["x" * 121, "x" * 120], ["x" * 121, "x" * 120]),
        ("models", "description", [f"{'x' * 120}a", f"{'x' * 120}b"],
         [f"{'x' * 120}a", f"{'x' * 120}b"]),
        # The same entries in another order.
        ("endpoints", "supported_parameters", [NAMES, NAMES[::-1]],
         [", ".join(NAMES), ", ".join(NAMES[::-1])]),
    ],
)  # fmt: skip
def test_a_cut_text_tells_its_length_and_a_digest(
    stored: dict[str, Any], kind: str, column: str, values: list[Any], texts: list[str]
) -> None:
    cut = [
        text
        if len(text) == 120
        else f"{text[:120]}… ({len(text)} characters, SHA-256 "
        f"{hashlib.sha256(text.encode()).hexdigest()[:16]}…)"
        for text in texts
    ]
    label = column.replace("_", " ").capitalize()
    assert change_column(stored, kind, column, values) == [f"{label}: {cut[0]} → {cut[1]}"]


def test_a_long_base_url_is_shown_whole(stored: dict[str, Any]) -> None:
    old, new = (f"https://{'api.' * 40}{host}/v1" for host in ("example.com", "listener.example"))
    lines = change_column(stored, "providers", "base_url", [old, new])
    assert lines == [f"Base URL: {old} → {new}"]


@pytest.mark.parametrize(
    ("pricing", "lines", "said"),
    [
        (
            {"prompt": "0.0000015", "completion": "0.000001"},
            [],
            [
                "Prompt: $1 per million → $1.5 per million (+50 %)",
                "Completion: $2 per million → $1 per million (-50 %)",
            ],
        ),
        ({"overrides": [{"min_prompt_tokens": 200_000, "prompt": DOUBLE}]}, [],
         ["Prompt, above 200,000 prompt tokens: – → $2 per million (+100 %)"]),
        ({"overrides": [{"utc_start": 30, "utc_end": 800, "prompt": HALF}]}, [],
         ["Prompt, from 00:30 to 08:00 UTC: – → $0.5 per million (-50 %)"]),
        ({"web_search": "0.01"}, [], ["Search: – → $0.01 per search"]),
        ({}, [{"billable": "search", "unit": "request", "variant": "request", "price": "0.035"}],
         ["Search, request: – → $0.035 per request"]),
        (
            {},
            [
                {
                    "billable": "search",
                    "unit": "search",
                    "variant": "unasked",
                    "price": "0.005",
                    "most": 60,
                }
            ],
            ["Search, unasked: – → $0.005 per search", "Most units of search unasked: – → 60"],
        ),
        ({"input_cache_read": "0.0000001"}, [], ["Cache read: – → $0.1 per million (-90 %)"]),
        ({"discount": 0.25}, [], ["Discount: – → 25 % (-25 %)"]),
        (
            {},
            [{"billable": "image", "unit": "image", "variant": "1024x1024/high", "price": "0.167"}],
            ["Generated image, 1024x1024/high: – → $0.167 per image"],
        ),
        ({}, [{"billable": "second", "unit": "second", "price": "0.0001"}],
         ["Second: – → $0.0001 per second"]),
        ({}, [{"billable": "prompt", "unit": "token", "variant": "image", "price": "0.00001"}],
         ["Prompt, image: – → $10 per million (+900 %)"]),
    ],
)  # fmt: skip
def test_a_rate_is_told_in_the_unit_of_price_lists(
    stored: dict[str, Any], pricing: dict[str, Any], lines: list[dict[str, Any]], said: list[str]
) -> None:
    stored["endpoints"][0]["pricing"] |= pricing
    stored["endpoints"][0] |= {"lines": lines} if lines else {}
    [row] = plan_of(stored)
    assert lines_of(row) == said


@pytest.mark.parametrize(
    ("pricing", "seen"),
    [
        ({"image": "0"}, []),
        # Without the rate, that of the prompt applies.
        ({"input_cache_read": "0"}, ["pricing.input_cache_read"]),
        ({"overrides": [{"min_prompt_tokens": 9, "prompt": "0"}]}, ["pricing.prompt above 9"]),
    ],
)
def test_a_rate_of_nothing_is_none_unless_another_one_would_apply(
    stored: dict[str, Any], pricing: dict[str, Any], seen: list[str]
) -> None:
    endpoint = stored["endpoints"][0]
    changed = {**endpoint, "pricing": {**endpoint["pricing"], **pricing}}
    assert [change.column for change in find_changes(endpoint, changed)] == seen


@pytest.mark.parametrize(
    ("pricing", "risks"),
    [
        ({"prompt": "0.00000999"}, []),
        ({"prompt": "0.00001"}, ["10 times the price or more"]),
        ({"prompt": "0.00000011"}, []),
        ({"prompt": "0.0000001"}, ["a tenth of the price or less"]),
        ({"prompt": "0"}, ["becomes free"]),
        ({"request": "0.01"}, ["was free"]),
        ({"prompt": "0.00001", "completion": "0"}, ["10 times the price or more", "becomes free"]),
        # A rate for cached tokens cost as much as the others before.
        ({"input_cache_read": "0.0000005"}, []),
    ],
)
def test_a_leap_of_a_price_is_a_risk(
    stored: dict[str, Any], pricing: dict[str, Any], risks: list[str]
) -> None:
    stored["endpoints"][0]["pricing"] |= pricing
    [row] = plan_of(stored)
    assert row.risks == risks


@pytest.mark.parametrize(
    ("old", "new", "percent", "risk"),
    [
        ("0.5", "0.1", "80", ""),
        ("0.9", "0.99", "-90", "a tenth of the price or less"),
        ("0.99", "0.9", "900", "10 times the price or more"),
        (None, "1", "-100", "becomes free"),
        ("1", "0.5", None, "was free"),
        ("1", None, None, "was free"),
        ("0.5", None, "100", ""),
    ],
)
def test_a_discount_is_a_rise_or_a_fall_of_what_it_leaves(
    old: str | None, new: str | None, percent: str | None, risk: str
) -> None:
    [change] = find_changes({"pricing": {"discount": old}}, {"pricing": {"discount": new}})
    assert change.percent == (None if percent is None else Decimal(percent))
    assert change.risk == risk
    rises = percent is None or Decimal(percent) > 20
    assert (change.rises_above(Decimal(20)), change.falls_far) == (
        rises,
        percent in ("-90", "-100"),
    )


@pytest.mark.parametrize("equal", [("0.2500000000", "0.25"), (None, "0"), ("0.0000000000", None)])
def test_equal_discounts_are_no_change(equal: tuple[str | None, str | None]) -> None:
    old, new = ({"pricing": {"discount": each}} for each in equal)
    assert find_changes(old, new) == []


def test_a_new_endpoint_that_costs_nothing_is_said_to_be_free(stored: dict[str, Any]) -> None:
    free = {"prompt": "0", "completion": "0"}
    stored["endpoints"][0] |= {"upstream_model_id": "new", "pricing": free}
    [row] = plan_of(stored)
    assert lines_of(row) == ["Price: – → free"]


def test_a_vanishing_endpoint_is_a_risk_and_a_new_one_is_none() -> None:
    [gone] = find_changes({"is_listed": "yes"}, {"is_listed": "no"})
    assert gone.risk == "vanishes"
    made = find_changes({}, {"pricing": {"prompt": "9"}})
    assert PlanRow("endpoints", "x", "create", made).risks == []


def test_a_rise_from_the_lowest_rate_to_the_highest_has_a_percentage() -> None:
    lowest, highest = {"prompt": f"0.{'0' * 29}1"}, {"prompt": "999999"}
    [rise] = find_changes({"pricing": lowest}, {"pricing": highest})
    assert (rise.percent, rise.risk) == (Decimal("9.99999e37"), "10 times the price or more")


def test_risky_rows_come_first_and_the_rest_is_a_number(stored: dict[str, Any]) -> None:
    first, second, third = stored["endpoints"]
    first["pricing"]["prompt"] = DOUBLE
    second["zdr"] = True
    third["pricing"]["prompt"] = "1"
    plan = ImportPlan(2)
    data = json.dumps(stored).encode()
    report = imports.apply(imports.parse(data), dry_run=True, on_row=plan.add)
    assert [row.row.split()[2] for row in plan.rows] == ["c", "a"]
    assert plan.hidden == 1
    assert sum(report.unchanged.values()) == 2


run = partial(commands.run, "import_catalog")


def test_the_command_prints_what_changes_risky_rows_first(
    stored: dict[str, Any], tmp_path: Path
) -> None:
    stored["endpoints"][0]["pricing"]["prompt"] = DOUBLE
    stored["endpoints"][1]["pricing"]["prompt"] = "0.00001"
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps(stored))
    before = snapshots.everything()
    subject = "acme/falcon-2026-01-01 acme {} global"
    for option in ("--plan", "--dry-run"):
        _, err = run(str(file), option)
        assert err.splitlines() == [
            (
                "Look twice (10 times the price or more): update: endpoints "
                f"'{subject.format('b')}': Prompt: $1 per million → $10 per million (+900 %)"
            ),
            (
                f"update: endpoints '{subject.format('a')}': "
                "Prompt: $1 per million → $2 per million (+100 %)"
            ),
        ]
    plan = json.loads(run(str(file), "--plan", "--json")[0])["plan"]
    assert [(step["fate"], step.get("changes")) for step in plan] == [
        (
            "update",
            [{"column": "pricing.prompt", "old": "0.000001", "new": DOUBLE, "percent": "100"}],
        ),
        (
            "update",
            [{"column": "pricing.prompt", "old": "0.000001", "new": "0.00001", "percent": "900"}],
        ),
    ]
    assert snapshots.everything() == before


def test_a_dry_run_lists_the_first_rows_and_counts_the_others(
    stored: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**stored["endpoints"][0], "upstream_model_id": f"x-{number}"} for number in range(60)]
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps({"endpoints": rows}))
    _, err = run(str(file), "--dry-run")
    lines = err.splitlines()
    assert len(lines) == 51
    assert lines[-1] == "10 more rows would change; --plan lists them all."
    assert len(run(str(file), "--plan")[1].splitlines()) == 60


def test_the_console_shows_the_same_plan(operator: Client, stored: dict[str, Any]) -> None:
    stored["endpoints"][0]["pricing"]["prompt"] = DOUBLE
    stored["endpoints"][1]["pricing"]["prompt"] = "0.01"
    before = snapshots.everything()
    page = operator.post(
        reverse("admin:catalog_modelendpoint_import_file"),
        {"file": SimpleUploadedFile("catalogue.json", json.dumps(stored).encode())},
    )
    text = page.content.decode()
    risky, plain = page.context["rows"]
    assert (risky.risks, plain.risks) == (["10 times the price or more"], [])
    for cell in ("$1 per million", "$10,000 per million", "+999,900 %", "$2 per million"):
        assert f">{cell}<" in text
    assert text.index("$10,000") < text.index("$2 per")
    assert "3 rows unchanged." in text
    assert ">endpoints<" in text
    assert snapshots.everything() == before
    operator.post(
        reverse("admin:catalog_modelendpoint_import_file"),
        {"signed_upload": page.context["signed_upload"]},
    )
    prices = ModelEndpoint.objects.values_list("upstream_model_id", "price__prompt")
    assert {name: str(rate.normalize()) for name, rate in prices} == {
        "a": "0.000002", "b": "0.01", "c": "0.000001",
    }  # fmt: skip
