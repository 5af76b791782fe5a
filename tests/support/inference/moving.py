"""The service in a process of its own, with a monotonic clock that a test moves.

Run as a program, this module is that process: it serves on the socket whose number it gets, and
reads seconds from its standard input, by which its clock is then ahead.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Moving:
    """A running service and its clock."""

    address: str
    process: subprocess.Popen[str]

    def advance(self, seconds: float) -> None:
        """Moves the clock ahead; returns when the timers that are due then have been called."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "moved\n"


@contextmanager
def serve_with_moving_clock(environment: dict[str, str]) -> Iterator[Moving]:
    """Serves until the end of the block."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.inference.moving", str(number)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(number,),
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "serving\n"
            yield Moving(f"http://127.0.0.1:{listener.getsockname()[1]}", process)
        finally:
            process.terminate()
            process.communicate(timeout=60)


class _Clock:
    """The monotonic clock of the machine, moved ahead."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead


def _tell(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _run(number: int) -> None:
    """Serves, and moves the clock of this process as its standard input says."""
    clock = _Clock()
    time.monotonic = clock

    import asyncio
    import threading

    import uvicorn

    from config.asgi import application
    from config.server.connections.protocol import HttpProtocol

    server = uvicorn.Server(
        uvicorn.Config(
            application,
            lifespan="on",
            http=HttpProtocol,
            ws="none",
            log_config=None,
            loop="asyncio",
        )
    )

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def move(seconds: float) -> None:
            # The loop looks for due timers after this.
            clock.ahead += seconds
            loop.call_soon(loop.call_soon, _tell, "moved")

        def follow() -> None:
            while not server.started:
                time.sleep(0.01)
            _tell("serving")
            for line in sys.stdin:
                loop.call_soon_threadsafe(move, float(line))

        threading.Thread(target=follow, daemon=True).start()
        await server.serve(sockets=[socket.socket(fileno=number)])

    asyncio.run(serve())


if __name__ == "__main__":
    _run(int(sys.argv[1]))
