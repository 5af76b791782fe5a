"""How endpoints do right now: from live outcomes to their standing; pure, no I/O.

How an endpoint does depends on whose credential is used, so outcomes are those of a subject: the
endpoint itself for the operator's credential, what :func:`subject_of` makes of both for an own one.
Measures are the endpoint's, whoever pays.

Each worker keeps a board and shares it through one small table: :data:`EXCHANGE` adds what the
worker saw since the last time and reads back what all workers saw, in one round trip.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from config.api.errors import GatewayError, UpstreamError, UpstreamRateLimited, UpstreamRefused

# A minute in slots of five seconds; slot ``n % _SLOTS`` of the ring holds bucket ``n``.
BUCKET_SECONDS: Final = 5
_SLOTS: Final = 12
WINDOW_SECONDS: Final = BUCKET_SECONDS * _SLOTS
# Samples of one kind that a bucket keeps; the first ones, so that a crowd costs nothing more.
_SAMPLES: Final = 32
# Fewer outcomes than these say too little.
_MINIMUM: Final = 5
_OPEN_SHARE: Final = 0.5
_DEGRADED_SHARE: Final = 0.1
_FIRST_BACKOFF: Final = 5.0
_LONGEST_BACKOFF: Final = 60.0
# A probe that nobody reported is given up, so that the next may begin.
_PROBE_SECONDS: Final = 60.0
# Without a Retry-After.
_RATE_LIMIT_SECONDS: Final = 5.0
# Percentiles are worked out this often at most, and at once after a failure.
_FIGURES_SECONDS: Final = 0.25
# Subjects that a worker remembers though they do well, or without any recent outcome.
_REMEMBERED: Final = 10_000
# For how long it remembers an open circuit that nobody tries.
_OPEN_SECONDS: Final = 900.0
# What an own credential may not do is for its owner to mend; until then trying it costs little.
_UNAUTHORIZED: Final = (401, 402, 403)
_SHARES: Final = (("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99))

# A row is a bucket of a subject in a ring: ``endpoint_id`` is the subject. What is older than the
# stored bucket is late and dropped. Rows are locked in one order by all workers.
EXCHANGE: Final = """
WITH sent AS (
    INSERT INTO inference_endpointhealth AS t (
        endpoint_id, slot, bucket, successes, failures, latencies, speeds, retry_at
    )
    SELECT v.endpoint_id, v.bucket %% 12, v.bucket, v.successes, v.failures, v.latencies, v.speeds,
           v.retry_at
    FROM json_to_recordset(%s::json) AS v(
        endpoint_id uuid, bucket bigint, successes integer, failures integer,
        latencies integer[], speeds double precision[], retry_at double precision
    )
    ORDER BY v.endpoint_id, v.bucket %% 12
    ON CONFLICT (endpoint_id, slot) DO UPDATE SET
        bucket = EXCLUDED.bucket,
        successes = EXCLUDED.successes
            + CASE WHEN t.bucket = EXCLUDED.bucket THEN t.successes ELSE 0 END,
        failures = EXCLUDED.failures
            + CASE WHEN t.bucket = EXCLUDED.bucket THEN t.failures ELSE 0 END,
        latencies = CASE WHEN t.bucket = EXCLUDED.bucket
            THEN (t.latencies || EXCLUDED.latencies)[1:32] ELSE EXCLUDED.latencies END,
        speeds = CASE WHEN t.bucket = EXCLUDED.bucket
            THEN (t.speeds || EXCLUDED.speeds)[1:32] ELSE EXCLUDED.speeds END,
        retry_at = GREATEST(
            EXCLUDED.retry_at, CASE WHEN t.bucket = EXCLUDED.bucket THEN t.retry_at ELSE 0 END
        )
    WHERE t.bucket <= EXCLUDED.bucket
    RETURNING *
)
SELECT endpoint_id, bucket, successes, failures, latencies, speeds, retry_at
FROM sent WHERE bucket > %s
UNION ALL
SELECT endpoint_id, bucket, successes, failures, latencies, speeds, retry_at
FROM inference_endpointhealth t
WHERE bucket > %s
  AND NOT EXISTS (SELECT FROM sent s WHERE s.endpoint_id = t.endpoint_id AND s.slot = t.slot)
"""

# For whoever only looks.
READ: Final = """
SELECT endpoint_id, bucket, successes, failures, latencies, speeds, retry_at
FROM inference_endpointhealth WHERE bucket > %s
"""


# Rows that nobody reads any more. Whoever writes one of them meanwhile keeps it.
CLEAR: Final = """
DELETE FROM inference_endpointhealth t
USING (
    SELECT endpoint_id, slot FROM inference_endpointhealth WHERE bucket <= %s
    FOR UPDATE SKIP LOCKED
) stale
WHERE t.endpoint_id = stale.endpoint_id AND t.slot = stale.slot
"""


class Outcome(StrEnum):
    """What an attempt says of the endpoint that it went to."""

    SUCCESS = "success"
    FAILURE = "failure"
    RATE_LIMITED = "rate_limited"


class State(StrEnum):
    """Whether an endpoint is worth a try.

    ``half_open`` is one that failed, has been left alone for a while and may be tried once.
    """

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    HALF_OPEN = "half_open"
    OPEN = "open"
    RATE_LIMITED = "rate_limited"


@dataclass(frozen=True, slots=True)
class Standing:
    """An endpoint's state, and how its last minute was where there was traffic to tell.

    ``latency`` is in milliseconds to the first token, ``throughput`` in tokens per second. Of
    either, ``p90`` is what nine of ten requests did as well as or better: for throughput, the lower
    end.
    """

    state: State = State.HEALTHY
    failure_share: float = 0.0
    latency: Mapping[str, float] | None = None
    throughput: Mapping[str, float] | None = None

    def body(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "failure_share": self.failure_share,
            "latency": self.latency,
            "throughput": self.throughput,
        }


UNKNOWN: Final = Standing()


@lru_cache(_REMEMBERED)
def subject_of(endpoint_id: uuid.UUID, credential_id: uuid.UUID) -> uuid.UUID:
    """Returns the subject of an own credential's outcomes at an endpoint."""
    return uuid.uuid5(endpoint_id, str(credential_id))


def judge(error: GatewayError | None, *, is_own: bool) -> Outcome | None:
    """Returns what the end of an attempt says of its subject; ``None`` when nothing.

    A caller's mistake says nothing, nor does what an own credential may not do.
    """
    match error:
        case None:
            return Outcome.SUCCESS
        case UpstreamRateLimited():
            return Outcome.RATE_LIMITED
        case UpstreamRefused():
            return None
        case UpstreamError():
            is_unauthorized = is_own and error.upstream_status in _UNAUTHORIZED
            return None if is_unauthorized else Outcome.FAILURE
        case _:
            return None


def oldest_bucket(now: float) -> int:
    """Returns the bucket before the window, the ``since`` of :data:`EXCHANGE`."""
    return _bucket(now) - _SLOTS


@dataclass(slots=True)
class Bucket:
    """What happened to one subject in five seconds; ``retry_at`` is in Unix seconds, or 0."""

    endpoint_id: uuid.UUID
    bucket: int
    successes: int = 0
    failures: int = 0
    latencies: list[int] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    retry_at: float = 0.0

    def add(self, other: Bucket) -> None:
        self.successes += other.successes
        self.failures += other.failures
        self.latencies = (self.latencies + other.latencies)[:_SAMPLES]
        self.speeds = (self.speeds + other.speeds)[:_SAMPLES]
        self.retry_at = max(self.retry_at, other.retry_at)


Buckets = dict[int, Bucket]


@dataclass(slots=True)
class _Record:
    """One subject: what all workers saw, what is on its way to them, and what is not yet."""

    shared: Buckets = field(default_factory=dict)
    sent: Buckets = field(default_factory=dict)
    fresh: Buckets = field(default_factory=dict)
    standing: Standing = UNKNOWN
    computed_at: float = -math.inf
    # The circuit: since when it is open, for how long, and until when a probe is under way.
    opened_at: float | None = None
    backoff: float = _FIRST_BACKOFF
    probed_until: float = -math.inf
    # Failures up to this bucket are forgiven: a success came after them.
    forgiven: int = -1
    # Whether other workers are told of it.
    is_told: bool = False

    def forget(self, oldest: int) -> None:
        """Drops what has left the window, so that a table that is away costs no memory."""
        for buckets in (self.shared, self.sent, self.fresh):
            for number in [number for number in buckets if number <= oldest]:
                del buckets[number]

    def recent(self, oldest: int) -> list[Bucket]:
        """Returns the buckets of the window."""
        return [
            bucket
            for buckets in (self.shared, self.sent, self.fresh)
            for number, bucket in buckets.items()
            if number > oldest
        ]


class HealthBoard:
    """One worker's view of every subject that it, or another worker, has called lately.

    ``now`` is Unix time throughout, because the workers share it. Not safe for several threads.
    """

    def __init__(self) -> None:
        self._records: dict[uuid.UUID, _Record] = {}

    def record(
        self,
        subject: uuid.UUID,
        outcome: Outcome,
        *,
        now: float,
        retry_after: float | None = None,
        is_own: bool = False,
    ) -> None:
        """Notes how an attempt ended, or that its answer began.

        ``retry_after`` is what a rate limit asked for. Of an own credential other workers are told
        once it fails, and only so many that do well are remembered: there may be any number.
        """
        is_well = is_own and outcome is Outcome.SUCCESS
        if is_well and subject not in self._records and len(self._records) >= _REMEMBERED:
            return
        number = _bucket(now)
        record, bucket = self._place(subject, now)
        record.is_told = record.is_told or not is_well
        if outcome is Outcome.SUCCESS:
            bucket.successes += 1
            if record.opened_at is not None:
                record.opened_at = None
                record.backoff = _FIRST_BACKOFF
                record.forgiven = number
                record.computed_at = -math.inf
        else:
            record.computed_at = -math.inf
            if outcome is Outcome.RATE_LIMITED:
                # Beyond the window nobody would remember why.
                wait = _RATE_LIMIT_SECONDS if retry_after is None else retry_after
                bucket.retry_at = max(bucket.retry_at, now + min(wait, WINDOW_SECONDS))
            else:
                bucket.failures += 1
                if record.opened_at is not None and now >= record.opened_at + record.backoff:
                    record.opened_at = now
                    record.backoff = min(record.backoff * 2, _LONGEST_BACKOFF)
        record.probed_until = -math.inf

    def measure(
        self,
        endpoint_id: uuid.UUID,
        latency_ms: int | None = None,
        tokens_per_second: float | None = None,
        *,
        now: float,
    ) -> None:
        """Notes how soon an endpoint's answer began, or how fast it came."""
        record, bucket = self._place(endpoint_id, now)
        record.is_told = True
        if latency_ms is not None and len(bucket.latencies) < _SAMPLES:
            bucket.latencies.append(latency_ms)
        if tokens_per_second is not None and len(bucket.speeds) < _SAMPLES:
            bucket.speeds.append(tokens_per_second)

    def standing(self, subject: uuid.UUID, now: float) -> Standing:
        """Returns how a subject stands."""
        record = self._records.get(subject)
        if record is None:
            return UNKNOWN
        if not 0 <= now - record.computed_at < _FIGURES_SECONDS:
            _compute(record, now)
        return record.standing

    def claim(self, subject: uuid.UUID, now: float) -> bool:
        """Makes the request about to be sent the one probe of a subject, if that is half-open.

        Until its outcome is recorded, or :meth:`release` says that there is none, the subject
        counts as open. Returns whether it was.
        """
        if self.standing(subject, now).state is not State.HALF_OPEN:
            return False
        record = self._records[subject]
        record.probed_until = now + _PROBE_SECONDS
        record.computed_at = -math.inf
        return True

    def release(self, subject: uuid.UUID) -> None:
        """Lets the next request probe a subject: the one that was to said nothing of it."""
        record = self._records.get(subject)
        if record is not None:
            record.probed_until = -math.inf
            record.computed_at = -math.inf

    def outgoing(self) -> list[Bucket]:
        """Returns what other workers do not know yet, as rows of :data:`EXCHANGE`.

        What was returned before and never merged is part of it again: its exchange failed.
        """
        rows: list[Bucket] = []
        for record in self._records.values():
            if not record.is_told:
                continue
            for number, bucket in record.fresh.items():
                if number in record.sent:
                    record.sent[number].add(bucket)
                else:
                    record.sent[number] = bucket
            record.fresh = {}
            rows.extend(record.sent.values())
        return rows

    def merge(self, rows: Iterable[Sequence[Any]], now: float) -> None:
        """Takes what :data:`EXCHANGE` returned as what all workers saw, this one included."""
        for record in self._records.values():
            record.shared = {}
            record.sent = {}
        for row in rows:
            bucket = Bucket(*row)
            record = self._records.setdefault(bucket.endpoint_id, _Record())
            record.shared[bucket.bucket] = bucket
            record.is_told = True
        oldest = oldest_bucket(now)
        for subject, record in list(self._records.items()):
            record.computed_at = -math.inf
            record.forget(oldest)
            is_open = record.opened_at is not None and now < record.opened_at + _OPEN_SECONDS
            is_quiet = not record.shared and not record.fresh
            if is_quiet and not (is_open and len(self._records) <= _REMEMBERED):
                del self._records[subject]

    def _place(self, subject: uuid.UUID, now: float) -> tuple[_Record, Bucket]:
        """Returns the record of a subject and the bucket of this moment."""
        record = self._records.setdefault(subject, _Record())
        number = _bucket(now)
        bucket = record.fresh.get(number)
        if bucket is None:
            record.forget(oldest_bucket(now))
            bucket = record.fresh[number] = Bucket(subject, number)
        return record, bucket


def _compute(record: _Record, now: float) -> None:
    """Works out the standing, and opens the circuit of an endpoint that fails too often."""
    successes = failures = 0
    latencies: list[int] = []
    speeds: list[float] = []
    retry_at = 0.0
    for bucket in record.recent(oldest_bucket(now)):
        successes += bucket.successes
        if bucket.bucket > record.forgiven:
            failures += bucket.failures
        latencies += bucket.latencies
        speeds += bucket.speeds
        retry_at = max(retry_at, bucket.retry_at)
    total = successes + failures
    share = failures / total if total else 0.0
    if record.opened_at is None and total >= _MINIMUM and share >= _OPEN_SHARE:
        record.opened_at = now
    if retry_at > now:
        state = State.RATE_LIMITED
    elif record.opened_at is not None:
        is_due = now >= record.opened_at + record.backoff and now >= record.probed_until
        state = State.HALF_OPEN if is_due else State.OPEN
    elif total >= _MINIMUM and share >= _DEGRADED_SHARE:
        state = State.DEGRADED
    else:
        state = State.HEALTHY
    latencies.sort()
    speeds.sort(reverse=True)
    record.standing = Standing(state, share, _percentiles(latencies), _percentiles(speeds))
    record.computed_at = now


def _bucket(now: float) -> int:
    return int(now // BUCKET_SECONDS)


def _percentiles(ranked: list[int] | list[float]) -> dict[str, float] | None:
    """Returns what so large a share is as good as or better than, of values ranked best first."""
    if not ranked:
        return None
    return {name: float(ranked[math.ceil(share * len(ranked)) - 1]) for name, share in _SHARES}
