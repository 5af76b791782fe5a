"""The data plane's metrics for Prometheus: what happens before and beside a generation.

What a generation itself counts stands in :mod:`inference.taps.figures`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Gauge

from inference.filters.definitions import Finding

_CANCELLED: Final = Counter(
    "causeway_cancelled_generations_total",
    "Generations whose caller left, by the usage that they pay for.",
    ("usage",),
)
_CLAIMS: Final = Counter(
    "causeway_usage_claims_total",
    "Usages beyond what their requests allowed, by the count that was too high.",
    ("reason",),
)
_UNMARKED: Final = Counter(
    "causeway_unmarked_streams_total",
    "Whole streams that ended without their end mark, by provider.",
    ("provider",),
)
_PACED: Final = Counter(
    "causeway_paced_requests_total",
    "Requests that went elsewhere, or were refused, because a provider is at its limit.",
    ("provider",),
)
_REFUSED_CREDENTIALS: Final = Counter(
    "causeway_refused_credentials_total",
    "Refusals of the operator's own credential or account.",
    ("provider",),
)
_REFUSALS: Final = Counter(
    "causeway_refusals_total",
    "Inference requests refused before admission, by status and type of the error.",
    ("status", "type"),
)
_LIMITED: Final = Counter(
    "causeway_rate_limited_total",
    "Requests refused by a rate limit, by the limit and by its owner.",
    ("scope", "limit"),
)
# ``kind`` is the slug of a builtin filter, or ``custom``: organizations name their own filters, and
# metrics must not reveal those names.
_FILTERED: Final = Counter(
    "causeway_filtered_texts_total", "Texts in which a content filter matched.", ("action", "kind")
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
_refusals: Final = lru_cache(_REFUSALS.labels)


def count_cancelled(is_estimated: bool | None) -> None:
    """Counts a generation whose caller left; ``None`` if it is free."""
    usage = {None: "none", False: "reported", True: "estimated"}[is_estimated]
    _CANCELLED.labels(usage).inc()


def count_paced(provider: str) -> None:
    """Counts a request that a provider did not get, because it is at the operator's limit."""
    _PACED.labels(provider).inc()


def count_refused_credential(provider: str) -> None:
    """Counts a refusal of the operator's credential at a provider."""
    _REFUSED_CREDENTIALS.labels(provider).inc()


def count_claim(reason: str) -> None:
    """Counts a usage that an upstream claimed beyond what was allowed."""
    _CLAIMS.labels(reason).inc()


def count_missing_mark(provider: str) -> None:
    """Counts a whole stream that ended without its end mark."""
    _UNMARKED.labels(provider).inc()


def count_refused(status: int, error_type: str) -> None:
    """Counts a request that was refused before it had a generation."""
    _refusals(str(status), error_type).inc()


def count_limited(scope: str, limit: str) -> None:
    """Counts a request that a rate limit refused."""
    _LIMITED.labels(scope, limit).inc()


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


def count_findings(findings: Iterable[Finding]) -> None:
    """Counts the texts in which content filters matched."""
    for finding in findings:
        _FILTERED.labels(finding.action, finding.kind).inc(finding.count)
