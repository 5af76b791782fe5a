"""`export_generations`: every column, three formats, one organization, pages of constant size."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from django.core.management import CommandError, call_command
from rest_framework.test import APIClient

from accounts.models import ApiKey
from config.bulk import parquet
from config.local.bootstrap import install_command
from inference.archive import exports
from inference.archive.exports import COLUMNS
from inference.archive.retention import archive_due
from inference.models import Generation
from inference.reports.hours import sum_hours_again
from inference.reports.rollups import RowsArchived
from tests.support import factories
from tests.support.database import archive, snapshots
from tests.support.database.archive import HOUR
from tests.support.factories import Tenant

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)


def make(tenant: Tenant, moment: datetime, **fields: Any) -> Generation:
    made = f"gen-{int(moment.timestamp())}-{Generation.objects.count():020}"
    return factories.make_generation(tenant, id=made, created_at=moment, **fields)


@pytest.fixture
def other() -> Tenant:
    return factories.make_tenant("Other")


def export(path: Path, *arguments: str) -> int:
    report = archive.run("export_generations", str(path), *arguments)
    return int(report["exported"]["generations"])


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline="")))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_float=Decimal) for line in path.read_text().splitlines()]


def test_the_formats_have_the_same_rows(tenant: Tenant, tmp_path: Path) -> None:
    for number in range(3):
        make(
            tenant, NOON + number * HOUR, cost_nano=12_345 * number, prompt_tokens=number,
            end_user=f'user "{number}",\nü', upstream_cost_nano=2**40 + 1,
        )  # fmt: skip
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        assert export(tmp_path / name) == 3

    objects = read(tmp_path / "a.jsonl")
    lines = read_csv(tmp_path / "a.csv")
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    names = [column.name for column in COLUMNS]
    assert [list(row) for row in (objects[0], lines[0], table[0])] == [names] * 3
    costs = [Decimal(0), Decimal("0.000012345"), Decimal("0.00002469")]
    assert [row["cost_usd"] for row in objects] == costs
    assert [row["cost_usd"] for row in lines] == ["0", "0.000012345", "0.00002469"]
    assert [row["cost_usd"] for row in table] == costs
    assert {row["upstream_cost_usd"] for row in table} == {Decimal("1099.511627777")}
    assert {row["upstream_cost_usd"] for row in lines} == {"1099.511627777"}
    for kind in (objects, lines, table):
        assert [row["end_user"] for row in kind] == [f'user "{n}",\nü' for n in range(3)]
        assert [str(row["prompt_tokens"]) for row in kind] == ["0", "1", "2"]
    assert objects[1]["created_at"] == lines[1]["created_at"] == "2026-03-31T13:00:00.000000Z"
    assert table[1]["created_at"] == NOON + HOUR
    assert [lines[0]["streamed"], lines[0]["session_id"]] == ["false", ""]
    assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o600


def test_a_text_is_no_formula_of_a_spreadsheet(tenant: Tenant, tmp_path: Path) -> None:
    make(tenant, NOON, app_title="=HYPERLINK(1)", end_user="-1", session_id="'@x", model="a/b")
    export(tmp_path / "a.csv")
    export(tmp_path / "a.jsonl")
    [line] = read_csv(tmp_path / "a.csv")
    names = ("app_title", "end_user", "session_id", "model")
    assert [line[name] for name in names] == ["'=HYPERLINK(1)", "-1", "''@x", "a/b"]
    assert read(tmp_path / "a.jsonl")[0]["app_title"] == "=HYPERLINK(1)"


def test_an_organization_gets_its_own_rows_alone(
    tenant: Tenant, other: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "PAGE_ROWS", 2)
    mine = [make(tenant, NOON + number // 2 * HOUR).pk for number in range(5)]
    make(other, NOON, end_user="a stranger's user")
    path = tmp_path / "a.jsonl"

    assert export(path, "--organization", str(tenant.organization.pk)) == 5

    assert [row["id"] for row in read(path)] == mine
    assert "stranger" not in path.read_text()
    assert str(other.organization.pk) not in path.read_text()
    assert export(path) == 6


@pytest.mark.parametrize("of_one", [True, False])
def test_days_are_those_of_the_database_and_include_the_last(
    tenant: Tenant, tmp_path: Path, of_one: bool
) -> None:
    """The id has the second of a worker whose clock was a little late or ahead."""
    moments = [
        datetime(2026, 3, 29, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 30, tzinfo=UTC),
        datetime(2026, 3, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 4, 1, tzinfo=UTC),
    ]
    made = []
    for number, moment in enumerate(moments):
        skewed = int((moment + (-1) ** number * timedelta(minutes=2)).timestamp())
        row = factories.make_generation(tenant, id=f"gen-{skewed}-{number}", created_at=moment)
        made.append(row.pk)
    path = tmp_path / "a.jsonl"
    own = [f"--organization={tenant.organization.pk}"] if of_one else []

    def days(*arguments: str) -> set[str]:
        export(path, *arguments, *own)
        return {row["id"] for row in read(path)}

    assert days("--from=2026-03-30", "--to=2026-03-31") == {made[1], made[2]}
    assert days("--from=2026-03-31", "--to=2026-03-31") == {made[2]}
    assert days("--to=2026-03-29") == {made[0]}
    assert days("--from=2026-04-01") == {made[3]}
    assert days() == set(made)


@pytest.mark.parametrize(
    ("days", "count"),
    [
        (("--from=2000-01-01", "--to=2026-11-28"), 1),
        (("--from=2000-01-01",), 1),
        (("--to=2300-01-01",), 1),
        (("--from=0001-01-01", "--to=9999-12-31"), 1),
        (("--from=0001-01-01", "--to=2001-09-09"), 0),
        (("--from=2286-11-20",), 0),
        (("--from=9999-12-31",), 0),
        (("--to=0001-01-01",), 0),
    ],
)
def test_days_may_be_any_of_the_calendar(
    tenant: Tenant, tmp_path: Path, days: tuple[str, ...], count: int
) -> None:
    """The seconds of their moments have fewer or more digits than those of the rows."""
    made = make(tenant, NOON)
    path, names = tmp_path / "a.jsonl", [made.pk] * count
    for own in ((), (f"--organization={tenant.organization.pk}",)):
        path.write_text("an earlier export\n")
        assert export(path, *days, *own) == count
        assert [row["id"] for row in read(path)] == names


def test_pages_join_without_a_gap(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "PAGE_ROWS", 3)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    made = [make(tenant, NOON + number * HOUR).pk for number in range(9)]
    for name in ("a.jsonl", "a.parquet"):
        assert export(tmp_path / name) == 9
    assert [row["id"] for row in read(tmp_path / "a.jsonl")] == made
    table = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet")
    assert table.num_row_groups == 3
    assert table.read(["id"]).column("id").to_pylist() == made


def test_no_generations_are_a_file_without_rows(tmp_path: Path, db: None) -> None:
    assert [export(tmp_path / name) for name in ("a.csv", "a.jsonl", "a.parquet")] == [0, 0, 0]
    assert (tmp_path / "a.csv").read_text("utf-8-sig").startswith("id,created_at,organization_id,")
    assert (tmp_path / "a.jsonl").read_bytes() == b""
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet").num_rows == 0


def test_every_column_is_exported_or_left_out_for_a_reason() -> None:
    left_out = {
        "attempts", "attestation_id", "held_tokens", "hold_nano", "limit_subjects",
        "upstream_hold_nano", "cost_nano", "upstream_cost_nano", "reported_cost_nano",
    }  # fmt: skip
    named = {column.name for column in COLUMNS}
    stored = {field.column for field in Generation._meta.concrete_fields}
    assert stored - named == left_out
    assert named - stored == {
        "cost_usd", "upstream_cost_usd", "reported_cost_usd", "api_key_hash", "api_key_name",
    }  # fmt: skip


def test_a_row_has_its_key_as_the_api_shows_it_even_deleted(
    tenant: Tenant, management: APIClient, tmp_path: Path
) -> None:
    made = management.post("/api/v1/keys", {"name": "Büro"}).json()["data"]
    key = ApiKey.objects.get(digest=made["hash"])
    make(tenant, NOON, api_key=key)
    management.delete(f"/api/v1/keys/{made['hash']}")
    for own in ([], [f"--organization={tenant.organization.pk}"]):
        export(tmp_path / "a.jsonl", *own)
        [row] = read(tmp_path / "a.jsonl")
        assert (row["api_key_hash"], row["api_key_name"]) == (made["hash"], "Büro")
        assert row["api_key_id"] == str(key.pk)


def test_a_spreadsheet_takes_a_csv_file_for_utf_8(tenant: Tenant, tmp_path: Path) -> None:
    make(tenant, NOON, app_title="Büro")
    export(tmp_path / "a.csv")
    export(tmp_path / "a.jsonl")
    assert (tmp_path / "a.csv").read_bytes().startswith(b"\xef\xbb\xbfid,created_at,")
    assert (tmp_path / "a.jsonl").read_bytes().startswith(b'{"id"')


@pytest.fixture
def gone(tenant: Tenant, settings: Any) -> tuple[list[str], list[Generation]]:
    """The days of rows that were archived, and the rows that stay."""
    archive.let_leave(settings)
    month = archive.old_month()
    moments = [month + hours * HOUR for hours in (1, 2, 100)]
    for moment in moments:
        make(tenant, moment)
    archive.sum_all()
    assert archive_due() == 2
    stays = [make(tenant, archive.read_now() - HOUR)]
    return sorted({str(moment.date()) for moment in moments}), stays


def test_archived_days_are_named_and_nothing_is_written(
    tenant: Tenant, other: Tenant, tmp_path: Path, gone: tuple[list[str], list[Generation]]
) -> None:
    days, stays = gone
    path = tmp_path / "a.jsonl"
    for arguments, named in (
        ([], days), ([f"--from={days[1]}"], days[1:]), ([f"--to={days[0]}"], days[:1]),
        ([f"--organization={tenant.organization.pk}"], days),
    ):  # fmt: skip
        with pytest.raises(CommandError) as caught:
            export(path, *arguments)
        assert caught.value.returncode == 1
        assert str(caught.value) == (
            f"Generations of these days are archived: {', '.join(named)}. Nothing was written. "
            "--partial writes the others."
        )
        assert not path.exists()
    day = stays[0].created_at.date()
    assert export(path, f"--from={day}") == 1
    assert export(path, f"--organization={other.organization.pk}") == 0

    output, told = io.StringIO(), io.StringIO()
    call_command("export_generations", str(path), "--partial", "--json", stdout=output, stderr=told)
    assert json.loads(output.getvalue()) == {"exported": {"generations": 1}, "missing_days": days}
    assert f"left out, because they are archived: {', '.join(days)}\n" in told.getvalue()
    assert [row["id"] for row in read(path)] == [stays[0].pk]


def test_a_day_whose_first_moment_left_with_the_month_before_is_named(
    tenant: Tenant, other: Tenant, tmp_path: Path, settings: Any
) -> None:
    archive.let_leave(settings)
    border = archive.months()[2]
    split = f"gen-{int(border.timestamp()) - 1}-{0:020}"
    factories.make_generation(
        tenant, id=split, created_at=border + timedelta(milliseconds=10), cost_nano=7
    )
    make(tenant, border + HOUR)
    make(other, border + HOUR)
    make(tenant, border + 25 * HOUR)
    archive.sum_all()
    path, day = tmp_path / "a.jsonl", border.date()
    own = f"--organization={tenant.organization.pk}"
    assert export(path, f"--from={day}") == 4
    assert export(path, f"--from={day}", own) == 3
    path.unlink()

    assert archive_due() == 2

    assert not Generation.objects.filter(pk=split).exists()
    for arguments in ([], [f"--from={day}"], [f"--from={day}", f"--to={day}", own]):
        with pytest.raises(CommandError, match=f"these days are archived: {day}. Nothing was"):
            export(path, *arguments)
        assert not path.exists()
    assert export(path, f"--from={day}", f"--organization={other.organization.pk}") == 1
    assert export(path, f"--from={day + timedelta(days=1)}") == 1
    assert export(path, f"--from={day}", "--partial") == 3
    for first in (day, day - timedelta(days=1)):
        with (
            snapshots.unchanged(),
            pytest.raises(CommandError, match="are archived, so their sums cannot be made again"),
        ):
            call_command("sum_usage", f"--from={first}", f"--to={day}")
    with snapshots.unchanged(), pytest.raises(RowsArchived, match=f"^Generations of {day} are"):
        sum_hours_again(border, archive.read_now())
    later = day + timedelta(days=1)
    assert archive.run("sum_usage", f"--from={later}", f"--to={later}")["days"] == 1


@pytest.fixture
def without_pyarrow() -> Iterator[None]:
    parquet.load_pyarrow.cache_clear()
    names = [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]
    kept = {name: sys.modules.pop(name) for name in names}
    sys.modules["pyarrow.parquet"] = sys.modules["pyarrow"] = None  # type: ignore[assignment]
    yield
    sys.modules.update(kept)
    parquet.load_pyarrow.cache_clear()


@pytest.mark.usefixtures("without_pyarrow")
def test_parquet_without_pyarrow_names_the_extra(db: None, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(CommandError) as refusal:
        export(path)
    assert refusal.value.returncode == 1
    assert install_command("parquet") in str(refusal.value)
    assert not path.exists()
    assert export(tmp_path / "a.csv") == 0


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--from=2026-03-31", "--to=2026-03-30"], "is before --from", 1),
        (["--organization=1"], "must be the ID", 2),
        (["--organization=00000000-0000-4000-8000-000000000000"], "There is no organization", 1),
    ],
)
def test_a_wrong_argument_writes_nothing(
    db: None, tmp_path: Path, arguments: list[str], message: str, code: int
) -> None:
    before, path = snapshots.everything(), tmp_path / "a.csv"
    with pytest.raises(CommandError, match=message) as refusal:
        call_command("export_generations", str(path), *arguments)
    assert refusal.value.returncode == code
    assert not path.exists()
    assert snapshots.everything() == before


def test_standard_output_has_rows_or_the_report(db: None, capfdbinary: Any) -> None:
    with pytest.raises(CommandError, match="--json needs a FILE"):
        call_command("export_generations", "-", "--json")
    call_command("export_generations", "-", "--format=parquet")
    written = capfdbinary.readouterr().out
    assert (written[:4], written[-4:]) == (b"PAR1", b"PAR1")


def test_pyarrow_is_loaded_for_parquet_alone() -> None:
    """It takes 60 MB, which no server and no duty should pay."""
    probe = "import sys, config.bulk.tables; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
