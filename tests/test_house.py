"""How the product is laid out: short files, classes and functions in folders with one subject."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
APPS: Final = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")

MAX_FILE_LINES: Final = 600
MAX_CLASS_LINES: Final = 250
MAX_FUNCTION_LINES: Final = 60
MAX_ENTRIES: Final = 12
# Django or the packaging fixes these names, so they say nothing about how many subjects there are.
FIXED_NAMES: Final = {
    "__init__.py",
    "__pycache__",
    "admin",
    "admin.py",
    "apps.py",
    "management",
    "migrations",
    "models",
    "models.py",
    "serializers",
    "serializers.py",
    "static",
    "templates",
    "views",
    "views.py",
}
NAMES_WITHOUT_A_SUBJECT: Final = {
    "common",
    "constants",
    "helpers",
    "misc",
    "selectors",
    "services",
    "signals",
    "utils",
}

# Everything that is longer than the rule allows, with the reason.
LONG_FILES: Final[dict[str, str]] = {}
LONG_CLASSES: Final = {
    "endpoints/models/endpoint.py:PrivateEndpoint": "It has a method for each arrow of its states.",
}
LONG_FUNCTIONS: Final[dict[str, str]] = {}
LARGE_FOLDERS: Final = {
    "config": "The project package holds the settings, the routes and every room of the floor.",
    "inference": "The application of the data plane with its store, and every room of it.",
    "inference/sql": "One file for each statement; their names say which room runs them.",
}
IMPORTS_IN_FUNCTIONS: Final[dict[str, str]] = {}


def product_modules() -> Iterator[tuple[str, ast.Module, int]]:
    """Yields the path, the syntax tree and the number of lines of each module but migrations."""
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            if "migrations" not in path.parts:
                source = path.read_text()
                name = path.relative_to(ROOT).as_posix()
                yield name, ast.parse(source), len(source.splitlines())


def qualified(
    tree: ast.AST, wanted: Callable[[ast.AST], bool], outer: tuple[str, ...] = ()
) -> Iterator[tuple[str, ast.AST]]:
    """Yields each wanted node of a tree with the dotted name of the scope that holds it."""
    for node in ast.iter_child_nodes(tree):
        is_scope = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        scope = (*outer, node.name) if is_scope else outer
        if wanted(node):
            yield ".".join(scope), node
        yield from qualified(node, wanted, scope)


def is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def find_longer_than(limit: int, wanted: Callable[[ast.AST], bool]) -> dict[str, int]:
    lengths = {
        f"{name}:{scope}": node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]
        for name, tree, _ in product_modules()
        for scope, node in qualified(tree, wanted)
    }
    return {name: lines for name, lines in lengths.items() if lines > limit}


def test_files_are_short() -> None:
    found = {name: lines for name, _, lines in product_modules() if lines > MAX_FILE_LINES}
    assert found.keys() <= LONG_FILES.keys(), found


def test_classes_are_short() -> None:
    found = find_longer_than(MAX_CLASS_LINES, is_class)
    assert found.keys() <= LONG_CLASSES.keys(), found


def test_functions_are_short() -> None:
    found = find_longer_than(MAX_FUNCTION_LINES, is_function)
    assert found.keys() <= LONG_FUNCTIONS.keys(), found


def test_folders_have_few_entries() -> None:
    folders = {ROOT / app for app in APPS} | {
        path
        for app in APPS
        for path in (ROOT / app).rglob("*")
        if path.is_dir() and not FIXED_NAMES & {path.name, path.parent.name, *path.parts}
    }
    counts = {
        folder.relative_to(ROOT).as_posix(): sum(
            entry.name not in FIXED_NAMES for entry in folder.iterdir()
        )
        for folder in folders
    }
    found = {name: count for name, count in counts.items() if count > MAX_ENTRIES}
    assert found.keys() <= LARGE_FOLDERS.keys(), found


def test_names_have_a_subject() -> None:
    found = [
        name
        for name, _, _ in product_modules()
        if set(Path(name).with_suffix("").parts) & NAMES_WITHOUT_A_SUBJECT
    ]
    assert found == []


def test_imports_stand_at_the_top() -> None:
    """An import inside a function hides a cycle, or an edge that the contracts forbid."""
    found = {
        f"{name}:{scope}"
        for name, tree, _ in product_modules()
        for scope, node in qualified(
            tree, lambda node: isinstance(node, ast.Import | ast.ImportFrom)
        )
        if scope
    }
    assert found <= IMPORTS_IN_FUNCTIONS.keys()
