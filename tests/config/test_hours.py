"""Tests begin and end in one hour."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.suite.hours import is_between_hours


@pytest.mark.parametrize(
    ("time", "is_between"),
    [
        ("10:00:00.999", True), ("10:00:01", False), ("10:30:59", False),
        ("10:59:19.999", False), ("10:59:20", True), ("23:59:59.999", True), ("00:00:00", True),
    ],
)  # fmt: skip
def test_the_end_of_an_hour_is_waited_for(time: str, is_between: bool) -> None:
    assert is_between_hours(datetime.fromisoformat(f"2026-03-31T{time}+00:00")) is is_between


def test_each_test_waits_before_its_fixtures(request: pytest.FixtureRequest) -> None:
    found = request.config.hook.pytest_runtest_setup.get_hookimpls()
    [waiting] = [each for each in found if each.plugin_name == "tests.support.suite.hours"]
    assert waiting.tryfirst
