"""pytest plugin: gives whole modules to the processes of a run, those that last longest first.

What a module's fixtures start is started once, and so is the browser of its room. Stealing single
tests would start them again in each process; it also splits the groups that xdist knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.suite.tiers import SELECTION, Selection, function_of

# Rooms that one process runs, because they share what takes seconds to start.
UNDIVIDED: Final = ("tests/browser/", "tests/bulkheads/")
# What a test costs of which nothing was recorded, and how long one waits for the process it starts.
_USUAL_SECONDS: Final = 0.05
_START_SECONDS: Final = 0.5


def unit_of(test: str) -> str:
    """Returns the module of a test, or its room if that is undivided."""
    path = test.partition("::")[0]
    return next((room for room in UNDIVIDED if path.startswith(room)), path)


class Units(LoadScopeScheduling):
    """Hands out modules in the order of the collection; forgets those that are done."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        test = self.registered_collections[node][item_index]
        unit = self.assigned_work[node][unit_of(test)]
        unit[test] = True
        if all(unit.values()):
            del self.assigned_work[node][unit_of(test)]
        self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units | None:
    return Units(config, log) if config.option.dist == "loadscope" else None


def estimate(tests: Iterable[str], selection: Selection) -> Mapping[str, float]:
    """Returns about how many seconds each module or undivided room lasts."""
    dear = selection.rules.dear
    seconds: dict[str, float] = defaultdict(float)
    for test in tests:
        function = function_of(test)
        cost = dear.get(test, dear.get(function, _USUAL_SECONDS))
        wait = _START_SECONDS if function in selection.starting else 0
        seconds[unit_of(test)] += cost + wait
    return seconds


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets the modules begin first that last longest, so that no process is alone at the end."""
    seconds = estimate((item.nodeid for item in items), config.stash[SELECTION])
    items.sort(key=lambda item: -seconds[unit_of(item.nodeid)])
