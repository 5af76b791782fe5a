"""``work`` is killed while it sends: everything arrives at least once, as the same spans."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys

from config.clocks.leases import Lease
from tests.support import factories
from tests.support.broadcast.destinations import broadcast_to, make_past_generation, progress_of
from tests.support.broadcast.traces import TAKEN, TraceReceiver
from tests.support.processes import MANAGE, environment


def test_a_killed_worker_sends_again(transactional_db: None, receiver: TraceReceiver) -> None:
    tenant = factories.make_tenant()
    destination = broadcast_to(tenant.workspace, receiver.url)
    ids = {make_past_generation(tenant, minutes=minutes).pk for minutes in range(1, 6)}
    killed: queue.SimpleQueue[int] = queue.SimpleQueue()

    def kill(line: socket.socket, head: bytes, body: bytes) -> bool:
        """Kills the sender after it has sent, and before it knows what became of it."""
        worker.send_signal(signal.SIGKILL)
        killed.put(worker.wait(30))
        return TAKEN(line, head, body)

    receiver.scripts = [kill]
    worker = _work()
    assert killed.get(timeout=60) == -signal.SIGKILL
    assert progress_of(destination).sent == 0

    # The lease of a process that is dead ends after half a minute.
    Lease.objects.filter(name="broadcast_generations").delete()
    second = _work("--once")
    assert second.wait(120) == 0
    first, again = receiver.batches()
    assert first == again
    assert set(receiver.ids()) == ids
    assert progress_of(destination).sent == 5


def _work(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(MANAGE), "work", *arguments], env=environment(METRICS_PORT="")
    )
