"""Generations: one row for each inference request that was admitted."""

from __future__ import annotations

import secrets
import time
import uuid
from datetime import datetime, timedelta
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q, Sum
from django.utils import timezone

from accounts.models import ApiKey, Organization, Workspace
from catalog.models import ModelEndpoint, PriceVersion
from endpoints.models import Attestation, PrivateEndpoint


def new_generation_id() -> str:
    """Returns an identifier that sorts by time: ``gen-``, Unix seconds, 80 random bits."""
    return f"gen-{int(time.time())}-{secrets.token_hex(10)}"


class GenerationQuerySet(models.QuerySet["Generation"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)

    def sweep(self) -> int:
        """Ends the generations whose worker died; returns how many.

        PENDING → FAILED, once they are older than ``HOLD_TIMEOUT``.
        """
        before = timezone.now() - timedelta(seconds=settings.HOLD_TIMEOUT)
        return self.filter(status=Generation.Status.PENDING, created_at__lt=before).update(
            status=Generation.Status.FAILED, error_type="abandoned"
        )

    def spend_of_key(self, key_id: uuid.UUID) -> dict[str, int]:
        """Returns what a key has used, in nano-USD: in all, and since the UTC day, week and month.

        ``usage…`` is what credits paid, ``byok_usage…`` what its own credentials paid upstream.
        Weeks begin on Monday.
        """
        now = timezone.now()
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        starts: dict[str, datetime | None] = {
            "": None,
            "_daily": today,
            "_weekly": today - timedelta(days=today.weekday()),
            "_monthly": today.replace(day=1),
        }
        sums = {}
        for suffix, start in starts.items():
            since = Q() if start is None else Q(created_at__gte=start)
            sums[f"usage{suffix}"] = Sum("cost_nano", filter=since)
            sums[f"byok_usage{suffix}"] = Sum("upstream_cost_nano", filter=since & Q(is_byok=True))
        totals = self.filter(api_key_id=key_id).aggregate(**sums)
        return {name: total or 0 for name, total in totals.items()}


class Generation(models.Model):
    """What was asked, where it went, what it used and what it cost; never the text itself.

    Written by the data plane's two islands, ``admission`` and ``settlement``: the row and its price
    are stored before anything is sent, and reach exactly one terminal status afterwards.
    """

    class Status(models.TextChoices):
        PENDING = "pending", "pending"
        COMPLETED = "completed", "completed"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    id = models.CharField(primary_key=True, max_length=48)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    workspace = models.ForeignKey(
        Workspace, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    end_user = models.CharField(max_length=512, null=True, db_collation="C")
    operation = models.CharField(max_length=32)
    streamed = models.BooleanField()
    model = models.CharField(max_length=255, help_text="The slug that the caller asked for.")
    private_endpoint = models.ForeignKey(
        PrivateEndpoint, on_delete=models.PROTECT, null=True, related_name="+", db_index=False
    )
    model_endpoint = models.ForeignKey(
        ModelEndpoint, on_delete=models.PROTECT, null=True, related_name="+", db_index=False
    )
    provider_name = models.CharField(max_length=255)
    attestation = models.ForeignKey(
        Attestation,
        on_delete=models.PROTECT,
        null=True,
        related_name="+",
        db_index=False,
        help_text="What was declared of the private endpoint when the request was sent.",
    )
    price = models.ForeignKey(
        PriceVersion, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    is_byok = models.BooleanField()
    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    prompt_tokens = models.BigIntegerField(null=True)
    completion_tokens = models.BigIntegerField(null=True)
    cached_tokens = models.BigIntegerField(null=True)
    reasoning_tokens = models.BigIntegerField(null=True)
    is_estimated = models.BooleanField(default=False, help_text="The upstream reported no usage.")
    cost_nano = models.BigIntegerField(default=0, help_text="What credits pay, in nano-USD.")
    upstream_cost_nano = models.BigIntegerField(
        default=0, help_text="What the pinned price makes of the usage, in nano-USD."
    )
    finish_reason = models.CharField(max_length=64, null=True)
    upstream_id = models.CharField(max_length=255, null=True)
    upstream_model = models.CharField(max_length=255, null=True)
    error_type = models.CharField(max_length=64, null=True)
    attempts = models.JSONField(default=list)
    created_at = models.DateTimeField()
    latency_ms = models.PositiveIntegerField(null=True, help_text="To the first event.")
    duration_ms = models.PositiveIntegerField(null=True)
    request_id = models.CharField(max_length=64, default="")

    objects = GenerationQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("organization", "-created_at"), name="generation_by_organization"),
            models.Index(fields=("api_key", "created_at"), name="generation_by_key"),
            models.Index(
                fields=("created_at",), condition=Q(status="pending"), name="generation_pending"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(cost_nano__gte=0, upstream_cost_nano__gte=0),
                name="generation_cost_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(private_endpoint=None) ^ Q(model_endpoint=None),
                name="generation_one_endpoint",
            ),
        ]

    def __str__(self) -> str:
        return self.id
