"""Validations: the results of live checks of private endpoints."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from accounts.models import ByokCredential, Workspace
from config.models import BaseModel


class Validation(BaseModel):
    """One live validation: the credential it used, its checks, and its outcome."""

    class Outcome(models.TextChoices):
        PASSED = "passed", "passed"
        FAILED = "failed", "failed"
        UNREACHABLE = "unreachable", "unreachable"
        TIMED_OUT = "timed_out", "timed out"
        BROKEN = "broken", "broken"

    class Purpose(models.TextChoices):
        ACTIVATION = "activation", "activation"
        WATCH = "watch", "watch"

    # A change of one of these means that another deployment answered.
    IDENTITY = ("model", "prompt_tokens")

    endpoint = models.ForeignKey(
        "endpoints.PrivateEndpoint", on_delete=models.CASCADE, related_name="validations"
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.SET_NULL, null=True)
    credential = models.ForeignKey(
        ByokCredential, on_delete=models.SET_NULL, null=True, related_name="+"
    )
    credential_version = models.PositiveIntegerField(null=True)
    configuration = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=Outcome)
    purpose = models.CharField(max_length=16, choices=Purpose, default=Purpose.ACTIVATION)
    checks = models.JSONField()
    evidence = models.JSONField(
        default=dict, help_text="Properties of the deployment that later validations compare."
    )
    changes = models.JSONField(
        default=list, help_text="Evidence that differs from the activation's."
    )
    cost_nano = models.BigIntegerField(
        default=0, help_text="Cost of the test calls at the endpoint's price, in nano-USD."
    )
    duration_ms = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-created_at",)
        indexes = [
            models.Index(fields=("endpoint", "-created_at"), name="validation_history"),
            models.Index(fields=("created_at", "id"), name="validation_latest"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} at {self.created_at:%Y-%m-%d %H:%M:%S}"

    @property
    def shows_drift(self) -> bool:
        """Returns whether the deployment is no longer the one that was activated.

        An unreachable deployment shows no drift. Neither does a new address, certificate or build:
        the same deployment may change them.
        """
        return self.outcome == self.Outcome.FAILED or any(
            change["name"] in self.IDENTITY for change in self.changes
        )

    @property
    def passed(self) -> bool:
        return self.outcome == self.Outcome.PASSED

    def is_current_for(self, configuration: str) -> bool:
        """Returns whether this validation permits activating an endpoint with a configuration.

        It does until ``VALIDATION_MAX_AGE`` is over, while the credential is usable and unchanged.
        """
        credential = self.credential
        return (
            self.configuration == configuration
            and credential is not None
            and credential.deleted_at is None
            and not credential.disabled
            and credential.version == self.credential_version
            and self.created_at > timezone.now() - timedelta(seconds=settings.VALIDATION_MAX_AGE)
        )
