"""Which connection makes room for a new one, and what counts as one address."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from config.local.bootstrap import PROJECT
from config.server.connections import table as tables
from config.server.connections.peers import Proxies, address_group, parse_proxies
from config.server.connections.refusals import ClosingReason
from config.server.connections.table import (
    BodyClock,
    ConnectionGroup,
    ConnectionTable,
    DeadlineQueue,
)


@dataclass(eq=False)
class Line:
    """A connection without a socket."""

    table: ConnectionTable
    is_recognized: bool = False
    held_bytes: int = 0
    pools: tuple[ConnectionGroup, ...] = ()
    is_busy: bool = False
    evicted: list[ClosingReason] = field(default_factory=list)

    def is_responding(self) -> bool:
        return self.is_busy

    def evict(self, reason: ClosingReason) -> None:
        self.evicted.append(reason)
        self.table.remove(self)

    def recognize(self) -> None:
        self.table.recognize(self)
        self.is_recognized = True


def make_table(limit: int = 3, per_address: int = 2) -> ConnectionTable:
    return ConnectionTable(
        limit=limit, limit_per_address=per_address, proxies=Proxies(["127.0.0.1"])
    )


def admit(table: ConnectionTable, number: int, host: str = "127.0.0.1") -> list[Line]:
    lines = [Line(table) for _ in range(number)]
    assert [table.admit(line, host) for line in lines] == [None] * number
    return lines


def find_evicted(lines: list[Line]) -> list[int]:
    return [number for number, line in enumerate(lines) if line.evicted]


def test_the_oldest_stranger_makes_room() -> None:
    table = make_table()
    lines = admit(table, 5)
    assert find_evicted(lines) == [0, 1]
    assert lines[0].evicted == [ClosingReason.MAKES_ROOM]


def test_strangers_get_a_share_of_the_worker() -> None:
    table = make_table(limit=2_000)
    known = admit(table, 10)
    for line in known:
        line.recognize()
    strangers = admit(table, 500)
    # A fifth of all connections: the oldest strangers make room.
    assert find_evicted(strangers) == list(range(100))
    assert find_evicted(known) == []


def test_a_response_under_way_outlasts_idle_strangers() -> None:
    table = make_table(limit=1_000)
    [busy] = admit(table, 1)
    busy.is_busy = True
    idle = admit(table, 300)
    assert busy.evicted == []
    assert find_evicted(idle) == list(range(44))


def test_a_recognized_caller_is_never_closed_while_its_request_runs() -> None:
    table = make_table()
    lines = admit(table, 3)
    for line in lines:
        line.recognize()
    assert table.admit(Line(table), "127.0.0.1") is ClosingReason.CONNECTION_LIMIT
    table.rest(lines[1])
    table.rest(lines[0])
    table.begin(lines[1])
    assert find_evicted(admit(table, 1) + lines) == [1]


def test_a_stranger_whose_response_is_under_way_follows_the_others() -> None:
    table = make_table()
    lines = admit(table, 3)
    lines[0].is_busy = True
    lines += admit(table, 1)
    assert find_evicted(lines) == [1]
    lines[2].is_busy = lines[3].is_busy = True
    lines += admit(table, 1)
    assert find_evicted(lines) == [0, 1]
    # Its response has ended: it is the oldest again.
    lines[2].is_busy = False
    table.rest(lines[2])
    lines += admit(table, 1)
    assert find_evicted(lines) == [0, 1, 2]


def test_a_resting_known_caller_follows_all_strangers() -> None:
    table = make_table()
    lines = admit(table, 3)
    lines[0].recognize()
    table.rest(lines[0])
    lines[1].is_busy = lines[2].is_busy = True
    lines += admit(table, 1)
    assert find_evicted(lines) == [1]
    lines[2].recognize()
    lines[3].recognize()
    lines += admit(table, 1)
    assert find_evicted(lines) == [0, 1]


def test_an_address_makes_room_for_itself_alone() -> None:
    table = make_table(limit=10)
    others = admit(table, 2, "2.2.2.2")
    lines = admit(table, 4, "1.1.1.1")
    assert (find_evicted(others), find_evicted(lines)) == ([], [0, 1])
    for line in lines[2:]:
        line.recognize()
    assert table.admit(Line(table), "1.1.1.1") is ClosingReason.ADDRESS_LIMIT
    table.remove(lines[3])
    assert table.admit(Line(table), "1.1.1.1") is None


def test_a_removed_connection_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "STRANGER_BYTES", 10)
    monkeypatch.setattr(tables, "_GRACE_SECONDS", 0)
    table = make_table(limit=10)
    for host in ("1.1.1.1", "127.0.0.1"):
        for line in admit(table, 2, host):
            table.hold(line, 5)
            table.remove(line)
            table.remove(line)
            assert (line.held_bytes, line.pools) == (0, ())
    assert (table._addresses, table._all.size, table._held, dict(table._holders)) == ({}, 0, 0, {})


def test_bytes_of_strangers_close_the_oldest_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "STRANGER_BYTES", 10)
    monkeypatch.setattr(tables, "_GRACE_SECONDS", 0)
    table = make_table(limit=10)
    idle, first, known, second = lines = admit(table, 4)
    table.hold(first, 6)
    table.hold(known, 4)
    known.recognize()
    table.hold(second, 5)
    assert find_evicted(lines) == [1]
    assert (idle.evicted, first.evicted) == ([], [ClosingReason.STRANGER_BYTES])


def test_bytes_that_have_just_arrived_close_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "STRANGER_BYTES", 10)
    table = make_table()
    lines = admit(table, 2)
    table.hold(lines[0], 11)
    table.hold(lines[1], 11)
    assert find_evicted(lines) == []


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_an_address_is_one_of_ipv4_or_a_network_of_ipv6(host: str, group: str) -> None:
    assert address_group(host) == group


def test_proxies_are_addresses_networks_or_everybody() -> None:
    proxies = Proxies(["127.0.0.1", "10.0.0.0/8", "::1"])
    assert [host in proxies for host in ("127.0.0.1", "10.9.8.7", "::1")] == [True] * 3
    assert [host in proxies for host in ("127.0.0.2", "11.0.0.1", "", "proxy")] == [False] * 4
    assert "203.0.113.9" in Proxies(["*"])
    assert "127.0.0.1" not in Proxies([])


@pytest.mark.parametrize("items", [["10.0.0.1/8"], ["proxy"], ["*", "10.0.0.1"], ["1.2.3"]])
def test_what_is_no_address_is_no_proxy(items: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_proxies(items)


@pytest.mark.parametrize(
    ("hard", "wanted", "possible"), [(5000, 10_000, 2244), (5000, 2000, 2000), (300, 10_000, 64)]
)
def test_a_worker_accepts_the_connections_that_it_can_open(
    hard: int, wanted: int, possible: int
) -> None:
    program = (
        "import resource\n"
        "from config.server.connections.open_files import *\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}))\n"
        "raise_open_files()\n"
        f"print(resource.getrlimit(resource.RLIMIT_NOFILE), fitting_connections({wanted}))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PROJECT, check=True
    )
    assert output.stdout == f"({hard}, {hard}) {possible}\n"


def test_deadlines_expire_in_the_order_of_their_starts() -> None:
    expired: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        queue: DeadlineQueue[str] = DeadlineQueue(loop, 0.05, expired.append)
        for item in ("first", "stopped", "again", "last"):
            queue.start(item)
        queue.stop("stopped")
        queue.start("again")
        assert len(queue) == 3
        while queue:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert expired == ["first", "last", "again"]


@pytest.mark.parametrize(
    ("waits", "is_expired"),
    [
        # Each pair is the time that is waited and the bytes that end the wait; 60 s in all.
        ([(9, 100), (2, 0)], True),
        ([(9, 5000), (9, 5000), (9, 5000)], False),
        ([(3, 1), (3, 1), (3, 1), (0.5, 1)], False),
        ([(3, 1), (3, 1), (3, 1), (3, 1)], True),
        ([(10, 5000)] * 5 + [(9, 5000)], False),
        ([(9, 6000)] * 6 + [(7, 0)], True),
    ],
)
def test_a_body_has_a_total_and_a_rate(waits: list[tuple[float, int]], is_expired: bool) -> None:
    """Between two waits the clock stands still: the service, not the caller, is at work."""
    loop = ManualLoop()
    expired: list[bool] = []
    clock = BodyClock(loop, 60, lambda: expired.append(True))  # type: ignore[arg-type]
    for seconds, count in waits:
        clock.start()
        loop.pass_time(seconds)
        clock.stop(count)
        loop.now += 1000
    assert bool(expired) is is_expired


class ManualLoop:
    """A loop whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Timer]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: object) -> Timer:
        timer = Timer(call)
        self.timers.append((self.now + seconds, timer))
        return timer

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [entry for entry in self.timers if entry[0] < end and entry[1].is_set]:
            self.now, timer = min(due, key=lambda entry: entry[0])
            timer.is_set = False
            timer.call()
        self.now = end


class Timer:
    def __init__(self, call: object) -> None:
        self.call = call
        self.is_set = True

    def cancel(self) -> None:
        self.is_set = False
