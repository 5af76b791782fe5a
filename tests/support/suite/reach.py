"""What a test can start, read from the sources: its fixtures, its helpers and what they call.

The graph has one node for each top-level name of a module below ``tests/``. A function refers to
the names that its body and its decorators use, and to the fixtures that its parameters name. The
names of other packages are leaves. Instances are not followed: what has one has called its class.
"""

from __future__ import annotations

import ast
import os
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
TESTS: Final = ROOT / "tests"
_KEPT: Final = ROOT / ".pytest_cache" / "reach"

# Calls that begin a process, or that this module cannot follow. The dotted name of a module stands
# for all that is in it. A service in the tests' process starts one to read a PDF file.
STARTERS: Final = frozenset({
    "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
    "config.local.installer", "config.local.postgres.ensure_running",
    "config.local.postgres.throwaway", "config.management.commands.demo",
    "config.server.processes.supervisor.run", "importlib.import_module", "inference.documents",
    "multiprocessing", "os.execv", "os.fork", "os.posix_spawn", "os.system",
    "playwright.sync_api.sync_playwright",
    "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "subprocess.run", "tests.support.inference.pdf_files",
})  # fmt: skip


@dataclass
class Module:
    """What one module imports and defines, and what each of its definitions refers to."""

    path: str
    aliases: dict[str, str] = field(default_factory=dict)
    references: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    requests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    automatic: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)

    @cached_property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def tests(self) -> list[str]:
        is_tested = self.path.rpartition("/")[2].startswith("test_")
        return [name for name in self.requests if is_tested and name.startswith("test")]

    def id_of(self, name: str) -> str:
        return f"{self.path}::{name}"


class Sources:
    """The modules below a folder of tests, and who refers to what in them."""

    def __init__(self, folder: Path = TESTS) -> None:
        self._modules = {module.dotted: module for module in read_modules(folder)}
        self._users: dict[str, set[str]] = defaultdict(set)
        for module in self._modules.values():
            for user, used in _find_edges(module, self._modules):
                self._users[used].add(user)

    @property
    def tests(self) -> Iterator[str]:
        """The ids of all test functions, without their cases."""
        for module in self._modules.values():
            yield from (module.id_of(name) for name in module.tests)

    def find_tests_that_reach(
        self, targets: Iterable[str], *, without: Iterable[str] = ()
    ) -> set[str]:
        """Returns the tests that reach one of the dotted names by a way around ``without``."""
        targets, reached = tuple(targets), set(without)
        waiting = [name for name in self._users if _is_below(name, targets)]
        while waiting:
            if (name := waiting.pop()) not in reached:
                reached.add(name)
                waiting += self._users[name]
        return {
            module.id_of(name)
            for module in self._modules.values()
            for name in module.tests
            if f"{module.dotted}.{name}" in reached
        }


def read_modules(folder: Path) -> list[Module]:
    """Reads the modules of a folder; those of the tests are kept, because that takes two seconds.

    A kept one counts while its file, and this one, have the same time and size.
    """
    kept: dict[tuple[str, int, int], Module] = {}
    version = _identify(Path(__file__))
    if folder == TESTS:
        with suppress(FileNotFoundError):
            written, found = pickle.loads(_KEPT.read_bytes())
            kept = found if written == version else {}
    paths = {_identify(path): path for path in sorted(folder.rglob("*.py"))}
    modules = {name: kept.get(name) or read_module(path) for name, path in paths.items()}
    if folder == TESTS and modules.keys() != kept.keys():
        with suppress(OSError):
            _KEPT.parent.mkdir(exist_ok=True)
            unfinished = _KEPT.with_name(f"{_KEPT.name}.{os.getpid()}")
            unfinished.write_bytes(pickle.dumps((version, modules)))
            unfinished.replace(_KEPT)
    return [*modules.values()]


def _identify(path: Path) -> tuple[str, int, int]:
    state = path.stat()
    return str(path), state.st_mtime_ns, state.st_size


def read_module(path: Path) -> Module:
    """Reads what a module imports, defines and requests."""
    module = Module(path.relative_to(ROOT).as_posix())
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            module.requests[node.name].update(argument.arg for argument in arguments)
            if any(_is_automatic(decorator) for decorator in node.decorator_list):
                module.automatic.add(node.name)
            names, requests = {node.name}, module.requests[node.name]
        elif isinstance(node, ast.ClassDef):
            names, requests = {node.name}, set()
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
            requests = module.marks if "pytestmark" in names else set()
        else:
            names, requests = set(), set()
        uses: set[str] = set()
        _read(node, uses, requests, module.aliases)
        for name in names:
            module.references[name] |= uses
    return module


def _read(node: ast.AST, uses: set[str], requests: set[str], aliases: dict[str, str]) -> None:
    """Collects the names that a piece of code uses, the fixtures it requests and its imports.

    Annotations use nothing.
    """
    if isinstance(node, ast.Name):
        uses.add(node.id)
        return
    if isinstance(node, ast.Attribute) and (dotted := _name_of(node)):
        uses.add(dotted)
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        aliases.update(_find_aliases(node))
        return
    if isinstance(node, ast.Call):
        called = _name_of(node.func).rpartition(".")[2]
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        if called in ("usefixtures", "getfixturevalue"):
            requests.update(texts)
        elif called == "import_module" and texts:
            uses.update(texts)
            return
    for part in node._fields:
        if part in ("annotation", "returns"):
            continue
        value = getattr(node, part, None)
        if isinstance(value, ast.AST):
            _read(value, uses, requests, aliases)
        elif isinstance(value, list):
            for child in value:
                if isinstance(child, ast.AST):
                    _read(child, uses, requests, aliases)


def _find_aliases(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Returns what the names that an import binds stand for."""
    if isinstance(node, ast.ImportFrom):
        return {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    # ``import a.b`` binds ``a``; the attributes of a use say the rest.
    found = {}
    for name in node.names:
        bound = name.asname or name.name.partition(".")[0]
        found[bound] = name.name if name.asname else bound
    return found


def _is_automatic(decorator: ast.expr) -> bool:
    return (
        isinstance(decorator, ast.Call)
        and _name_of(decorator.func) == "pytest.fixture"
        and any(keyword.arg == "autouse" for keyword in decorator.keywords)
    )


def _name_of(node: ast.expr) -> str:
    """Returns ``a.b.c`` for such an expression, and nothing for another one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _name_of(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _find_edges(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    """Yields each definition of a module with each dotted name that it refers to."""
    tests = set(module.tests)
    for name, uses in module.references.items():
        for use in uses:
            yield f"{module.dotted}.{name}", _resolve(module, use, modules)
    for name, fixtures in module.requests.items():
        wanted = fixtures | module.marks if name in tests else fixtures
        for fixture in wanted:
            if found := _find_fixture(module, name, fixture, modules):
                yield f"{module.dotted}.{name}", found
    for place in _find_places(module, modules):
        for fixture in place.automatic:
            for name in tests:
                yield f"{module.dotted}.{name}", f"{place.dotted}.{fixture}"


def _resolve(module: Module, use: str, modules: dict[str, Module]) -> str:
    """Returns the full name of what a module calls ``use``."""
    first, _, rest = use.partition(".")
    if first in module.references:
        return f"{module.dotted}.{first}"
    if first not in module.aliases:
        return use
    dotted = module.aliases[first] + (f".{rest}" if rest else "")
    owner, _, attribute = dotted.partition(".")
    # The longest name of a module of the tests that it begins with.
    while f"{owner}.{attribute.partition('.')[0]}" in modules:
        head, _, attribute = attribute.partition(".")
        owner = f"{owner}.{head}"
    if owner not in modules or not attribute:
        return dotted
    name = attribute.partition(".")[0]
    there = modules[owner]
    if name in there.references or name not in there.aliases:
        return f"{owner}.{name}"
    return _resolve(there, attribute, modules)


def _find_places(module: Module, modules: dict[str, Module]) -> Iterator[Module]:
    """Yields the module and then the conftests above it, the nearest first."""
    folders = module.dotted.split(".")[:-1]
    if not module.path.endswith("/conftest.py"):
        yield module
    for depth in range(len(folders), 0, -1):
        if place := modules.get(".".join([*folders[:depth], "conftest"])):
            yield place


def _find_fixture(
    module: Module, requester: str, fixture: str, modules: dict[str, Module]
) -> str | None:
    for place in _find_places(module, modules):
        if place is module and requester == fixture:
            # A fixture that requests its own name extends the one above it.
            continue
        if fixture in place.requests:
            return f"{place.dotted}.{fixture}"
        if fixture in place.aliases:
            return _resolve(place, fixture, modules)
    return None


def _is_below(name: str, targets: tuple[str, ...]) -> bool:
    return any(name == target or name.startswith(f"{target}.") for target in targets)
