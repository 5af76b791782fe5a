"""pytest plugin: gives whole modules to the processes of a run, those that last longest first.

What a module's fixtures start is started once, and so is the browser of its room. Stealing single
tests would start them again in each process; it also splits the groups that xdist knows. One
process has the modules that use the service with two workers: four would run idly in four, and one
costs three seconds to start and one of each hundred seconds to run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.suite.tiers import SELECTION, Selection, function_of, path_of

# Rooms that one process runs, because they share what takes seconds to start.
SERVED: Final = "tests/bulkheads/"
UNDIVIDED: Final = ("tests/browser/", SERVED)
# What a test costs of which nothing was recorded, and how long one waits for the process it starts.
_USUAL_SECONDS: Final = 0.05
_START_SECONDS: Final = 0.5


def unit_of(test: str, served: Collection[str] = ()) -> str:
    """Returns the module of a test, or its room if that is undivided.

    The modules that are ``served`` by the running service join the room that uses it most.
    """
    path = path_of(test)
    if path in served:
        return SERVED
    return next((room for room in UNDIVIDED if path.startswith(room)), path)


class Units(LoadScopeScheduling):
    """Hands out modules in the order of the collection; forgets those that are done."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # By itself xdist begins with the modules that have the most tests.
        config.option.loadscopereorder = False
        self._served = config.stash[SELECTION].served

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid, self._served)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        test = self.registered_collections[node][item_index]
        name = self._split_scope(test)
        unit = self.assigned_work[node][name]
        unit[test] = True
        if all(unit.values()):
            del self.assigned_work[node][name]
        self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units | None:
    return Units(config, log) if config.option.dist == "loadscope" else None


def estimate(tests: Iterable[str], selection: Selection) -> Mapping[str, float]:
    """Returns about how many seconds each module or undivided room lasts."""
    seconds: dict[str, float] = defaultdict(float)
    for test in tests:
        seconds[unit_of(test, selection.served)] += weigh(test, selection)
    return seconds


def weigh(test: str, selection: Selection) -> float:
    """Returns about how many seconds a test lasts."""
    dear, function = selection.rules.dear, function_of(test)
    wait = _START_SECONDS if function in selection.starting else 0
    return dear.get(test, dear.get(function, _USUAL_SECONDS)) + wait


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets the modules begin first that last longest, so that no process is alone at the end."""
    selection = config.stash[SELECTION]
    seconds = estimate((item.nodeid for item in items), selection)
    places: dict[str, int] = {}

    def place(item: pytest.Item) -> tuple[float, str, bool, int]:
        unit = unit_of(item.nodeid, selection.served)
        # A room keeps together what its package has started, and a module what it has itself:
        # pytest-django puts the tests without a database first.
        module = places.setdefault(path_of(item.nodeid), len(places))
        return -seconds[unit], unit, not item.nodeid.startswith(unit), module

    items.sort(key=place)
