"""The quarantine: a test may fail for a week at most, with a reason, and is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.suite.quarantine import Entry, read_entries
from tests.support.suite.reach import ROOT

TODAY = date(2026, 3, 1)


@pytest.mark.parametrize(
    ("until", "problem"),
    [
        (date(2026, 3, 1), None),
        (date(2026, 3, 8), None),
        (date(2026, 2, 28), "t was in quarantine until 2026-02-28: mend it and remove the entry."),
        (date(2026, 3, 9), "t is in quarantine until 2026-03-09: a week is the longest time."),
    ],
)
def test_an_entry_lasts_a_week_at_most(until: date, problem: str | None) -> None:
    assert Entry("t", "reason", until).problem(TODAY) == problem


@pytest.mark.parametrize("missing", ["test", "reason", "until"])
def test_an_entry_needs_all_its_fields(tmp_path: Path, missing: str) -> None:
    fields = {"test": '"t"', "reason": '"why"', "until": "2026-03-01"}
    file = tmp_path / "quarantine.toml"
    file.write_text("[[tests]]\n" + "".join(f"{name} = {fields[name]}\n" for name in fields))
    assert read_entries(file) == [Entry("t", "why", TODAY)]
    del fields[missing]
    file.write_text("[[tests]]\n" + "".join(f"{name} = {fields[name]}\n" for name in fields))
    with pytest.raises(pytest.UsageError, match="an entry needs test, reason and until"):
        read_entries(file)


def run_with(folder: Path, until: date) -> subprocess.CompletedProcess[str]:
    """Runs a failing and a passing test, both in quarantine until a day."""
    (folder / "test_a.py").write_text("def test_bad(): assert 0\ndef test_good(): pass\n")
    entries = [
        f'[[tests]]\ntest = "test_a.py::test_{name}"\nreason = "why"\nuntil = {until}\n'
        for name in ("bad", "good")
    ]
    (folder / "quarantine.toml").write_text("".join(entries))
    plugins = ["-p", "tests.support.suite.quarantine", "-p", "no:django", "-p", "no:cacheprovider"]
    options = ["-c", os.devnull, "-o", "quarantine=quarantine.toml", "-ra"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugins, "test_a.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_quarantined_test_runs_and_is_reported_and_turns_nothing_red(tmp_path: Path) -> None:
    until = datetime.now(UTC).date() + timedelta(days=1)
    done = run_with(tmp_path, until)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 xfailed, 1 xpassed" in done.stdout
    assert f"XFAIL test_a.py::test_bad - quarantined until {until}: why" in done.stdout


def test_an_expired_entry_stops_the_run(tmp_path: Path) -> None:
    done = run_with(tmp_path, datetime.now(UTC).date() - timedelta(days=1))
    assert done.returncode == 4
    assert "test_bad was in quarantine until" in done.stderr
