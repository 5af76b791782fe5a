"""pytest plugin: CPU seconds by room, and what a room may cost.

A room is a folder of ``tests/``; the core scenarios are a room of their own, and so is what
prepares a run: collecting, and the fixtures of a session. A test pays for its process, for its
children, and for the sessions of its database. What PostgreSQL spent besides, on sessions that have
ended for instance, is divided between the rooms by their shares.

The same work was seen to take 1.6 times the CPU time on a machine that does other work besides, in
all rooms alike. So a run that is dearer than ``all`` of its tier in ``tests/budgets.toml`` gives
each room its share of that. A whole run whose room then costs more than 110 % of its budget fails
if ``CI`` is set, and so does one that costs more than ``BUSY`` times ``all``.

``--record-costs`` writes the tests that cost too much for the quick tier to ``tests/costs.toml``.
"""

from __future__ import annotations

import json
import math
import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from config.local import postgres
from tests.support.embedded import OWN_SERVER
from tests.support.suite.reach import TESTS
from tests.support.suite.tiers import SELECTION, Rules, Selection, function_of, is_whole

TOLERANCE: Final = 1.1
# How much dearer a busy or slow machine may make a whole run: the same tests have cost 2,108
# seconds on one day and 3,543 on another, the quick ones 345 and 1,074.
BUSY: Final = 4.0
# A test that costs more does not belong to the quick tier.
DEAR_SECONDS: Final = 0.2
CORE: Final = "core"
PREPARATION: Final = "preparation"
# Any room that the budgets do not name.
OTHERS: Final = "others"
# What a whole run costs on a machine that does nothing else.
ALL: Final = "all"
# How many tests of a room a complaint names.
NAMED: Final = 5
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_HEADER: Final = """\
# Measured by `python3 manage.py test --full --record-costs`: the tests that cost more than 0.2 s of
# CPU time without starting a process. The quick tier leaves them out, all cases if none is named.
[dear]
"""


class Cost(NamedTuple):
    """CPU seconds of a process of the tests with its children, and of PostgreSQL."""

    python: float = 0.0
    postgres: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(self.python + other.python, self.postgres + other.postgres)

    def minus(self, other: Cost) -> Cost:
        return Cost(self.python - other.python, self.postgres - other.postgres)

    def or_none(self) -> Cost:
        """Takes nothing away: a process that ends, and nobody waits for, cannot be read again."""
        return Cost(max(self.python, 0.0), max(self.postgres, 0.0))


def read_process(pid: int | str) -> tuple[float, float]:
    """Returns the seconds of a process, and those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    own, ended = (sum(map(int, fields[begin : begin + 2])) / _TICKS for begin in (11, 13))
    return own, ended


def has_children() -> bool:
    """Tells whether this process has a child, one that has ended and nobody waited for included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def find_children(pid: int | str) -> Iterator[str]:
    """Yields the ids of the children that run, whichever thread has started them."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                yield from Path(f"/proc/{pid}/task/{thread}/children").read_text().split()


def sum_descendants(pid: int | str) -> float:
    """Returns the seconds of all processes below one."""
    return sum(sum(read_process(child)) + sum_descendants(child) for child in find_children(pid))


class Sessions:
    """The processes of the tests' PostgreSQL, and those of them that serve one database."""

    def __init__(self, database: str) -> None:
        self._mark = f" {database} "
        self._seconds: dict[str, float] = {}
        self._others: set[str] = set()
        self._ended = 0.0
        host = parse_qs(urlsplit(os.environ["DATABASE_URL"]).query).get("host", [""])[0]
        lock = Path(host) / f".s.PGSQL.{postgres.PORT}.lock"
        is_own = os.environ.get(OWN_SERVER) and lock.exists()
        self._postmaster = lock.read_text().split()[0] if is_own else None

    @property
    def seconds(self) -> float:
        """The CPU seconds that the sessions had cost at the last call of ``read``."""
        return self._ended + sum(self._seconds.values())

    def read(self) -> float:
        """Returns what the sessions have cost; one that has ended counts until the last call."""
        if self._postmaster is None:
            return 0.0
        running = set(find_children(self._postmaster))
        for pid in self._seconds.keys() - running:
            self._ended += self._seconds.pop(pid)
        self._others &= running
        for pid in running - self._others:
            if pid in self._seconds or self._is_watched(pid):
                self._seconds[pid] = read_process(pid)[0]
            else:
                self._others.add(pid)
        return self.seconds

    def read_server(self) -> float:
        """Returns what the whole server has cost."""
        if self._postmaster is None:
            return 0.0
        return sum(read_process(self._postmaster)) + sum_descendants(self._postmaster)

    def _is_watched(self, pid: str) -> bool:
        with suppress(OSError):
            return self._mark in Path(f"/proc/{pid}/cmdline").read_text()
        return False


class Meter:
    """Adds up the costs of the tests of one process, or of all processes in the controlling one."""

    def __init__(self, config: pytest.Config) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        self._sessions = Sessions(f"test_{postgres.DATABASE}{f'_{worker}' if worker else ''}")
        self._server_at_first = self._sessions.read_server()
        self._selection = config.stash[SELECTION]
        self._config = config
        self._prepared = Cost()
        # What was read at the end of the last test is what the next one begins with.
        self._last: Cost | None = None
        self._is_preparing = False
        # What processes had cost that ended unread, in tests that cost less.
        self._lost = 0.0
        self.rooms: dict[str, Cost] = defaultdict(Cost)
        self.tests: dict[str, float] = {}
        self.complaints: list[str] = []

    def read(self, *, has_sessions: bool = True) -> Cost:
        """Returns what this process, its children and its database have cost so far.

        Without ``has_sessions``, the database costs what it had cost at the last call.
        """
        times = os.times()
        ended = times.children_user + times.children_system
        # A look at the children of all threads, or at all sessions, costs as much as a small test.
        running = sum_descendants(os.getpid()) if has_children() else 0.0
        python = time.process_time() + ended + running
        return Cost(python, self._sessions.read() if has_sessions else self._sessions.seconds)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before, self._prepared = self._last or self.read(), Cost()
        try:
            return (yield)
        finally:
            self._last = self.read(has_sessions=may_have_sessions(item))
            found = self._last.minus(before).minus(self._prepared)
            cost = found.or_none()
            self._lost += cost.python - found.python
            self._add(room_of(item.nodeid, self._selection.rules), cost)
            self.tests[item.nodeid] = sum(cost)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Lets no single test pay for the fixtures of a session."""
        if fixturedef.scope != "session" or self._is_preparing:
            return (yield)
        self._is_preparing, before = True, self.read()
        try:
            return (yield)
        finally:
            self._is_preparing = False
            self._prepared = self._prepared.plus(self.read().minus(before))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Adds what a process of xdist has measured."""
        rooms, tests = getattr(node, "workeroutput", {}).get("meter", ({}, {}))
        for room, cost in rooms.items():
            self._add(room, Cost(*cost))
        self.tests.update(tests)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        has_workers = bool(self._config.getoption("numprocesses", None))
        self._add(PREPARATION, Cost(self._count_preparation(has_workers)))
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["meter"] = [
                {room: list(cost) for room, cost in self.rooms.items()},
                self.tests,
            ]
            return
        self._divide_rest_of_server()
        if is_whole(self._config):
            self.complaints = find_complaints(self.rooms, self.tests, self._selection)
            if self.complaints and os.environ.get("CI"):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._config.option.record_costs:
            record_costs(self.tests, self._selection.rules)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not is_whole(self._config):
            return
        terminalreporter.section("CPU seconds by room")
        for room, cost in sorted(self.rooms.items(), key=lambda row: -sum(row[1])):
            postgres_part = f"   of these {cost.postgres:.1f} of PostgreSQL"
            terminalreporter.write_line(f"{room:14}{sum(cost):8.1f}{postgres_part}")
        total = sum(sum(cost) for cost in self.rooms.values())
        terminalreporter.write_line(f"{'all':14}{total:8.1f}")
        for complaint in self.complaints:
            terminalreporter.write_line(complaint, red=True)

    def _add(self, room: str, cost: Cost) -> None:
        self.rooms[room] = self.rooms[room].plus(cost)

    def _count_preparation(self, has_workers: bool) -> float:
        """Returns what this process did besides its tests; other processes count for themselves."""
        if has_workers:
            return time.process_time()
        counted = sum(cost.python for cost in self.rooms.values()) - self._lost
        return self.read().python - counted

    def _divide_rest_of_server(self) -> None:
        known = sum(cost.postgres for cost in self.rooms.values())
        spent = self._sessions.read_server() - self._server_at_first
        if known and spent > known:
            for room, cost in self.rooms.items():
                self.rooms[room] = cost._replace(postgres=cost.postgres * spent / known)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--record-costs",
        action="store_true",
        help="write the tests that cost too much for the quick tier to tests/costs.toml",
    )


def pytest_configure(config: pytest.Config) -> None:
    if os.path.exists("/proc/self/stat"):
        config.pluginmanager.register(Meter(config), "meter")


def may_have_sessions(item: pytest.Item) -> bool:
    """Tells whether a test, or a service that it uses, may have sessions of the database."""
    is_prepared = "django_db_setup" in getattr(item, "fixturenames", ())
    return is_prepared or item.get_closest_marker("django_db") is not None


def room_of(test: str, rules: Rules) -> str:
    """Returns the folder of a test, or ``core`` for a core scenario."""
    if rules.is_core(test):
        return CORE
    parts = test.split("/")
    return parts[1] if len(parts) > 2 else "house"


def find_complaints(
    rooms: Mapping[str, Cost], tests: Mapping[str, float], selection: Selection
) -> list[str]:
    """Names the rooms that cost more than their budget allows, each with its dearest tests."""
    budgets = read_budgets(selection)
    total, alone = sum(map(sum, rooms.values())), budgets.get(ALL, math.inf)
    complaints = []
    if total > alone * BUSY:
        complaints.append(
            f"all rooms cost {total:.0f} CPU seconds, and {alone} on a machine that does nothing "
            "else: make the tests cheaper, or raise it in tests/budgets.toml."
        )
    for room, cost in rooms.items():
        budget = budgets.get(room, budgets.get(OTHERS))
        seconds = sum(cost) / max(total / alone, 1.0)
        if budget is None or seconds <= budget * TOLERANCE:
            continue
        own = [test for test in tests if room_of(test, selection.rules) == room]
        complaints.append(
            f"{room} costs {seconds:.0f} CPU seconds and its budget is {budget}: make its tests "
            "cheaper, or raise it in tests/budgets.toml. The dearest of them:"
        )
        complaints += [
            f"{tests[test]:8.2f}  {test}"
            for test in sorted(own, key=lambda test: -tests[test])[:NAMED]
        ]
    return complaints


def read_budgets(selection: Selection) -> dict[str, float]:
    """Returns the budgets of a tier by room; it has none if the file names none."""
    budgets: dict[str, dict[str, float]] = tomllib.loads((TESTS / "budgets.toml").read_text())
    return budgets.get(selection.tier.name.lower(), {}) if selection.tier else {}


def record_costs(tests: Mapping[str, float], rules: Rules) -> None:
    """Writes the dear tests; one that did not run this time stays as it was written."""
    cases = defaultdict(list)
    for test in tests:
        cases[function_of(test)].append(test)
    dear = {name: cost for name, cost in rules.dear.items() if function_of(name) not in cases}
    for function, found in cases.items():
        expensive = {test: tests[test] for test in found if tests[test] > DEAR_SECONDS}
        if len(expensive) == len(found):
            dear[function] = max(expensive.values())
        else:
            dear |= expensive
    lines = [f"{json.dumps(name)} = {cost:.1f}\n" for name, cost in sorted(dear.items())]
    (TESTS / "costs.toml").write_text(_HEADER + "".join(lines))
