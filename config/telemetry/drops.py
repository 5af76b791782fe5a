"""Counts what the service could not hand over: lines of the access log, and spans."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

DROPPED: Final = Counter(
    "causeway_telemetry_dropped_total",
    "Access log lines and spans that were dropped because nobody took them in time.",
    ("signal",),
)
