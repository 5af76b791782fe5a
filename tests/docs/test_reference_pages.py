"""The pages of routing, dialects and words list what the code has, and nothing twice."""

from __future__ import annotations

import re
from collections import Counter

from catalog.models import DialectName
from catalog.visibility import Exclusion
from config.local.bootstrap import PROJECT
from inference.routing.candidates import Unusable
from inference.routing.health import HealthState
from inference.routing.needs import Shortfall
from tests.support.markdown import read_tables

DOCS = PROJECT / "docs"


def first_cells(page: str) -> list[str]:
    return [row[0] for row in read_tables(DOCS / page)]


def test_every_reason_of_an_exclusion_is_listed() -> None:
    rows = [row for row in read_tables(DOCS / "routing.md") if len(row) == 2]
    reasons = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert reasons == {*Unusable, *Exclusion, *Shortfall}


def test_every_state_of_health_is_listed() -> None:
    states = {state.replace("_", " ") for state in HealthState}
    assert {cell for cell in first_cells("routing.md") if cell in states} == states


def test_every_dialect_is_listed() -> None:
    modules = {path.stem for path in (PROJECT / "catalog" / "dialects").glob("[a-z]*")}
    listed = {cell.strip("`") for cell in first_cells("dialects.md") if cell.startswith("`")}
    assert listed == modules - {"base", "shared"}
    assert listed >= {*DialectName.values}


def test_every_word_has_one_meaning() -> None:
    words = [word for cell in first_cells("glossary.md") for word in cell.split(", ")]
    assert [word for word, count in Counter(words).items() if count > 1] == []
