"""The health of endpoints, computed from the outcomes of recent attempts; pure, no I/O.

Outcomes depend on the credential, so they are kept by subject: the id of the endpoint for the
operator's credential, and the id that :func:`subject_of` makes of endpoint and credential for an
organization's own. Whether an own credential rests is kept apart, by the id that :func:`rest_of`
makes of its version too: a renewed secret does not rest. Latency and throughput are kept by
endpoint, for every payer.

Each worker keeps a health table. The workers of a host share one (the *leader's*), and hosts share
theirs through one small database table: ``exchange_health.sql`` adds a host's latest outcomes and
returns what has changed, in one round trip. Between a worker and its leader the same exchange takes
place in memory: :meth:`HealthTable.exchange`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final

from config.api.errors import GatewayError, UpstreamError, UpstreamRateLimited, UpstreamRefused
from inference.routing.pacing import Pacer
from inference.routing.refused import RefusedCredentials

# The window is a ring of 12 slots of five seconds. Slot ``n % _SLOTS`` holds bucket ``n``.
BUCKET_SECONDS: Final = 5
_SLOTS: Final = 12
WINDOW_SECONDS: Final = BUCKET_SECONDS * _SLOTS
# A bucket keeps the first samples of each kind, so that more requests need no more memory.
_SAMPLES: Final = 32
# With fewer outcomes than this, the share of failures is ignored.
_MINIMUM: Final = 5
_OPEN_SHARE: Final = 0.5
_DEGRADED_SHARE: Final = 0.1
_FIRST_BACKOFF: Final = 5.0
_LONGEST_BACKOFF: Final = 60.0
# A probe without an outcome is given up after this time, so that the next may begin.
_PROBE_SECONDS: Final = 60.0
# How long a rate limit lasts without a Retry-After.
_RATE_LIMIT_SECONDS: Final = 5.0
# Health is computed at most this often, and immediately after a failure.
_REFRESH_SECONDS: Final = 0.25
# A worker remembers at most this many subjects without failures or without recent outcomes.
_REMEMBERED: Final = 10_000
# The buckets that one exchange sends, and those that it returns: those with failures first. So the
# cost of an exchange does not grow with the number of endpoints.
MOST_SENT: Final = 1_000
_MOST_RETURNED: Final = 2_000
# How long a worker remembers an open circuit that no request probes.
_OPEN_SECONDS: Final = 900.0
# The upstream statuses that refuse an own credential. They do not count as failures of the subject,
# because only the owner can repair the credential: it rests.
_UNAUTHORIZED: Final = (401, 402, 403)
_SHARES: Final = (("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99))


class AttemptOutcome(StrEnum):
    """The result of an attempt, as it counts for its subject."""

    SUCCESS = "success"
    FAILURE = "failure"
    RATE_LIMITED = "rate_limited"


class HealthState(StrEnum):
    """Whether a subject should be called.

    A ``half_open`` subject failed too often, its backoff has passed, and one request may probe it.
    """

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    HALF_OPEN = "half_open"
    OPEN = "open"
    RATE_LIMITED = "rate_limited"


@dataclass(frozen=True, slots=True)
class Health:
    """A subject's state, and the measures of the last minute, ``None`` where it had no traffic.

    ``latency`` is in milliseconds to the first token, ``throughput`` in tokens per second. At least
    90 percent of the requests were as good as ``p90`` or better, so a lower throughput has a higher
    percentile.
    """

    state: HealthState = HealthState.HEALTHY
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


UNKNOWN: Final = Health()


@lru_cache(_REMEMBERED)
def subject_of(endpoint_id: uuid.UUID, credential_id: uuid.UUID) -> uuid.UUID:
    """Returns the id under which an own credential's outcomes at an endpoint are kept."""
    return uuid.uuid5(endpoint_id, str(credential_id))


@lru_cache(_REMEMBERED)
def rest_of(subject: uuid.UUID, version: int) -> uuid.UUID:
    """Returns the id under which the rest of one version of an own credential is kept."""
    return uuid.uuid5(subject, f"rest of {version}")


def refuses_credential(error: GatewayError | None) -> bool:
    """Returns whether an upstream has refused the credential, and not the request."""
    return isinstance(error, UpstreamError) and error.upstream_status in _UNAUTHORIZED


def classify_attempt(
    error: GatewayError | None, *, has_own_credential: bool
) -> AttemptOutcome | None:
    """Returns the outcome of an attempt; ``None`` if it does not count for its subject.

    A refused request is the caller's mistake, and a refused own credential is its owner's. Some
    failures say themselves that they tell nothing.
    """
    match error:
        case None:
            return AttemptOutcome.SUCCESS
        case UpstreamRateLimited():
            return AttemptOutcome.RATE_LIMITED
        case UpstreamRefused():
            return None
        case UpstreamError() if error.is_health_neutral:
            return None
        case UpstreamError():
            is_refused = has_own_credential and refuses_credential(error)
            return None if is_refused else AttemptOutcome.FAILURE
        case _:
            return None


def oldest_bucket(now: float) -> int:
    """Returns the last bucket before the window, the parameter of ``exchange_health.sql``."""
    return _bucket(now) - _SLOTS


@dataclass(slots=True)
class Bucket:
    """One subject's outcomes and samples of five seconds.

    ``retry_at`` is the end of a rate limit in Unix seconds, or 0.
    """

    endpoint_id: uuid.UUID
    bucket: int
    successes: int = 0
    failures: int = 0
    latencies: list[int] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    retry_at: float = 0.0

    @property
    def is_urgent(self) -> bool:
        """Whether other workers should learn of it before they call the endpoint."""
        return self.failures > 0 or self.retry_at > 0

    def add(self, other: Bucket) -> None:
        self.successes += other.successes
        self.failures += other.failures
        self.latencies = (self.latencies + other.latencies)[:_SAMPLES]
        self.speeds = (self.speeds + other.speeds)[:_SAMPLES]
        self.retry_at = max(self.retry_at, other.retry_at)


Buckets = dict[int, Bucket]


@dataclass(slots=True)
class _Record:
    """One subject's buckets and circuit.

    ``shared`` buckets are those of all workers. ``sent`` buckets are on their way to the database
    table, and ``fresh`` buckets wait for the next exchange.
    """

    shared: Buckets = field(default_factory=dict)
    sent: Buckets = field(default_factory=dict)
    fresh: Buckets = field(default_factory=dict)
    health: Health = UNKNOWN
    computed_at: float = -math.inf
    # The circuit: when it opened, its backoff in seconds, and when its running probe is given up.
    opened_at: float | None = None
    backoff: float = _FIRST_BACKOFF
    probed_until: float = -math.inf
    # Failures up to this bucket no longer count: a probe succeeded after them.
    forgiven: int = -1
    # Whether the exchange includes this subject.
    is_shared: bool = False
    # The table's version at the last change of each bucket, and of any of them.
    versions: dict[int, int] = field(default_factory=dict)
    version: int = 0

    def forget(self, oldest: int) -> None:
        """Drops buckets that have left the window, so that an unreachable table costs no memory."""
        for numbered in (self.shared, self.sent, self.fresh, self.versions):
            for number in [number for number in numbered if number <= oldest]:
                del numbered[number]

    def sum(self, number: int) -> Bucket | None:
        """Returns all that is known of one bucket."""
        total: Bucket | None = None
        for buckets in (self.shared, self.sent, self.fresh):
            if (bucket := buckets.get(number)) is None:
                continue
            if total is None:
                total = Bucket(bucket.endpoint_id, number)
            total.add(bucket)
        return total

    def recent(self, oldest: int) -> list[Bucket]:
        """Returns the buckets of the window."""
        return [
            bucket
            for buckets in (self.shared, self.sent, self.fresh)
            for number, bucket in buckets.items()
            if number > oldest
        ]


class _Outbox:
    """The subjects with buckets that are not exchanged yet; urgent ones leave first.

    ``is_urgent`` tells whether a failure or a pause waits for the next exchange. No call takes
    longer with more subjects.
    """

    __slots__ = ("_others", "_urgent", "is_urgent")

    def __init__(self) -> None:
        self._urgent: dict[uuid.UUID, None] = {}
        self._others: dict[uuid.UUID, None] = {}
        self.is_urgent = False

    def add(self, subject: uuid.UUID, *, is_urgent: bool) -> None:
        """Puts a subject behind the others of its kind, unless it waits already."""
        if is_urgent:
            self._others.pop(subject, None)
            self._urgent[subject] = None
            self.is_urgent = True
        elif subject not in self._urgent:
            self._others[subject] = None

    def remove(self, subject: uuid.UUID) -> None:
        self._urgent.pop(subject, None)
        self._others.pop(subject, None)

    def renew(self, subject: uuid.UUID, left: Collection[Bucket]) -> None:
        """Puts a subject that had its turn behind the others, or removes it if nothing is left."""
        self.remove(subject)
        if left:
            self.add(subject, is_urgent=any(bucket.is_urgent for bucket in left))

    def first(self) -> list[uuid.UUID]:
        """Returns the subjects of the next exchange, at most ``MOST_SENT``."""
        return list(islice(chain(self._urgent, self._others), MOST_SENT))

    def note_taken(self, count: int) -> None:
        """Notes that the exchange takes the first ``count`` subjects."""
        self.is_urgent = len(self._urgent) > count


class HealthTable:
    """One worker's knowledge of the health of every subject that any worker called recently.

    ``now`` is Unix time, because the workers share it. The table is not thread-safe.
    """

    def __init__(self) -> None:
        # By their last change, the oldest first.
        self._records: dict[uuid.UUID, _Record] = {}
        self._outbox = _Outbox()
        # The subjects whose buckets the last call of `outgoing` returned.
        self._leaving: list[uuid.UUID] = []
        self._version = 0
        # The endpoints whose streams end without an end mark.
        self._unmarked: set[uuid.UUID] = set()
        # The latest doubtful failure of a subject: its caller, its time, and until when failures
        # of this kind count.
        self._doubts: dict[uuid.UUID, tuple[uuid.UUID, float, float]] = {}
        self.pacer = Pacer()
        self.refused = RefusedCredentials()

    def record(
        self,
        subject: uuid.UUID,
        outcome: AttemptOutcome,
        *,
        now: float,
        retry_after: float | None = None,
        has_own_credential: bool = False,
    ) -> None:
        """Counts the outcome of an attempt; a success counts when its reply begins.

        ``retry_after`` is the wait in seconds that a rate limit or an overload asked for; it ends
        after a minute at the latest. The number of own
        credentials is not bounded, so at most 10,000 of them are remembered while they succeed, and
        other workers learn of one only when it fails.
        """
        is_well = has_own_credential and outcome is AttemptOutcome.SUCCESS
        if is_well and subject not in self._records and len(self._records) >= _REMEMBERED:
            return
        record, bucket = self._place(subject, now)
        record.is_shared = record.is_shared or not is_well
        if record.is_shared:
            self._outbox.add(subject, is_urgent=outcome is not AttemptOutcome.SUCCESS)
        if outcome is AttemptOutcome.SUCCESS:
            bucket.successes += 1
            if record.opened_at is not None:
                record.opened_at = None
                record.backoff = _FIRST_BACKOFF
                record.forgiven = bucket.bucket
                record.computed_at = -math.inf
        else:
            record.computed_at = -math.inf
            if outcome is AttemptOutcome.RATE_LIMITED:
                wait = _RATE_LIMIT_SECONDS if retry_after is None else retry_after
                bucket.retry_at = max(bucket.retry_at, now + _bound_pause(wait))
            else:
                bucket.failures += 1
                if retry_after is not None:
                    bucket.retry_at = max(bucket.retry_at, now + _bound_pause(retry_after))
                if record.opened_at is not None and now >= record.opened_at + record.backoff:
                    record.opened_at = now
                    record.backoff = min(record.backoff * 2, _LONGEST_BACKOFF)
        record.probed_until = -math.inf

    def confirm_doubt(self, subject: uuid.UUID, caller: uuid.UUID, now: float) -> bool:
        """Returns whether a failure counts that may be the fault of the caller's file or voice.

        It does once requests of another caller have failed alike within the window.
        """
        last, at, counts_until = self._doubts.pop(subject, (caller, now, -math.inf))
        if last != caller and now - at < WINDOW_SECONDS:
            counts_until = now + WINDOW_SECONDS
        if len(self._doubts) >= _REMEMBERED:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[subject] = caller, now, counts_until
        return now < counts_until

    def pause(self, subject: uuid.UUID, seconds: float, *, now: float) -> None:
        """Calls a subject after the others, because its upstream says that nothing is left.

        This ends after a minute at the latest, so that a wrong answer does little harm.
        """
        record, bucket = self._place(subject, now)
        record.is_shared = True
        record.computed_at = -math.inf
        bucket.retry_at = max(bucket.retry_at, now + _bound_pause(seconds))
        self._outbox.add(subject, is_urgent=True)

    def begin_rest(self, rest: uuid.UUID, now: float) -> None:
        """Lets a refused credential rest for a minute, in all workers.

        Then its circuit is half-open: one request of each worker probes the credential.
        """
        self.pause(rest, WINDOW_SECONDS, now=now)
        record, bucket = self._place(rest, now)
        bucket.failures += _MINIMUM
        record.opened_at, record.probed_until = now, -math.inf

    def end_rest(self, rest: uuid.UUID, now: float) -> bool:
        """Notes that an upstream has accepted a credential; returns whether it has rested."""
        if (record := self._records.get(rest)) is None or record.opened_at is None:
            return False
        for bucket in record.recent(oldest_bucket(now)):
            bucket.retry_at = 0.0
        record.opened_at, record.forgiven = None, _bucket(now)
        record.computed_at = record.probed_until = -math.inf
        return True

    def measure(
        self,
        endpoint_id: uuid.UUID,
        latency_ms: int | None = None,
        tokens_per_second: float | None = None,
        *,
        now: float,
    ) -> None:
        """Adds samples of an endpoint: milliseconds to the first token, tokens per second."""
        record, bucket = self._place(endpoint_id, now)
        record.is_shared = True
        self._outbox.add(endpoint_id, is_urgent=False)
        if latency_ms is not None and len(bucket.latencies) < _SAMPLES:
            bucket.latencies.append(latency_ms)
        if tokens_per_second is not None and len(bucket.speeds) < _SAMPLES:
            bucket.speeds.append(tokens_per_second)

    def note_missing_mark(self, endpoint_id: uuid.UUID) -> bool:
        """Notes that a whole stream ended without its end mark; returns whether that is new."""
        if endpoint_id in self._unmarked:
            return False
        if len(self._unmarked) >= _REMEMBERED:
            self._unmarked.clear()
        self._unmarked.add(endpoint_id)
        return True

    def health(self, subject: uuid.UUID, now: float) -> Health:
        """Returns the health of a subject."""
        record = self._records.get(subject)
        if record is None:
            return UNKNOWN
        if not 0 <= now - record.computed_at < _REFRESH_SECONDS:
            _compute(record, now)
        return record.health

    def claim(self, subject: uuid.UUID, now: float) -> bool:
        """Reserves the one probe of a half-open subject for the request about to be sent.

        Returns whether the subject was half-open. It counts as open until the outcome of the probe
        is recorded or :meth:`release` gives the probe back.
        """
        if self.health(subject, now).state is not HealthState.HALF_OPEN:
            return False
        record = self._records[subject]
        record.probed_until = now + _PROBE_SECONDS
        record.computed_at = -math.inf
        return True

    def release(self, subject: uuid.UUID) -> None:
        """Lets another request probe a subject, because the reserved probe had no outcome."""
        record = self._records.get(subject)
        if record is not None:
            record.probed_until = -math.inf
            record.computed_at = -math.inf

    @property
    def is_urgent(self) -> bool:
        """Whether a failure or a pause waits for the next exchange."""
        return self._outbox.is_urgent

    def outgoing(self) -> list[Bucket]:
        """Returns buckets that others do not know yet, at most ``MOST_SENT``, urgent ones first.

        Buckets that were returned before and never merged are returned again: their exchange
        failed.
        """
        rows: list[Bucket] = []
        self._leaving = []
        for subject in self._outbox.first():
            record = self._records[subject]
            if len(rows) + len(record.fresh.keys() | record.sent.keys()) > MOST_SENT:
                break
            for number, bucket in record.fresh.items():
                if number in record.sent:
                    record.sent[number].add(bucket)
                else:
                    record.sent[number] = bucket
            record.fresh = {}
            rows.extend(record.sent.values())
            self._leaving.append(subject)
        self._outbox.note_taken(len(self._leaving))
        return rows

    def merge(self, rows: Iterable[Sequence[Any]], now: float, *, has_sent: bool = True) -> None:
        """Takes over the changed buckets that an exchange returns, ours included.

        ``has_sent=False`` keeps the buckets that could not be sent, for the next exchange.
        """
        if has_sent:
            self._clear_sent()
        for row in rows:
            bucket = Bucket(*row)
            record = self._records.get(bucket.endpoint_id) or _Record()
            record.shared[bucket.bucket] = bucket
            record.is_shared = True
            record.computed_at = -math.inf
            self._touch(bucket.endpoint_id, record, bucket.bucket)
        self._forget_quiet(now)

    def _clear_sent(self) -> None:
        leaving, self._leaving = self._leaving, []
        for subject in leaving:
            if (record := self._records.get(subject)) is None:
                continue
            record.sent = {}
            record.computed_at = -math.inf
            self._touch(subject, record)
            self._outbox.renew(subject, record.fresh.values())

    def exchange(
        self, rows: Iterable[Sequence[Any]], since: int, now: float
    ) -> tuple[list[Bucket], int]:
        """Adds the buckets of another worker of the host; returns what has changed, and a version.

        It is ``exchange_health.sql`` in memory: ``since`` is the version of the last call, 0 at
        first.
        """
        for row in rows:
            bucket = Bucket(*row)
            record = self._records.get(bucket.endpoint_id) or _Record()
            empty = Bucket(bucket.endpoint_id, bucket.bucket)
            record.fresh.setdefault(bucket.bucket, empty).add(bucket)
            record.is_shared = True
            record.computed_at = -math.inf
            self._outbox.add(bucket.endpoint_id, is_urgent=bucket.is_urgent)
            self._touch(bucket.endpoint_id, record, bucket.bucket)
        changed: list[Bucket] = []
        for record in reversed(self._records.values()):
            if record.version <= since:
                break
            if record.is_shared:
                numbers = [number for number, at in record.versions.items() if at > since]
                changed += filter(None, map(record.sum, numbers))
        if len(changed) > _MOST_RETURNED:
            # The newest come first already.
            changed.sort(key=lambda bucket: not bucket.is_urgent)
            del changed[_MOST_RETURNED:]
        self._forget_quiet(now)
        return changed, self._version

    def _touch(self, subject: uuid.UUID, record: _Record, number: int | None = None) -> None:
        """Notes a change of a record, which is the newest then."""
        self._records.pop(subject, None)
        self._records[subject] = record
        if number is not None:
            self._version += 1
            record.versions[number] = self._version
        record.version = self._version

    def _forget_quiet(self, now: float) -> None:
        """Forgets the records that have left the window; they stand at the beginning.

        An open circuit is remembered for longer, but not more than 10,000 of them.
        """
        oldest = oldest_bucket(now)
        for subject, record in list(islice(self._records.items(), MOST_SENT)):
            record.forget(oldest)
            if record.shared or record.fresh or record.sent:
                break
            is_open = record.opened_at is not None and now < record.opened_at + _OPEN_SECONDS
            del self._records[subject]
            self._outbox.remove(subject)
            if is_open and len(self._records) < _REMEMBERED:
                self._touch(subject, record)

    def _place(self, subject: uuid.UUID, now: float) -> tuple[_Record, Bucket]:
        """Returns the record of a subject and its bucket for this moment."""
        record = self._records.setdefault(subject, _Record())
        number = _bucket(now)
        bucket = record.fresh.get(number)
        if bucket is None:
            record.forget(oldest_bucket(now))
            bucket = record.fresh[number] = Bucket(subject, number)
        self._touch(subject, record, number)
        return record, bucket


def _compute(record: _Record, now: float) -> None:
    """Computes the health of a subject, and opens its circuit when it fails too often."""
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
        state = HealthState.RATE_LIMITED
    elif record.opened_at is not None:
        is_due = now >= record.opened_at + record.backoff and now >= record.probed_until
        state = HealthState.HALF_OPEN if is_due else HealthState.OPEN
    elif total >= _MINIMUM and share >= _DEGRADED_SHARE:
        state = HealthState.DEGRADED
    else:
        state = HealthState.HEALTHY
    latencies.sort()
    speeds.sort(reverse=True)
    record.health = Health(state, share, _percentiles(latencies), _percentiles(speeds))
    record.computed_at = now


def _bound_pause(seconds: float) -> float:
    """Returns a pause that the upstream asks for, within the window: the bucket stores it."""
    return min(max(seconds, 0.0), WINDOW_SECONDS) if math.isfinite(seconds) else WINDOW_SECONDS


def _bucket(now: float) -> int:
    return int(now // BUCKET_SECONDS)


def _percentiles(ranked: list[int] | list[float]) -> dict[str, float] | None:
    """Returns the percentiles of values that are sorted best first."""
    if not ranked:
        return None
    return {name: float(ranked[math.ceil(share * len(ranked)) - 1]) for name, share in _SHARES}
