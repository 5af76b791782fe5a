"""The release from which an upgrade is tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from config.local.bootstrap import PROJECT
from tests.drills.upgrade.releases import BASE, HistoryMissing, read_base


def test_the_base_is_part_of_this_history() -> None:
    try:
        commit = read_base()
    except HistoryMissing as exc:
        pytest.skip(str(exc))
    command = ["git", "-C", str(PROJECT), "merge-base", "--is-ancestor", commit, "HEAD"]
    assert subprocess.run(command).returncode == 0


def test_a_clone_without_the_history_is_told_what_to_do(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(HistoryMissing, match="git fetch --unshallow") as refusal:
        read_base(tmp_path)
    assert BASE.read_text().strip() in str(refusal.value)
