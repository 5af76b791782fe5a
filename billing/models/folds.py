"""Folds: the sums of transfers and generations that left the database, as opening balances."""

from __future__ import annotations

from typing import Any, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from config.api.errors import Conflict
from config.triggers import AppendOnly


class Archived(Conflict):
    """The generation has left the database with its transfers; nothing was changed."""

    error_type = "generation_archived"
    message = (
        "The generation is archived, and its transfers are part of an opening balance, so it "
        "cannot be refunded any more. Grant the organization credits instead."
    )


class FoldQuerySet(models.QuerySet["Fold"]):
    def covering(self, reference: str) -> Self:
        """The fold of a generation's transfers, if they have left."""
        return self.filter(begin__lte=reference, end__gt=reference)


class Fold(models.Model):
    """The transfers and generations of one range of ids that were archived and then dropped.

    Their sums stay as the :class:`Opening` of each account and the :class:`MeterOpening` of each
    meter. ``seal`` is a keyed digest of the row and of its sums, and of ``previous``, the seal of
    the fold before: :func:`billing.folds.find_differences` finds an altered, a missing and an
    exchanged fold.
    """

    number = models.PositiveIntegerField(primary_key=True)
    begin = models.CharField(max_length=128, db_collation="C", help_text="The lowest id.")
    end = models.CharField(max_length=128, db_collation="C", help_text="Above the highest id.")
    files: Any = models.JSONField(
        help_text="The files of the archive, each with its table, rows and digest."
    )
    sums_digest = models.CharField(max_length=64, help_text="Of the openings.")
    previous = models.CharField(max_length=64, blank=True)
    seal = models.CharField(max_length=64)
    folded_at = models.DateTimeField(db_default=Now())

    objects = FoldQuerySet.as_manager()

    class Meta:
        ordering = ("number",)
        constraints = [
            models.CheckConstraint(
                condition=Q(number__gt=0) & Q(begin__lt=models.F("end")), name="fold_is_consistent"
            )
        ]
        triggers = [AppendOnly()]

    def __str__(self) -> str:
        return f"fold {self.number}"


class Opening(models.Model):
    """What the transfers of a fold had moved from and to one account."""

    pk = models.CompositePrimaryKey("fold_id", "account_id")
    # Plain ids: checked references would lock the row of every account, and there are millions.
    fold_id = models.PositiveIntegerField()
    account_id = models.BigIntegerField()
    posted_debits = models.BigIntegerField()
    posted_credits = models.BigIntegerField()

    class Meta:
        triggers = [AppendOnly()]

    def __str__(self) -> str:
        return f"opening of account {self.account_id} by fold {self.fold_id}"


class MeterOpening(models.Model):
    """What the generations of a fold had counted on one meter, in nano-USD."""

    pk = models.CompositePrimaryKey("fold_id", "subject_id")
    fold_id = models.PositiveIntegerField()
    subject_id = models.UUIDField()
    cost = models.BigIntegerField()
    byok = models.BigIntegerField()

    class Meta:
        triggers = [AppendOnly()]

    def __str__(self) -> str:
        return f"opening of meter {self.subject_id} by fold {self.fold_id}"
