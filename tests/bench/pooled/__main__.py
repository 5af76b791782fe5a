"""Compares a worker beside PostgreSQL with workers behind PgBouncer: python -m tests.bench.pooled

Three workers take turns on the first core, and all else has the second, as in ``tests.bench``:

* ``direct`` is connected to PostgreSQL itself;
* ``pooled`` reaches it through PgBouncer in transaction mode, with Debian's defaults;
* ``past`` has the pooler for the control plane alone (``DATABASE_DIRECT_URL``).

Prints the medians of the rounds, and by pairs of rounds the ratio to ``direct``. ``pooler`` is the
CPU time of PgBouncer for a request. Exits with 1 if the ledger contradicts itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.bench.__main__ import (
    LOADS,
    OTHER_CORE,
    PROJECT,
    SYSTEM_CORE,
    System,
    causeway,
    cpu_of,
    measure,
    process_on,
    require_whole_answer,
    upstream_provider,
    wait_for,
)
from tests.bench.database import work_directory
from tests.support.database.pooler import Pooler, run_pooler
from tests.support.machine.ports import reserved_port

# All workers share a database, so they need the same secrets.
_SHARED: Final = {
    "SECRET_KEY": "bench-secret-bench-secret-bench-secret-bench",
    "CREDENTIAL_KEYS": "YmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtYmU=",
    "DATABASE_URL": "embedded",
    "ALLOWED_HOSTS": "127.0.0.1",
}
_COLUMNS: Final = ("per second", "CPU µs", "PG µs", "pooler µs", "p50 ms", "p99 ms", "failed")
_RATIOS: Final = ("per second", "CPU µs", "PG µs")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pooled", description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.update(_SHARED)
    os.sched_setaffinity(0, {OTHER_CORE})
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        upstream = stack.enter_context(upstream_provider())
        direct = replace(stack.enter_context(causeway(directory, upstream)), name="direct")
        assert direct.database is not None
        pooler = stack.enter_context(run_pooler(direct.database.url))
        behind = {"DATABASE_URL": pooler.url(direct.database.url)}
        past = {**behind, "DATABASE_DIRECT_URL": direct.database.url}
        systems = [
            direct,
            stack.enter_context(_worker(directory, direct, "pooled", behind)),
            stack.enter_context(_worker(directory, direct, "past", past)),
        ]
        _run(directory, systems, pooler, options.rounds, options.seconds)
        for load in (each.name for each in LOADS):
            _print_load(load, systems)
        verified = subprocess.run(
            [sys.executable, "manage.py", "verify_ledger"],
            cwd=PROJECT,
            env={**os.environ, "DATA_DIR": str(directory / "data")},
        )
    sys.exit(verified.returncode)


@contextlib.contextmanager
def _worker(directory: Path, like: System, name: str, urls: dict[str, str]) -> Iterator[System]:
    """Starts one more worker on the database of another one."""
    with reserved_port() as port:
        environment = {
            "DATA_DIR": str(directory / "data"),
            "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
            "LOG_LEVEL": "WARNING",
            **urls,
        }
        command = [sys.executable, "manage.py", "serve", "--port", str(port)]
        with process_on(command, SYSTEM_CORE, environment) as process:
            wait_for(f"http://127.0.0.1:{port}/readyz")
            assert like.database is not None
            like.database.move(OTHER_CORE)
            url = f"http://127.0.0.1:{port}/api/v1/chat/completions"
            yield replace(like, name=name, url=url, pid=process.pid, sizes={}, figures={})


def _run(directory: Path, systems: list[System], pooler: Pooler, rounds: int, seconds: int) -> None:
    assert pooler.process is not None
    for system in systems:
        for load in LOADS:
            system.sizes[load.name] = require_whole_answer(system, load)
            measure(directory, system, load, seconds=2)
    for load in LOADS:
        for _ in range(rounds):
            for system in systems:
                before = cpu_of(pooler.process.pid)
                figures = measure(directory, system, load, seconds=seconds)
                count = figures["per second"] * seconds
                figures["pooler µs"] = (cpu_of(pooler.process.pid) - before) / count * 1e6
                system.figures.setdefault(load.name, []).append(figures)


def _print_load(load: str, systems: list[System]) -> None:
    print(f"{load:<24}" + "".join(f"{name:>11}" for name in _COLUMNS), flush=True)
    for system in systems:
        found = system.figures[load]
        medians = [statistics.median(each[name] for each in found) for name in _COLUMNS]
        print(f"  {system.name:<22}" + "".join(f"{value:>11,.1f}" for value in medians))
    for system in systems[1:]:
        pairs = list(zip(system.figures[load], systems[0].figures[load], strict=True))
        ratios = [
            statistics.median(own[name] / (other[name] or 1) for own, other in pairs)
            for name in _RATIOS
        ]
        shown = ", ".join(
            f"{name} {ratio:.2f} ×" for name, ratio in zip(_RATIOS, ratios, strict=True)
        )
        print(f"  {system.name} to direct: {shown}")


if __name__ == "__main__":
    main()
