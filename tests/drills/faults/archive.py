"""Kills ``work`` while it archives a large month: python -m tests.drills.faults.archive --kills 20

Each kill (SIGKILL) falls at a random moment after the first seal of a closed month. After each kill
the month is whole: all rows are in their tables, or a fold has their sums. Then one pass ends.
Prints one JSON object. Exits with 1 if the files have other rows than the month had, if the ledger
contradicts itself, if a partition stayed sealed, or if an unfinished file stayed.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["DATABASE_URL"] = ""
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - makes a database and secrets, before settings are read

django.setup()

from django.core.management import call_command
from django.db import connection

from billing.models import Fold
from inference.archive.plans import DirectoryPlace
from inference.archive.restoring import forget, restore
from inference.archive.sealing import list_sealed
from inference.archive.stores import open_store
from tests.bench.archive.months import Month, count_month, fill_closed_months
from tests.support.database import archive
from tests.support.machine.waiting import wait_until
from tests.support.processes import MANAGE, environment

_SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills.faults.archive", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--generations", type=int, default=20_000)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    [month] = fill_closed_months([options.generations])
    with tempfile.TemporaryDirectory(prefix="causeway-archive-") as directory:
        report = _kill_often(month, Path(directory), options.kills)
    print(json.dumps(report))
    return 1 if report["lost"] or report["left"] or report["differences"] else 0


def _kill_often(month: Month, place: Path, kills: int) -> dict[str, Any]:
    lost: list[str] = []
    parts = 0
    began = time.monotonic()
    longest = 2.0
    for number in range(kills):
        process = _begin_work(month, place)
        _wait(lambda: _is_sealed() or Fold.objects.exists(), process)
        delay = random.uniform(0, longest)
        time.sleep(delay)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Kills spread over the whole archive, however fast the machine is.
        longest *= 1.5 if delay > longest / 2 else 1.0
        parts += len(list(place.rglob("*.part")))
        lost += _find_lost(month, number)
    process = _begin_work(month, place)
    assert process.wait(_SECONDS) == 0, "work --once failed"
    [fold] = Fold.objects.all()
    restored = restore(fold, open_store(DirectoryPlace(place)))
    forget(fold)
    if sum(restored.values()) != month.generations + month.transfers:
        lost.append(f"the files have {restored}")
    return {
        "generations": month.generations,
        "transfers": month.transfers,
        "kills": number + 1,
        "seconds": round(time.monotonic() - began),
        "unfinished_files_seen": parts,
        "lost": lost,
        "left": [*map(str, place.rglob("*.part")), *sorted(list_sealed())],
        "differences": archive.verify(),
    }


def _find_lost(month: Month, number: int) -> list[str]:
    """Returns a sentence if a month without a fold lacks rows, or one with a fold has some."""
    _wait(lambda: not _has_others())
    found = count_month(month.begin, month.end)
    has_left = Fold.objects.exists()
    wanted = (0, 0) if has_left else (month.generations, month.transfers)
    if (found.generations, found.transfers) == wanted:
        return []
    return [f"after kill {number}: {found}, folded: {has_left}"]


def _begin_work(month: Month, place: Path) -> subprocess.Popen[bytes]:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE config_lease SET until = now(), holder = ''")
    return subprocess.Popen(
        [sys.executable, str(MANAGE), "work", "--once"],
        env=environment(
            RETENTION_DAYS=f"generations={month.days_to_keep}", ARCHIVE_URL=str(place),
            LOG_LEVEL="WARNING",
        ),
    )  # fmt: skip


def _is_sealed() -> bool:
    return bool(list_sealed())


def _has_others() -> bool:
    """Returns whether PostgreSQL still ends the session of a killed process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) > 0 FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        return bool(cursor.fetchone()[0])


def _wait(is_so: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    wait_until(
        lambda: is_so() or (process is not None and process.poll() is not None), seconds=_SECONDS
    )


if __name__ == "__main__":
    sys.exit(main())
