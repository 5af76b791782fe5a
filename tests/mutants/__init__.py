"""Deliberate faults, one line each: the named tests must notice every one of them.

``table.toml`` has the faults. ``python -m tests.mutants`` makes each of them in a copy of the tree,
runs its tests, and exits with 1 if a fault stays unnoticed. A new guard brings its own fault.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = Path(__file__).with_name("table.toml")


class Mutant(NamedTuple):
    """A fault: the text of one line, what replaces it, and the tests that must notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def apply(self, root: Path) -> str:
        """Makes the fault in a tree; returns the text of the file before."""
        path = root / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.name}: the text stands not exactly once in {self.file}")
        path.write_text(text.replace(self.old, self.new), "utf-8")
        return text


def read_mutants() -> list[Mutant]:
    found = tomllib.loads(TABLE.read_text("utf-8"))["mutant"]
    return [Mutant(**each) for each in found]
