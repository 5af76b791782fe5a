"""Excesses: what upstreams claimed beyond what the requests allowed, until an operator decides."""

from __future__ import annotations

from typing import Self

from django.db import models, transaction
from django.db.models import Q

from accounts.models import Organization
from config.api.errors import Conflict
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import StatefulModel
from config.triggers import AppendOnly


class NotChargeable(Conflict):
    """An excess cannot be charged; nothing was changed."""

    error_type = "not_chargeable"
    message = "This excess cannot be charged. Write it off."


class ExcessQuerySet(models.QuerySet["Excess"]):
    def under_review(self) -> Self:
        return self.filter(status=Excess.Status.UNDER_REVIEW)


class Excess(StatefulModel):
    """The part of a claimed usage that was not charged: it exceeded what the request allowed.

    UNDER_REVIEW → CHARGED or WRITTEN_OFF, in the transaction of its transfer. Settlement creates
    the row, and no money moves for it before an operator decides. ``reference`` is the generation,
    as in a transfer.
    """

    class Status(models.TextChoices):
        UNDER_REVIEW = "under_review", "under review"
        CHARGED = "charged", "charged"
        WRITTEN_OFF = "written_off", "written off"

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", editable=False, db_index=False
    )
    reference = models.CharField(
        max_length=128, unique=True, db_collation="C", editable=False, help_text="The generation."
    )
    endpoint_id = models.UUIDField(editable=False, help_text="The endpoint that answered.")
    provider_name = models.CharField(max_length=255, editable=False)
    model = models.CharField(max_length=255, editable=False)
    amount_nano = models.BigIntegerField(
        editable=False, help_text="What the claim would cost in credits beyond the charge."
    )
    upstream_nano = models.BigIntegerField(
        editable=False, help_text="The same at the pinned price."
    )
    claimed_prompt_tokens = models.BigIntegerField(editable=False)
    claimed_completion_tokens = models.BigIntegerField(editable=False)
    allowed_prompt_tokens = models.BigIntegerField(editable=False)
    allowed_completion_tokens = models.BigIntegerField(editable=False)
    status = models.CharField(
        max_length=16, choices=Status, default=Status.UNDER_REVIEW, editable=False
    )
    decided_at = models.DateTimeField(null=True, editable=False)
    decided_by = models.CharField(max_length=255, default="", db_default="", editable=False)
    note = models.TextField(default="", db_default="", editable=False)

    objects = ExcessQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "excesses"
        ordering = ("-created_at",)
        indexes = [
            models.Index(fields=("-created_at",), name="excess_list"),
            models.Index(fields=("organization", "-created_at"), name="excess_of_organization"),
            models.Index(
                fields=("endpoint_id",),
                condition=Q(status="under_review"),
                name="excess_under_review",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(amount_nano__gte=0, upstream_nano__gte=0)
                & (
                    Q(status="under_review", decided_at=None)
                    | Q(status="written_off", decided_at__isnull=False)
                    | Q(status="charged", decided_at__isnull=False, amount_nano__gt=0)
                ),
                name="excess_is_consistent",
            )
        ]
        triggers = [
            AppendOnly(
                message="an excess is never changed, but decided once",
                allowed="OLD.status = 'under_review' AND NEW.status IN ('charged', 'written_off')",
                mutable=("status", "decided_at", "decided_by", "note", "updated_at"),
            ),
            Audit(),
        ]

    def __str__(self) -> str:
        return f"excess of {self.reference}"

    def charge(self, *, by: str, note: str) -> None:
        """UNDER_REVIEW → CHARGED. :func:`billing.reviews.charge` moves the credits.

        Raises :class:`NotChargeable` for a claim that costs nothing.
        """
        if not self.amount_nano:
            raise NotChargeable("The claim costs no credits, so there is nothing to charge.")
        self._decide(self.Status.CHARGED, by=by, note=note)

    def write_off(self, *, by: str, note: str) -> None:
        """UNDER_REVIEW → WRITTEN_OFF. :func:`billing.reviews.write_off` records the loss."""
        self._decide(self.Status.WRITTEN_OFF, by=by, note=note)

    def _decide(self, status: Status, *, by: str, note: str) -> None:
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.UNDER_REVIEW)
            self.status = status
            self.decided_at, self.decided_by, self.note = clock.now(), by, note
            self.save_fields("status", "decided_at", "decided_by", "note")
