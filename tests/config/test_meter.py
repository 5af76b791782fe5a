"""The meter of the suite: CPU seconds by room, budgets, and the list of dear tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.factories import Tenant
from tests.support.machine.waiting import wait_until
from tests.support.suite import meter
from tests.support.suite.meter import Cost
from tests.support.suite.reach import ROOT, TESTS
from tests.support.suite.tiers import Rules, Selection, Tier

RULES = Rules(
    core=frozenset({"tests/billing/test_a.py::test_core"}),
    sampled={},
    dear={"tests/a/test_a.py::test_old": 1.0, "tests/a/test_a.py::test_again": 2.0},
    release={},
)

PARENT = """
import os, subprocess, sys
from tests.support.suite.meter import has_children

found = [has_children()]
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
found.append(has_children())
child.stdin.write(b"end\\n")
child.stdin.close()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
found.append(has_children())
child.wait()
print(*found, has_children())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tests, as far as the meter reads and writes it."""
    monkeypatch.setattr(meter, "TESTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("test", "room"),
    [
        ("tests/billing/test_a.py::test_a[1/2]", "billing"),
        ("tests/billing/topups/test_a.py::test_a", "billing"),
        ("tests/billing/test_a.py::test_core[one]", "core"),
        ("tests/test_house.py::test_a", "house"),
    ],
)
def test_a_test_belongs_to_its_folder_or_to_the_core(test: str, room: str) -> None:
    assert meter.room_of(test, RULES) == room


def test_a_room_beyond_its_budget_is_named_with_its_dearest_tests(folder: Path) -> None:
    (folder / "budgets.toml").write_text("[quick]\nbilling = 10\ncatalog = 10\nothers = 1\n")
    rooms = {
        "billing": Cost(8, 3.01), "catalog": Cost(11, 0), "docs": Cost(1.2, 0), "core": Cost(1, 0)
    }  # fmt: skip
    tests = {f"tests/billing/test_a.py::test_{number}": float(number) for number in range(7)}
    tests["tests/docs/test_b.py::test"] = 1.2
    found = meter.find_complaints(rooms, tests, Selection(RULES, Tier.QUICK))
    assert [line.split(":")[0] for line in found if line[0] != " "] == [
        "billing costs 11 CPU seconds and its budget is 10",
        "docs costs 1 CPU seconds and its budget is 1",
    ]
    assert [line.split() for line in found if line[0] == " "] == [
        *(
            [f"{number}.00", f"tests/billing/test_a.py::test_{number}"]
            for number in (6, 5, 4, 3, 2)
        ),
        ["1.20", "tests/docs/test_b.py::test"],
    ]
    assert meter.find_complaints(rooms, tests, Selection(RULES, Tier.FULL)) == []


def test_a_busy_machine_makes_all_rooms_dearer_alike(folder: Path) -> None:
    (folder / "budgets.toml").write_text("[quick]\nall = 20\nbilling = 10\ncatalog = 10\n")
    quick = Selection(RULES, Tier.QUICK)

    def complaints(billing: float, catalog: float) -> list[str]:
        rooms = {"billing": Cost(billing, 0), "catalog": Cost(0, catalog)}
        found = meter.find_complaints(rooms, {}, quick)
        return [line.partition(":")[0].partition(" CPU")[0] for line in found]

    assert complaints(39, 41) == []
    # One room alone became dearer, or the whole by more than a machine can make it.
    assert complaints(10, 14) == ["catalog costs 12"]
    assert complaints(40, 41) == ["all rooms cost 81"]


def test_dear_tests_are_recorded_by_case_or_whole(folder: Path) -> None:
    tests = {
        "tests/a/test_a.py::test_again": 0.2, "tests/a/test_a.py::test_dear[1]": 0.4,
        "tests/a/test_a.py::test_dear[2]": 0.5, "tests/a/test_a.py::test_mixed[a\"b]": 0.31,
        "tests/a/test_a.py::test_mixed[b]": 0.2,
    }  # fmt: skip
    meter.record_costs(tests, RULES)
    lines = (folder / "costs.toml").read_text().splitlines()
    assert [line for line in lines if line[0] != "#"] == [
        "[dear]",
        '"tests/a/test_a.py::test_dear" = 0.5',
        '"tests/a/test_a.py::test_mixed[a\\"b]" = 0.3',
        '"tests/a/test_a.py::test_old" = 1.0',
    ]


def test_every_budget_is_that_of_a_room() -> None:
    for tier in (Tier.QUICK, Tier.FULL):
        budgets = meter.read_budgets(Selection(RULES, tier))
        rooms = budgets.keys() - {meter.ALL, meter.CORE, meter.OTHERS, meter.PREPARATION, "house"}
        assert [room for room in rooms if not (TESTS / room).is_dir()] == []


def test_the_time_of_a_child_counts_while_it_runs() -> None:
    burn = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint()\nsys.stdin.read()"
    start = f"import subprocess, sys\nsubprocess.run([sys.executable, '-uc', {burn!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        [child] = meter.find_children(parent.pid)
        # The child waits for its input now, or soon.
        wait_until(lambda: meter.sum_descendants(parent.pid) == meter.read_process(child)[0])
        own, of_children = meter.read_process(child)
        parent.communicate()
    assert (round(own, 1) >= 0.2, of_children) == (True, 0.0)
    assert meter.sum_descendants(parent.pid) == 0


def test_a_process_knows_whether_it_has_a_child(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    found = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout.split() == ["False", "True", "True", "False"]


@pytest.mark.parametrize("may", [False, pytest.param(True, marks=pytest.mark.django_db)])
def test_the_sessions_are_read_after_a_test_that_may_have_some(
    request: pytest.FixtureRequest, may: bool
) -> None:
    assert meter.may_have_sessions(request.node) is may


def test_the_sessions_are_read_after_a_test_with_rows(
    request: pytest.FixtureRequest, tenant: Tenant
) -> None:
    assert meter.may_have_sessions(request.node)


def test_a_process_that_ends_unread_takes_no_cost_away() -> None:
    assert Cost(-3.0, 1.5).or_none() == Cost(0.0, 1.5)
