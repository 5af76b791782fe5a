"""The pages of routing, dialects, journeys and words list what the code has, and nothing twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Final

import pytest

from catalog.dialects.base import Operation
from catalog.models import DialectName
from catalog.operations import OPERATIONS
from catalog.visibility import Exclusion
from config.local.bootstrap import PROJECT
from endpoints.validation.probes import PROBES
from inference.exchange.rendering import ANSWERS
from inference.faces.routes import ROUTES
from inference.filters.places import PROMPTS
from inference.requests.operations import ROWS
from inference.routing.candidates import Unusable
from inference.routing.health import HealthState
from inference.routing.needs import Shortfall
from tests.support.markdown import read_tables

DOCS = PROJECT / "docs"
JOURNEYS_PAGE: Final = (DOCS / "journeys.md").read_text()
JOURNEYS: Final = dict(re.findall(r"^## (.+)\n\n([^#]+)", JOURNEYS_PAGE, re.MULTILINE))
_STEP: Final = re.compile(r"^\d+\. `([\w/]+\.py):([\w.]+)`(?: [^`]+\.)?$", re.MULTILINE)


def first_cells(page: str) -> list[str]:
    return [row[0] for row in read_tables(DOCS / page)]


def test_every_reason_of_an_exclusion_is_listed() -> None:
    rows = [row for row in read_tables(DOCS / "routing.md") if len(row) == 2]
    reasons = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert reasons == {*Unusable, *Exclusion, *Shortfall}


def test_every_state_of_health_is_listed() -> None:
    states = {state.replace("_", " ") for state in HealthState}
    assert {cell for cell in first_cells("routing.md") if cell in states} == states


def test_every_dialect_is_listed_with_its_operations() -> None:
    words = {operation.name.lower() for operation in Operation}
    listed = {
        row[0].strip("`"): row[2].split(", ")
        for row in read_tables(DOCS / "dialects.md")
        if len(row) == 3 and words.issuperset(row[2].split(", "))
    }
    modules = {path.stem for path in (PROJECT / "catalog" / "dialects").glob("[a-z]*")}
    assert listed.keys() == modules - {"base", "shared", "audio", "wholes"}
    assert listed.keys() >= {*DialectName.values}
    for name, operations in listed.items():
        module = import_module(f"catalog.dialects.{name}")
        assert operations == [each.name.lower() for each in Operation if each in module.operations]


def test_every_operation_and_its_routes_are_listed() -> None:
    rows = [row for row in read_tables(DOCS / "operations.md") if len(row) == 6]
    assert rows == [
        [
            f"`{operation}`",
            ", ".join(
                f"`{path.removeprefix('/api/v1')}`"
                for path, route in ROUTES.items()
                if route.operation is operation
            ),
            ", ".join(sorted(row.outputs)),
            "yes" if row.streams else "no",
            ", ".join(f"`{name}`" for name in row.proof) or "nothing",
            row.api_type,
        ]
        for operation, row in OPERATIONS.items()
    ]


def test_every_probe_is_listed() -> None:
    rows = [row[0] for row in read_tables(DOCS / "operations.md") if len(row) == 3]
    assert rows == [f"`{operation}`" for operation in PROBES]
    assert list(PROBES) == [name for name, row in OPERATIONS.items() if row.proven_by is None]


@pytest.mark.parametrize("table", [OPERATIONS, ROWS, PROMPTS, ANSWERS])
def test_every_table_has_every_operation(table: Mapping[Operation, object]) -> None:
    assert set(table) == set(Operation)


def test_every_word_has_one_meaning() -> None:
    words = [word for cell in first_cells("glossary.md") for word in cell.split(", ")]
    assert [word for word, count in Counter(words).items() if count > 1] == []


@cache
def read_source(path: str) -> str:
    return (PROJECT / path).read_text()


def find_definitions(node: ast.AST, scope: str = "") -> set[str]:
    """Returns the dotted names of all classes and functions in a module."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {scope + child.name} | find_definitions(child, f"{scope}{child.name}.")
    return found


def read_chains(text: str) -> list[list[tuple[str, str]]]:
    """Returns the numbered lists of a journey: the file and the name of each step."""
    return [found for block in text.split("\n\n") if (found := _STEP.findall(block))]


def test_the_page_of_journeys_has_six_and_no_line_that_is_not_checked() -> None:
    assert list(JOURNEYS) == [
        "A chat", "A stream that breaks off", "A private endpoint", "A price", "A top-up",
        "A guardrail",
    ]  # fmt: skip
    steps = sum(len(chain) for text in JOURNEYS.values() for chain in read_chains(text))
    assert steps == len(re.findall(r"^\d+\. ", JOURNEYS_PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", JOURNEYS)
def test_each_step_of_a_journey_is_defined_and_named_by_an_earlier_one(name: str) -> None:
    chains = read_chains(JOURNEYS[name])
    assert sum(map(len, chains)) in range(8, 13)
    for chain in chains:
        earlier = ""
        for path, step in chain:
            source = read_source(path)
            assert step in find_definitions(ast.parse(source)), f"{path} has no {step}"
            called = step.rpartition(".")[2]
            assert not earlier or re.search(rf"\b{called}\b", earlier), f"nothing calls {step}"
            earlier += source
