"""Pacing: keeps the operator's credential within the limits that its provider gave it; pure.

A provider may have a limit of requests and of tokens per minute. All workers count what they send
in one small table: once a second, ``exchange_pace.sql`` adds a worker's latest counts and returns
those of all. Between two exchanges a worker assumes that the others go on as in the last second.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

BUCKET_SECONDS: Final = 5
# Thirteen buckets cover at least the last sixty seconds, whenever they are read.
_BUCKETS: Final = 13

Buckets = dict[int, "PaceBucket"]


class Pace(NamedTuple):
    """The limits of a provider's account a minute; ``None`` is no limit."""

    provider_id: uuid.UUID
    requests: int | None
    tokens: int | None


@dataclass(slots=True)
class PaceBucket:
    """What was sent to a provider with the operator's credential in five seconds."""

    provider_id: uuid.UUID
    bucket: int
    requests: int = 0
    tokens: int = 0

    def add(self, other: PaceBucket) -> None:
        self.requests += other.requests
        self.tokens += other.tokens


def oldest_pace(now: float) -> int:
    """Returns the last bucket before the window, the parameter of ``exchange_pace.sql``."""
    return _bucket(now) - _BUCKETS


class Pacer:
    """One worker's count of what all workers have sent to each provider in the last minute.

    ``now`` is the database's Unix time. Not thread-safe.
    """

    def __init__(self) -> None:
        self._shared: dict[uuid.UUID, Buckets] = {}
        self._sent: dict[tuple[uuid.UUID, int], PaceBucket] = {}
        self._fresh: dict[tuple[uuid.UUID, int], PaceBucket] = {}
        # The requests and tokens that the other workers sent between the last two exchanges.
        self._others: dict[uuid.UUID, PaceBucket] = {}

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing was counted since all earlier counts left the window."""
        return not (self._fresh or self._sent or self._shared)

    def count(self, provider_id: uuid.UUID, requests: int, tokens: int, now: float) -> None:
        """Counts what is sent; negative numbers take back what was not sent after all."""
        number = _bucket(now)
        bucket = self._fresh.get((provider_id, number))
        if bucket is None:
            bucket = self._fresh[provider_id, number] = PaceBucket(provider_id, number)
        bucket.requests += requests
        bucket.tokens += tokens

    def wait(self, pace: Pace, tokens: int, now: float) -> float:
        """Returns the seconds until a request of so many tokens fits; 0 if it fits now.

        A request that is larger than the whole limit fits while nothing else was sent.
        """
        buckets = self._recent(pace.provider_id, oldest_pace(now))
        others = self._others.get(pace.provider_id, PaceBucket(pace.provider_id, 0))
        used_requests = sum(each.requests for each in buckets) + others.requests
        used_tokens = sum(each.tokens for each in buckets) + others.tokens
        over_requests = over_tokens = 0
        if pace.requests is not None:
            over_requests = used_requests + 1 - pace.requests
        if pace.tokens is not None:
            over_tokens = used_tokens + min(tokens, pace.tokens) - pace.tokens
        if over_requests <= 0 and over_tokens <= 0:
            return 0.0
        for each in sorted(buckets, key=lambda bucket: bucket.bucket):
            over_requests -= each.requests
            over_tokens -= each.tokens
            if over_requests <= 0 and over_tokens <= 0:
                return max((each.bucket + _BUCKETS) * BUCKET_SECONDS - now, 1.0)
        return float(BUCKET_SECONDS * _BUCKETS)

    def outgoing(self) -> list[PaceBucket]:
        """Returns the counts that other workers do not know yet, for ``exchange_pace.sql``.

        Counts that were returned before and never merged are returned again.
        """
        for key, bucket in self._fresh.items():
            if key in self._sent:
                self._sent[key].add(bucket)
            else:
                self._sent[key] = bucket
        self._fresh = {}
        return list(self._sent.values())

    def merge(self, rows: Iterable[Sequence[Any]]) -> None:
        """Replaces the shared counts by the rows of ``exchange_pace.sql``, ours included."""
        shared: dict[uuid.UUID, Buckets] = {}
        for row in rows:
            bucket = PaceBucket(*row)
            shared.setdefault(bucket.provider_id, {})[bucket.bucket] = bucket
        self._others = {
            provider_id: self._count_others(provider_id, buckets)
            for provider_id, buckets in shared.items()
            if provider_id in self._shared
        }
        self._shared, self._sent = shared, {}

    def _count_others(self, provider_id: uuid.UUID, buckets: Buckets) -> PaceBucket:
        """Returns what the others sent since the last exchange."""
        known = self._shared[provider_id]
        grown = PaceBucket(provider_id, 0)
        for number, bucket in buckets.items():
            grown.add(bucket)
            for before in (known.get(number), self._sent.get((provider_id, number))):
                if before is not None:
                    grown.requests -= before.requests
                    grown.tokens -= before.tokens
        grown.requests, grown.tokens = max(grown.requests, 0), max(grown.tokens, 0)
        return grown

    def _recent(self, provider_id: uuid.UUID, oldest: int) -> list[PaceBucket]:
        """Returns the counts of the last minute; those of one bucket may be in several places."""
        own = [*self._sent.values(), *self._fresh.values()]
        return [
            *(
                bucket
                for number, bucket in self._shared.get(provider_id, {}).items()
                if number > oldest
            ),
            *(each for each in own if each.provider_id == provider_id and each.bucket > oldest),
        ]


def _bucket(now: float) -> int:
    return int(now // BUCKET_SECONDS)
