"""The tiers of the suite: which tests a run has, and what refuses a process to a quick one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import SourcelessFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL

from tests.support.suite import reach, rewriting
from tests.support.suite.distribution import estimate, unit_of
from tests.support.suite.reach import ROOT, STARTERS, Sources
from tests.support.suite.tiers import (
    CASES,
    POOLER_FIXTURE,
    RUNNING_SERVICE,
    TIER_VARIABLE,
    ProcessGuard,
    Rules,
    Selection,
    Tier,
    count_examples,
    draw_examples,
    find_functions_beyond,
    path_of,
)

RULES = Rules(
    core=frozenset({"tests/a/test_a.py::test_core", "tests/a/test_a.py::test_cases[one]"}),
    sampled={"tests/a/test_a.py::test_table": 9},
    dear={"tests/a/test_a.py::test_dear": 0.4, "tests/a/test_a.py::test_some[dear]": 3.2},
    release={},
)
BEYOND = {
    "tests/a/test_a.py::test_core",
    "tests/a/test_a.py::test_cases",
    "tests/b/test_b.py::test",
}
RUNNER = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("case", range(3))
def test_where(case):
    with Path(__file__).with_suffix(".ran").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""
STRANGER = """
import contextlib, subprocess, sys

def test_hidden():
    with contextlib.suppress(OSError):
        subprocess.run([sys.executable, "-c", "open('made', 'w')"])

def test_harmless():
    pass
"""


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources()


@pytest.mark.parametrize(
    ("test", "starts"),
    [
        # by a fixture of the room
        ("bulkheads/test_authority.py::test_no_host_serves_what_was_taken_away", True),
        # by a session fixture behind another one
        ("attack/test_strangers.py::test_an_unusable_key_is_refused_before_its_body_is_read", True),
        # by a helper of its own module
        ("config/test_command_line.py::test_wrong_usage_exits_with_2", True),
        # by a browser
        ("browser/test_home.py::test_home_fits_the_window_and_draws_its_charts", True),
        ("endusers/test_register.py::test_register_refuses_an_invalid_body", False),
        ("contract/test_openai_sdk.py::test_chat_answers", False),
        ("inference/admission/test_explain.py::test_explain_succeeds_without_candidates", False),
    ],
)  # fmt: skip
def test_the_sources_say_what_a_test_starts(sources: Sources, test: str, starts: bool) -> None:
    assert f"tests/{test}" in set(sources.tests)
    found = sources.find_tests_that_reach(STARTERS, without={POOLER_FIXTURE})
    assert (f"tests/{test}" in found) == starts


def test_a_module_is_read_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cache" / "reach"
    for name, path in (("ROOT", tmp_path), ("TESTS", tmp_path), ("_KEPT", kept)):
        monkeypatch.setattr(reach, name, path)
    module = tmp_path / "test_one.py"
    module.write_text("def test_one(): ...\n")
    assert [*Sources(tmp_path).tests] == ["test_one.py::test_one"]
    written = kept.stat().st_mtime_ns
    assert [*Sources(tmp_path).tests] == ["test_one.py::test_one"]
    assert kept.stat().st_mtime_ns == written
    module.write_text("def test_another(): ...\n")
    assert [*Sources(tmp_path).tests] == ["test_one.py::test_another"]
    assert [path.name for path in kept.parent.iterdir()] == ["reach"]


def test_full_leaves_out_what_only_a_release_needs(sources: Sources) -> None:
    beyond = find_functions_beyond(Tier.FULL, Rules.read(), sources)
    assert {path_of(test) for test in beyond} >= {
        "tests/contract/agents/test_codex.py",
        "tests/config/local/test_bootstrap.py",
    }
    assert "tests/drills/upgrade/test_migrations.py::test_migrations_only_expand" not in beyond
    assert find_functions_beyond(Tier.RELEASE, Rules.read(), sources) == set()


@pytest.mark.parametrize(
    ("tier", "left"),
    [
        (None, set()),
        (Tier.QUICK, {"test_dear", "test_some[dear]", "test_cases[two]", "test"}),
        (Tier.FULL, {"test_cases[two]", "test"}),
    ],
)
def test_a_tier_has_its_core_and_nothing_beyond(tier: Tier | None, left: set[str]) -> None:
    selection = Selection(RULES, tier, BEYOND)
    names = ("core", "cases[one]", "cases[two]", "dear", "some[dear]", "some[cheap]", "table[1]")
    tests = [*(f"tests/a/test_a.py::test_{name}" for name in names), "tests/b/test_b.py::test"]
    assert {test.partition("::")[2] for test in tests if not selection.has(test)} == left


def cases_of(name: str, number: int = 50) -> list[str]:
    return [f"tests/a/test_a.py::{name}[{case}]" for case in range(number)]


@pytest.mark.parametrize("tier", [Tier.QUICK, Tier.FULL])
def test_a_sampled_table_has_other_cases_with_another_seed(tier: Tier) -> None:
    tests = dict.fromkeys([*cases_of("test_table"), "tests/a/test_a.py::test_a"], False)
    selection = Selection(RULES, tier)
    drawn = [tests.keys() - selection.draw(tests, seed) for seed in (1, 2)]
    number = {Tier.QUICK: CASES[Tier.QUICK], Tier.FULL: 9}[tier] + 1
    assert [len(each) for each in drawn] == [number, number]
    assert drawn[0] != drawn[1]
    assert drawn[0] == tests.keys() - selection.draw(dict(reversed(tests.items())), 1)


@pytest.mark.parametrize(
    ("tier", "name", "uses_database", "number"),
    [
        (Tier.QUICK, "test_rows", True, CASES[Tier.QUICK]),
        (Tier.QUICK, "test_parser", False, 50),
        (Tier.QUICK, "test_table", False, CASES[Tier.QUICK]),
        (Tier.QUICK, "test_core", True, 50),
        (Tier.FULL, "test_rows", True, CASES[Tier.FULL]),
        (Tier.FULL, "test_parser", False, 50),
        (Tier.FULL, "test_table", False, 9),
        (Tier.FULL, "test_table", True, CASES[Tier.FULL]),
        (Tier.FULL, "test_core", True, 50),
        (Tier.RELEASE, "test_table", True, 50),
        (None, "test_table", True, 50),
    ],
)
def test_a_tier_has_so_many_cases_of_a_table(
    tier: Tier | None, name: str, uses_database: bool, number: int
) -> None:
    tests = dict.fromkeys(cases_of(name), uses_database)
    assert len(tests.keys() - Selection(RULES, tier).draw(tests, 7)) == number


@pytest.mark.parametrize(
    ("tier", "examples"),
    [("QUICK", [4, 1, 1]), ("FULL", [10, 1, 1]), ("RELEASE", [40, 4, 1]), ("", [40, 4, 1])],
)
def test_a_tier_tries_a_part_of_the_examples(
    monkeypatch: pytest.MonkeyPatch, tier: str, examples: list[int]
) -> None:
    monkeypatch.setenv(TIER_VARIABLE, tier)
    assert [count_examples(number) for number in (40, 4, 1)] == examples
    drawn = [draw_examples(range(number)) for number in (40, 4, 1)]
    assert [len(set(rows)) for rows in drawn] == examples
    assert draw_examples([]) == []


def test_a_closed_guard_refuses_a_process_and_remembers_it() -> None:
    guard = ProcessGuard()
    guard.watch("subprocess.Popen", ("sh", ["sh"]))
    guard.is_closed = True
    guard.watch("open", ("a file",))
    with pytest.raises(PermissionError, match="starts no process: os"):
        guard.watch("os.fork", ())
    assert guard.attempts == ["os.fork "]


@pytest.mark.parametrize("options", [["--quick", "test_stranger.py"], ["-n", "1"]])
def test_a_quick_test_that_starts_a_process_fails_even_if_it_hides_it(
    tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "test_stranger.py").write_text(STRANGER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "tests.support.suite.tiers"]
        + ["-p", "no:django", "-p", "no:cacheprovider", "-q", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_hidden starts a process in the quick tier:\nsubprocess.Popen" in done.stdout
    assert not (tmp_path / "made").exists()


def test_every_core_scenario_is_collected() -> None:
    core = sorted(Rules.read().core)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", *core],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(any(line.startswith(test) for line in done.stdout.splitlines()) for test in core)


def test_one_process_runs_a_module_and_an_undivided_room(tmp_path: Path) -> None:
    room = tmp_path / "tests" / "browser"
    room.mkdir(parents=True)
    for path in (tmp_path / "test_c.py", room / "test_a.py", room / "test_b.py"):
        path.write_text(RUNNER)
    options = [f"-p tests.support.suite.{name}" for name in ("tiers", "distribution")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *" ".join(options).split()]
        + ["-p", "no:django", "-p", "no:cacheprovider", "-q", "-n", "2"]
        + ["--dist", "loadscope", "tests", "test_c.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "9 passed" in done.stdout, done.stdout + done.stderr
    ran = {path.name: set(path.read_text().split()) for path in tmp_path.rglob("*.ran")}
    assert {name: len(processes) for name, processes in ran.items()} == dict.fromkeys(
        ["test_a.ran", "test_b.ran", "test_c.ran"], 1
    )
    assert ran["test_a.ran"] == ran["test_b.ran"] != ran["test_c.ran"]


def test_modules_that_share_the_running_service_are_one_unit(sources: Sources) -> None:
    served = {path_of(test) for test in sources.find_tests_that_reach([RUNNING_SERVICE])}
    tests = [
        "tests/attack/test_strangers.py::test_one", "tests/attack/test_connections.py::test_two",
        "tests/bulkheads/test_locks.py::test_three", "tests/bulkheads/test_clocks.py::test_four",
    ]  # fmt: skip
    assert [unit_of(test, served) for test in tests] == [
        "tests/bulkheads/", "tests/attack/test_connections.py", *["tests/bulkheads/"] * 2
    ]  # fmt: skip


def test_the_modules_that_last_longest_begin_first() -> None:
    selection = Selection(RULES, Tier.FULL, starting={"tests/c/test_c.py::test_starts"})
    tests = [
        "tests/a/test_a.py::test_dear", "tests/a/test_a.py::test_some[dear]",
        *(f"tests/b/test_b.py::test_rows[{number}]" for number in range(20)),
        "tests/c/test_c.py::test_starts",
        "tests/browser/test_a.py::test_one", "tests/browser/b/test_b.py::test_two",
    ]  # fmt: skip
    assert estimate(tests, selection) == pytest.approx({
        "tests/a/test_a.py": 3.6, "tests/b/test_b.py": 1.0, "tests/c/test_c.py": 0.55,
        "tests/browser/": 0.1,
    })  # fmt: skip


def test_assertions_are_rewritten_once(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    module = tmp_path / "test_one.py"
    module.write_text("def test_one():\n    assert 1 + 1 == 3\n")
    rewriting.rewrite([module], pytestconfig)
    [kept] = (tmp_path / "__pycache__").iterdir()
    assert kept.name == f"test_one{PYC_TAIL}"
    loader = SourcelessFileLoader("test_one", str(kept))
    rewritten = module_from_spec(spec_from_loader("test_one", loader))
    loader.exec_module(rewritten)
    with pytest.raises(AssertionError, match=re.escape("assert (1 + 1) == 3")):
        rewritten.test_one()
    written = kept.stat().st_mtime_ns
    rewriting.rewrite([module], pytestconfig)
    assert kept.stat().st_mtime_ns == written
