"""The way from a fresh copy to a team of thirty, as its pages say."""

from __future__ import annotations

from tests.drills.walk.__main__ import main


def test_a_team_of_thirty_calls_its_own_model_within_ten_minutes() -> None:
    assert main() == 0
