"""``serve`` and ``work`` beside a cluster, with logs in the directory of the tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import MANAGE, environment


@dataclass(frozen=True)
class Service:
    """A running command and the file of its log."""

    pid: int
    log: Path


@contextlib.contextmanager
def run_service(*arguments: str, **changes: str) -> Iterator[Service]:
    """Runs ``serve`` or ``work`` until the end; it must not end before."""
    log = Path(os.environ["CAUSEWAY_TEST_DIR"], f"{'-'.join(arguments)}.log")
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments], env=environment(**changes), stderr=file
        )
    try:
        yield Service(process.pid, log)
        assert process.poll() is None, f"{arguments} ended: {log.read_text()[-2000:]}"
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
