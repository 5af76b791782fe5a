"""The metrics of copies and paces, by which requests are admitted.

What a request itself counts stands in :mod:`inference.taps.figures`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

_PACED: Final = Counter(
    "causeway_paced_requests_total",
    "Requests that went elsewhere, or were refused, because a provider is at its limit.",
    ("provider",),
)
_CATALOG_READS: Final = Counter(
    "causeway_catalog_reads_total",
    "Reads of the catalogue by workers, of what has changed or of the whole.",
    ("kind",),
)
_ORGANIZATION_LOADS: Final = Counter(
    "causeway_organization_loads_total", "Copies of organizations that workers have loaded."
)
_HINTS: Final = Counter(
    "causeway_version_hints_total",
    "Notifications of changed versions, and the times that a worker could not listen.",
    ("kind",),
)
_LISTENING: Final = Gauge(
    "causeway_listening_workers",
    "Workers that hear of changed versions; the others read versions every second.",
    multiprocess_mode="livesum",
)
_SNAPSHOT_AGE: Final = Gauge(
    "causeway_snapshot_age_seconds",
    "The age of the oldest copy that a worker has, by what is copied.",
    ("copy",),
    multiprocess_mode="livemax",
)
_CATALOG_AGE: Final = _SNAPSHOT_AGE.labels("catalog")
_ORGANIZATION_AGE: Final = _SNAPSHOT_AGE.labels("organization")


def count_paced(provider: str) -> None:
    """Counts a request that a provider did not get, because it is at the operator's limit."""
    _PACED.labels(provider).inc()


def count_catalog_read(kind: str) -> None:
    """Counts a read of the catalogue: ``patch`` or ``whole``."""
    _CATALOG_READS.labels(kind).inc()


def count_organization_load() -> None:
    """Counts the load of an organization's copy."""
    _ORGANIZATION_LOADS.inc()


def count_hint(kind: str) -> None:
    """Counts a notification, by what has changed; ``lost`` when nothing is heard any more."""
    _HINTS.labels(kind).inc()


def show_copies(catalog_seconds: float, organization_seconds: float, *, is_listening: bool) -> None:
    """Sets the ages of this worker's copies, and whether it hears of changes."""
    _CATALOG_AGE.set(catalog_seconds)
    _ORGANIZATION_AGE.set(organization_seconds)
    _LISTENING.set(is_listening)
