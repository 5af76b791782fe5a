"""Exchanges measurements between a worker's health table and the database."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from django.db import connection

from config import sql
from inference.models import EndpointHealth
from inference.routing.health import (
    HealthTable,
)
from inference.routing.health import oldest_bucket as oldest
from inference.settlement.health_exchange import EXCHANGE_HEALTH

ONE = uuid.UUID(int=1)
TWO = uuid.UUID(int=2)


def is_paused(endpoint_id: uuid.UUID) -> bool:
    """Whether all workers know that an upstream asked to wait; they share it once a second."""
    return EndpointHealth.objects.filter(endpoint_id=endpoint_id, retry_at__gt=0).exists()


def failures_of(endpoint_id: uuid.UUID) -> int | None:
    """The failures that all workers know; ``None`` while they know nothing of the endpoint."""
    found = EndpointHealth.objects.filter(endpoint_id=endpoint_id)
    return sum(each.failures for each in found) if found else None


def exchange(table: HealthTable, now: float) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        rows = msgspec.json.encode(table.outgoing()).decode()
        sql.execute(cursor, EXCHANGE_HEALTH, [rows, oldest(now), 0])
        # A service that other tests had may still tell of theirs.
        found = [row[:7] for row in cursor.fetchall() if row[0] in (ONE, TWO)]
    table.merge(found, now)
    return found
