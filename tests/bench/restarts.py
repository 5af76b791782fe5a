"""Measures starts, deaths and restarts of workers: python -m tests.bench.restarts

Prints:

* the CPU seconds of a management command that stores an organization, the median of five;
* the seconds from the start of ``serve`` to its first 200 on ``/readyz``, for one and four workers;
* the proportional memory (PSS) of each of four workers after a thousand requests;
* the seconds until another process has taken the place of a killed worker;
* how many of the requests failed that went through HAProxy (Debian's) to two services, each of
  which was restarted in turn, with twenty streams at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.bench.__main__ import (
    PROJECT,
    System,
    causeway,
    process_on,
    upstream_provider,
    wait_for,
)
from tests.bench.crowd import read_stream
from tests.bench.database import work_directory
from tests.support.machine.ports import reserved_port

_STREAMS: Final = 20
_WORKERS: Final = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000, help="through HAProxy")
    options = parser.parse_args()
    if shutil.which("haproxy") is None:
        sys.exit("haproxy is missing; install it with: apt-get install haproxy")
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        upstream = stack.enter_context(upstream_provider())
        # Keeps the database and its PostgreSQL; the services under test use them too.
        system = stack.enter_context(causeway(directory, upstream))
        print(f"a management command  {_time_command(directory):.2f} s CPU", flush=True)
        for workers in (1, _WORKERS):
            with reserved_port() as port, _service(directory, workers, port) as (_, seconds):
                print(f"ready with {workers} worker(s)   {seconds:.2f} s", flush=True)
        with reserved_port() as port, _service(directory, _WORKERS, port) as (process, _):
            asyncio.run(_send(System("service", _url(port), 0, system.key), Counter(), 1_000))
            memory = sorted(_pss_of(pid) / 1e6 for pid in _workers_of(process.pid))
            print(f"PSS of each worker    {', '.join(f'{each:.0f}' for each in memory)} MB")
            print(f"a killed one replaced {_replace(port, process.pid):.2f} s", flush=True)
        counts = asyncio.run(_restart_in_turn(directory, system, options.requests))
        total = sum(counts.values())
        print(
            f"rolling restarts      {total - counts['whole']} of {total:,} failed: {dict(counts)}"
        )


@contextlib.contextmanager
def _service(
    directory: Path, workers: int, port: int
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Starts ``serve``; yields its process and the seconds until it was ready."""
    environment = {
        "DATA_DIR": str(directory / "data"),
        "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
        "LOG_LEVEL": "WARNING",
        "DRAIN_SECONDS": "3",
    }
    command = [sys.executable, "manage.py", "serve", "--port", str(port), "--workers", str(workers)]
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=PROJECT, env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/readyz", pause=0.02)
        yield process, time.monotonic() - started
    finally:
        process.terminate()
        process.wait(60)


def _time_command(directory: Path) -> float:
    """Returns the CPU seconds that a command takes from its start to its end."""
    environment = {**os.environ, "DATA_DIR": str(directory / "data")}
    command = [sys.executable, "manage.py", "create_organization", "Another", "--json"]
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=PROJECT, env=environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(took)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/api/v1/chat/completions"


def _workers_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _pss_of(pid: int) -> int:
    match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    assert match is not None
    return int(match[1]) * 1024


def _replace(port: int, supervisor: int) -> float:
    """Kills a worker; returns the seconds until a new one has accepted a connection."""
    before = set(_workers_of(supervisor))
    os.kill(min(before), signal.SIGKILL)
    started = time.monotonic()
    while True:
        new = set(_workers_of(supervisor)) - before
        if new and _is_listening(new.pop(), port):
            return time.monotonic() - started
        time.sleep(0.01)


def _is_listening(pid: int, port: int) -> bool:
    """Returns whether an event loop of the process waits for connections: epoll has the socket."""
    with contextlib.suppress(OSError):
        inodes = {
            fields[9]
            for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
            if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")
        }
        folder = Path(f"/proc/{pid}/fd")
        numbers = {each.name for each in folder.iterdir() if os.readlink(each)[8:-1] in inodes}
        for each in folder.iterdir():
            if "eventpoll" in os.readlink(each):
                info = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text()
                if numbers & set(re.findall(r"tfd:\s+(\d+)", info)):
                    return True
    return False


async def _send(system: System, counts: Counter[str], total: int) -> None:
    """Keeps twenty streams open until ``total`` have ended; counts how each ended."""
    left = iter(range(total))

    async def stream() -> None:
        for _ in left:
            try:
                whole = len(await read_stream(system, "bench-steps"))
            except OSError as exc:
                counts[type(exc).__name__] += 1
            else:
                counts["whole" if whole else "broken"] += 1

    await asyncio.gather(*(stream() for _ in range(_STREAMS)))


async def _restart_in_turn(directory: Path, system: System, total: int) -> Counter[str]:
    """Sends requests through HAProxy while each of two services is restarted again and again."""
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        services = [contextlib.ExitStack() for _ in ports]
        for service, port in zip(services, ports, strict=True):
            stack.callback(service.close)
            service.enter_context(_service(directory, 2, port))
        proxy = stack.enter_context(_haproxy(directory, ports))
        address = urlsplit(system.url)._replace(netloc=f"127.0.0.1:{proxy}").geturl()
        sending = asyncio.create_task(_send(System("proxy", address, 0, system.key), counts, total))
        turn = 0
        while not sending.done():
            service, port = services[turn % 2], ports[turn % 2]
            await asyncio.to_thread(service.close)
            await asyncio.to_thread(service.enter_context, _service(directory, 2, port))
            # HAProxy must see it ready before the other one leaves.
            await asyncio.sleep(3)
            turn += 1
        await sending
        print(f"services restarted    {turn} times")
    return counts


@contextlib.contextmanager
def _haproxy(directory: Path, ports: list[int]) -> Iterator[int]:
    with reserved_port() as port:
        config = directory / "haproxy.cfg"
        servers = "".join(
            f"  server s{each} 127.0.0.1:{each} check inter 500 fall 1 rise 2\n" for each in ports
        )
        config.write_text(
            "defaults\n  mode http\n  timeout connect 2s\n  timeout client 60s\n"
            "  timeout server 60s\n  option redispatch\n  retries 3\n"
            f"frontend in\n  bind 127.0.0.1:{port}\n  default_backend out\n"
            f"backend out\n  option httpchk GET /readyz\n{servers}"
        )
        with process_on(["haproxy", "-f", str(config), "-db"], 1):
            wait_for(f"http://127.0.0.1:{port}/healthz")
            yield port


if __name__ == "__main__":
    main()
