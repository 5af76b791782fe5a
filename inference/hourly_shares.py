"""The tables of an hour's shares, of endpoints and keys, its spending, and its errors."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from config.clocks.writing import write_minute


class HourlyShare(models.Model):
    """The share of one endpoint in an hour, of all organizations together or of one key.

    Every generation of a recent hour counts in two rows: one without an organization, which is kept
    for the longest range of a chart, and one of its key, of which there are far more, so that they
    are kept for days only. ``HourlyUsage.is_detailed`` says whether an hour has its shares.
    """

    id = models.BigAutoField(primary_key=True)
    hour = models.DateTimeField()
    # Plain ids: foreign keys would be checked for each of millions of rows.
    organization_id = models.UUIDField(null=True)
    workspace_id = models.UUIDField(null=True)
    api_key_id = models.UUIDField(null=True)
    endpoint_id = models.UUIDField()
    model = models.CharField(max_length=255)
    provider_name = models.CharField(max_length=255)
    requests = models.BigIntegerField()
    failed = models.BigIntegerField()
    tokens = models.BigIntegerField()
    cost_nano = models.BigIntegerField()
    upstream_nano = models.BigIntegerField()
    latency_ms = models.BigIntegerField()
    timed = models.BigIntegerField()

    class Meta:
        indexes = [
            models.Index(fields=("organization_id", "hour"), name="hourly_share_of_tenant"),
            models.Index(
                fields=("endpoint_id", "hour"),
                condition=Q(organization_id=None),
                name="hourly_share_of_endpoint",
            ),
            models.Index(
                fields=("model", "hour"),
                condition=Q(organization_id=None),
                name="hourly_share_of_model",
            ),
            models.Index(
                fields=("provider_name", "hour"),
                condition=Q(organization_id=None),
                name="hourly_share_of_provider",
            ),
            models.Index(fields=("hour",), name="hourly_share_by_hour"),
        ]

    def __str__(self) -> str:
        return f"{write_minute(self.hour)} {self.model}"


class HourlySpending(models.Model):
    """The credits that one organization spent in an hour, in nano-USD; an hour without has no row.

    The rows are kept for as many weeks as unusual spending is judged by.
    """

    pk = models.CompositePrimaryKey("organization_id", "hour")
    # A plain id, as of the shares.
    organization_id = models.UUIDField()
    hour = models.DateTimeField()
    cost_nano = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=("hour",), name="hourly_spending_by_hour")]

    def __str__(self) -> str:
        return f"{write_minute(self.hour)} {self.organization_id}"


class HourlyFailure(models.Model):
    """The errors of one provider and type in an hour, of all organizations together.

    ``attempts`` failed; another candidate may have served the request. ``requests`` failed at last.
    """

    id = models.BigAutoField(primary_key=True)
    hour = models.DateTimeField()
    provider_name = models.CharField(max_length=255)
    error_type = models.CharField(max_length=64)
    attempts = models.BigIntegerField()
    requests = models.BigIntegerField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("hour", "provider_name", "error_type"), name="hourly_failure_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{write_minute(self.hour)} {self.provider_name} {self.error_type}"
