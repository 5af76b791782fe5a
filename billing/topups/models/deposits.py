"""Deposits: confirmed payments on chains."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import ClassVar, Final, Self

from django.db import models, transaction
from django.db.models import Q

from accounts.models import Organization
from billing.topups.chains import Chain, Token
from billing.topups.models.chain_states import ChainState, chain_name
from billing.topups.models.top_ups import TopUp
from billing.topups.models.units import UnitsField, token_text
from billing.topups.payments import ChainPayment, Cursor
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import StatefulModel
from config.triggers import AppendOnly

_MATCHED_OR_RESOLVED: Final = """
    OLD.status = 'received' AND NEW.status IN ('credited', 'unmatched', 'under', 'over', 'late')
    AND NEW.finding = NEW.status
    AND (NEW.resolved_at, NEW.resolved_by, NEW.note)
        IS NOT DISTINCT FROM (OLD.resolved_at, OLD.resolved_by, OLD.note)
    OR OLD.status IN ('unmatched', 'under', 'over', 'late')
    AND NEW.status IN ('credited', 'dismissed') AND NEW.resolved_at IS NOT NULL
    AND (NEW.finding, NEW.top_up_id) IS NOT DISTINCT FROM (OLD.finding, OLD.top_up_id)
"""


class DepositQuerySet(models.QuerySet["Deposit"]):
    def received(self) -> Self:
        """Returns the deposits that are not matched with a top-up yet."""
        return self.filter(status=Deposit.Status.RECEIVED)

    def in_review(self) -> Self:
        """Returns the deposits that wait for an operator."""
        return self.filter(status__in=Deposit.REVIEWED)


class DepositManager(models.Manager.from_queryset(DepositQuerySet)):  # type: ignore[misc]
    def store_batch(
        self, state: ChainState, chain: Chain, payments: Sequence[ChainPayment], cursor: Cursor
    ) -> bool:
        """Stores payments together with the chain's cursor; known payments stay unchanged.

        Returns False and stores nothing when another watcher moved the cursor meanwhile or the
        chain was halted.
        """
        with transaction.atomic():
            if not state.advance(cursor):
                return False
            self.bulk_create(
                (Deposit.of(payment, chain.tokens[payment.token]) for payment in payments),
                ignore_conflicts=True,
            )
        return True


class Deposit(StatefulModel):
    """A confirmed payment on a chain: matched once, then resolved at most once by an operator.

    A trigger refuses every change of the facts that the chain reported.
    """

    class Status(models.TextChoices):
        RECEIVED = "received", "received"
        CREDITED = "credited", "credited"
        UNMATCHED = "unmatched", "unmatched"
        UNDER = "under", "under"
        OVER = "over", "over"
        LATE = "late", "late"
        DISMISSED = "dismissed", "dismissed"

    REVIEWED: ClassVar = (Status.UNMATCHED, Status.UNDER, Status.OVER, Status.LATE)

    status = models.CharField(
        max_length=16, choices=Status, default=Status.RECEIVED, editable=False
    )
    finding = models.CharField(
        max_length=16,
        choices=Status,
        default="",
        editable=False,
        help_text="The result of matching, before an operator resolved the deposit.",
    )
    chain_id = models.BigIntegerField("chain ID", editable=False)
    tx_hash = models.CharField("transaction", max_length=66, editable=False)
    ordinal = models.PositiveIntegerField(
        editable=False, help_text="The position of the log in the transaction's receipt."
    )
    block_number = models.BigIntegerField("block", editable=False)
    block_hash = models.CharField(max_length=66, editable=False)
    mined_at = models.DateTimeField(editable=False)
    token = models.CharField(max_length=42, editable=False)
    token_symbol = models.CharField(max_length=16, editable=False)
    token_decimals = models.PositiveSmallIntegerField(editable=False)
    sender = models.CharField(max_length=42, editable=False)
    recipient = models.CharField(max_length=42, editable=False)
    units = UnitsField(editable=False, help_text="In the token's base units.")
    amount_nano = UnitsField(editable=False, help_text="In nano-USD.")
    top_up = models.ForeignKey(
        TopUp,
        verbose_name="top-up",
        on_delete=models.PROTECT,
        null=True,
        related_name="deposits",
        editable=False,
        help_text="The top-up that the deposit pays, or the nearest one.",
    )
    organization = models.ForeignKey(
        Organization,
        on_delete=models.PROTECT,
        null=True,
        related_name="deposits",
        editable=False,
        help_text="The organization that was credited.",
    )
    resolved_at = models.DateTimeField(null=True, editable=False)
    resolved_by = models.CharField(max_length=255, default="", editable=False)
    note = models.TextField(default="", editable=False)

    objects = DepositManager()

    class Meta:
        ordering = ("-created_at", "id")
        indexes = [
            models.Index(fields=("tx_hash",), name="deposit_by_transaction"),
            models.Index(
                fields=("chain_id", "block_number"),
                condition=Q(status="received"),
                name="deposit_received",
            ),
            models.Index(
                fields=("created_at",),
                condition=Q(status__in=("unmatched", "under", "over", "late")),
                name="deposit_in_review",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=("chain_id", "tx_hash", "ordinal"), name="deposit_once"),
            models.CheckConstraint(
                condition=Q(status="credited", organization__isnull=False)
                | (~Q(status="credited") & Q(organization=None)),
                name="deposit_credited_to_somebody",
            ),
            models.CheckConstraint(condition=Q(units__gt=0), name="deposit_units_positive"),
        ]
        triggers = [
            AppendOnly(
                message="a deposit is never changed, but matched once and resolved once",
                allowed=_MATCHED_OR_RESOLVED,
                mutable=(
                    "updated_at", "status", "finding", "top_up_id", "organization_id",
                    "resolved_at", "resolved_by", "note",
                ),
            ),
            Audit(),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.amount_text} on {chain_name(self.chain_id)}"

    @classmethod
    def of(cls, payment: ChainPayment, token: Token) -> Deposit:
        """Returns an unsaved deposit for a payment."""
        return cls(
            chain_id=payment.chain_id,
            tx_hash=payment.tx_hash,
            ordinal=payment.ordinal,
            block_number=payment.block_number,
            block_hash=payment.block_hash,
            mined_at=payment.mined_at,
            token=payment.token,
            token_symbol=token.symbol,
            token_decimals=token.decimals,
            sender=payment.sender,
            recipient=payment.recipient,
            units=payment.units,
            amount_nano=token.nano_usd_of(payment.units),
        )

    @property
    def amount_text(self) -> str:
        return token_text(self.units, self.token_decimals, self.token_symbol)

    @property
    def reference(self) -> str:
        """Returns the reference of the deposit's transfer in the ledger."""
        return f"deposit:{self.pk}"

    def record_match(self, finding: Status, top_up: TopUp | None) -> None:
        """RECEIVED → CREDITED | UNMATCHED | UNDER | OVER | LATE.

        A credit goes to the top-up's organization. The caller holds this row's lock.
        """
        self.require_status(self.Status.RECEIVED)
        self.status = self.finding = finding
        self.top_up = top_up
        if finding == self.Status.CREDITED and top_up is not None:
            self.organization_id = top_up.organization_id
        self.save_fields("status", "finding", "top_up", "organization")

    def resolve(self, *, organization_id: uuid.UUID | None, by: str, note: str) -> None:
        """UNMATCHED | UNDER | OVER | LATE → CREDITED with an organization, → DISMISSED without.

        The caller holds this row's lock.
        """
        self.require_status(*self.REVIEWED)
        credited = organization_id is not None
        self.status = self.Status.CREDITED if credited else self.Status.DISMISSED
        self.organization_id = organization_id
        self.resolved_at, self.resolved_by, self.note = clock.now(), by, note
        self.save_fields("status", "organization", "resolved_at", "resolved_by", "note")
