"""A fold is brought back row for row, beside a ledger that stays in order."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection

from billing.models import Fold
from config.partitions.tables import list_partitions
from inference.archive.plans import DirectoryPlace
from inference.archive.retention import archive_due
from tests.support.database import archive, snapshots
from tests.support.database.archive import HOUR, TABLES
from tests.support.factories import Tenant


@pytest.fixture
def stored(tenant: Tenant, tmp_path: Path, settings: LazySettings) -> dict[str, list[Any]]:
    """The rows of two months by their partition, before both were archived."""
    archive.let_leave(settings, DirectoryPlace(tmp_path / "archive"))
    for month in archive.months()[:2]:
        archive.fill(tenant, month + HOUR)
    archive.sum_all()
    names = [each.name for table in TABLES for each in list_partitions(table)[:2]]
    rows = {name: archive.dump(name) for name in names}
    assert archive_due() == 2
    return rows


def restored_tables() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relname LIKE 'archived%' ORDER BY 1")
        return [name for (name,) in cursor.fetchall()]


def run(*arguments: str) -> dict[str, Any]:
    return archive.run("restore_generations", *arguments)


def test_a_fold_is_restored_row_for_row(stored: dict[str, list[Any]]) -> None:
    [first, second] = run()["folds"]
    assert (first["fold"], second["begin"]) == (1, first["end"])
    before = archive.balances()

    found = run("1")["restored"]

    names = [name for name in stored if f"archived_{name}" in found]
    assert len(names) == 2
    for name in names:
        assert archive.dump(f"archived_{name}") == stored[name]
        assert found[f"archived_{name}"] == len(stored[name]) > 0
    assert archive.verify() == []
    assert archive.balances() == before
    assert sorted(run("1", "--drop")["dropped"]) == sorted(found)
    assert restored_tables() == []
    assert archive.verify() == []


def test_people_read_names_and_numbers(stored: dict[str, list[Any]]) -> None:
    said = io.StringIO()
    call_command("restore_generations", stdout=said)
    call_command("restore_generations", "1", stdout=said)
    listed, _, restored = said.getvalue().splitlines()
    for file in Fold.objects.get(number=1).files:
        assert f"{file['name']} ({file['rows']} rows)" in listed
        assert f"archived_{file['table']} ({file['rows']} rows)" in restored
    assert re.findall("{|None", said.getvalue()) == []


def test_an_altered_file_is_refused(stored: dict[str, list[Any]], settings: LazySettings) -> None:
    """The file of another month is whole, and still not the one that was archived."""
    first, second = Fold.objects.order_by("number")
    path = settings.ARCHIVE_PLACE.path
    (path / first.files[0]["name"]).write_bytes((path / second.files[0]["name"]).read_bytes())
    refuse("1", "has not the 6 rows that were archived")


def test_a_broken_file_is_refused(stored: dict[str, list[Any]], settings: LazySettings) -> None:
    path = settings.ARCHIVE_PLACE.path / Fold.objects.get(number=1).files[1]["name"]
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    refuse("1", "not a Parquet file")
    path.write_bytes(whole[:4] + bytes(byte ^ 255 for byte in whole[4:300]) + whole[300:])
    refuse("1", "a damaged Parquet file")
    path.unlink()
    refuse("1", "No such file or directory")


def test_a_fold_whose_seal_is_wrong_is_refused(
    stored: dict[str, list[Any]], settings: LazySettings
) -> None:
    settings.SECRET_KEY = "another-secret-key-another-secret-key"
    refuse("1", "The seal of fold 1 is wrong; run verify_ledger")


def test_a_restored_fold_is_not_restored_twice(stored: dict[str, list[Any]]) -> None:
    run("2")
    before = restored_tables()
    with pytest.raises(CommandError, match="exists already; drop it with --drop"):
        run("2")
    assert restored_tables() == before


def test_unknown_folds_and_places_are_refused(
    stored: dict[str, list[Any]], settings: LazySettings, tmp_path: Path
) -> None:
    refuse("3", "There is no fold 3")
    settings.ARCHIVE_PLACE = None
    refuse("1", "There is no ARCHIVE_URL; say with --archive")
    with pytest.raises(CommandError, match="a directory needs its whole path") as refusal:
        run("1", "--archive=here")
    assert refusal.value.returncode == 2
    assert len(run("1", f"--archive={tmp_path}/archive")["restored"]) == 2


def refuse(fold: str, message: str) -> None:
    """Restoring ends with exit code 1 and the message, and changes nothing."""
    before, tables = snapshots.everything(), restored_tables()
    with pytest.raises(CommandError, match=message) as refusal:
        run(fold)
    assert refusal.value.returncode == 1
    assert (snapshots.everything(), restored_tables()) == (before, tables)
