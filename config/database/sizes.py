"""Compares the connections that a service may open with those that PostgreSQL accepts."""

from __future__ import annotations

import logging
from typing import Any, Final

from django.conf import settings
from django.db import connection

logger = logging.getLogger("causeway.serve")

# Each worker listens for notifications on a connection of its own, unless a pooler keeps them back.
_LISTENING: Final = 1
_ACCEPTED: Final = """
SELECT current_setting('max_connections')::int
    - current_setting('superuser_reserved_connections')::int
"""


def count_connections(workers: int) -> int:
    """Returns how many connections a ``serve`` with so many workers may open."""
    of_worker = settings.DATABASE_POOL_SIZE + settings.DATABASE_DATA_PLANE_CONNECTIONS + _LISTENING
    return workers * of_worker


def warn_of_few_connections(workers: int) -> None:
    """Says when PostgreSQL accepts fewer connections than this ``serve`` alone may open.

    Behind a pooler it is the pooler's limits that count, and these cannot be read.
    """
    server: Any = connection
    if server.is_pooled():
        return
    wanted = count_connections(workers)
    with connection.cursor() as cursor:
        cursor.execute(_ACCEPTED)
        [accepted] = cursor.fetchone()
    if wanted > accepted:
        logger.warning(
            "%d workers may open %d connections to PostgreSQL, which accepts %d: raise "
            "max_connections, lower DATABASE_POOL_SIZE or --workers, or put a pooler in between",
            workers,
            wanted,
            accepted,
        )
