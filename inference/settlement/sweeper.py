"""Ends the generations of workers that have stopped, and deletes old health and old paces."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from django.conf import settings
from django.contrib.postgres.functions import TransactionNow
from django.db import DataError, IntegrityError, OperationalError, connection, transaction
from django.db.models import QuerySet
from msgspec.structs import replace
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure

from catalog.dialects.base import Operation
from catalog.operations import OPERATIONS
from catalog.pricing import UnknownRule, Usage, cost_nano
from catalog.pricing.usage import UNITS
from config import sql
from config.clocks.clock import clock
from config.server.batching.waits import STATEMENT_SECONDS, Blocked, waits
from inference.admission.estimate import fee_nano
from inference.models import Generation, HistoryLoss, Journal, ProviderPace, Uptime, WorkerBeat
from inference.requests.operations import ROWS
from inference.routing.health import oldest_bucket
from inference.routing.pacing import oldest_pace
from inference.settlement.journal import BEAT, GAP_SECONDS
from inference.settlement.settle import SETTLE, Settlement, settlement_parameters
from inference.store import find_relation

logger = logging.getLogger(__name__)

CLEAR_HEALTH: Final = sql.load_statement("inference", "clear_health")

_BATCH: Final = 500
# Rows are kept for this long after their window, because a worker's idea of the database's time
# may be some seconds old, and workers of an older release use the clocks of their hosts.
_KEPT_SECONDS: Final = 600
# A host may be paused for so long, and its worker must still find its heartbeat.
_BEAT_DAYS: Final = 30
_UNCHARGEABLE: Final = "unchargeable"
# How long a transaction waits for a lock; one that ends a single generation waits less.
_LOCK_MS: Final = 200
_ALONE_LOCK_MS: Final = 20
# How long one sweep tries generations alone. There may be thousands behind one lock.
_ALONE_SECONDS: Final = 5.0
# Another transaction holds a lock, or has changed a row; nothing has changed here.
_BLOCKED: Final = (LockNotAvailable, DeadlockDetected, SerializationFailure)
# One of several generations is locked, or the ledger rejects it.
_UNENDED: Final = (DataError, IntegrityError, Blocked)


class _Abandoned(NamedTuple):
    """A generation whose worker is silent."""

    generation_id: str
    organization_id: UUID


def beat() -> None:
    """Records a heartbeat of ``work``, and learns the database's time."""
    with connection.cursor() as cursor:
        sent = time.monotonic()
        sql.execute(cursor, BEAT, [GAP_SECONDS, None, None, 0, None])
        read_at, *_ = cursor.fetchone()
    clock.observe(read_at, sent)


def may_believe_silence() -> bool:
    """Returns whether heartbeats have reached the database for a whole lease without a gap.

    After an outage or a failover every living worker thus has the time to write its journals,
    however long ago the server was started.
    """
    now = TransactionNow()
    if HistoryLoss.objects.filter(accepted_at=None).exists():
        # Workers settle first what they know of it, once it is accepted.
        return False
    return Uptime.objects.filter(
        since__lte=now - timedelta(seconds=settings.HOLD_LEASE),
        beat_at__gte=now - timedelta(seconds=GAP_SECONDS),
    ).exists()


def has_silent() -> bool:
    """Returns whether the lease of any generation has run out."""
    return _silent().exists()


def sweep() -> int:
    """Ends the generations whose lease has run out, and returns their number.

    PENDING → FAILED. The estimated tokens of the journal are charged, and the units that the
    request asked for, such as the characters of a speech, or that a chat has delivered; a
    generation without output is not charged. Leases and journals are measured by the database's
    clock. Each generation is tried once: one that is locked, or that the ledger rejects, is left to
    the next sweep.

    Those that cannot end with the others of their organization are tried alone, after all others,
    and in a random order: behind a lock that stays, there may be too many for one sweep.
    """
    swept, after = 0, ""
    left: list[_Abandoned] = []
    while abandoned := _find_abandoned(after):
        after = abandoned[-1].generation_id
        swept += _end(abandoned, left)
    random.shuffle(left)
    deadline = time.monotonic() + _ALONE_SECONDS
    for each in left:
        if time.monotonic() > deadline:
            break
        swept += _end_alone(each)
    return swept


def clear_health() -> int:
    """Deletes health, paces and heartbeats that no worker reads any more; returns the count."""
    with connection.cursor() as cursor:
        sql.execute(cursor, CLEAR_HEALTH, [oldest_bucket(clock.time() - _KEPT_SECONDS)])
        cleared: int = cursor.rowcount
    oldest = oldest_pace(clock.time() - _KEPT_SECONDS)
    # After a step of the database's clock, or an outage, every worker beats first.
    if may_believe_silence():
        old = TransactionNow() - timedelta(days=_BEAT_DAYS)
        cleared += WorkerBeat.objects.filter(beat_at__lt=old).delete()[0]
    return cleared + ProviderPace.objects.filter(bucket__lte=oldest).delete()[0]


def _silent() -> QuerySet[Journal]:
    lease = timedelta(seconds=settings.HOLD_LEASE)
    return Journal.objects.filter(beat_at__lt=TransactionNow() - lease)


def _find_abandoned(after: str) -> list[_Abandoned]:
    """Returns the next generations whose lease has run out, by id; locks nothing."""
    rows = (
        _silent()
        .filter(pk__gt=after)
        .order_by("pk")
        .values_list("pk", "generation__organization_id")[:_BATCH]
    )
    return [_Abandoned(*row) for row in rows]


def _end(abandoned: Sequence[_Abandoned], left: list[_Abandoned]) -> int:
    """Ends generations together; if one of them cannot end, ends each organization's apart.

    Adds those of an organization that cannot end together to ``left``.
    """
    with suppress(*_UNENDED):
        return _store(abandoned)
    groups: dict[UUID, list[_Abandoned]] = {}
    for each in abandoned:
        groups.setdefault(each.organization_id, []).append(each)
    swept = 0
    for group in groups.values():
        try:
            swept += _store(group)
        except _UNENDED:
            left += group
    return swept


def _end_alone(abandoned: _Abandoned) -> int:
    """Ends one generation; without a charge, if its cost is out of range.

    A locked one is not waited for: there may be hundreds, and the next sweep finds them again.
    """
    problem: Exception | None = None
    for is_free in (False, True):
        try:
            ended = _store([abandoned], lock_ms=_ALONE_LOCK_MS, is_free=is_free)
        except Blocked:
            return 0
        except (DataError, IntegrityError) as exc:
            problem = exc
            continue
        if is_free and ended:
            logger.error(
                "the generation %s cannot be charged", abandoned.generation_id, exc_info=problem
            )
        return ended
    logger.error("the generation %s cannot be ended", abandoned.generation_id, exc_info=problem)
    return 0


def _store(
    abandoned: Sequence[_Abandoned], *, lock_ms: int = _LOCK_MS, is_free: bool = False
) -> int:
    """Ends those generations that are still abandoned and not locked, in one transaction.

    Returns their number. Raises :class:`Blocked` if another of their rows is locked: nothing has
    changed then. No lock is kept beyond this transaction, so none outlasts a wait for another one.
    """
    organizations = {each.organization_id for each in abandoned}
    started = time.perf_counter()
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {lock_ms}")
            # A worker that has just written to a journal keeps its generation: the rows are read
            # again once they are locked. The generation is locked first, so that no journal stays
            # locked whose generation a worker is settling.
            journals = (
                _silent()
                .filter(pk__in=[each.generation_id for each in abandoned])
                .select_related("generation__price")
                .order_by("pk")
                .select_for_update(of=("generation", "self"), skip_locked=True)
            )
            made = (_make_settlement(journal, is_free=is_free) for journal in journals)
            found = [settlement for settlement in made if settlement is not None]
            if found:
                sql.execute(cursor, SETTLE, settlement_parameters(found))
    except OperationalError as exc:
        if not isinstance(exc.__cause__, _BLOCKED):
            raise
        relation = find_relation(exc.__cause__.diag.context)
        waits.report_timeout("sweep", organizations, time.perf_counter() - started, relation)
        raise Blocked from None
    seconds = time.perf_counter() - started
    STATEMENT_SECONDS.observe_now(("sweep",), seconds)
    if seconds > waits.slow_seconds:
        waits.report_slow("sweep", organizations, seconds)
    return len(found)


def _make_settlement(journal: Journal, *, is_free: bool) -> Settlement | None:
    """Returns the settlement of an abandoned generation, by the estimates of its journal.

    ``is_free`` is for a generation whose cost the ledger rejects. Returns ``None`` for a price or
    units of a later release, which ends the generation itself.
    """
    generation = journal.generation
    if is_free:
        return Settlement(generation.pk, Generation.Status.FAILED, error_type=_UNCHARGEABLE)
    usage, cost, upstream_cost = None, 0, 0
    units = journal.units or {}
    # The request of a chat says nothing of pictures, so these were delivered.
    is_written = OPERATIONS[Operation(generation.operation)].is_written
    is_drawn = is_written and "output_images" in units
    if journal.completion_tokens or is_drawn:
        estimate = ROWS[Operation(generation.operation)].estimate
        if unknown := units.keys() - set(UNITS):
            names = ", ".join(sorted(unknown))
            logger.error("the units of the generation %s are unknown: %s", generation.pk, names)
            return None
        usage = replace(
            estimate(journal.prompt_tokens, journal.completion_tokens, Usage(0, 0, **units)),
            images=journal.images,
        )
        try:
            price = generation.price.price
        except UnknownRule as exc:
            logger.error("the price of the generation %s is unknown: %s", generation.pk, exc)
            return None
        cost = upstream_cost = cost_nano(price, usage, generation.instant)
        if generation.is_byok:
            cost = fee_nano(upstream_cost, settings.BYOK_FEE_PERCENT)
        # Our own estimate of characters and seconds is no claim of the upstream.
        cost = min(cost, generation.hold_nano)
    return Settlement(
        generation_id=generation.pk,
        status=Generation.Status.FAILED,
        usage=usage,
        is_estimated=usage is not None,
        cost_nano=cost,
        upstream_cost_nano=upstream_cost,
        error_type="abandoned",
    )
