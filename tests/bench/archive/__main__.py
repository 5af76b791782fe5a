"""Measures the archive with one large month: python -m tests.bench.archive --generations 100000

Fills a closed month with a tenth of the generations and the next one with all of them, each with
its transfers, in a database of its own. Each step is a process of its own: the exports of the
month, its archive (the Parquet files, the fold, the drop), and the restored tables. Prints one
JSON object with the figures of each step for both sizes:

* ``seconds``, ``rows`` and ``rows_per_second``;
* ``peak_mb``: the most memory that the process had, which must not grow with the rows;
* ``open_seconds``: the longest time for which one of its transactions was seen open;
* ``wait_ms``: the longest time that the statements of an admission took meanwhile, which another
  connection repeats. ``quiet_wait_ms`` is the same without any step.

``growth_mb`` is the difference of the peaks of both sizes. Exits with 1 if it is more than 64 MB,
if the ledger contradicts itself, or if a file has other rows than the month had.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

# Made-up data never goes into the database that the caller's environment names.
os.environ["DATABASE_URL"] = ""
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

import tests.support.embedded  # noqa: F401 - starts a database of its own, before settings are read

django.setup()

from django.core.management import call_command

from tests.bench.archive.months import Month, fill_closed_months
from tests.bench.archive.steps import STEPS, measure, measure_quiet
from tests.support.database import archive

MOST_GROWTH_MB: Final = 64


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.archive", description=__doc__)
    parser.add_argument("--generations", type=int, default=100_000)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    months = fill_closed_months([options.generations // 10, options.generations])
    with tempfile.TemporaryDirectory(prefix="causeway-archive-") as directory:
        figures = [_measure(month, Path(directory)) for month in months]
    growth = {step: figures[1][step]["peak_mb"] - figures[0][step]["peak_mb"] for step in STEPS}
    differences = archive.verify()
    report: dict[str, Any] = {
        "quiet_wait_ms": measure_quiet(),
        "months": figures,
        "growth_mb": growth,
        "differences": differences,
    }
    print(json.dumps(report))
    return 1 if differences or max(growth.values()) > MOST_GROWTH_MB else 0


def _measure(month: Month, directory: Path) -> dict[str, Any]:
    report: dict[str, Any] = {"generations": month.generations, "transfers": month.transfers}
    for name in STEPS:
        print(f"{month.begin:%Y-%m}: {name}", file=sys.stderr, flush=True)
        report[name] = measure(name, month, directory)
    return report


if __name__ == "__main__":
    sys.exit(main())
