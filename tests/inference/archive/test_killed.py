"""A process that is killed while it archives leaves everything as it was, or everything done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import LazySettings
from django.db import connection

from billing.models import Fold
from inference.archive.plans import DirectoryPlace
from inference.archive.retention import archive_due
from inference.archive.sealing import list_sealed
from tests.support import factories
from tests.support.database import archive
from tests.support.database.archive import HOUR
from tests.support.machine.waiting import wait_until
from tests.support.processes import MANAGE, environment

# Databases that are copies of one template give their tables the same numbers.
LOCKS = (
    "SELECT FROM pg_locks AS l INNER JOIN pg_database AS d ON d.oid = l.database "
    "WHERE d.datname = current_database()"
)
WRITE_SLOWLY = """
import sys, time
from pathlib import Path
from inference.archive.plans import DirectoryPlace
from inference.archive.stores import DirectoryStore

def chunks():
    print("begun", flush=True)
    time.sleep(600)
    yield b""

DirectoryStore(DirectoryPlace(Path(sys.argv[1]))).write("billing_transfer/a", chunks())
"""


@pytest.fixture
def place(transactional_db: None, tmp_path: Path, settings: LazySettings) -> Iterator[Path]:
    """Two months that may leave, in a database that other processes see."""
    tenant = factories.make_tenant()
    archive.let_leave(settings, DirectoryPlace(tmp_path / "archive"))
    for month in archive.months()[:2]:
        archive.fill(tenant, month + HOUR)
    archive.sum_all()
    yield tmp_path / "archive"
    archive.unite_past()


def begin_work(place: Path) -> subprocess.Popen[bytes]:
    days = archive.days_to_keep()
    return subprocess.Popen(
        [sys.executable, str(MANAGE), "work", "--once"],
        env=environment(RETENTION_DAYS=f"generations={days}", ARCHIVE_URL=str(place)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_the_file_of_a_process_that_is_killed_while_it_writes_goes(place: Path) -> None:
    """Its successor writes the file again, under another process's name."""
    (place / "billing_transfer").mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_SLOWLY, str(place)], stdout=subprocess.PIPE, cwd=MANAGE.parent
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"begun\n"
        assert len(list(place.rglob("*.part"))) == 1
        kill(process)
    archive_the_rest(2)
    assert list(place.rglob("*.part")) == []


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    connection.ensure_connection()
    wait_for(f"SELECT NOT EXISTS ({LOCKS} AND relation = 'billing_fold'::regclass)")


def wait_for(query: str) -> None:
    """Waits until the first column of a query is true."""

    def is_true() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return bool(cursor.fetchone()[0])

    wait_until(is_true, query)


def archive_the_rest(months: int) -> None:
    assert archive_due() == months
    assert Fold.objects.count() == 2
    assert archive.verify() == []
    assert list_sealed() == set()


def test_a_process_that_is_killed_in_its_fold_has_changed_nothing(place: Path) -> None:
    """A reader keeps the table, so the process waits, with the sums stored and not committed."""
    before, names = archive.balances(), archive.partition_names()
    parameters = connection.get_connection_params()
    names_of_address = {"dbname", "host", "user", "port"} & parameters.keys()
    with psycopg.connect(**{name: parameters[name] for name in names_of_address}) as reader:
        reader.execute("LOCK TABLE ONLY inference_generation IN ACCESS SHARE MODE")
        process = begin_work(place)
        wait_for(
            f"SELECT EXISTS ({LOCKS} AND relation = 'billing_opening'::regclass "
            "AND mode = 'RowExclusiveLock')"
        )
        kill(process)
    assert (archive.balances(), archive.partition_names()) == (before, names)
    assert not Fold.objects.exists()
    assert len(list_sealed()) == 2
    assert archive.verify() == []
    archive_the_rest(2)


@pytest.mark.parametrize("attempt", range(3))
def test_a_process_that_is_killed_at_any_time_leaves_one_of_two_states(
    place: Path, attempt: int
) -> None:
    """The kills are spread over what the process does after its start, from the first seal on."""
    names = archive.partition_names()
    process = begin_work(place)
    wait_for("SELECT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = 'leaves')")
    time.sleep(0.04 * attempt)
    kill(process)
    done = Fold.objects.count()
    assert len(names) - len(archive.partition_names()) == 2 * done
    assert archive.verify() == []
    archive_the_rest(2 - done)
    assert os.listdir(place)
    assert list(place.rglob("*.part")) == []
