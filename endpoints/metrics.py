"""Counts the validations that were refused before anything was sent."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prometheus_client import Counter

_REFUSALS: Final = Counter(
    "causeway_validation_refusals_total",
    "Validations refused before a secret was sent.",
    ("reason",),
)


class ValidationRefusal(StrEnum):
    """Why a validation was refused: the label ``reason`` of the metric."""

    HOST = "credential_host"
    NEW_HOST = "new_host"
    SLOTS = "slots"


def count_refusal(reason: ValidationRefusal) -> None:
    _REFUSALS.labels(reason).inc()
