"""Ends what its worker left behind: the generations whose journal has fallen silent.

Clears away, too, what workers told each other of endpoints that nobody calls any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.contrib.postgres.functions import TransactionNow
from django.db import DataError, IntegrityError, connection, transaction

from catalog.pricing import Usage, nano_usd, total_cost
from config import sql
from inference.admission.estimate import fee_nano
from inference.models import Generation, Journal
from inference.routing import health
from inference.settlement.settle import SETTLE, Settlement, encode_settlements

logger = logging.getLogger(__name__)

_CLEAR_HEALTH: Final = sql.load_statement("inference", "clear_health")

_BATCH: Final = 500
# Beyond its window, for hosts whose clocks are apart.
_FORGOTTEN_SECONDS: Final = 600
_UNCHARGEABLE: Final = "unchargeable"


def sweep() -> int:
    """Ends the generations whose lease has run out; returns how many.

    PENDING → FAILED. What was delivered by the last beat is charged, as estimated; without any
    output the hold is voided. The time is the database's, as that of the beats is.
    """
    swept = 0
    while found := _sweep():
        swept += found
    return swept


def clear_health() -> int:
    """Deletes what nobody reads any more of how endpoints did; returns how many rows."""
    with connection.cursor() as cursor:
        oldest = health.oldest_bucket(time.time() - _FORGOTTEN_SECONDS)
        sql.execute(cursor, _CLEAR_HEALTH, [oldest])
        cleared: int = cursor.rowcount
    return cleared


def _sweep() -> int:
    silent_since = TransactionNow() - timedelta(seconds=settings.HOLD_LEASE)
    with transaction.atomic():
        abandoned = list(
            Journal.objects.filter(beat_at__lt=silent_since)
            .select_related("generation__price")
            .order_by("pk")
            .select_for_update(of=("generation",), skip_locked=True)[:_BATCH]
        )
        return _end([_settlement(journal) for journal in abandoned]) if abandoned else 0


def _end(settlements: Sequence[Settlement]) -> int:
    """Stores settlements; one that the ledger does not take keeps none of the others open."""
    try:
        _store(settlements)
    except (DataError, IntegrityError):
        return sum(map(_end_alone, settlements))
    return len(settlements)


def _end_alone(item: Settlement) -> int:
    """Stores one settlement; what it would cost may fit no column, and its hold ends all the same.

    Twice as it is: PostgreSQL checks a row's constraints before it sees that its statement has
    locked a newer one, where a payment may have come meanwhile.
    """
    free = Settlement(item.generation_id, item.status, error_type=_UNCHARGEABLE)
    problem: Exception | None = None
    for wanted in (item, item, free):
        try:
            _store([wanted])
        except (DataError, IntegrityError) as exc:
            problem = exc
            continue
        if wanted is free:
            logger.error(
                "the generation %s cannot be charged", item.generation_id, exc_info=problem
            )
        return 1
    logger.error("the generation %s cannot be ended", item.generation_id, exc_info=problem)
    return 0


def _store(settlements: Sequence[Settlement]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        sql.execute(cursor, SETTLE, [encode_settlements(settlements)])


def _settlement(journal: Journal) -> Settlement:
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
