"""The tables of what guardrails and their shadows have judged, and the reasons of refusals."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from django.db import models

SLOT_SECONDS: Final = 300
"""The length of the slots by which the verdicts of guardrails are counted."""


class GuardrailRefusal(StrEnum):
    """A reason for which a guardrail refuses a request, besides those that exclude endpoints."""

    REGION = "region_not_allowed"
    BUDGET = "budget"
    CONTENT = "content_filter"
    UNREAD = "too_long"
    OTHER = "no_endpoint"


class ShadowCount(models.Model):
    """The requests of one key in one hour about which a shadow said the same.

    The reason is empty for requests that it would not refuse; ``too_long`` counts those that its
    content filters had no time to read. Workers add their counts once a second.
    """

    pk = models.CompositePrimaryKey("shadow_id", "api_key_id", "hour", "reason")
    # Plain ids: a worker may count for a shadow that is just ending.
    shadow_id = models.UUIDField()
    api_key_id = models.UUIDField()
    hour = models.DateTimeField()
    reason = models.CharField(max_length=32)
    requests = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=("hour",), name="shadow_count_by_hour")]

    def __str__(self) -> str:
        return f"{self.shadow_id} {self.hour:%Y-%m-%d %H}:00 {self.reason}"


class GuardrailCount(models.Model):
    """The requests of five minutes that a guardrail let pass, or refused for the same reason.

    The reason is empty for requests that passed. ``slot`` is the beginning of the five minutes. The
    counts tell people of guardrails that refuse much, and are deleted after a day.
    """

    pk = models.CompositePrimaryKey("guardrail_id", "slot", "reason")
    # A plain id: a worker may count for a guardrail that is just being deleted.
    guardrail_id = models.UUIDField()
    slot = models.DateTimeField()
    reason = models.CharField(max_length=32)
    requests = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=("slot",), name="guardrail_count_by_slot")]

    def __str__(self) -> str:
        return f"{self.guardrail_id} {self.slot:%Y-%m-%d %H:%M} {self.reason}"
