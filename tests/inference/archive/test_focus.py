"""Tests the export in the words of FOCUS, the specification of cost and usage."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from django.core.management import call_command

from inference.archive.focus import COLUMNS
from inference.models import Generation
from tests.support import factories
from tests.support.factories import Tenant

COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "x_UpstreamCost")
_VALIDATOR = "focus-validator==2.2.1"


def export(path: Path) -> list[dict[str, str]]:
    call_command("export_generations", str(path), "--format=focus", stdout=io.StringIO())
    return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))


def make(tenant: Tenant, units: dict[str, int] | None = None, **fields: Any) -> None:
    defaults: dict[str, Any] = {
        "created_at": datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "model": "acme/falcon-9",
        "provider_name": "Azure, Inc.",
        "prompt_tokens": 1_000,
        "completion_tokens": 234,
        "cost_nano": 12_345,
        "upstream_cost_nano": 12_345,
        "duration_ms": 1_001,
    }
    made = factories.make_generation(tenant, **{**defaults, **fields})
    Generation.objects.filter(pk=made.pk).update(units=units)


def test_a_generation_is_one_charge(tenant: Tenant, tmp_path: Path) -> None:
    make(tenant, id="gen-1798761599-1", end_user="=ü")
    make(tenant, id="gen-1798761599-2", status="pending")
    [row] = export(tmp_path / "a.csv")
    key = tenant.organization.api_keys.get(is_management=False)
    workspace = tenant.workspace
    assert list(row) == [column.name for column in COLUMNS]
    assert row == {
        **dict.fromkeys(COSTS, "0.000012345"),
        "BillingAccountId": str(tenant.organization.pk),
        "BillingAccountName": tenant.organization.name,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": "2027-01-01T00:00:00Z",
        "BillingPeriodStart": "2026-12-01T00:00:00Z",
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": f"{row['x_Operation']} with acme/falcon-9 at Azure, Inc.",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": "2027-01-01T00:00:01Z",
        "ChargePeriodStart": "2026-12-31T23:59:59Z",
        "ConsumedQuantity": "1234.0",
        "ConsumedUnit": "Tokens",
        "InvoiceIssuerName": "Causeway",
        "PricingCategory": "Standard",
        "PricingQuantity": "1234.0",
        "PricingUnit": "Tokens",
        "ProviderName": "Causeway",
        "PublisherName": "Azure, Inc.",
        "RegionId": "global",
        "RegionName": "global",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "acme/falcon-9",
        "ServiceSubcategory": "Generative AI",
        "SubAccountId": str(workspace.pk),
        "SubAccountName": workspace.name,
        "x_ApiKeyHash": key.digest,
        "x_ApiKeyName": key.name,
        "x_CompletionTokens": "234.0",
        "x_EndUser": "'=ü",
        "x_GenerationId": "gen-1798761599-1",
        "x_IsByok": "false",
        "x_Operation": row["x_Operation"],
        "x_PromptTokens": "1000.0",
    }


@pytest.mark.parametrize(
    ("units", "quantity", "unit"),
    [
        ({"output_images": 2}, "2.0", "Images"),
        ({"milliseconds": 1_500}, "1.500", "Seconds"),
        ({"characters": 40}, "40.0", "Characters"),
        ({"searches": 3}, "3.0", "Searches"),
        (None, "1.0", "Requests"),
    ],
)
def test_what_has_no_tokens_is_counted_in_its_own_unit(
    tenant: Tenant, tmp_path: Path, units: Any, quantity: str, unit: str
) -> None:
    make(tenant, prompt_tokens=None, completion_tokens=None, units=units, cost_nano=0)
    [row] = export(tmp_path / "a.csv")
    assert (row["ConsumedQuantity"], row["ConsumedUnit"]) == (quantity, unit)
    assert (row["PricingQuantity"], row["PricingUnit"]) == (quantity, unit)
    assert (row["BilledCost"], row["x_PromptTokens"]) == ("0.0", "")


def test_what_a_byok_credential_pays_is_no_charge_of_ours(tenant: Tenant, tmp_path: Path) -> None:
    make(tenant, is_byok=True, cost_nano=617)
    [row] = export(tmp_path / "a.csv")
    assert [row[name] for name in COSTS] == [*["0.000000617"] * 4, "0.000012345"]
    assert row["x_IsByok"] == "true"


@pytest.fixture(scope="session")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the validator of the FinOps Foundation; skips where it cannot be had."""
    home = tmp_path_factory.mktemp("focus")
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=120)
    # A fresh installation takes a pyarrow that wants NumPy 2, and the validator pins 1.26.
    command = ["-m", "pip", "install", "-q", "--ignore-requires-python", _VALIDATOR, "pyarrow==20"]
    if subprocess.run([home / "bin/python", *command], check=False, timeout=600).returncode:
        pytest.skip(f"pip could not install {_VALIDATOR}")
    # Only one line of it needs Python 3.12.
    [module] = home.rglob("focus_to_duckdb_converter.py")
    newer = """f"'{k.replace('\\"', '\\"\\"')}'" for k"""
    module.write_text(module.read_text().replace(newer, """repr(k) for k"""))
    return home / "bin/focus-validator"


def test_the_validator_of_the_specification_accepts_the_file(
    tenant: Tenant, tmp_path: Path, validator: Path
) -> None:
    make(tenant)
    make(tenant, is_byok=True, cost_nano=0, prompt_tokens=0, completion_tokens=0, duration_ms=None)
    make(tenant, units={"milliseconds": 1_500}, prompt_tokens=None, completion_tokens=None)
    make(tenant, cost_nano=5 * 10**9, end_user='a "quoted", name')
    export(tmp_path / "a.csv")
    report = tmp_path / "report.xml"
    # It reads a file of its own from the folder in which it is started.
    [packages] = (validator.parents[1] / "lib").glob("python*/site-packages")
    done = subprocess.run(
        [validator, "--data-file", tmp_path / "a.csv", "--validate-version=1.2.0.1",
         "--block-download", "--output-type=unittest", "--output-destination", report],
        cwd=packages, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert report.exists(), done.stderr
    cases = list(ElementTree.fromstring(report.read_text()).iter("testcase"))
    failed = {
        str(case.get("name")).partition(" ")[0]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert len(cases) == 578
    # Only the operator's own invoices know their numbers.
    assert {name for name in failed if not name.startswith("InvoiceId-")} == {
        "CostAndUsage-D-033-O"
    }
