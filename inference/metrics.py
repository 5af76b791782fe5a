"""What the data plane counts for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram

from catalog.pricing import Usage
from inference.filters.screening import Finding

_GENERATIONS: Final = Counter(
    "causeway_generations_total", "Generations settled.", ("operation", "status")
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
# By the builtin's name alone: what organizations call their own is theirs.
_FILTERED: Final = Counter(
    "causeway_filtered_texts_total", "Texts in which a content filter matched.", ("action", "kind")
)
_ended: Final = lru_cache(_GENERATIONS.labels)
_PROMPT: Final = _TOKENS.labels("prompt")
_COMPLETION: Final = _TOKENS.labels("completion")


def settled(operation: str, status: str, usage: Usage | None, duration_ms: int) -> None:
    """Counts a settled generation."""
    _ended(operation, status).inc()
    _SECONDS.observe(duration_ms / 1000)
    if usage is not None:
        _PROMPT.inc(usage.prompt)
        _COMPLETION.inc(usage.completion)


def refused(status: int) -> None:
    """Counts a request that was refused before it had a generation."""
    _REFUSALS.labels(str(status)).inc()


def filtered(findings: Iterable[Finding]) -> None:
    """Counts what content filters found in a prompt."""
    for found in findings:
        _FILTERED.labels(found.action, found.kind).inc(found.count)
