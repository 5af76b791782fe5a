"""Shares the health of endpoints: among the workers of a host, and by one of them with other hosts.

The workers that ``serve`` has forked share a folder. The one that locks a file in it leads: it
alone exchanges health with the database, once in ``_LEADER_SECONDS`` and earlier when a worker
reports a failure. The others exchange with the leader, over a socket in the folder. So the number
of statements depends on the number of hosts alone. When the leader ends, another one leads.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from config.clocks.clock import clock
from config.server.batching.waits import Blocked
from config.sql import load_statement
from inference.routing.health import Bucket, HealthTable, oldest_bucket
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

EXCHANGE_HEALTH: Final = load_statement("inference", "exchange_health")

# A pause reaches the workers of another host in twice the sum of these two, as it did when each
# worker exchanged once a second.
_LEADER_SECONDS: Final = 0.75
_FOLLOWER_SECONDS: Final = 0.25
# News that is urgent does not wait for the leader's turn; this is the least time between two.
_URGENT_SECONDS: Final = 0.25
_ANSWER_SECONDS: Final = 2.0
# The largest message: 2,000 buckets with 32 samples of each kind.
_MESSAGE_BYTES: Final = 8 * 1024 * 1024


class Message(msgspec.Struct, array_like=True):
    """What a worker and its leader send each other: buckets, and the version of the table."""

    buckets: list[Bucket]
    version: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class HealthExchange:
    """Keeps a worker's health table up to date."""

    def __init__(
        self, health: HealthTable, connection: DataPlaneConnection, folder: str | None = None
    ) -> None:
        """Stores the table; ``folder`` is that of the workers of this host, if it has several."""
        self._health = health
        self._connection = connection
        self._folder = None if folder is None else Path(folder)
        self._lock: int | None = None
        self._server: asyncio.Server | None = None
        self._callers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._leader: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        # Up to where the changes in the database, and those of the leader, are known.
        self._upto = self._version = 0
        self._due = 0.0

    async def run_once(self) -> None:
        """Exchanges once, if it is due; raises the errors of :class:`DataPlaneConnection`."""
        now = asyncio.get_running_loop().time()
        urgent = self._health.is_urgent and now >= self._due - _LEADER_SECONDS + _URGENT_SECONDS
        if self._folder is not None and not await self._may_lead():
            await self._ask_leader()
        elif now >= self._due or urgent:
            self._due = now + _LEADER_SECONDS
            await self._exchange()

    @property
    def pause(self) -> float:
        """The seconds after which an exchange may be due again."""
        return _FOLLOWER_SECONDS

    async def close(self) -> None:
        self._leave_leader()
        if self._server is not None:
            self._server.close()
            for writer in self._callers.values():
                writer.transport.abort()
            if self._callers:
                await asyncio.wait(self._callers.keys())
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _exchange(self) -> None:
        """Exchanges with the database."""
        now = clock.time()
        oldest = oldest_bucket(now)
        rows = _encode(self._health.outgoing()).decode()
        has_sent = True
        try:
            found = await self._connection.execute(EXCHANGE_HEALTH, [rows, oldest, self._upto])
        except Blocked:
            # All hosts share these rows. While one of them is locked, what this host has seen
            # waits, and what the others have seen still comes.
            found = await self._connection.execute(EXCHANGE_HEALTH, ["[]", oldest, self._upto])
            has_sent = False
        if found:
            self._upto = found[0][7]
        self._health.merge([row[:7] for row in found], now, has_sent=has_sent)

    async def _may_lead(self) -> bool:
        """Returns whether this worker leads those of its host; opens its socket if it is new."""
        if self._lock is not None:
            return True
        if self._leader is not None:
            return False
        assert self._folder is not None
        try:
            lock = os.open(
                self._folder / "health.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError:
            # The folder is gone, because the service stops.
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        address = self._folder / "health.sock"
        address.unlink(missing_ok=True)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, address, limit=_MESSAGE_BYTES
            )
        except OSError as exc:
            logger.warning("the workers of this host do not share the health of endpoints: %s", exc)
        return True

    async def _ask_leader(self) -> None:
        """Exchanges with the leader; a leader that does not answer is left."""
        assert self._folder is not None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                if self._leader is None:
                    self._version = 0
                    self._leader = await asyncio.open_unix_connection(
                        self._folder / "health.sock", limit=_MESSAGE_BYTES
                    )
                reader, writer = self._leader
                writer.write(_encode(Message(self._health.outgoing(), self._version)) + b"\n")
                await writer.drain()
                answer = _decode(await reader.readline())
        except (OSError, TimeoutError, ValueError, msgspec.DecodeError):
            self._leave_leader()
            return
        self._version = answer.version
        self._health.merge(map(_columns, answer.buckets), clock.time())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Exchanges with one of the other workers until it leaves."""
        task = asyncio.current_task()
        assert task is not None
        self._callers[task] = writer
        try:
            while line := await reader.readline():
                message = _decode(line)
                changed, version = self._health.exchange(
                    map(_columns, message.buckets), message.version, clock.time()
                )
                writer.write(_encode(Message(changed, version)) + b"\n")
                await writer.drain()
        except (OSError, ValueError, msgspec.DecodeError):
            pass
        finally:
            del self._callers[task]
            writer.close()

    def _leave_leader(self) -> None:
        if self._leader is not None:
            with suppress(OSError):
                self._leader[1].transport.abort()
            self._leader = None


def _columns(bucket: Bucket) -> tuple[Any, ...]:
    return (
        bucket.endpoint_id, bucket.bucket, bucket.successes, bucket.failures, bucket.latencies,
        bucket.speeds, bucket.retry_at,
    )  # fmt: skip
