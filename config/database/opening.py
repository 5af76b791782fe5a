"""Opens connections of the data plane, and finds out whether a pooler is at the other end."""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from config.database.aliases import DIRECT
from config.database.direct import DirectConnection, PoolerFound
from config.database.driver import DriverConnection
from config.database.pooled import NoPooler, PooledConnection

# The servers that were poolers when they were connected to last.
_poolers: set[tuple[Any, ...]] = set()


async def open_connection() -> DriverConnection:
    """Connects to ``DATABASE_DIRECT_URL``, if it is set, else to ``DATABASE_URL``.

    Raises :class:`OSError`. A server that turns out to be another kind than the last time, because
    a pooler was put before PostgreSQL or taken away, is connected to in its own way.
    """
    alias = DIRECT if DIRECT in connections.settings else DEFAULT_DB_ALIAS
    given = connections[alias].get_connection_params()
    server = tuple(given.get(name) for name in ("host", "port", "dbname", "service"))
    if server in _poolers:
        try:
            return await PooledConnection.open(given)
        except NoPooler:
            _poolers.discard(server)
            return await DirectConnection.open(given)
    try:
        return await DirectConnection.open(given)
    except PoolerFound:
        pooled = await PooledConnection.open(given)
        _poolers.add(server)
        return pooled
