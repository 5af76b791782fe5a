"""Ends the generations of workers that have stopped, and deletes old health of endpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.contrib.postgres.functions import TransactionNow
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import QuerySet

from catalog.pricing import Usage, nano_usd, total_cost
from config import sql
from config.clock import clock
from inference.admission.estimate import fee_nano
from inference.models import Generation, Journal, Uptime
from inference.routing.health import oldest_bucket
from inference.settlement.journal import BEAT, GAP_SECONDS
from inference.settlement.settle import SETTLE, Settlement, encode_settlements

logger = logging.getLogger(__name__)

CLEAR_HEALTH: Final = sql.load_statement("inference", "clear_health")

_BATCH: Final = 500
# Health is kept for this long after its window, because the clocks of hosts differ.
_KEPT_SECONDS: Final = 600
_UNCHARGEABLE: Final = "unchargeable"


def beat() -> None:
    """Records a heartbeat of ``work``, and learns the database's time."""
    with connection.cursor() as cursor:
        sent = time.monotonic()
        sql.execute(cursor, BEAT, [GAP_SECONDS])
        [read_at] = cursor.fetchone()
    clock.observe(read_at, sent)


def may_believe_silence() -> bool:
    """Returns whether heartbeats have reached the database for a whole lease without a gap.

    After an outage or a failover every living worker thus has the time to write its journals,
    however long ago the server was started.
    """
    now = TransactionNow()
    return Uptime.objects.filter(
        since__lte=now - timedelta(seconds=settings.HOLD_LEASE),
        beat_at__gte=now - timedelta(seconds=GAP_SECONDS),
    ).exists()


def has_silent() -> bool:
    """Returns whether the lease of any generation has run out."""
    return _silent().exists()


def sweep() -> int:
    """Ends the generations whose lease has run out, and returns their number.

    PENDING → FAILED. The estimated tokens of the journal are charged; a generation without output
    is not charged. Leases and journals are measured by the database's clock.
    """
    swept = 0
    while count := _sweep_batch():
        swept += count
    return swept


def clear_health() -> int:
    """Deletes the health of endpoints that no worker reads any more; returns the row count."""
    with connection.cursor() as cursor:
        sql.execute(cursor, CLEAR_HEALTH, [oldest_bucket(clock.time() - _KEPT_SECONDS)])
        cleared: int = cursor.rowcount
    return cleared


def _silent() -> QuerySet[Journal]:
    lease = timedelta(seconds=settings.HOLD_LEASE)
    return Journal.objects.filter(beat_at__lt=TransactionNow() - lease)


def _sweep_batch() -> int:
    with transaction.atomic():
        abandoned = list(
            _silent()
            .select_related("generation__price")
            .order_by("pk")
            .select_for_update(of=("generation",), skip_locked=True)[:_BATCH]
        )
        return _end([_make_settlement(journal) for journal in abandoned]) if abandoned else 0


def _end(settlements: Sequence[Settlement]) -> int:
    """Stores settlements; one that the ledger rejects does not keep the others from ending."""
    try:
        _store(settlements)
    except (DataError, IntegrityError):
        return sum(map(_end_alone, settlements))
    return len(settlements)


def _end_alone(item: Settlement) -> int:
    """Stores one settlement; if its cost is out of range, ends the generation without a charge.

    It is tried twice unchanged: PostgreSQL checks a row's constraints before it sees that its
    statement has locked a newer version, which a payment may have changed.
    """
    free = Settlement(item.generation_id, item.status, error_type=_UNCHARGEABLE)
    problem: Exception | None = None
    for candidate in (item, item, free):
        try:
            _store([candidate])
        except (DataError, IntegrityError) as exc:
            problem = exc
            continue
        if candidate is free:
            logger.error(
                "the generation %s cannot be charged", item.generation_id, exc_info=problem
            )
        return 1
    logger.error("the generation %s cannot be ended", item.generation_id, exc_info=problem)
    return 0


def _store(settlements: Sequence[Settlement]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        sql.execute(cursor, SETTLE, [encode_settlements(settlements)])


def _make_settlement(journal: Journal) -> Settlement:
    """Returns the settlement of an abandoned generation, by the estimates of its journal."""
    generation = journal.generation
    usage, cost, upstream_cost = None, 0, 0
    if journal.completion_tokens:
        usage = Usage(
            prompt=journal.prompt_tokens,
            completion=journal.completion_tokens,
            images=journal.images,
        )
        cost = upstream_cost = nano_usd(total_cost(generation.price.price, usage))
        if generation.is_byok:
            cost = fee_nano(upstream_cost, settings.BYOK_FEE_PERCENT)
    return Settlement(
        generation_id=generation.pk,
        status=Generation.Status.FAILED,
        usage=usage,
        is_estimated=usage is not None,
        cost_nano=cost,
        upstream_cost_nano=upstream_cost,
        error_type="abandoned",
    )
