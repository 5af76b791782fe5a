"""pytest plugin: how far a whole tier is, how long it will last, and what has failed so far.

A line every ten seconds takes the place of a dot for each of 14,000 tests.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

import pytest

from tests.support.suite.distribution import weigh
from tests.support.suite.tiers import SELECTION, is_whole

INTERVAL_SECONDS: Final = 10.0


class Progress:
    """Counts the tests of the controlling process, and weighs them: the dearest come first."""

    def __init__(self, config: pytest.Config, reporter: Any) -> None:
        self._config = config
        self._reporter = reporter
        self._total = self._done = self._failed = 0
        self._all_seconds = self._done_seconds = 0.0
        self._begin = self._shown = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._start([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._total:
            self._start(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Shows no letter for a test."""
        if report.outcome == "passed" and report.when == "call":
            return "passed", "", ""
        if report.skipped and not hasattr(report, "wasxfail"):
            return "skipped", "", ""
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid}", red=True)
        if report.when == "teardown":
            self._done += 1
            self._done_seconds += self._weigh(report.nodeid)
            self._show()

    def _start(self, tests: Collection[str]) -> None:
        self._total, self._begin = len(tests), time.monotonic()
        self._all_seconds = sum(map(self._weigh, tests))
        self._reporter.ensure_newline()
        self._reporter.write_line(f"{self._total:,} tests")

    def _weigh(self, test: str) -> float:
        return weigh(test, self._config.stash[SELECTION])

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < INTERVAL_SECONDS:
            return
        self._shown = now
        left = (now - self._begin) * (self._all_seconds / self._done_seconds - 1)
        self._reporter.ensure_newline()
        self._reporter.write_line(
            f"{self._done:7,} of {self._total:,} tests, {self._failed} failed, "
            f"{_format(now - self._begin)}, about {_format(left)} left"
        )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    is_plain = config.option.verbose == 0 and not hasattr(config, "workerinput")
    if reporter and is_plain and is_whole(config):
        config.pluginmanager.register(Progress(config, reporter), "progress")


def _format(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
