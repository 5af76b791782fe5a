"""How the tests are laid out: by rooms, in files that share code through ``support``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.suite.quarantine import read_entries
from tests.support.suite.reach import Sources
from tests.support.suite.tiers import Rules, function_of, path_of

TESTS: Final = Path(__file__).parent
FILES: Final = sorted(TESTS.rglob("*.py"))
MAX_ENTRIES: Final = 16


def find_imports(path: Path) -> Iterator[str]:
    """Yields the dotted name of each module, and of each name in it, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_test_module(dotted: str) -> bool:
    parts = dotted.split(".")
    return parts[0] == "tests" and any(
        part.startswith("test_") or part == "conftest" for part in parts[1:]
    )


def test_no_module_imports_a_test_module_or_a_conftest() -> None:
    """What two test modules share stands in ``tests/support`` or is a fixture of their room."""
    found = [
        (str(path.relative_to(TESTS)), name)
        for path in FILES
        for name in find_imports(path)
        if is_test_module(name)
    ]
    assert found == []


def test_folders_have_few_modules() -> None:
    modules = [path for path in FILES if path.name != "__init__.py"]
    counts = {
        str(folder.relative_to(TESTS)): sum(path.parent == folder for path in modules)
        for folder in {path.parent for path in modules}
    }
    assert {folder: count for folder, count in counts.items() if count > MAX_ENTRIES} == {}


@pytest.mark.parametrize("name", ["helpers", "utils", "misc", "common"])
def test_no_module_has_a_name_without_a_subject(name: str) -> None:
    assert [path for path in FILES if name in path.parts or path.stem == name] == []


def test_every_test_that_the_tiers_and_the_quarantine_name_exists() -> None:
    tests = set(Sources().tests)
    known = tests | {path_of(test) for test in tests}
    names = Rules.read().names | {entry.test for entry in read_entries()}
    assert [name for name in sorted(names) if function_of(name) not in known] == []
