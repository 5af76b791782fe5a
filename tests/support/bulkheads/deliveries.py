"""Kills ``work`` with SIGKILL while it delivers events, and counts what the receiver got."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db import connection, connections

from accounts.webhooks.models import Subscription
from config.events.outbox import Event, record_event
from tests.support import factories
from tests.support.machine.waiting import wait_until
from tests.support.processes import MANAGE, environment
from tests.support.upstreams.receiving import KEY, TAKEN, Receiver, run_receiver

# A hundred kills stay below the events that a webhook gets in an hour.
EVENTS_PER_KILL: Final = 9
_SECONDS: Final = 120.0


@dataclass
class Findings:
    """What came of the kills: every event must have arrived, and none under another id."""

    kills: int = 0
    events: int = 0
    received: int = 0
    distinct: int = 0
    lost: int = 0
    unknown: int = 0
    repeated: int = 0
    undelivered: int = 0

    @property
    def is_whole(self) -> bool:
        return not (self.lost or self.unknown or self.undelivered)

    def report(self) -> dict[str, Any]:
        return asdict(self)


def kill_deliveries(kills: int) -> Findings:
    """Kills a delivering ``work`` so many times, lets one finish, and compares."""
    with run_receiver(_take_slowly) as receiver:
        tenant = factories.make_tenant()
        Event.objects.all().delete()
        Subscription.objects.create_subscription(
            organization=tenant.organization, form="webhook", url=receiver.url
        )
        for _ in range(kills):
            for number in range(EVENTS_PER_KILL):
                data = {**KEY, "name": str(number)}
                record_event("key.created", organization=tenant.organization.pk, data=data)
            _kill_one(receiver, random.randrange(EVENTS_PER_KILL))
            _let_time_pass()
        return _finish(receiver, kills)


def _take_slowly(line: socket.socket, head: bytes, body: bytes) -> bool:
    # Kills fall before the request, while the receiver works, and after its answer.
    time.sleep(random.uniform(0, 0.1))
    return TAKEN(line, head, body)


def _start_work() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(MANAGE), "work"], env=environment(), stderr=subprocess.DEVNULL
    )


def _kill_one(receiver: Receiver, after: int) -> None:
    """Starts ``work`` and kills it when the receiver has so many more requests."""
    wanted = len(receiver.server.requests) + after + 1
    process = _start_work()
    _wait(lambda: len(receiver.server.requests) >= wanted or process.poll() is not None)
    time.sleep(random.uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL, "work ended by itself"


def _let_time_pass() -> None:
    """Ends the leases of the killed process, for which its successor would have to wait."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE config_lease SET until = now(), holder = ''")
        cursor.execute("UPDATE accounts_delivery SET next_attempt_at = now()")
        cursor.execute("UPDATE accounts_subscription SET retry_at = NULL")


def _finish(receiver: Receiver, kills: int) -> Findings:
    process = _start_work()
    try:
        _wait(lambda: not _count_waiting())
    finally:
        process.terminate()
        process.wait(60)
    stored = {str(pk) for pk in Event.objects.values_list("pk", flat=True)}
    arrived = Counter(receiver.ids)
    return Findings(
        kills=kills,
        events=len(stored),
        received=arrived.total(),
        distinct=len(arrived),
        lost=len(stored - arrived.keys()),
        unknown=len(arrived.keys() - stored),
        repeated=sum(count > 1 for count in arrived.values()),
        undelivered=_count_waiting(),
    )


def _count_waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM config_event WHERE dispatched_at IS NULL)"
            " + (SELECT count(*) FROM accounts_delivery WHERE status <> 'delivered')"
        )
        [count] = cursor.fetchone()
    return int(count)


def _wait(condition: Any) -> None:
    wait_until(condition, "nothing more was delivered", seconds=_SECONDS)
    connections.close_all()
