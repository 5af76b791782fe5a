"""What lets a test fail by chance: a few kinds stand nowhere, the others only become fewer.

The tables count what is left by room. Whoever removes some lowers the number; none may come.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
# The loop that waits, and what is no test: benchmarks, drills and the simulated provider take time.
WAITING: Final = "support/machine/waiting.py"
UNTESTED: Final = ("bench/", "drills/", "support/simulator/")
# Modules whose functions other threads call. The file is a process of its own.
SHARED: Final = {
    "asyncio", "datetime", "json", "os", "random", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
MOVED: Final = "support/inference/moving.py"

SLEEPS: Final = {
    "attack": 1,
    "bulkheads": 2,
    "config": 39,
    "docs": 1,
    "inference": 20,
    "support": 11,
}
DEADLINES: Final = {"config": 2, "inference": 1, "support": 2}
BOUNDS: Final = {
    "accounts": 4,
    "attack": 2,
    "billing": 1,
    "browser": 3,
    "bulkheads": 2,
    "catalog": 13,
    "config": 7,
    "contract": 1,
    "docs": 5,
    "inference": 19,
    "support": 1,
}


@pytest.fixture(scope="module", autouse=True)
def _forget_nodes() -> Iterator[None]:
    """Lets a million objects go, which each later collection of garbage would visit."""
    yield
    parse_tests.cache_clear()


@cache
def parse_tests() -> list[tuple[str, ast.AST]]:
    """Returns each node of each file with the path of the file."""
    return [
        (path.relative_to(TESTS).as_posix(), node)
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(
            node, ast.Call | ast.BinOp | ast.Assert | ast.With | ast.Constant | ast.Assign
        )
    ]


def calls(node: ast.AST, *names: str) -> bool:
    """Returns whether a node is a call of a function with one of these last names."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in names


def is_sleep(node: ast.AST) -> bool:
    """Returns whether it passes time; a sleep of 0 gives the event loop a turn."""
    return calls(node, "sleep") and ast.unparse(node.args[0]) != "0"  # type: ignore[attr-defined]


def is_deadline(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and any(calls(side, "monotonic", "perf_counter") for side in (node.left, node.right))
    )


def is_bound(node: ast.AST) -> bool:
    """Returns whether it asserts that a number of things is not below or above another one."""
    return isinstance(node, ast.Assert) and any(
        isinstance(each, ast.Compare)
        and any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in each.ops)
        and any(calls(side, "len", "count", "sum") for side in (each.left, *each.comparators))
        for each in ast.walk(node.test)
    )


def binds_socket(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        calls(item.context_expr, "socket", "create_server") for item in node.items
    )


def lets_port_go(node: ast.AST) -> bool:
    """Returns whether a block closes a socket and gives away the number of its port."""
    if not binds_socket(node):
        return False
    returned = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
    return any("getsockname" in ast.unparse(each) for each in returned)


@pytest.mark.parametrize(
    ("is_meant", "allowed"),
    [(is_sleep, SLEEPS), (is_deadline, DEADLINES), (is_bound, BOUNDS)],
    ids=["sleeps", "deadlines", "bounds"],
)
def test_what_depends_on_time_only_becomes_less(
    is_meant: Callable[[ast.AST], bool], allowed: dict[str, int]
) -> None:
    """An event is awaited, ``wait_until`` waits for other processes, and a number is exact."""
    found = Counter(
        name.rpartition("/")[0].partition("/")[0]
        for name, node in parse_tests()
        if name != WAITING and not name.startswith(UNTESTED) and is_meant(node)
    )
    assert dict(found) == allowed


def test_no_port_is_picked_and_let_go() -> None:
    """Another process may take it meanwhile: ``serve`` says its port, others get a reserved one."""
    found = [
        f"{name}:{node.lineno}"  # type: ignore[attr-defined]
        for name, node in parse_tests()
        if lets_port_go(node) or calls(node, "free_port")
    ]
    assert found == []


def looks_at_others(node: ast.AST) -> bool:
    """Returns whether a statement sees what the tests of another process do in their database."""
    text = node.value if isinstance(node, ast.Constant) else None
    return (
        isinstance(text, str)
        and re.search(r"FROM pg_(stat_activity|locks)\b", text) is not None
        and re.search(r"\b(datname|usename|application_name|pid) = ", text) is None
    )


def expires_by_own_clock(node: ast.AST) -> bool:
    """Returns whether a moment that the database's clock decides on is the host's present one."""
    return isinstance(node, ast.Call) and any(
        given.arg == "expires_at" and calls(given.value, "now") and "timezone" in ast.dump(given)
        for given in node.keywords
        if isinstance(given.value, ast.Call)
    )


def orders_by_place(node: ast.AST) -> bool:
    """Returns whether a statement takes the place of a row for the order of its insertion."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and re.search(r"ORDER BY ctid\b", text) is not None


def last_name(node: ast.AST) -> str:
    """Returns the last name of ``a.b.c``, written as such or as a string."""
    if isinstance(node, ast.Constant):
        return str(node.value).rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def replaces_for_all(node: ast.AST) -> bool:
    """Returns whether it replaces a function of the standard library in the whole process."""
    if isinstance(node, ast.Assign):
        targets = [each for target in node.targets for each in ast.walk(target)]
        return any(
            isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and last_name(each.value) in SHARED
            for each in targets
        )
    if not isinstance(node, ast.Call) or not calls(node, "setattr"):
        return False
    replaced = node.args[0]
    if isinstance(replaced, ast.Constant):
        replaced = ast.Constant(str(replaced.value).rpartition(".")[0])
    return last_name(replaced) in SHARED


def test_no_function_that_other_threads_call_is_replaced() -> None:
    """The in-process server calls ``time.monotonic`` and ``asyncio.sleep`` in a thread of its own.

    The name ``time`` of one module is replaced instead.
    """
    found = [
        f"{name}:{node.lineno}"  # type: ignore[attr-defined]
        for name, node in parse_tests()
        if name != MOVED and not name.startswith(UNTESTED) and replaces_for_all(node)
    ]
    assert found == []


def find_lines_of_all(tree: ast.AST) -> list[int]:
    """Returns where a test reads all records of the log, and neither filters nor searches them."""
    nodes = list(ast.walk(tree))
    chosen = [
        part.iter for node in nodes for part in getattr(node, "generators", ()) if part.ifs
    ] + [
        side
        for node in nodes
        if isinstance(node, ast.Compare)
        for operator, side in zip(node.ops, node.comparators, strict=True)
        if isinstance(operator, ast.In | ast.NotIn)
    ]
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr in ("records", "messages")
        and last_name(node.value) == "caplog"
        and node not in chosen
    ]


def test_no_log_is_taken_for_that_of_the_test_alone() -> None:
    """The in-process server logs a slow statement: ``own_lines`` are those of the test's thread."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if "caplog" in (text := path.read_text())
        for line in find_lines_of_all(ast.parse(text))
    ]
    assert found == []


def test_no_order_is_that_of_places() -> None:
    """A later row may take the place that a deleted one left."""
    found = [
        f"{name}:{node.lineno}"
        for name, node in parse_tests()
        if name != "test_chance.py" and isinstance(node, ast.Constant) and orders_by_place(node)
    ]
    assert found == []


def test_statements_see_their_own_database_alone() -> None:
    """The databases of all processes are copies, so their tables have the same numbers."""
    found = [
        f"{name}:{node.lineno}"
        for name, node in parse_tests()
        if isinstance(node, ast.Constant) and looks_at_others(node)
    ]
    assert found == []


def test_no_moment_is_the_present_of_another_clock() -> None:
    """The host and the database differ by a millisecond: ``config.clocks.clock`` knows by what."""
    found = [
        f"{name}:{node.lineno}"
        for name, node in parse_tests()
        if isinstance(node, ast.Call) and expires_by_own_clock(node)
    ]
    assert found == []


def test_examples_of_hypothesis_are_those_of_the_last_run() -> None:
    """Another seed finds other faults: it belongs before a release, not into a gate."""
    profiles = [
        {name.arg: ast.unparse(name.value) for name in node.keywords}
        for name, node in parse_tests()
        if name == "conftest.py" and calls(node, "register_profile")
    ]
    assert profiles
    assert [each.get("derandomize") for each in profiles] == ["True"] * len(profiles)


def test_each_kind_is_recognized() -> None:
    program = """
def pick():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
time.sleep(1)
await asyncio.sleep(0)
until = time.monotonic() + 60
assert len(found) >= 2
assert found == [2]
cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
make(expires_at=timezone.now())
make(expires_at=timezone.now() - HOUR)
cursor.execute(f"SELECT id FROM {table} ORDER BY ctid")
real, module.asyncio.sleep = asyncio.sleep, end_after_one
monkeypatch.setattr("config.server.readiness.time.monotonic", read)
monkeypatch.setattr(time, "monotonic", read)
monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=read))
monkeypatch.setattr("sys.stdin", text)
[line] = caplog.messages
[line] = [each for each in caplog.messages if name in each]
assert line in caplog.messages
assert not caplog.records
"""
    tree = ast.parse(program)
    nodes = list(ast.walk(tree))
    kinds = (
        lets_port_go, is_sleep, is_deadline, is_bound, looks_at_others, expires_by_own_clock,
        orders_by_place, replaces_for_all,
    )  # fmt: skip
    found = [[node.lineno for node in nodes if kind(node)] for kind in kinds]
    assert found == [[3], [6], [8], [9], [11], [13], [15], [16, 17, 18]]
    assert find_lines_of_all(tree) == [21, 24]
