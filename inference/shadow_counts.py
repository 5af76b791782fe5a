"""Counts of the verdicts of shadows of guardrails, and the reasons of their refusals."""

from __future__ import annotations

from enum import StrEnum

from django.db import models


class Refusal(StrEnum):
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
