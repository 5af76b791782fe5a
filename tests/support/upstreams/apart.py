"""Serves the simulated upstream in a process of its own.

A measurement that shares its process with the upstream delays the upstream whenever it is busy
itself, and counts the delay against the service. Run as a program with the directory of the
certificates, it prints its base URL as soon as it answers, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.local.certificates import ensure_certificates
from tests.support.simulator.server import Simulator


@contextmanager
def simulator_apart() -> Iterator[str]:
    """Yields the base URL of an upstream that answers, and ends its process afterwards."""
    directory = Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls"
    # The upstream ends when its input does, so it never outlives a measurement that was killed.
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    with process:
        try:
            base_url = process.stdout.readline().strip()
            if not base_url:
                raise OSError("The simulated upstream did not start.")
            yield base_url
        finally:
            process.stdin.close()


async def _serve(directory: Path) -> None:
    # Half an hour of requests is not kept.
    simulator = Simulator(ensure_certificates(directory), remember=0)
    await simulator.start()
    sys.stdout.write(f"{simulator.base_url}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await simulator.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
