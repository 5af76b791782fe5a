"""The figures of a worker's pools of database connections."""

from __future__ import annotations

from typing import Any, Final

from django.db import connections
from prometheus_client import Gauge

from config.database.pool import find_pool

# The label of the pool for inference; the others have the names of Django's databases.
_DATA_PLANE: Final = "data_plane"
_CONNECTIONS: Final = Gauge(
    "causeway_pool_connections",
    "Connections to the database, by pool and by whether a request uses them.",
    ("pool", "state"),
    multiprocess_mode="livesum",
)
_LIMIT: Final = Gauge(
    "causeway_pool_limit_connections",
    "The most connections that the pools of all workers may have.",
    ("pool",),
    multiprocess_mode="livesum",
)
_WAITING: Final = Gauge(
    "causeway_pool_waiting",
    "Requests that wait for a connection of a pool.",
    ("pool",),
    multiprocess_mode="livesum",
)


def show_pools() -> None:
    """Sets the gauges of the control plane's pools and of the running loop's data plane."""
    for alias in connections:
        wrapper: Any = connections[alias]
        pool = wrapper.pool
        if pool is None:
            continue
        stats = pool.get_stats()
        idle = stats["pool_available"]
        _CONNECTIONS.labels(alias, "idle").set(idle)
        _CONNECTIONS.labels(alias, "used").set(stats["pool_size"] - idle)
        _LIMIT.labels(alias).set(stats["pool_max"])
        _WAITING.labels(alias).set(stats.get("requests_waiting", 0))
    use = find_pool().use()
    _CONNECTIONS.labels(_DATA_PLANE, "idle").set(use.open - use.busy)
    _CONNECTIONS.labels(_DATA_PLANE, "used").set(use.busy)
    _LIMIT.labels(_DATA_PLANE).set(use.size)
    _WAITING.labels(_DATA_PLANE).set(use.waiting)
