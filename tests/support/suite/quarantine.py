"""pytest plugin: the tests of ``tests/quarantine.toml`` run and are reported, but may fail.

An entry that has expired, or lasts longer than a week, stops the run.
"""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.suite.reach import TESTS

FILE: Final = TESTS / "quarantine.toml"
LONGEST: Final = datetime.timedelta(days=7)


@dataclass(frozen=True)
class Entry:
    """A test that may fail until the end of a day."""

    test: str
    reason: str
    until: datetime.date

    def problem(self, today: datetime.date) -> str | None:
        if today > self.until:
            return (
                f"{self.test} was in quarantine until {self.until}: mend it and remove the entry."
            )
        if self.until > today + LONGEST:
            return f"{self.test} is in quarantine until {self.until}: a week is the longest time."
        return None


def read_entries(file: Path = FILE) -> list[Entry]:
    """Returns the entries; raises UsageError for one that lacks a field."""
    entries = []
    for table in tomllib.loads(file.read_text()).get("tests", []):
        reason, until = table.get("reason"), table.get("until")
        if not table.get("test") or not reason or type(until) is not datetime.date:
            raise pytest.UsageError(f"{file.name}: an entry needs test, reason and until: {table}")
        entries.append(Entry(table["test"], reason, until))
    return entries


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("quarantine", "the file of the tests that may fail", default=str(FILE))


def pytest_configure(config: pytest.Config) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    for entry in read_entries(Path(config.getini("quarantine"))):
        if problem := entry.problem(today):
            raise pytest.UsageError(f"tests/quarantine.toml: {problem}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    entries = {entry.test: entry for entry in read_entries(Path(config.getini("quarantine")))}
    for item in items:
        if entry := entries.get(item.nodeid) or entries.get(item.nodeid.partition("[")[0]):
            text = f"quarantined until {entry.until}: {entry.reason}"
            item.add_marker(pytest.mark.xfail(reason=text, strict=False))
