"""The steps that are measured, each in a process of its own beside a connection that admits."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

from billing.models import Fold
from inference.archive.plans import DirectoryPlace
from inference.archive.retention import archive_due
from tests.bench.archive.months import Month

_QUIET_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.01
# What an admission writes, for the organization of the newest transfer; it is rolled back.
_ADMIT: Final = """
WITH newest AS (
    SELECT * FROM billing_transfer
    WHERE reference >= 'gen-' || floor(extract(epoch FROM now() - interval '20 days'))::bigint
        AND kind = 'usage' AND organization_id IS NOT NULL
    LIMIT 1
), locked AS (
    UPDATE billing_account SET pending_debits = pending_debits
    WHERE id = (SELECT debit_id FROM newest) RETURNING id
)
INSERT INTO billing_transfer (
    organization_id, kind, debit_id, credit_id, amount_nano, status, reference, created_at)
SELECT organization_id, kind, debit_id, credit_id, 1, 'pending',
       'gen-' || floor(extract(epoch FROM now()))::bigint || '-admitted', now()
FROM newest
"""
_READ: Final = """
SELECT count(*) FROM inference_generation
WHERE id >= 'gen-' || floor(extract(epoch FROM now()))::bigint
"""
_LONGEST: Final = """
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
"""


class Neighbour:
    """A connection that repeats the statements of an admission, and looks at transactions."""

    def __init__(self) -> None:
        self.wait_ms = 0.0
        self.open_seconds = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        parameters = connection.get_connection_params()
        names = ("dbname", "host", "user", "port")
        with psycopg.connect(
            **{name: parameters[name] for name in names if name in parameters}
        ) as own:
            # The first execution makes the plans.
            self._admit(own)
            while not self._ends.wait(_PAUSE_SECONDS):
                self.wait_ms = max(self.wait_ms, self._admit(own))
                [longest] = own.execute(_LONGEST).fetchone() or [0.0]
                own.rollback()
                self.open_seconds = max(self.open_seconds, longest)

    def _admit(self, own: psycopg.Connection[Any]) -> float:
        """Returns the milliseconds that the statements of an admission took."""
        began = time.perf_counter()
        own.execute(_READ)
        own.execute(_ADMIT)
        taken = (time.perf_counter() - began) * 1000
        own.rollback()
        return taken


def measure_quiet() -> float:
    """Returns the longest wait of a neighbour in milliseconds while nothing else runs."""
    with Neighbour() as neighbour:
        time.sleep(_QUIET_SECONDS)
    return round(neighbour.wait_ms, 1)


def measure(name: str, month: Month, directory: Path) -> dict[str, Any]:
    """Runs a step in a process of its own; returns its figures."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    # A session of PostgreSQL cannot be shared with another process.
    connections.close_all()
    process = context.Process(target=_run, args=(name, month, directory, theirs))
    with Neighbour() as neighbour:
        process.start()
        theirs.close()
        seconds, rows, peak_mb = ours.recv()
        process.join()
    assert process.exitcode == 0, name
    return {
        "seconds": round(seconds, 2),
        "rows": rows,
        "rows_per_second": round(rows / seconds),
        "peak_mb": round(peak_mb),
        "open_seconds": round(neighbour.open_seconds, 2),
        "wait_ms": round(neighbour.wait_ms, 1),
    }


def _run(name: str, month: Month, directory: Path, pipe: Connection) -> None:
    began = time.perf_counter()
    rows = STEPS[name](month, directory)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    pipe.send((seconds, rows, peak))


def _export(ending: str) -> Callable[[Month, Path], int]:
    def run(month: Month, directory: Path) -> int:
        last = month.end - timedelta(days=1)
        file = directory / f"{month.begin:%Y-%m}.{ending}"
        days = ["--from", f"{month.begin:%Y-%m-%d}", "--to", f"{last:%Y-%m-%d}"]
        with open(os.devnull, "w") as nowhere:
            call_command("export_generations", str(file), *days, stdout=nowhere, stderr=nowhere)
        return month.generations

    return run


def _archive(month: Month, directory: Path) -> int:
    settings.RETENTION_DAYS = {"generations": month.days_to_keep}
    settings.ARCHIVE_PLACE = DirectoryPlace(directory / "archive")
    assert archive_due() == 1, "the month stays"
    stored = sum(file["rows"] for file in _last_fold().files)
    assert stored == month.generations + month.transfers, "the files have other rows"
    return stored


def _restore(month: Month, directory: Path) -> int:
    archive = str(directory / "archive")
    with open(os.devnull, "w") as nowhere:
        call_command("restore_generations", _last_fold().number, archive=archive, stdout=nowhere)
    return month.generations + month.transfers


def _last_fold() -> Fold:
    return Fold.objects.latest("number")


STEPS: Final[dict[str, Callable[[Month, Path], int]]] = {
    "export_csv": _export("csv"),
    "export_jsonl": _export("jsonl"),
    "export_parquet": _export("parquet"),
    "archive": _archive,
    "restore": _restore,
}
