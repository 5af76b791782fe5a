"""``import_private_endpoints`` and ``export_private_endpoints``."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from endpoints.models import PrivateEndpoint
from tests.support.database import snapshots
from tests.support.endpoints.importing import KIND, encoded, load
from tests.support.factories import Tenant


def run(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("import_private_endpoints", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_command_prints_one_json_object(
    tenant: Tenant, row: dict[str, Any], tmp_path: Path
) -> None:
    key = str(tenant.organization.pk)
    file = tmp_path / "endpoints.jsonl"
    file.write_bytes(encoded(row))
    dry = {"created": {KIND: 1}, "updated": {KIND: 0}, "unchanged": {KIND: 0}, "dry_run": True}
    assert json.loads(run(key, str(file), "--dry-run", "--json")[0]) == dry
    assert PrivateEndpoint.objects.count() == 0
    assert json.loads(run(key, str(file), "--json")[0]) == dry | {"dry_run": False}
    out, err = run(key, str(file), "--json")
    assert json.loads(out) == {
        "created": {KIND: 0},
        "updated": {KIND: 0},
        "unchanged": {KIND: 1},
        "dry_run": False,
    }
    assert (out.count("\n"), err) == (1, "")


def test_the_command_lists_its_plan_and_changes_nothing(
    tenant: Tenant, row: dict[str, Any], tmp_path: Path
) -> None:
    second, third = row | {"upstream_model_id": "second"}, row | {"upstream_model_id": "third"}
    load(tenant, row, second)
    key = str(tenant.organization.pk)
    file = tmp_path / "endpoints.jsonl"
    other = {"declared_zdr": False, "pricing": {"prompt": "0.000001", "completion": "0.0000015"}}
    file.write_bytes(encoded(row, second | other, third))
    before = snapshots.everything()
    report = json.loads(run(key, str(file), "--plan", "--json")[0])
    changes = [step.pop("changes") for step in report["plan"]]
    assert [[(each["column"], each["old"], each["new"]) for each in step] for step in changes] == [
        [("pricing.prompt", "0.0000005", "0.000001"), ("declared_zdr", "yes", "no")],
        [
            ("pricing.prompt", None, "0.0000005"),
            ("pricing.completion", None, "0.0000015"),
            ("upstream_model_id", None, "third"),
            ("base_url", None, "https://llm.example.com/v1"),
        ],
    ]
    name = "acme/falcon-2026-01-01 acme {} https://llm.example.com/v1"
    assert report == {
        "created": {KIND: 1},
        "updated": {KIND: 1},
        "unchanged": {KIND: 1},
        "dry_run": True,
        "plan": [
            {"kind": KIND, "row": name.format("second"), "fate": "update"},
            {"kind": KIND, "row": name.format("third"), "fate": "create"},
        ],
    }
    assert run(key, str(file), "--plan")[1].splitlines() == [
        (
            f"update: {KIND} {name.format('second')!r}: "
            "Prompt: $0.5 per million → $1 per million (+100 %); Declared ZDR: yes → no"
        ),
        (
            f"create: {KIND} {name.format('third')!r}: "
            "Prompt: – → $0.5 per million; Completion: – → $1.5 per million; "
            "Upstream model: – → third; Base URL: – → https://llm.example.com/v1"
        ),
    ]
    assert snapshots.everything() == before


def test_the_command_reads_standard_input(
    tenant: Tenant, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(encoded(row))))
    out, _ = run(str(tenant.organization.pk), "-", "--json")
    assert json.loads(out)["created"] == {KIND: 1}


def test_the_command_refuses_with_code_1(
    tenant: Tenant, row: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.jsonl"
    file.write_bytes(encoded(row, row))
    missing = str(tmp_path / "missing.jsonl")
    key = str(tenant.organization.pk)
    with snapshots.unchanged():
        for organization, name, message in (
            (key, str(file), "line 2: the same endpoint as line 1"),
            (key, missing, f"{missing}: No such file or directory"),
            (str(uuid.uuid4()), str(file), "There is no such organization."),
        ):
            with pytest.raises(CommandError) as caught:
                run(organization, name, "--json")
            assert (caught.value.returncode, str(caught.value)) == (1, message)


def export(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("export_private_endpoints", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_import_command_reads_the_output_of_the_export_command(
    tenant: Tenant, row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tenant, row)
    key = str(tenant.organization.pk)
    file = tmp_path / "endpoints.jsonl"
    assert json.loads(export(key, str(file), "--json")[0]) == {"exported": {KIND: 1}}
    assert json.loads(run(key, str(file), "--json")[0])["unchanged"] == {KIND: 1}
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output))
    assert export(key, "-") == ("", f"1 {KIND}\n")
    assert output.getvalue() == file.read_bytes()


def test_the_export_command_refuses(tenant: Tenant, tmp_path: Path) -> None:
    key = str(tenant.organization.pk)
    for arguments, code, message in (
        ((str(uuid.uuid4()), str(tmp_path / "x")), 1, "There is no such organization."),
        (
            (key, str(tmp_path / "x.csv")),
            1,
            "Private endpoints are written as JSON lines; a .csv file would hold no CSV.",
        ),
        ((key, "-", "--json"), 2, "--json needs a FILE: standard output has the rows."),
    ):
        with pytest.raises(CommandError) as caught:
            export(*arguments)
        assert (caught.value.returncode, str(caught.value)) == (code, message)
    assert list(tmp_path.iterdir()) == []
