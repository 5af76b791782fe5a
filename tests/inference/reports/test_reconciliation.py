"""Tests the comparison of providers' usage exports with our generations."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client

from catalog.models import ModelEndpoint
from inference.archive.retention import archive_due
from inference.reports.invoices import HEADER, read_invoice
from tests.support import factories
from tests.support.database import archive, snapshots
from tests.support.factories import Tenant

PAGE = "/admin/inference/generation/reconcile-invoice/"
NOON = datetime(2026, 11, 12, 12, tzinfo=UTC)


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    return factories.make_endpoint(
        factories.make_model("openai/gpt-4o"),
        factories.make_provider("openai", name="OpenAI"),
        upstream_model_id="gpt-4o",
    )


@dataclass(frozen=True)
class Books:
    """Generations of one account, with which exports are compared."""

    file: Path
    tenant: Tenant
    endpoint: ModelEndpoint

    def generate(self, upstream_id: str, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "tenant": self.tenant,
            "model_endpoint": self.endpoint,
            "model": "openai/gpt-4o",
            "upstream_id": upstream_id,
            "upstream_model": "gpt-4o-2024-08-06",
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "cost_nano": 350_000,
            "upstream_cost_nano": 350_000,
            "created_at": NOON,
        }
        factories.make_generation(**{**defaults, **fields})

    def reconcile(self, data: Any, *options: str) -> tuple[dict[str, Any], int]:
        """Runs the command; returns its report and its exit code."""
        text = data if isinstance(data, str) else json.dumps(data)
        self.file.write_bytes(text.encode())
        out = io.StringIO()
        code = 0
        try:
            call_command(
                "reconcile_invoice", "openai", str(self.file), *options, "--json",
                stdout=out, stderr=io.StringIO(),
            )  # fmt: skip
        except CommandError as exc:
            code = exc.returncode
        report: dict[str, Any] = json.loads(out.getvalue())
        return report, code


@pytest.fixture
def books(tmp_path: Path, tenant: Tenant, endpoint: ModelEndpoint) -> Books:
    return Books(tmp_path / "export", tenant, endpoint)


def refuse(file: Path) -> CommandError:
    """Runs the command on a file that it does not take."""
    with pytest.raises(CommandError) as caught:
        call_command("reconcile_invoice", "openai", str(file))
    assert caught.value.returncode == 1
    return caught.value


def report_of(**counts: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(("matched", "missing_here", "missing_there", "differing"), 0)
    return {**zeros, "total_here": "0", "total_there": None, **counts}


def test_generations_are_matched_by_the_providers_id(books: Books) -> None:
    for name in ("one", "two", "three", "unbilled"):
        books.generate(f"chatcmpl-{name}")
    books.generate("", status="failed", prompt_tokens=0, completion_tokens=0,
                   cost_nano=0, upstream_cost_nano=0)  # fmt: skip
    lines = [
        HEADER,
        "chatcmpl-one,2026-11-12,gpt-4o,1,100,10,0.00035",
        "chatcmpl-two,2026-11-12T13:00:00Z,gpt-4o,1,100,11,0.00035",
        "chatcmpl-three,2026-11-12,gpt-4o,,,,0.000350002",
        "chatcmpl-lost,2026-11-12,gpt-4o,1,5,5,0.1",
    ]
    report, code = books.reconcile("\n".join(lines), "--rows")
    rows = report.pop("rows")
    assert (report, code) == (
        report_of(
            matched=1, missing_here=1, missing_there=1, differing=2,
            total_here="0.0014", total_there="0.101050002",
        ),
        1,
    )  # fmt: skip
    assert {row["finding"] for row in rows} == {"missing_here", "missing_there", "differing"}
    [lost] = [row for row in rows if row["finding"] == "missing_here"]
    assert (lost["row"], lost["here"]) == ("2026-11-12 gpt-4o chatcmpl-lost", None)
    assert lost["there"] == {
        "requests": 1, "prompt_tokens": 5, "completion_tokens": 5, "cost": "0.1",
    }  # fmt: skip
    report, code = books.reconcile("\n".join(lines[:2] + lines[3:4]), "--tolerance", "0.00001")
    assert (report["matched"], report["missing_there"], code) == (2, 2, 1)


def test_a_cost_may_differ_by_the_rounding_to_a_nano_dollar(books: Books) -> None:
    books.generate("a")
    for cost, matched in (("0.000350001", 1), ("0.0003500011", 0), ("0.000349999", 1)):
        report, code = books.reconcile(f"id,date,model,cost\na,2026-11-12,gpt-4o,{cost}")
        assert (report["matched"], code) == (matched, 1 - matched)


def test_a_generation_that_is_billed_twice_differs(books: Books) -> None:
    books.generate("a")
    line = "a,2026-11-12,gpt-4o,0.00035\n"
    expected = report_of(differing=1, total_here="0.00035", total_there="0.0007")
    assert books.reconcile("id,date,model,cost\n" + line * 2) == (expected, 1)


OPENAI_USAGE = {
    "object": "page",
    "data": [
        {
            "object": "bucket",
            "start_time": int(datetime(2026, 11, 12, tzinfo=UTC).timestamp()),
            "end_time": int(datetime(2026, 11, 13, tzinfo=UTC).timestamp()),
            "results": [
                {
                    "object": "organization.usage.completions.result",
                    "input_tokens": 200,
                    "output_tokens": 20,
                    "input_cached_tokens": 0,
                    "num_model_requests": 2,
                    "model": "gpt-4o-2024-08-06",
                    "project_id": None,
                }
            ],
        }
    ],
    "has_more": False,
}
OPENAI_COSTS = {
    "data": [
        {
            "start_time": int(datetime(2026, 11, 12, tzinfo=UTC).timestamp()),
            "results": [
                {"amount": {"value": 0.0005, "currency": "usd"}, "line_item": "gpt-4o, input"},
                {"amount": {"value": 0.0002, "currency": "usd"}, "line_item": "gpt-4o, output"},
            ],
        }
    ]
}
ANTHROPIC_USAGE = {
    "data": [
        {
            "starting_at": "2026-11-12T00:00:00Z",
            "ending_at": "2026-11-13T00:00:00Z",
            "results": [
                {
                    "uncached_input_tokens": 150,
                    "cache_read_input_tokens": 30,
                    "cache_creation": {
                        "ephemeral_1h_input_tokens": 15,
                        "ephemeral_5m_input_tokens": 5,
                    },
                    "output_tokens": 20,
                    "server_tool_use": {"web_search_requests": 0},
                    "model": "gpt-4o",
                }
            ],
        }
    ],
    "has_more": False,
    "next_page": None,
}
ANTHROPIC_COSTS = {
    "data": [
        {
            "starting_at": "2026-11-12T00:00:00Z",
            "results": [{"amount": "0.07", "currency": "USD", "model": "gpt-4o"}],
        }
    ]
}
OPENROUTER = {
    "data": [
        {
            "date": "2026-11-12",
            "model": "openai/gpt-4o",
            "usage": 0.0007,
            "requests": 2,
            "prompt_tokens": 200,
            "completion_tokens": 20,
            "provider_name": "OpenAI",
        }
    ]
}
OPENROUTER_CSV = (
    "Date,Slug,Usage,BYOK Usage,Requests,Prompt Tokens,Completion Tokens,Reasoning Tokens\r\n"
    "2026-11-12,openai/gpt-4o,0.0007,0.5,2,200,20,0\r\n"
)
CONSOLE = (
    "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,"
    "usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens\n"
    "2026-11-12,gpt-4o,150,5,15,30,20\n"
)


@pytest.mark.parametrize(
    ("export", "total"),
    [
        (OPENAI_USAGE, None),
        (OPENAI_COSTS, "0.0007"),
        (ANTHROPIC_USAGE, None),
        (ANTHROPIC_COSTS, "0.0007"),
        (OPENROUTER, "0.0007"),
        (OPENROUTER_CSV, "0.0007"),
        (CONSOLE, None),
    ],
)
def test_the_exports_of_providers_are_compared_by_day_and_model(
    books: Books, export: Any, total: str | None
) -> None:
    for name in "ab":
        books.generate(name)
    report, code = books.reconcile(export)
    assert (report, code) == (report_of(matched=1, total_here="0.0007", total_there=total), 0)
    books.generate("c")
    report, code = books.reconcile(export)
    assert (report["matched"], report["differing"], code) == (0, 1, 1)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        ("openai/gpt-4o", "openai/gpt-4o-2024-08-06"),
        ("openai/gpt-4o:nitro", "gpt-4o-2024-08-06"),
        ("of-another-service", "openai/gpt-4o"),
    ],
)
def test_a_model_is_known_by_either_name_of_an_export(books: Books, model: str, other: str) -> None:
    for name in "ab":
        books.generate(name)
    [row] = OPENROUTER["data"]
    export = {"data": [{**row, "model": model, "model_permaslug": other}]}
    expected = report_of(matched=1, total_here="0.0007", total_there="0.0007")
    assert books.reconcile(export) == (expected, 0)


def test_a_charge_without_a_model_is_named_by_its_description(books: Books) -> None:
    for name in "ab":
        books.generate(name)
    charge = {"amount": "1", "currency": "USD", "model": None, "description": "Web Search Usage"}
    [bucket] = ANTHROPIC_COSTS["data"]
    export = {"data": [{**bucket, "results": [*bucket["results"], charge]}]}
    report, code = books.reconcile(export, "--rows")
    rows = report.pop("rows")
    expected = {"matched": 1, "missing_here": 1, "total_here": "0.0007", "total_there": "0.0107"}
    assert (report, code) == (report_of(**expected), 1)
    assert [row["row"] for row in rows] == ["2026-11-12 Web Search Usage"]
    lines = ["date,model,cost_usd,cost_type", "2026-11-12,gpt-4o,0.0007,tokens"]
    text = "\n".join([*lines, "2026-11-12,,0.01,web_search"])
    report, code = books.reconcile(text, "--rows")
    rows = report.pop("rows")
    assert (report, code) == (report_of(**expected), 1)
    assert [row["row"] for row in rows] == ["2026-11-12 web_search"]


ANTHROPIC_CSV = (
    "\ufeffusage_date_utc,model,workspace,api_key,api_key_id,usage_type,context_window,token_type,"
    "cost_usd,list_price_usd,cost_type\n"
    "2026-11-12,Claude Haiku 4.5,Default,k,apikey_1,message,≤ 200k,input_no_cache,0.0002,0.0002,"
    "token\n"
    "2026-11-12,Claude Haiku 4.5,Default,k,apikey_1,message,≤ 200k,output,0.0005,0.0005,token\n"
)


@pytest.mark.parametrize(
    ("sent", "told", "shown"),
    [
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001", "Claude Haiku 4.5"),
        ("claude-haiku-4-5-20251001", None, "Claude Haiku 4.5"),
        ("claude-3-7-sonnet-20250219", None, "Claude Sonnet 3.7"),
        ("claude-3-5-sonnet-20241022", None, "Claude 3.5 Sonnet 2024-10-22"),
        ("anthropic/claude-haiku-4.5", None, "anthropic/claude-4.5-haiku-20251001"),
        ("anthropic/claude-haiku-4.5:nitro", None, "anthropic/claude-4.5-haiku-20251001"),
    ],
)
def test_a_model_is_known_by_the_name_that_people_read(
    books: Books, sent: str, told: str | None, shown: str
) -> None:
    model = factories.make_model("anthropic/claude-x")
    endpoint = factories.make_endpoint(model, books.endpoint.provider, upstream_model_id=sent)
    for name in "ab":
        replace(books, endpoint=endpoint).generate(name, model=model.slug, upstream_model=told)
    export = ANTHROPIC_CSV.replace("Claude Haiku 4.5", shown)
    expected = report_of(matched=1, total_here="0.0007", total_there="0.0007")
    assert books.reconcile(export) == (expected, 0)


@pytest.mark.parametrize(
    ("header", "costs", "matched"),
    [
        ("usage_date_utc,model,cost_usd", ("0.19", "0.03"), 1),
        ("usage_date_utc,model,cost_usd", ("0.19", "0.05"), 0),
        ("usage_date_utc,model,cost_usd", ("0.195", "0.035", ""), 1),
        ("usage_date_utc,model,cost_usd", ("0.190", "0.030", "0.000"), 0),
        # A spreadsheet leaves out zeros, and a cent is the coarsest unit all the same.
        ("usage_date_utc,model,cost_usd", ("0.3", "0"), 0),
        ("date,model,cost_usd", ("0.19", "0.03"), 0),
    ],
)
def test_the_costs_of_anthropics_console_are_rounded(
    books: Books, header: str, costs: tuple[str, ...], matched: int
) -> None:
    for name, nano in (("a", 194_900_000), ("b", 34_900_000)):
        books.generate(name, upstream_cost_nano=nano)
    lines = [header, *(f"2026-11-12,gpt-4o,{cost}" for cost in costs)]
    report, code = books.reconcile("\n".join(lines))
    assert (report["matched"], report["differing"], code) == (matched, 1 - matched, 1 - matched)


def test_a_name_of_two_lines_is_nobodys(books: Books) -> None:
    books.generate("a", upstream_model="haiku-claude")
    text = "date,model,requests\n2026-11-12,Claude Haiku,1\n2026-11-12,Haiku Claude,1\n"
    report, code = books.reconcile(text)
    counts = (report["matched"], report["missing_here"], report["missing_there"])
    assert (counts, code) == ((0, 2, 1), 1)


@pytest.mark.parametrize("value", [-0.0003, "-0.0003"])
def test_a_credit_is_subtracted(books: Books, value: Any) -> None:
    books.generate("a", upstream_cost_nano=400_000)
    [bucket] = OPENAI_COSTS["data"]
    credit = {"amount": {"value": value, "currency": "usd"}, "line_item": "gpt-4o, input"}
    export = {"data": [{**bucket, "results": [*bucket["results"], credit]}]}
    expected = report_of(matched=1, total_here="0.0004", total_there="0.0004")
    assert books.reconcile(export) == (expected, 0)
    grant = {"amount": {"value": value, "currency": "usd"}, "line_item": "Credit grant"}
    export = {"data": [{**bucket, "results": [*bucket["results"], credit, grant]}]}
    report, code = books.reconcile(export)
    assert (report["total_there"], report["missing_here"], code) == ("0.0001", 1, 1)


@pytest.mark.parametrize("value", ["0E-6176", "-0E-6176", "0E+6111"])
def test_a_zero_of_any_exponent_is_zero(value: str) -> None:
    amount = {"value": value, "currency": "usd"}
    bucket = {"start_time": 1794441600, "results": [{"amount": amount, "line_item": "gpt-4o"}]}
    csv_file = f"date,model,amount_value\n2026-11-12,gpt-4o,{value}\n"
    for export in (json.dumps({"data": [bucket]}), csv_file):
        [line] = read_invoice(export.encode())
        assert (line.model, line.cost) == ("gpt-4o", 0)


def test_archived_days_are_named_and_not_compared(
    tmp_path: Path, tenant: Tenant, settings: Any, endpoint: ModelEndpoint
) -> None:
    archive.divide_past()
    settings.RETENTION_DAYS = {"generations": archive.days_to_keep()}
    month = archive.old_month()
    archive.fill(tenant, month + archive.HOUR)
    archive.fill(tenant, month + 100 * archive.HOUR)
    border = archive.months()[2]
    made = f"gen-{int(border.timestamp()) - 1}-{0:020}"
    factories.make_generation(tenant, id=made, created_at=border + timedelta(milliseconds=10))
    archive.sum_all()
    archive_due()
    days = [(month + hours * archive.HOUR).date() for hours in (1, 100)]
    file = tmp_path / "export"
    file.write_text(f"date,model,cost\n{days[0]},m,1\n{days[1]},m,1\n")
    assert str(refuse(file)) == (
        f"Generations of these days are archived and cannot be compared: {days[0]}, {days[1]}. "
        "Leave them out of the export."
    )
    file.write_text(f"date,model,cost\n{days[1]},m,1\n")
    assert f"compared: {days[1]}." in str(refuse(file))
    # Its id is of the second before its stamp, so that it has left with the month before.
    file.write_text(f"date,model,cost\n{border.date()},m,1\n")
    assert f"compared: {border.date()}." in str(refuse(file))


def test_a_line_beside_an_archived_day_is_not_called_unknown(books: Books, settings: Any) -> None:
    archive.divide_past()
    settings.RETENTION_DAYS = {"generations": archive.days_to_keep()}
    border = archive.months()[2]
    books.generate("gone", created_at=border - archive.HOUR)
    books.generate("here", created_at=border + archive.HOUR)
    archive.sum_all()
    archive_due()
    before, gone, day = ((border + timedelta(days=days)).date() for days in (-2, -1, 0))
    for line in (day, before):
        books.file.write_text(f"id,date,model,cost\ngone,{line},gpt-4o,0.00035\n")
        assert str(refuse(books.file)) == (
            f"Generations of {gone} are archived, and lines of {line} may be theirs. Leave {line} "
            "out of the export."
        )
    known = f"id,date,model,cost\nhere,{day},gpt-4o,0.00035\n"
    assert books.reconcile(known)[0]["matched"] == 1
    later = f"{known}gone,{day + timedelta(days=1)},gpt-4o,0.00035\n"
    assert books.reconcile(later)[0]["missing_here"] == 1


def test_a_line_ends_at_a_line_feed_alone(books: Books) -> None:
    books.generate("a")
    row = "chatcmpl-a,2026-11-12,gpt-4o,0.00035"
    for name in ("x\u2028y", "x\x0by", '"x\ny"'):
        text = f"id,date,model,cost,app_name\n{row.replace('chatcmpl-a', 'a')},{name}\r\n"
        expected = report_of(matched=1, total_here="0.00035", total_there="0.00035")
        assert books.reconcile(text) == (expected, 0)


def test_days_are_days_of_utc(books: Books) -> None:
    for hour, minute, day in ((0, 0, 12), (23, 59, 12), (23, 59, 11), (0, 0, 13)):
        moment = datetime(2026, 11, day, hour, minute, tzinfo=UTC)
        books.generate(f"{day}-{hour}", created_at=moment)
    report, code = books.reconcile(OPENAI_USAGE)
    assert (report["matched"], report["missing_there"], code) == (1, 0, 0)


def test_an_id_is_matched_although_the_days_differ(books: Books) -> None:
    for day in (10, 11, 13, 14):
        moment = datetime(2026, 11, day, 23, 59, tzinfo=UTC)
        books.generate(f"chatcmpl-{day}", created_at=moment)
    rows = [f"chatcmpl-{day},2026-11-12,gpt-4o,1,100,10,0.00035" for day in (11, 13)]
    expected = report_of(matched=2, total_here="0.0007", total_there="0.0007")
    assert books.reconcile("\n".join([HEADER, *rows])) == (expected, 0)


def test_the_first_and_the_last_day_of_an_export_may_lie_far_apart(books: Books) -> None:
    books.generate("a")
    lines = ["id,date,model,cost", "a,2026-11-12,gpt-4o,0.00035"]
    strays = ["x,2020-01-01,gpt-4o,0", "y,2300-01-01,gpt-4o,0"]
    for others in ([], strays[:1], strays[1:], strays):
        report, _ = books.reconcile("\n".join([*lines, *others]))
        assert (report["matched"], report["missing_here"]) == (1, len(others))


def test_only_what_the_account_pays_counts(books: Books) -> None:
    other = factories.make_tenant("Other")
    books.generate("own", is_byok=True, cost_nano=0)
    books.generate("others", tenant=other, is_byok=True, cost_nano=0)
    model = books.endpoint.model
    elsewhere = factories.make_endpoint(model, factories.make_provider("azure"))
    books.generate("elsewhere", model_endpoint=elsewhere)
    text = "id,date,model,cost\nown,2026-11-12,gpt-4o,0.00035\n"
    report, code = books.reconcile(text)
    assert (report["missing_here"], report["missing_there"], code) == (1, 0, 1)
    expected = report_of(matched=1, total_here="0.00035", total_there="0.00035")
    owner = str(books.tenant.organization.pk)
    assert books.reconcile(text, "--organization", owner) == (expected, 0)


@pytest.mark.parametrize(
    ("export", "problem"),
    [
        ("", "line 1: no header of a known export. A plain one is id,date,model,"),
        ("date,cost\n2026-11-12,1\n", "no header of a known export"),
        ("date,model,cost\n", "the export: has no lines"),
        ("date,model,cost\n2026-13-01,m,1\n", "line 2: has no day such as 2026-11-12"),
        ("date,model,cost\n9999-12-31,m,1\n", "line 2: has a day after 9998-12-31"),
        ("date,model,cost\n0001-01-01T00:00:00Z,m,1\n", "line 2: has a day before 2020-01-01"),
        ("date,model,cost\n0001-01-01T00:00:00+14:00,m,1\n", "line 2: has no day such as"),
        ("date,model,cost\n2026-11-12,m,1\n2019-12-31,m,1\n", "line 3: has a day before 2020"),
        ("date,model,cost\n1899-12-30,,\n", "line 2: has a day before 2020-01-01"),
        (
            '{"data": [{"start_time": 1, "results": []}]}',
            "data[0]: has a day before 2020-01-01",
        ),
        (
            '{"data": [{"date": "0001-01-01", "model": "m", "requests": 1}]}',
            "data[0]: has a day before 2020-01-01",
        ),
        ('"date"x,model,cost\n', "line 1: not CSV"),
        ("date,model,cost,Cost\n2026-11-12,m,1,2\n", "line 1: the header names cost twice"),
        # A decimal comma, and a file that ends early.
        ("date,model,cost\n2026-11-12,m,0,5\n", "line 2: has more or fewer cells than"),
        ("date,model,cost\n2026-11-12,m\n", "line 2: has more or fewer cells than the header"),
        (
            "date,model,cost\n2026-11-12,,1\n",
            "line 2: names no model; group the export by model, or OpenAI's costs by line item",
        ),
        ("date,model,cost\n2026-11-12,m,-x\n", "line 2: the cost is not a number"),
        ("date,model,cost\n2026-11-12,m,-1e99\n", "line 2: the cost is 1,000,000 or more"),
        ("date,model,cost\n2026-11-12,m,1e99\n", "line 2: the cost is 1,000,000 or more"),
        (
            '{"data": [{"start_time": 1, "results": [{"amount": {"value": 1e9999999}}]}]}',
            "data[0].results[0]: the cost is 1,000,000 or more",
        ),
        (
            '{"data": [{"start_time": 1, "results": [{"amount": {"value": -1e9999999}}]}]}',
            "data[0].results[0]: the cost is 1,000,000 or more",
        ),
        ("date,model,cost,currency\n2026-11-12,m,1,EUR\n", "line 2: has a cost in another"),
        ("date,model,amount_value,amount_currency\n2026-11-12,m,1,eur\n", "line 2: has a cost in"),
        (
            '{"data": [{"start_time": 1, "results": [{"amount": {"value": 1, "currency": "x"}}]}]}',
            "data[0].results[0]: has a cost in another currency than USD",
        ),
        (
            '{"data": [{"starting_at": 1, "results": [{"amount": "1", "currency": "EUR"}]}]}',
            "data[0].results[0]: has a cost in another currency than USD",
        ),
        ("date,model,requests\n2026-11-12,m,1.5\n", "line 2: requests is not a count"),
        ("date,model,requests\n2026-11-12,m,٣\n", "line 2: requests is not a count"),
        (
            '{"data": [{"date": "2026-11-12", "model": "\\ud800", "requests": 1}]}',
            "data[0]: has a name with NUL or a lone surrogate",
        ),
        (
            '{"data": [{"start_time": 1794441600, "results": [{"line_item": "a\\u0000"}]}]}',
            "data[0].results[0]: has a name with NUL or a lone surrogate",
        ),
        ('{"data": [}', "The list is not JSON."),
        ('{"data": {}}', "the export: has no list of data"),
        ('{"data": [1]}', "data[0]: is not an object"),
        ("[1]", "data[0]: is not an object"),
        ("[]", "the export: has no lines"),
        ('{"data": [{"results": [1]}]}', "data[0].results[0]: is not an object"),
        ('{"data": [], "has_more": true}', "is one page of several"),
        (
            '{"data": [{"start_time": 1794441600, "results": [{"model": null, "requests": 1}]}]}',
            "data[0].results[0]: names no model",
        ),
        (
            '{"data": [{"start_time": 1e30, "results": [{"model": "m"}]}]}',
            "data[0].results[0]: has no day",
        ),
    ],
)
def test_an_unknown_export_is_refused(
    tmp_path: Path, endpoint: ModelEndpoint, export: str, problem: str
) -> None:
    file = tmp_path / "export"
    file.write_text(export)
    with snapshots.unchanged():
        assert problem in str(refuse(file))


def test_the_command_refuses_unknown_names(tmp_path: Path, endpoint: ModelEndpoint) -> None:
    for arguments, code in (
        (("nobody", "-"), 1),
        (("openai", "-", "--organization", "x"), 2),
        (("openai", "-", "--organization", "00000000-0000-0000-0000-000000000000"), 1),
        (("openai", "-", "--tolerance", "-1"), 2),
        (("openai", str(tmp_path / "none")), 1),
    ):
        with pytest.raises(CommandError) as caught:
            call_command("reconcile_invoice", *arguments)
        assert caught.value.returncode == code


def test_json_may_begin_with_a_byte_order_mark() -> None:
    [line] = read_invoice(
        b'\xef\xbb\xbf{"data": [{"date": "2026-11-12", "model": "m", "requests": 3}]}'
    )
    assert (line.model, line.requests) == ("m", 3)


def test_the_data_of_an_export_may_stand_alone() -> None:
    rows = [{"date": "2026-11-12 00:00:00", "model_permaslug": "a/b", "usage": 0.5, "requests": 3}]
    for data in (rows, OPENAI_COSTS["data"]):
        lines = read_invoice(json.dumps(data).encode())
        assert lines == read_invoice(json.dumps({"data": data}).encode())


def test_a_file_that_a_spreadsheet_saved_is_read() -> None:
    lines = read_invoice(
        b'\xef\xbb\xbf"date","model","cost"\r\n"20261112","m","1.5"\r\n'
        b"2026-11-13 00:00:00 UTC,,-0.5\r\n,,\r\n"
    )
    assert [(line.day.isoformat(), line.model, str(line.cost)) for line in lines] == [
        ("2026-11-12", "m", "1.5"),
        ("2026-11-13", "credit", "-0.5"),
    ]


DASHBOARD_COSTS = (
    "start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,quantity,"
    "quantity_unit,line_item,user_id,api_key_id,project_id,organization_id,project_name,"
    "organization_name,user_email,api_source\n"
    "1794355200,1794441600,2026-11-11T00:00:00+00:00,2026-11-12T00:00:00+00:00,,,,,,,,,,,,,\n"
)
DASHBOARD_USAGE = (
    "start_time,end_time,start_time_iso,end_time_iso,num_model_requests,model,input_tokens\n"
    "1794355200,1794441600,2026-11-11T00:00:00+00:00,2026-11-12T00:00:00+00:00,,,\n"
)


@pytest.mark.parametrize(
    "export",
    [
        DASHBOARD_COSTS + "1794441600,1794528000,2026-11-12T00:00:00,2026-11-13T00:00:00,"
        '0.000350000000000000000000000000,usd,110,tokens,"gpt-4o, input",,k,p,o,P,O,a@b.example,\n',
        DASHBOARD_USAGE + "1794441600,1794528000,2026-11-12T00:00:00+00:00,,1,gpt-4o,100\n",
        json.dumps({"data": [
            {"start_time": 1794355200, "results": []},
            {"start_time": 1794441600, "results": [
                {"amount": {"value": "0.00035", "currency": "usd"}, "line_item": "gpt-4o, input"},
            ]},
        ]}),
    ],
)  # fmt: skip
def test_a_day_without_use_is_a_day_of_the_export(books: Books, export: str) -> None:
    books.generate("chatcmpl-one")
    report, code = books.reconcile(export)
    assert (report["matched"], code) == (1, 0)
    books.generate("chatcmpl-two", created_at=datetime(2026, 11, 11, tzinfo=UTC))
    report, code = books.reconcile(export)
    assert (report["matched"], report["missing_there"], code) == (1, 1, 1)


def test_a_line_has_what_its_export_says() -> None:
    [line] = read_invoice(
        b"\xef\xbb\xbfgeneration_id,created_at,model_permaslug,tokens_prompt,cost_total\n"
        b"gen-1,2026-11-12 23:30:00-01:00,a/b,7,0.0000000001\n"
    )
    assert (line.id, line.day.isoformat(), line.prompt, line.completion) == (
        "gen-1", "2026-11-13", 7, None,
    )  # fmt: skip
    assert format(line.cost or 0, "f") == "0.0000000001"


def compare(operator: Client, data: str, **fields: Any) -> str:
    export = SimpleUploadedFile("export.csv", data.encode())
    answer = operator.post(PAGE, {"provider": "openai", "file": export, **fields})
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_console_compares_an_export_and_changes_nothing(operator: Client, books: Books) -> None:
    for name in ("one", "unbilled"):
        books.generate(f"chatcmpl-{name}")
    lines = [
        HEADER,
        "chatcmpl-one,2026-11-12,gpt-4o,1,100,10,0.0004",
        "chatcmpl-<b>lost</b>,2026-11-12,gpt-4o,1,5,5,0.1",
    ]
    assert "Compare" in operator.get(PAGE).content.decode()
    with snapshots.unchanged():
        text = compare(operator, "\n".join(lines))
        assert "the export and our generations differ." in text
        for shown in ("Only in the export", "Only in our generations", "Different", "$0.1004"):
            assert shown in text
        assert "chatcmpl-&lt;b&gt;lost&lt;/b&gt;" in text
        text = compare(operator, "\n".join(lines[:2]), tolerance="0.00005")
    assert "2026-11-12 gpt-4o chatcmpl-one" not in text


def test_the_console_compares_the_bill_of_an_organizations_own_account(
    operator: Client, books: Books
) -> None:
    books.generate("chatcmpl-own", is_byok=True, cost_nano=0)
    data = f"{HEADER}\nchatcmpl-own,2026-11-12,gpt-4o,1,100,10,0.00035"
    slug = books.tenant.organization.slug
    assert "everything agrees." in compare(operator, data, organization=slug)
    assert "our generations differ." in compare(operator, data)
    assert "No organization has this slug or ID." in compare(operator, data, organization="nobody")


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        ("a,b\n1,2", "no header of a known export"),
        ("\x00", "header"),
        ("date,model,cost\n0001-01-01T00:00:00Z,m,1", "line 2: has a day before 2020-01-01"),
        (
            '{"data": [{"date": "2026-11-12", "model": "\\ud800", "requests": 1}]}',
            "data[0]: has a name with NUL or a lone surrogate",
        ),
    ],
)
def test_the_console_names_the_problems_of_an_export(
    operator: Client, endpoint: ModelEndpoint, data: str, refusal: str
) -> None:
    text = compare(operator, data)
    assert "The export cannot be read." in text
    assert refusal in text
