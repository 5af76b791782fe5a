"""What was paid on the chains, and how far each of them is read."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from django.conf import settings
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from accounts.models import Organization
from billing.topups.chains import Chain, Token
from billing.topups.node import ChainPayment, Cursor
from config.api.errors import InvalidRequest, InvalidTransition
from config.models import StatefulModel

if TYPE_CHECKING:
    from billing.topups.models.top_ups import TopUp

_FIRST_WAIT: Final = 5.0
_LONGEST_WAIT: Final = 300.0


class UnitsField(models.DecimalField):  # type: ignore[type-arg]
    """A whole number of any size that a token's contract can tell, 256 bits."""

    _pyi_private_set_type: int
    _pyi_private_get_type: int  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "max_digits": 90, "decimal_places": 0})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, path, args, kwargs = super().deconstruct()
        del kwargs["max_digits"], kwargs["decimal_places"]
        return name, path, args, kwargs

    def from_db_value(
        self, value: Decimal | None, expression: object, connection: object
    ) -> int | None:
        return None if value is None else int(value)


class DepositQuerySet(models.QuerySet["Deposit"]):
    def received(self) -> Self:
        """Returns those that are stored and not judged yet."""
        return self.filter(status=Deposit.Status.RECEIVED)

    def in_review(self) -> Self:
        """Returns those that wait for an operator."""
        return self.filter(status__in=Deposit.REVIEWED)


class Deposit(StatefulModel):
    """A confirmed payment as the chain tells it; judged once, and resolved once by an operator.

    A trigger keeps everything else as it was stored.
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
        help_text="What the payment was found to be, before an operator resolved it.",
    )
    chain_id = models.BigIntegerField("chain ID", editable=False)
    tx_hash = models.CharField("transaction", max_length=66, editable=False)
    ordinal = models.PositiveIntegerField(
        editable=False, help_text="The log's place in the transaction's receipt."
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
        "billing.TopUp",
        verbose_name="top-up",
        on_delete=models.PROTECT,
        null=True,
        related_name="deposits",
        editable=False,
        help_text="The top-up that it pays, or that it is nearest to.",
    )
    organization = models.ForeignKey(
        Organization,
        on_delete=models.PROTECT,
        null=True,
        related_name="deposits",
        editable=False,
        help_text="Who was credited.",
    )
    resolved_at = models.DateTimeField(null=True, editable=False)
    resolved_by = models.CharField(max_length=255, default="", editable=False)
    note = models.TextField(default="", editable=False)

    objects = DepositQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "id")
        indexes = [
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

    def __str__(self) -> str:
        return f"{self.amount_text} on {chain_name(self.chain_id)}"

    @classmethod
    def of(cls, payment: ChainPayment, token: Token) -> Deposit:
        """Returns the row of a payment that was read, not stored yet."""
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
        """How its transfer names it."""
        return f"deposit:{self.pk}"

    def judge(self, finding: Status, top_up: TopUp | None) -> None:
        """RECEIVED → CREDITED | UNMATCHED | UNDER | OVER | LATE.

        What is credited goes to the top-up's organization; the caller holds this row's lock.
        """
        self.require_status(self.Status.RECEIVED)
        self.status = self.finding = finding
        self.top_up = top_up
        if finding == self.Status.CREDITED and top_up is not None:
            self.organization_id = top_up.organization_id
        self.save_fields("status", "finding", "top_up", "organization")

    def resolve(self, *, organization_id: uuid.UUID | None, by: str, note: str) -> None:
        """UNMATCHED | UNDER | OVER | LATE → CREDITED to an organization, or → DISMISSED.

        The caller holds this row's lock.
        """
        self.require_status(*self.REVIEWED)
        credited = organization_id is not None
        self.status = self.Status.CREDITED if credited else self.Status.DISMISSED
        self.organization_id = organization_id
        self.resolved_at, self.resolved_by, self.note = timezone.now(), by, note
        self.save_fields("status", "organization", "resolved_at", "resolved_by", "note")


class ChainState(models.Model):
    """How far the payments of a chain are read; a chain without a cursor is not offered yet."""

    chain_id = models.BigIntegerField("chain ID", primary_key=True)
    number = models.BigIntegerField(
        "block", null=True, editable=False, help_text="The last block whose payments are known."
    )
    block_hash = models.CharField(max_length=66, null=True, editable=False)
    latest_number = models.BigIntegerField("latest block", null=True, editable=False)
    scanned_at = models.DateTimeField(null=True, editable=False)
    halted_at = models.DateTimeField(null=True, editable=False)
    halt_reason = models.CharField(max_length=255, default="", editable=False)
    resumed_at = models.DateTimeField(null=True, editable=False)
    resumed_by = models.CharField(max_length=255, default="", editable=False)
    failures = models.PositiveIntegerField(
        default=0, editable=False, help_text="How often in a row the node could not be read."
    )
    failure = models.CharField(max_length=255, default="", editable=False)
    retry_at = models.DateTimeField(null=True, editable=False)
    span = models.PositiveIntegerField(
        null=True, editable=False, help_text="How many blocks the node lets be read at once."
    )

    class Meta:
        verbose_name = "chain"
        ordering = ("chain_id",)
        constraints = [
            models.CheckConstraint(
                condition=Q(number=None, block_hash=None)
                | Q(number__gte=0, block_hash__isnull=False),
                name="chain_cursor_is_whole",
            )
        ]

    def __str__(self) -> str:
        return chain_name(self.chain_id)

    @property
    def cursor(self) -> Cursor | None:
        if self.number is None or self.block_hash is None:
            return None
        return Cursor(self.number, self.block_hash)

    def lock(self) -> None:
        """Locks this row until the transaction ends and refreshes this very instance."""
        self.refresh_from_db(from_queryset=type(self)._base_manager.select_for_update())

    def advance(self, chain: Chain, payments: Sequence[ChainPayment], cursor: Cursor) -> bool:
        """Stores the payments of a batch together with its cursor.

        Returns ``False``, and stores nothing, when another watcher has moved the cursor since, or
        when the chain was halted. A payment that is known already stays as it is.
        """
        before = self.cursor
        with transaction.atomic():
            self.lock()
            if self.cursor != before or self.halted_at is not None:
                return False
            Deposit.objects.bulk_create(
                (Deposit.of(payment, chain.tokens[payment.token]) for payment in payments),
                ignore_conflicts=True,
            )
            self.number, self.block_hash = cursor.number, cursor.hash
            # A node that lets so much through and then fails is not waited for ever longer.
            self.failures = 0
            self.save(update_fields=["number", "block_hash", "failures"])
        return True

    def record_success(
        self, latest_number: int | None, *, is_read: bool = True, span: int | None = None
    ) -> None:
        """Notes that the node could be read, and whether up to its confirmed head."""
        self.failures, self.failure, self.retry_at = 0, "", None
        fields = ["failures", "failure", "retry_at", *self._learn(span)]
        if is_read:
            self.scanned_at = timezone.now()
            fields.append("scanned_at")
        if latest_number is not None:
            self.latest_number = latest_number
            fields.append("latest_number")
        self.save(update_fields=fields)

    def record_failure(
        self, reason: str, retry_after: float | None, *, span: int | None = None
    ) -> None:
        """Notes why the node could not be read, and waits twice as long each time, up to 5 min."""
        wait = min(_FIRST_WAIT * 2 ** min(self.failures, 10), _LONGEST_WAIT)
        self.failures += 1
        self.failure = reason[:255]
        self.retry_at = timezone.now() + timedelta(seconds=max(wait, retry_after or 0.0))
        self.save(update_fields=["failures", "failure", "retry_at", *self._learn(span)])

    def _learn(self, span: int | None) -> list[str]:
        if span is None:
            return []
        self.span = span
        return ["span"]

    def halt(self, cursor: Cursor, reason: str) -> bool:
        """Stops reading until an operator resumes, if the cursor still is this one."""
        with transaction.atomic():
            self.lock()
            if self.halted_at is not None or self.cursor != cursor:
                return False
            self.halted_at = timezone.now()
            self.halt_reason = reason[:255]
            self.save(update_fields=["halted_at", "halt_reason"])
        return True

    def resume(self, cursor: Cursor, *, by: str) -> None:
        """Goes on after a halt from a block at or before the old cursor, so that none is skipped.

        Payments that were read before are known by their transactions, and not counted twice.
        """
        with transaction.atomic():
            self.lock()
            if self.halted_at is None:
                raise InvalidTransition(f"{self} is not halted.")
            self._go_back(cursor, by)

    def read_again(self, cursor: Cursor, *, by: str) -> None:
        """Goes on from an earlier block, for instance where a node left out a payment.

        A watcher that is reading meanwhile stores nothing more: the cursor is no longer its own.
        """
        with transaction.atomic():
            self.lock()
            if self.halted_at is not None:
                raise InvalidTransition(f"{self} is halted; resume it.")
            self._go_back(cursor, by)

    def _go_back(self, cursor: Cursor, by: str) -> None:
        if self.number is None:
            raise InvalidTransition(f"{self} is not read yet.")
        if cursor.number > self.number:
            raise InvalidRequest(f"The block must be at most {self.number}.")
        self.number, self.block_hash = cursor.number, cursor.hash
        self.halted_at, self.halt_reason = None, ""
        self.resumed_at, self.resumed_by = timezone.now(), by
        self.failures, self.failure, self.retry_at = 0, "", None
        self.save(
            update_fields=[
                "number", "block_hash", "halted_at", "halt_reason", "resumed_at", "resumed_by",
                "failures", "failure", "retry_at",
            ]
        )  # fmt: skip


def chain_name(chain_id: int) -> str:
    """Returns what people call a chain, also one that is no longer configured."""
    chain: Chain | None = settings.CHAINS.get(chain_id)
    return f"chain {chain_id}" if chain is None else chain.name


def token_text(units: int, decimals: int, symbol: str) -> str:
    """Returns base units as whole tokens with all their digits."""
    whole, rest = divmod(units, 10**decimals)
    return f"{whole}.{rest:0{decimals}d} {symbol}"
