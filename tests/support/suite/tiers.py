"""pytest plugin: the tier of every test, and the options ``--quick``, ``--full``, ``--release``.

| tier | tests |
|---|---|
| quick | those that start no process and cost at most 0.2 s of CPU time, and the core scenarios |
| full | all but those that the section ``release`` of ``tests/tiers.toml`` describes |
| release | all |

Of a function that uses the database, quick and full have at most as many cases as ``CASES``
says. Of the functions under ``sampled`` in ``tests/tiers.toml`` they have at most the number there,
and quick as many as of a function that uses the database. Of the examples of a property and of the
pages of a crawl they try a part (``DIVISORS``). The seed of a run draws them, and it is the
commit's: with each commit other cases run.

A run is quick unless it has an option or names a path: what a path names runs, whatever its tier.
Nobody marks a test. ``reach`` reads from the sources what a test can start, ``tests/costs.toml``
has the measured tests that cost too much, and in the quick tier a test that starts a process fails.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from tests.support.suite.reach import ROOT, STARTERS, TESTS, Sources

# Fixtures that prepare the run; they start the processes that every run needs.
INFRASTRUCTURE: Final = frozenset({
    "_pooler_for_all", "django_db_modify_db_settings", "django_db_setup",
})  # fmt: skip
POOLER_FIXTURE: Final = "tests.conftest._pooler_for_all"
# The service that the tests of a process share.
RUNNING_SERVICE: Final = "tests.conftest.running_service"
# The variable that tells modules and processes of the tests their tier.
TIER_VARIABLE: Final = "CAUSEWAY_TEST_TIER"
_Row = TypeVar("_Row")
_BEGINNINGS: Final = frozenset({
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system",
    "subprocess.Popen",
})  # fmt: skip


class Tier(IntEnum):
    """How much of the suite a run has."""

    QUICK = 1
    FULL = 2
    RELEASE = 3


# How many cases a tier has of a function that uses the database; the release has all.
CASES: Final = {Tier.QUICK: 2, Tier.FULL: 8}
# By what a tier divides the examples of a property and the pages of a crawl.
DIVISORS: Final = {Tier.QUICK.name: 10, Tier.FULL.name: 4}
# The seconds after which a test is ended because it hangs. One that starts processes takes minutes
# where four such tests share a busy core.
TIMEOUTS: Final = {Tier.QUICK: 60, Tier.FULL: 600, Tier.RELEASE: 900}


@dataclass(frozen=True)
class Rules:
    """What ``tests/tiers.toml`` and ``tests/costs.toml`` say; a test is named by its id."""

    core: frozenset[str]
    sampled: dict[str, int]
    dear: dict[str, float]
    release: dict[str, list[str]]

    @classmethod
    def read(cls, folder: Path = TESTS) -> Rules:
        rules = tomllib.loads((folder / "tiers.toml").read_text())
        costs = tomllib.loads((folder / "costs.toml").read_text())
        return cls(
            core=frozenset(rules["core"].values()),
            sampled=rules["sampled"],
            dear=costs["dear"],
            release=rules["release"],
        )

    def is_core(self, test: str) -> bool:
        """Tells whether a test is a core scenario."""
        return bool(self.core & {test, function_of(test)})

    @property
    def names(self) -> set[str]:
        """The tests that the rules name."""
        return {*self.core, *self.sampled, *self.dear, *self.release["tests"]}


def count_examples(number: int) -> int:
    """Returns how many of so many examples this run tries, or seconds of a mixed load."""
    return max(number // DIVISORS.get(os.environ.get(TIER_VARIABLE, ""), 1), 1)


def draw_examples(rows: Sequence[_Row]) -> list[_Row]:
    """Returns those that this run tries, drawn by its seed: pytest-randomly sets it for a test."""
    return random.sample(rows, min(count_examples(len(rows)), len(rows)))


def function_of(test: str) -> str:
    """Returns the id of a test without its case."""
    return test.partition("[")[0]


def path_of(test: str) -> str:
    """Returns the path of the module of a test, from the root of the clone."""
    return test.partition("::")[0]


def uses_database(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "db" in fixtures or "transactional_db" in fixtures


def find_starting_functions(sources: Sources) -> set[str]:
    """Returns the ids of the test functions that start a process."""
    return sources.find_tests_that_reach(STARTERS, without={POOLER_FIXTURE})


def find_functions_beyond(tier: Tier, rules: Rules, sources: Sources) -> set[str]:
    """Returns the ids of the test functions that a tier leaves out because of what they reach."""
    if tier is Tier.RELEASE:
        return set()
    starters = find_starting_functions(sources)
    if tier is Tier.QUICK:
        return starters
    folders = tuple(f"{folder}/" for folder in rules.release["folders"])
    named = set(rules.release["tests"])
    return {
        *(test for test in starters if test.startswith(folders)),
        *sources.find_tests_that_reach(rules.release["reaches"]),
        *(test for test in sources.tests if named & {test, path_of(test)}),
    }


@dataclass
class ProcessGuard:
    """Refuses to start a process while it is closed, and remembers each attempt."""

    is_closed: bool = False
    attempts: list[str] = field(default_factory=list)

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_closed and event in _BEGINNINGS:
            what = f"{event} {' '.join(map(str, arguments[:2]))}"[:200]
            self.attempts.append(what)
            raise PermissionError(f"The quick tier starts no process: {what}")


GUARD: Final = ProcessGuard()


@dataclass
class Selection:
    """The tests of a run: those of its tier, or all that was named if it has none."""

    rules: Rules
    tier: Tier | None
    beyond: set[str] = field(default_factory=set)
    starting: set[str] = field(default_factory=set)
    empty_modules: set[str] = field(default_factory=set)
    served: set[str] = field(default_factory=set)

    def read(self, sources: Sources) -> None:
        """Finds in the sources which functions and which modules this run leaves out."""
        assert self.tier is not None
        self.beyond = find_functions_beyond(self.tier, self.rules, sources)
        self.starting = find_starting_functions(sources)
        self.served = {path_of(test) for test in sources.find_tests_that_reach([RUNNING_SERVICE])}
        core = {function_of(test) for test in self.rules.core}
        kept = {path_of(test) for test in sources.tests if test in core or self.has(test)}
        self.empty_modules = {path_of(test) for test in sources.tests} - kept

    def has(self, test: str) -> bool:
        either = {test, function_of(test)}
        if self.tier is None or self.rules.core & either:
            return True
        if self.tier is Tier.QUICK and self.rules.dear.keys() & either:
            return False
        return not self.beyond & either

    def draw(self, tests: Mapping[str, bool], seed: int) -> set[str]:
        """Returns the cases that a run with this seed leaves out of its tables.

        The tests are given with whether they use the database.
        """
        if self.tier not in CASES:
            return set()
        tables = defaultdict(list)
        for test in sorted(tests):
            tables[function_of(test)].append(test)
        chance = random.Random(seed)
        left: set[str] = set()
        for function, cases in tables.items():
            number = self.rules.sampled.get(function, len(cases))
            is_core = self.rules.core & {function, *cases}
            is_few = tests[cases[0]] or (self.tier is Tier.QUICK and function in self.rules.sampled)
            if is_few and not is_core:
                number = min(number, CASES[self.tier])
            if number < len(cases):
                left.update(set(cases).difference(chance.sample(cases, number)))
        return left


SELECTION: Final = pytest.StashKey[Selection]()


def is_whole(config: pytest.Config) -> bool:
    """Returns whether a run has all tests of a tier."""
    option = config.option
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    is_narrowed = option.keyword or option.markexpr or getattr(option, "lf", False)
    return bool(option.tier and not is_named and not is_narrowed and not option.collectonly)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers", "tiers of the suite")
    for tier in Tier:
        name = tier.name.lower()
        group.addoption(
            f"--{name}",
            dest="tier",
            action="store_const",
            const=tier.value,
            help=f"run the {name} tier, also of the paths that are named",
        )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Chooses the tests, the limit of each one, and the seed, which is the commit's."""
    if not hasattr(config, "workerinput"):
        if config.option.tier is None and config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.option.tier = Tier.QUICK.value
        if getattr(config.option, "randomly_seed", None) == "default":
            config.option.randomly_seed = read_seed()
    else:
        config.option.tier = config.workerinput["tier"]
    tier = Tier(config.option.tier) if config.option.tier else None
    if tier and getattr(config.option, "timeout", 0) is None:
        config.option.timeout = TIMEOUTS[tier]
    os.environ[TIER_VARIABLE] = tier.name if tier else ""
    selection = config.stash[SELECTION] = Selection(Rules.read(), tier)
    if hasattr(config, "workerinput"):
        selection.beyond = set(config.workerinput["beyond"])
        selection.starting = set(config.workerinput["starting"])
        selection.empty_modules = set(config.workerinput["empty_modules"])
        selection.served = set(config.workerinput["served"])
    elif tier:
        selection.read(Sources())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hands the tier, and what was read from the sources, to a process of xdist.

    A process gets the arguments of the run, and the default tier is none of them.
    """
    selection = node.config.stash[SELECTION]
    node.workerinput["tier"] = node.config.option.tier
    node.workerinput["beyond"] = sorted(selection.beyond)
    node.workerinput["starting"] = sorted(selection.starting)
    node.workerinput["empty_modules"] = sorted(selection.empty_modules)
    node.workerinput["served"] = sorted(selection.served)


def read_seed() -> int | str:
    """Returns a seed that the commit gives; ``default``, so a random one, outside a clone."""
    command = ("git", "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "default"
    return int(done.stdout[:8], 16)


def pytest_report_header(config: pytest.Config) -> str:
    selection = config.stash[SELECTION]
    return f"tier: {selection.tier.name.lower() if selection.tier else 'all that was named'}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a module of which the tier has no test, so that nobody imports it."""
    selection = config.stash[SELECTION]
    path = collection_path.relative_to(ROOT) if collection_path.is_relative_to(ROOT) else ""
    return True if str(path) in selection.empty_modules else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that the tier does not have."""
    selection = config.stash[SELECTION]
    seed = getattr(config.option, "randomly_seed", 0)
    left = selection.draw({item.nodeid: uses_database(item) for item in items}, seed)
    chosen = [item for item in items if item.nodeid not in left and selection.has(item.nodeid)]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen
    for item in chosen if selection.tier is Tier.QUICK else ():
        if selection.rules.is_core(item.nodeid) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUTS[Tier.FULL]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Closes the guard while a test of the quick tier runs that is no core scenario."""
    selection = item.config.stash[SELECTION]
    GUARD.is_closed = selection.tier is Tier.QUICK and not selection.rules.is_core(item.nodeid)
    try:
        return (yield)
    finally:
        GUARD.is_closed = False


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    """Opens the guard for what prepares the run."""
    is_closed = GUARD.is_closed
    if fixturedef.argname in INFRASTRUCTURE:
        GUARD.is_closed = False
    try:
        return (yield)
    finally:
        GUARD.is_closed = is_closed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Lets a test fail that tried to start a process, even if it or the service hid the error."""
    report = yield
    if GUARD.attempts:
        attempts = "\n".join(GUARD.attempts)
        GUARD.attempts.clear()
        if report.passed:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} starts a process in the quick tier:\n{attempts}\n"
                "Name what it calls in STARTERS of tests/support/suite/reach.py, so that it "
                "belongs to the full tier."
            )
    return report


sys.addaudithook(GUARD.watch)
