"""The list of what modules leave open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.suite.reach import ROOT

FORGETFUL = """
import os
import psycopg

class Holder:
    pass

def test_forgets():
    holder = Holder()
    holder.itself = holder
    holder.connection = psycopg.connect(os.environ["DATABASE_URL"])

def test_passes():
    pass
"""


def test_an_open_connection_is_listed_with_where_it_was_opened(db: None, tmp_path: Path) -> None:
    (tmp_path / "test_forgetful.py").write_text(FORGETFUL)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "tests.support.suite.tiers"]
        + ["-p", "tests.support.suite.leaks", "-p", "no:django", "-p", "no:cacheprovider", "-q"]
        + ["-p", "no:randomly", "-W", "error", "-W", "always::ResourceWarning", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "2 passed, 1 warning" in done.stdout, done.stdout + done.stderr
    [told] = [line for line in done.stdout.splitlines() if "was left open: " in line]
    assert "connection.py" in told
    assert "test_forgetful.py:11 test_forgets" in told
