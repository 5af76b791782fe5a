"""Measures many slow streams through one worker at the same time: python -m tests.bench.crowd

Each stream gets an event every half second for half a minute. Prints the number of complete
streams, the memory of a stream, the CPU time of an event and the delay of events. ``--tls``: the
provider speaks TLS, as those outside do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config.local.certificates import ensure_certificates
from tests.bench.__main__ import (
    OTHER_CORE,
    System,
    causeway,
    cpu_of,
    memory_of,
    process_on,
    upstream_provider,
)
from tests.bench.database import work_directory
from tests.bench.upstream import CHUNKS, DRIP_SECONDS
from tests.support.machine.ports import reserved_port

_HALFWAY: Final = CHUNKS * DRIP_SECONDS / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tls", action="store_true", help="with TLS between worker and provider")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        provider = tls_provider(directory / "tls") if options.tls else upstream_provider()
        upstream = stack.enter_context(provider)
        system = stack.enter_context(causeway(directory, upstream))
        asyncio.run(_measure_crowd(system, options.streams))


@contextlib.contextmanager
def tls_provider(directory: Path) -> Iterator[str]:
    """Starts the provider with TLS on the second core and yields its address."""
    with reserved_port() as port:
        certificates = ensure_certificates(directory)
        # Services that this process starts trust the provider.
        os.environ["UPSTREAM_CA_BUNDLE"] = str(certificates.ca)
        program = [sys.executable, "-m", "tests.bench.upstream"]
        command = [*program, str(port), str(certificates.server)]
        with process_on(command, OTHER_CORE):
            while not is_listening(port):
                time.sleep(0.05)
            yield f"https://127.0.0.1:{port}/v1"


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _measure_crowd(system: System, streams: int) -> None:
    await read_stream(system)
    memory, cpu = memory_of(system.pid), cpu_of(system.pid)
    tasks = [asyncio.create_task(read_stream(system)) for _ in range(streams)]
    await asyncio.sleep(_HALFWAY)
    grown = memory_of(system.pid) - memory
    gaps = [gap for found in await asyncio.gather(*tasks) for gap in found]
    spent = cpu_of(system.pid) - cpu
    late = sorted(max(gap - DRIP_SECONDS, 0) * 1000 for gap in gaps)
    whole = sum(1 for task in tasks if len(task.result()) == CHUNKS)
    print(f"streams           {streams}, {whole} complete with [DONE]")
    print(f"memory            {grown / streams / 1024:,.0f} KiB a stream, {grown / 1e6:,.0f} MB")
    print(f"CPU               {spent / max(len(gaps), 1) * 1e6:,.0f} µs an event")
    print(f"events come late  {late[len(late) // 2]:.1f} ms p50, {late[-len(late) // 100]:.1f} p99")


async def read_stream(system: System, model: str = "bench-drip") -> list[float]:
    """Requests a stream; returns the seconds between its events, or an empty list if it broke."""
    address, _, path = system.url.removeprefix("http://").partition("/")
    host, _, port = address.partition(":")
    body = json.dumps(
        {
            "model": f"bench/{model}",
            "stream": True,
            "messages": [{"role": "user", "content": "one two three four"}],
            "max_tokens": 100,
        }
    ).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
        % (path.encode(), system.key.encode(), len(body), body)
    )
    gaps: list[float] = []
    last: float | None = None
    is_done = False
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            is_done = True
        elif line.startswith(b"data: "):
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now
    writer.close()
    return gaps if is_done else []


if __name__ == "__main__":
    main()
