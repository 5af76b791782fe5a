"""Runs the mutants: ``python -m tests.mutants [--list] [--only NAME …] [--shard I/N]``."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants import ROOT, Mutant, read_mutants

# All runs share the database server that this import starts, and its migrated database.
from tests.support import embedded  # noqa: F401

# A fault may let a test wait for ever.
_TEST_SECONDS: Final = 180
_RUN_SECONDS: Final = 400
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    mutants = _select(read_mutants(), options.only, options.shard)
    if options.list:
        for each in mutants:
            print(f"{each.name}\t{each.file}\t{' '.join(each.tests)}")
        return 0
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="causeway-mutants-") as directory:
        tree = Path(directory)
        _copy_tree(tree)
        for each in mutants:
            began = time.monotonic()
            noticed = _run(each, tree)
            survivors += noticed is None
            seconds = time.monotonic() - began
            print(f"{each.name:<44} {noticed or 'SURVIVED'}  {seconds:.0f} s", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} faults were noticed.")
    return 1 if survivors else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the faults, and run nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these faults")
    parser.add_argument("--shard", metavar="I/N", help="run every Nth fault, from the Ith on")
    return parser.parse_args(arguments)


def _select(mutants: list[Mutant], only: list[str] | None, shard: str | None) -> list[Mutant]:
    if only is not None:
        if unknown := set(only) - {each.name for each in mutants}:
            raise SystemExit(f"there is no such fault: {', '.join(sorted(unknown))}")
        mutants = [each for each in mutants if each.name in only]
    if shard is not None:
        index, _, count = shard.partition("/")
        mutants = mutants[int(index) - 1 :: int(count)]
    return mutants


def _copy_tree(target: Path) -> None:
    """Copies the files of the clone that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _run(mutant: Mutant, tree: Path) -> str | None:
    """Makes a fault, runs its tests, and mends it; returns the test that noticed, if one did."""
    before = mutant.apply(tree)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", f"--timeout={_TEST_SECONDS}"]
    try:
        found = subprocess.run(
            [*command, *mutant.tests],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "(the run did not end)"
    finally:
        (tree / mutant.file).write_text(before, "utf-8")
    failed = _FAILED.search(found.stdout)
    if found.returncode == 1:
        return failed[1] if failed else "(a test did not end)"
    if found.returncode:
        # Nothing was tested: a fault must not break the import, and its tests must exist.
        print(found.stdout[-3000:], found.stderr[-3000:], file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
