"""Measures what workers send each other about health: python -m tests.bench.exchange

The workers of one host record requests at random endpoints and exchange with their leader four
times a second, and the leader with the database every third time, in made-up time. Prints the means
and the maxima of the bytes and of the milliseconds of CPU of an exchange, after the first ten
seconds.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from inference.routing.health import AttemptOutcome, Bucket, HealthTable

_PAUSE: Final = 0.25
_LEADER_TURN: Final = 3
_SECONDS: Final = 50
_WARM_UP_SECONDS: Final = 10
_decode: Final = msgspec.json.Decoder(tuple[list[Bucket], int]).decode


class Host:
    """The workers of a host, one of which leads, and the figures of their exchanges."""

    def __init__(self, workers: int, endpoints: int) -> None:
        self.leader = HealthTable()
        self.workers = [HealthTable() for _ in range(workers)]
        self.figures: dict[str, list[float]] = {}
        self._versions = [0] * workers
        self._random = random.Random(7)
        self._endpoints = [uuid.UUID(int=number) for number in range(endpoints)]

    def call(self, table: HealthTable, requests: int, now: float) -> None:
        for endpoint in self._random.choices(self._endpoints, k=requests):
            table.record(endpoint, AttemptOutcome.SUCCESS, now=now)
            table.measure(endpoint, 100, 50.0, now=now)

    def ask_leader(self, worker: int, now: float) -> None:
        table = self.workers[worker]
        began = time.process_time()
        sent = msgspec.json.encode((table.outgoing(), self._versions[worker]))
        news, since = _decode(sent)
        answer = msgspec.json.encode(self.leader.exchange(_rows(news), since, now))
        changed, self._versions[worker] = _decode(answer)
        table.merge(_rows(changed), now)
        self._note("CPU ms of worker and leader", (time.process_time() - began) * 1000)
        self._note("bytes to the leader", len(sent))
        self._note("bytes from the leader", len(answer))

    def write(self, now: float) -> None:
        """Does the leader's part of an exchange with a database that nobody else uses."""
        began = time.process_time()
        sent = msgspec.json.encode(self.leader.outgoing())
        self._note("CPU ms to choose what the database gets", (time.process_time() - began) * 1000)
        self.leader.merge(_rows(msgspec.json.decode(sent, type=list[Bucket])), now)
        self._note("bytes to the database", len(sent))

    def _note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


def _rows(buckets: Iterable[Bucket]) -> list[tuple[Any, ...]]:
    names = Bucket.__slots__
    return [tuple(getattr(bucket, name) for name in names) for bucket in buckets]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.exchange", description=__doc__)
    parser.add_argument("--endpoints", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=int, default=400, help="requests a second of the host")
    options = parser.parse_args()
    # A busy worker collects rarely; here, five tables in one process would be collected each time.
    gc.disable()
    host = Host(options.workers, options.endpoints)
    each = round(options.rate * _PAUSE / options.workers)
    now = time.time()
    for turn in range(round(_SECONDS / _PAUSE)):
        if turn * _PAUSE == _WARM_UP_SECONDS:
            host.figures.clear()
        now += _PAUSE
        for number, table in enumerate(host.workers):
            host.call(table, each, now)
            host.ask_leader(number, now)
        if turn % _LEADER_TURN == 0:
            host.write(now)
    for name, values in host.figures.items():
        print(f"{name:<42}{sum(values) / len(values):>12,.1f}{max(values):>12,.1f} at most")


if __name__ == "__main__":
    main()
