"""How the product is laid out: a subject ends a file, a class or a folder; functions are short."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
APPS: Final = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")

MAX_FUNCTION_LINES: Final = 60
MAX_PARAMETERS: Final = 6
MAX_ENTRIES: Final = 16
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

# Functions with more parameters than the rule allows. A name may leave this table, none may come.
LARGE_FOLDERS: Final = {
    "inference": "The application of the data plane with its store, and every room of it.",
    "inference/sql": "One file for each statement; their names say which room runs them.",
    "config": "The project package holds the settings, the routes and every room of the floor.",
}
MANY_PARAMETERS: Final = {
    "accounts/policy.py:Policy.of",
    "accounts/webhooks/models.py:SubscriptionManager.create_subscription",
    "billing/ledger.py:_post",
    "catalog/dialects/shared/replies.py:build_chunk",
    "catalog/lists/listing.py:_build_offer",
    "catalog/sync/offers.py:describe_model",
    "catalog/sync/run.py:sync_list",
    "config/changes/pages.py:GuardedPage.make_proposal",
    "config/console/actions.py:transition",
    "config/server/batching/lanes.py:Lanes.__init__",
    "config/server/batching/lanes.py:Sides.__init__",
    "endpoints/validation/calls.py:DeploymentCaller.__init__",
    "inference/admission/budgets.py:Budgets.take",
    "inference/admission/copies/catalog.py:make_provider",
    "inference/admission/decide.py:_judge_shadows",
    "inference/exchange/attempts.py:Attempts.__init__",
    "inference/exchange/metadata.py:routing_metadata",
    "inference/repeats/answers.py:KeptAnswers.keep",
    "inference/requests/responses/envelope.py:Envelope.render",
}
IMPORTS_IN_FUNCTIONS: Final[dict[str, str]] = {}
# Public classes of one name in several modules, whose name somebody else fixes.
SHARED_NAMES: Final = {"Command", "DatabaseWrapper"}


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """Lets a million objects go, which each later collection of garbage would visit."""
    yield
    product_modules.cache_clear()


@cache
def product_modules() -> list[tuple[str, ast.Module]]:
    """Returns the path and the syntax tree of each module but migrations."""
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for app in APPS
        for path in sorted((ROOT / app).rglob("*.py"))
        if "migrations" not in path.parts
    ]


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


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(name.arg not in {"self", "cls"} for name in names)


def test_functions_are_short() -> None:
    found = {
        f"{name}:{scope}": node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]
        for name, tree in product_modules()
        for scope, node in qualified(tree, is_function)
    }
    assert {name: lines for name, lines in found.items() if lines > MAX_FUNCTION_LINES} == {}


def test_functions_have_few_parameters() -> None:
    found = {
        f"{name}:{scope}"
        for name, tree in product_modules()
        for scope, node in qualified(tree, is_function)
        if count_parameters(node) > MAX_PARAMETERS  # type: ignore[arg-type]
    }
    assert found == MANY_PARAMETERS


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
    assert found.keys() == LARGE_FOLDERS.keys(), found


def test_names_have_a_subject() -> None:
    found = [
        name
        for name, _ in product_modules()
        if set(Path(name).with_suffix("").parts) & NAMES_WITHOUT_A_SUBJECT
    ]
    assert found == []


def test_public_classes_have_names_of_their_own() -> None:
    """A reader who meets a name twice must not find two things."""
    found = defaultdict(list)
    for name, tree in product_modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    twice = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert twice.keys() == SHARED_NAMES, twice


def test_imports_stand_at_the_top() -> None:
    """An import inside a function hides a cycle, or an edge that the contracts forbid."""
    found = {
        f"{name}:{scope}"
        for name, tree in product_modules()
        for scope, node in qualified(
            tree, lambda node: isinstance(node, ast.Import | ast.ImportFrom)
        )
        if scope
    }
    assert found <= IMPORTS_IN_FUNCTIONS.keys()
