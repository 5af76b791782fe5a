"""How a worker accepts connections: few at a time, and again after it ran out of files."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from config.server.bulkheads import Bulkheads
from config.server.collector import Collector
from config.server.connections.acceptor import Acceptor
from tests.support.machine.logs import own_lines


class Greeter(asyncio.Protocol):
    """Greets and closes; ``greeted`` counts the connections of all instances."""

    greeted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).greeted += 1
        transport.write(b"hello")  # type: ignore[attr-defined]
        transport.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    Greeter.greeted = 0
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen(200)
        made.setblocking(False)
        yield made


def test_waiting_connections_do_not_take_one_turn_of_the_loop(listener: socket.socket) -> None:
    callers = [socket.create_connection(listener.getsockname()) for _ in range(100)]

    async def serve() -> list[int]:
        acceptor = Acceptor(listener, Greeter)
        counts = []
        while Greeter.greeted < len(callers):
            await asyncio.sleep(0)
            counts.append(Greeter.greeted)
        acceptor.close()
        await acceptor.wait_closed()
        return counts

    counts = asyncio.run(serve())
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(steps) <= 16
    for caller in callers:
        assert caller.recv(16) == b"hello"
        caller.close()


def test_a_closed_acceptor_leaves_the_connections_to_others(listener: socket.socket) -> None:
    async def serve() -> None:
        first, second = Acceptor(listener, Greeter), None
        first.close()
        await first.wait_closed()
        with socket.create_connection(listener.getsockname()) as caller:
            caller.setblocking(False)
            await asyncio.sleep(0.05)
            assert Greeter.greeted == 0
            second = Acceptor(listener, Greeter)
            assert await asyncio.get_running_loop().sock_recv(caller, 16) == b"hello"
        second.close()
        await second.wait_closed()

    asyncio.run(serve())


def test_it_accepts_again_after_it_ran_out_of_files(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def serve() -> bytes:
        acceptor = Acceptor(listener, Greeter)
        caller = socket.create_connection(listener.getsockname())
        caller.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
        while not own_lines(caplog):
            await asyncio.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        greeting: bytes = await asyncio.get_running_loop().sock_recv(caller, 16)
        acceptor.close()
        await acceptor.wait_closed()
        caller.close()
        return greeting

    try:
        assert asyncio.run(serve()) == b"hello"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    [line] = own_lines(caplog)
    assert "Too many open files" in line


def test_full_collections_run_in_idle_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds = gc.get_threshold()
    thread = threading.get_ident()
    full: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        # A service in another thread of this process has a collector of its own.
        if (phase, info["generation"], threading.get_ident()) == ("stop", 2, thread):
            full.append(1)

    monkeypatch.setattr("config.server.collector._INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr("config.server.collector._IDLE_SECONDS", 0.02)

    async def serve() -> list[int]:
        bulkheads = Bulkheads()
        collector = Collector(bulkheads)
        collector.start()
        counts = [len(full)]
        with bulkheads.enter_operator():
            await asyncio.sleep(0.1)
            counts.append(len(full))
        while len(full) == counts[-1]:
            await asyncio.sleep(0.01)
        collector.stop()
        return counts

    gc.callbacks.append(note)
    try:
        before, busy = asyncio.run(serve())
        assert before == busy
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
