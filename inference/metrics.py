"""The data plane's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram

from catalog.pricing import Usage
from inference.filters.definitions import Finding

_GENERATIONS: Final = Counter(
    "causeway_generations_total", "Generations settled.", ("operation", "status")
)
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
_FAILED_ATTEMPTS: Final = Counter(
    "causeway_failed_attempts_total",
    "Attempts at providers that failed, by the kind of failure.",
    ("provider", "kind"),
)
_REFUSED_CREDENTIALS: Final = Counter(
    "causeway_refused_credentials_total",
    "Refusals of the operator's own credential or account.",
    ("provider",),
)
_TOKENS: Final = Counter("causeway_tokens_total", "Tokens used.", ("kind",))
_SECONDS: Final = Histogram(
    "causeway_generation_seconds",
    "Admission to settlement.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
_REFUSALS: Final = Counter(
    "causeway_refusals_total", "Inference requests refused before admission.", ("status",)
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
_count_ended: Final = lru_cache(_GENERATIONS.labels)
_PROMPT: Final = _TOKENS.labels("prompt")
_COMPLETION: Final = _TOKENS.labels("completion")


def count_settled(operation: str, status: str, usage: Usage | None, duration_ms: int) -> None:
    """Counts a settled generation."""
    _count_ended(operation, status).inc()
    _SECONDS.observe(duration_ms / 1000)
    if usage is not None:
        _PROMPT.inc(usage.prompt)
        _COMPLETION.inc(usage.completion)


def count_cancelled(is_estimated: bool | None) -> None:
    """Counts a generation whose caller left; ``None`` if it is free."""
    usage = {None: "none", False: "reported", True: "estimated"}[is_estimated]
    _CANCELLED.labels(usage).inc()


def count_paced(provider: str) -> None:
    """Counts a request that a provider did not get, because it is at the operator's limit."""
    _PACED.labels(provider).inc()


def count_failed_attempt(provider: str, kind: str) -> None:
    """Counts an attempt that failed."""
    _FAILED_ATTEMPTS.labels(provider, kind).inc()


def count_refused_credential(provider: str) -> None:
    """Counts a refusal of the operator's credential at a provider."""
    _REFUSED_CREDENTIALS.labels(provider).inc()


def count_claim(reason: str) -> None:
    """Counts a usage that an upstream claimed beyond what was allowed."""
    _CLAIMS.labels(reason).inc()


def count_missing_mark(provider: str) -> None:
    """Counts a whole stream that ended without its end mark."""
    _UNMARKED.labels(provider).inc()


def count_refused(status: int) -> None:
    """Counts a request that was refused before it had a generation."""
    _REFUSALS.labels(str(status)).inc()


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


def count_findings(findings: Iterable[Finding]) -> None:
    """Counts the texts in which content filters matched."""
    for finding in findings:
        _FILTERED.labels(finding.action, finding.kind).inc(finding.count)
