"""Deletes answers and uses of idempotency keys whose time is over."""

from __future__ import annotations

from typing import Final

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from inference.models import Generation, IdempotentRequest, KeptAnswer

# Rows that one statement deletes: a long statement would keep dead rows in every table.
_BATCH: Final = 5_000


def clear_expired() -> int:
    """Deletes what has expired and returns the number of rows.

    The key of a request that still runs is kept, however long it runs.
    """
    running = Generation.objects.filter(
        pk=OuterRef("generation_id"), status=Generation.Status.PENDING
    )
    answers = KeptAnswer.objects.filter(expires_at__lte=Now())
    uses = IdempotentRequest.objects.filter(~Exists(running), expires_at__lte=Now())
    deleted = 0
    for rows in (answers, uses):
        while ids := list(rows.order_by("id").values_list("pk", flat=True)[:_BATCH]):
            count, _ = rows.filter(pk__in=ids).delete()
            deleted += count
            if len(ids) < _BATCH:
                break
    return deleted
