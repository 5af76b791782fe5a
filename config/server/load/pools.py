"""The figures of the control plane's pools of database connections."""

from __future__ import annotations

from typing import Any, Final

from django.db import connections
from prometheus_client import Gauge

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
    """Sets the gauges of each pool of this process."""
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
