"""Money: accounts, the append-only transfers between them, and the meters that budgets read.

All amounts are integers in nano-USD (10⁻⁹ USD). :mod:`billing.ledger` is the only writer of these.
Then top-ups: what is to be paid on a chain, what was paid there, and how far the chain is read.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import uuid
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final, Self

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from accounts.models import Organization
from billing.chain import Cursor
from billing.chain import Deposit as Payment
from config.chains import Chain, Token
from config.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    InvalidTransition,
    Unprocessable,
)
from config.models import StatefulModel

MAX_OPEN: Final = 5
MAX_TAIL: Final = 9_999
_FIRST_WAIT: Final = 5.0
_LONGEST_WAIT: Final = 300.0


class TooManyTopUps(GatewayError):
    """The organization has as many open top-ups as it may have."""

    status = 429
    error_type = "rate_limit_exceeded"
    message = f"There are {MAX_OPEN} open top-ups. Pay one of them, or wait until one expires."


class ChainNotOffered(GatewayError):
    """Payments on a chain would not be seen now."""

    status = 503
    error_type = "top_up_unavailable"


class IdempotencyKeyReused(Unprocessable):
    """The key was used before, for a request that asked for something else."""

    error_type = "idempotency_key_reused"
    message = "idempotency_key_reused: this Idempotency-Key was used with a different request."


class AccountQuerySet(models.QuerySet["Account"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)


class Account(models.Model):
    """One side of an organization's transfers; a trigger opens all five with the organization.

    Credits come from ``grants`` and ``deposits`` and go to ``usage``; what usage cost beyond all
    credits comes from ``write_off``. So the balances of an organization add up to zero, and no row
    is shared between organizations, which would make all of them wait for each other.
    """

    class Kind(models.TextChoices):
        CREDITS = "credits", "credits"
        USAGE = "usage", "usage"
        GRANTS = "grants", "grants"
        DEPOSITS = "deposits", "deposits"
        WRITE_OFF = "write_off", "write-off"

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(
        Organization,
        on_delete=models.CASCADE,
        related_name="accounts",
        editable=False,
        db_index=False,
    )
    kind = models.CharField(max_length=16, choices=Kind, editable=False)
    posted_debits = models.BigIntegerField(default=0, db_default=0, editable=False)
    posted_credits = models.BigIntegerField(default=0, db_default=0, editable=False)
    pending_debits = models.BigIntegerField(default=0, db_default=0, editable=False)

    objects = AccountQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "id")
        constraints = [
            models.UniqueConstraint(fields=("organization", "kind"), name="account_one_of_a_kind"),
            models.CheckConstraint(
                condition=Q(posted_debits__gte=0, posted_credits__gte=0, pending_debits__gte=0),
                name="account_sums_not_negative",
            ),
            # The last word against an overdraft, whatever any code believes.
            models.CheckConstraint(
                condition=~Q(kind="credits")
                | Q(posted_credits__gte=F("posted_debits") + F("pending_debits")),
                name="account_not_overdrawn",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.organization}"

    @property
    def balance(self) -> int:
        """What came in less what went out; holds count as still there."""
        return self.posted_credits - self.posted_debits

    @property
    def available(self) -> int:
        """What may still be promised: the balance less what is held."""
        return self.balance - self.pending_debits


class TransferQuerySet(models.QuerySet["Transfer"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)

    def pending(self) -> Self:
        return self.filter(status=Transfer.Status.PENDING)


class Transfer(models.Model):
    """An amount that moves from one account to another; never changed, but ended once.

    PENDING → POSTED with ``posted_nano``, at most the amount, or PENDING → VOIDED. What needs no
    hold is stored as posted. ``reference`` names what it was for, once for each kind: a generation
    for usage and its refund, a deposit for a deposit.
    """

    class Kind(models.TextChoices):
        USAGE = "usage", "usage"
        EXCESS = "excess", "usage beyond its hold"
        WRITE_OFF = "write_off", "usage beyond all credits"
        REFUND = "refund", "refund"
        GRANT = "grant", "grant"
        DEPOSIT = "deposit", "deposit"

    class Status(models.TextChoices):
        PENDING = "pending", "pending"
        POSTED = "posted", "posted"
        VOIDED = "voided", "voided"

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(
        Organization,
        on_delete=models.PROTECT,
        related_name="transfers",
        editable=False,
        db_index=False,
    )
    kind = models.CharField(max_length=16, choices=Kind)
    debit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+", db_index=False)
    credit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+", db_index=False)
    amount_nano = models.BigIntegerField(help_text="In nano-USD: at most so much moves.")
    posted_nano = models.BigIntegerField(null=True, help_text="In nano-USD: so much moved.")
    status = models.CharField(max_length=16, choices=Status)
    reference = models.CharField(max_length=128, null=True, db_collation="C")
    actor = models.CharField(max_length=255, default="", db_default="")
    note = models.TextField(default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)

    objects = TransferQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        indexes = [
            # None has what ends a transfer: that update touches no index.
            models.Index(fields=("organization", "-id"), name="transfer_list"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("reference", "kind"),
                condition=Q(reference__isnull=False),
                name="transfer_once",
            ),
            models.CheckConstraint(
                condition=Q(amount_nano__gt=0)
                & (
                    Q(status="pending", posted_nano=None, ended_at=None)
                    | Q(status="voided", posted_nano=None, ended_at__isnull=False)
                    | Q(
                        status="posted",
                        posted_nano__gt=0,
                        posted_nano__lte=F("amount_nano"),
                        ended_at__isnull=False,
                    )
                ),
                name="transfer_is_consistent",
            ),
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.kind}"


class SameOperator(Conflict):
    """Who asks for a grant does not approve it."""

    error_type = "same_operator"
    message = "Another operator than the one who asked for the grant must approve it."


class GrantRequest(StatefulModel):
    """A grant above the operators' limit, which waits for a second one of them.

    REQUESTED → APPROVED, in the transaction of its transfer, or REQUESTED → DECLINED.
    """

    class Status(models.TextChoices):
        REQUESTED = "requested", "requested"
        APPROVED = "approved", "approved"
        DECLINED = "declined", "declined"

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", editable=False
    )
    amount_nano = models.BigIntegerField(editable=False, help_text="In nano-USD.")
    note = models.TextField(default="", editable=False)
    status = models.CharField(
        max_length=16, choices=Status, default=Status.REQUESTED, editable=False
    )
    requested_by = models.CharField(max_length=255, editable=False)
    decided_at = models.DateTimeField(null=True, editable=False)
    decided_by = models.CharField(max_length=255, default="", editable=False)

    class Meta:
        ordering = ("-created_at",)
        constraints = [
            models.CheckConstraint(
                condition=Q(amount_nano__gt=0)
                & (
                    Q(status="requested", decided_at=None)
                    | Q(status="declined", decided_at__isnull=False)
                    | (
                        Q(status="approved", decided_at__isnull=False)
                        & ~Q(decided_by=F("requested_by"))
                    )
                ),
                name="grant_request_is_consistent",
            )
        ]

    def __str__(self) -> str:
        return f"grant to {self.organization}"

    def approve(self, *, by: str) -> None:
        """REQUESTED → APPROVED, by another operator; raises :class:`SameOperator` for the same."""
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.REQUESTED)
            if by == self.requested_by:
                raise SameOperator
            self._decide(self.Status.APPROVED, by)

    def decline(self, *, by: str) -> None:
        """REQUESTED → DECLINED, by anybody: who asked may take it back."""
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.REQUESTED)
            self._decide(self.Status.DECLINED, by)

    def _decide(self, status: Status, by: str) -> None:
        self.status = status
        self.decided_at, self.decided_by = timezone.now(), by
        self.save_fields("status", "decided_at", "decided_by")


class Meter(models.Model):
    """What one key, member or workspace has used; a trigger makes it with its subject.

    ``cost…`` is what credits paid and ``byok…`` what its own credentials paid upstream: on ``day``
    (UTC), in that day's week (from Monday) and month, and in all. What is held for requests under
    way is apart. A period that ``day`` does not lie in has nothing yet.
    """

    subject_id = models.UUIDField(primary_key=True, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="+", editable=False
    )
    day = models.DateField(default=date.min, db_default=date.min)
    cost_daily = models.BigIntegerField(default=0, db_default=0)
    cost_weekly = models.BigIntegerField(default=0, db_default=0)
    cost_monthly = models.BigIntegerField(default=0, db_default=0)
    cost = models.BigIntegerField(default=0, db_default=0)
    byok_daily = models.BigIntegerField(default=0, db_default=0)
    byok_weekly = models.BigIntegerField(default=0, db_default=0)
    byok_monthly = models.BigIntegerField(default=0, db_default=0)
    byok = models.BigIntegerField(default=0, db_default=0)
    held_cost = models.BigIntegerField(default=0, db_default=0)
    held_byok = models.BigIntegerField(default=0, db_default=0)
    requests = models.BigIntegerField(default=0, db_default=0)
    minute = models.DateTimeField(null=True, help_text="The last one with a request.")
    requests_before = models.BigIntegerField(
        default=0, db_default=0, help_text="Requests before that minute."
    )
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(held_cost__gte=0, held_byok__gte=0), name="meter_holds_not_negative"
            )
        ]

    def __str__(self) -> str:
        return str(self.subject_id)


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

    def advance(self, chain: Chain, payments: Sequence[Payment], cursor: Cursor) -> bool:
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
                (Deposit.of(payment, chain.token) for payment in payments), ignore_conflicts=True
            )
            self.number, self.block_hash = cursor.number, cursor.hash
            self.save(update_fields=["number", "block_hash"])
        return True

    def record_success(self, latest_number: int | None) -> None:
        """Notes that the node was read to its end."""
        self.scanned_at = timezone.now()
        self.failures, self.failure, self.retry_at = 0, "", None
        fields = ["scanned_at", "failures", "failure", "retry_at"]
        if latest_number is not None:
            self.latest_number = latest_number
            fields.append("latest_number")
        self.save(update_fields=fields)

    def record_failure(self, reason: str, retry_after: float | None) -> None:
        """Notes why the node could not be read, and waits twice as long each time, up to 5 min."""
        wait = min(_FIRST_WAIT * 2 ** min(self.failures, 10), _LONGEST_WAIT)
        self.failures += 1
        self.failure = reason[:255]
        self.retry_at = timezone.now() + timedelta(seconds=max(wait, retry_after or 0.0))
        self.save(update_fields=["failures", "failure", "retry_at"])

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
            if self.number is not None and cursor.number > self.number:
                raise InvalidRequest(f"The block must be at most {self.number}.")
            self.number, self.block_hash = cursor.number, cursor.hash
            self.halted_at, self.halt_reason = None, ""
            self.resumed_at, self.resumed_by = timezone.now(), by
            self.failures, self.failure, self.retry_at = 0, "", None
            self.save()


class TopUpQuerySet(models.QuerySet["TopUp"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)

    def open(self) -> Self:
        """Returns those that wait for a payment and may still be paid."""
        return self.filter(status=TopUp.Status.OPEN, expires_at__gt=timezone.now())


class TopUpManager(models.Manager.from_queryset(TopUpQuerySet)):  # type: ignore[misc]
    def request(
        self,
        *,
        organization_id: uuid.UUID,
        chain_id: int,
        usd_cents: int,
        sender: str,
        idempotency_key: str | None = None,
        by: str = "",
    ) -> TopUp:
        """(none) → OPEN. Asks for an exact amount that tells this payment from all others.

        A repeated ``idempotency_key`` returns what its first request made, as it is now. Requests
        of one organization take turns on its row. Raises :class:`IdempotencyKeyReused`,
        :class:`InvalidRequest`, :class:`ChainNotOffered` and :class:`TooManyTopUps`.
        """
        fingerprint = hashlib.sha256(f"{chain_id}|{usd_cents}|{sender}".encode()).hexdigest()
        with transaction.atomic():
            organization = Organization.objects.select_for_update(no_key=True).get(
                pk=organization_id
            )
            if idempotency_key is not None:
                first: TopUp | None = self.filter(
                    organization=organization, idempotency_key=idempotency_key
                ).first()
                if first is not None:
                    if first.request_fingerprint != fingerprint:
                        raise IdempotencyKeyReused
                    return first
            chain = _offered(chain_id)
            now = timezone.now()
            self._require_room(organization, now)
            expires_at = now + timedelta(seconds=settings.TOP_UP_LIFETIME)
            top_up = TopUp(
                organization=organization,
                chain_id=chain_id,
                amount_nano=usd_cents * 10**7,
                token=chain.token.contract,
                token_symbol=chain.token.symbol,
                token_decimals=chain.token.decimals,
                sender=sender,
                recipient=chain.recipient,
                units=_free_units(chain, sender, chain.token.units_of(usd_cents)),
                expires_at=expires_at,
                payable_until=expires_at + timedelta(seconds=settings.TOP_UP_GRACE),
                requested_by=by,
                idempotency_key=idempotency_key,
                request_fingerprint=fingerprint,
            )
            top_up.save(force_insert=True)
        return top_up

    def _require_room(self, organization: Organization, now: datetime) -> None:
        present = list(
            self.for_organization(organization.pk)
            .open()
            .order_by("expires_at")
            .values_list("expires_at", flat=True)[:MAX_OPEN]
        )
        if len(present) == MAX_OPEN:
            seconds = math.ceil((present[0] - now).total_seconds())
            raise TooManyTopUps(headers={"Retry-After": str(max(seconds, 1))})


class TopUp(StatefulModel):
    """What an organization wants to pay on a chain: an exact amount, from one sender, until when.

    The digits below a cent tell the payment. They stay reserved until no block can come any more
    that is mined before ``payable_until``, so that a late or a repeated payment is nobody else's.
    """

    class Status(models.TextChoices):
        OPEN = "open", "open"
        SEEN = "seen", "seen"
        CONFIRMED = "confirmed", "confirmed"
        EXPIRED = "expired", "expired"
        REVIEW = "review", "review"

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="top_ups", editable=False
    )
    status = models.CharField(max_length=16, choices=Status, default=Status.OPEN, editable=False)
    amount_nano = models.BigIntegerField(editable=False, help_text="As asked for, in nano-USD.")
    chain_id = models.BigIntegerField("chain ID", editable=False)
    token = models.CharField(max_length=42, editable=False)
    token_symbol = models.CharField(max_length=16, editable=False)
    token_decimals = models.PositiveSmallIntegerField(editable=False)
    sender = models.CharField(max_length=42, editable=False)
    recipient = models.CharField(max_length=42, editable=False)
    units = UnitsField(editable=False, help_text="To be paid, in the token's base units.")
    expires_at = models.DateTimeField(editable=False)
    payable_until = models.DateTimeField(
        editable=False, help_text="A payment mined until then is credited."
    )
    is_reserved = models.BooleanField(default=True, editable=False)
    tx_hash = models.CharField("transaction", max_length=66, default="", editable=False)
    block_number = models.BigIntegerField("block", null=True, editable=False)
    confirmed_at = models.DateTimeField(null=True, editable=False)
    requested_by = models.CharField(max_length=255, default="", editable=False)
    idempotency_key = models.CharField(max_length=255, null=True, editable=False)
    request_fingerprint = models.CharField(max_length=64, editable=False)

    objects = TopUpManager()

    class Meta:
        verbose_name = "top-up"
        ordering = ("-created_at", "id")
        indexes = [
            models.Index(fields=("organization", "-created_at"), name="top_up_list"),
            models.Index(fields=("chain_id", "sender", "units"), name="top_up_match"),
            models.Index(
                fields=("expires_at",), condition=Q(status__in=("open", "seen")), name="top_up_due"
            ),
            models.Index(
                fields=("chain_id", "payable_until"),
                condition=Q(is_reserved=True),
                name="top_up_reserved",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("organization", "idempotency_key"), name="top_up_idempotency"
            ),
            models.UniqueConstraint(
                fields=("chain_id", "token", "sender", "units"),
                condition=Q(is_reserved=True),
                name="top_up_told_by_its_amount",
            ),
            models.CheckConstraint(
                condition=Q(amount_nano__gt=0, units__gt=0), name="top_up_amount_positive"
            ),
            models.CheckConstraint(
                condition=Q(status="confirmed", confirmed_at__isnull=False)
                | (~Q(status="confirmed") & Q(confirmed_at=None)),
                name="top_up_confirmation_stamp",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_text} on {chain_name(self.chain_id)}"

    @property
    def amount_text(self) -> str:
        """The exact amount to pay, in whole tokens."""
        return token_text(self.units, self.token_decimals, self.token_symbol)

    @property
    def payment_uri(self) -> str:
        """What a wallet's camera reads (EIP-681)."""
        return (
            f"ethereum:{self.token}@{self.chain_id}/transfer"
            f"?address={self.recipient}&uint256={self.units}"
        )

    @property
    def confirmations(self) -> int:
        """How many blocks hold the payment: its own and those after it."""
        if self.block_number is None:
            return 0
        latest = ChainState.objects.values_list("latest_number", flat=True).filter(
            chain_id=self.chain_id
        )
        return max((latest.first() or 0) - self.block_number + 1, 1)

    @property
    def call_data(self) -> dict[str, Any]:
        """The payment in the shape that the interface gives it; the server signs nothing."""
        return {
            "deadline": self.expires_at,
            "fee_amount": "0",
            "id": f"0x{self.pk.hex}",
            "operator": self.recipient,
            "prefix": "0x",
            "recipient": self.recipient,
            "recipient_amount": str(self.units),
            "recipient_currency": self.token,
            "refund_destination": self.sender,
            "signature": "0x",
        }

    def see(self, *, tx_hash: str, block_number: int) -> bool:
        """OPEN | EXPIRED → SEEN. The payment is mined, and may still be taken back.

        Returns whether anything changed; a payment that moved to another block is seen there.
        """
        with transaction.atomic():
            self.lock()
            if self.status not in (self.Status.OPEN, self.Status.EXPIRED, self.Status.SEEN):
                return False
            there = (self.Status.SEEN, tx_hash, block_number)
            if (self.status, self.tx_hash, self.block_number) == there:
                return False
            self.status, self.tx_hash, self.block_number = there
            self.save_fields("status", "tx_hash", "block_number")
        return True

    def lose_sight(self) -> bool:
        """SEEN → OPEN. The payment's block was replaced, and it is in no other yet."""
        with transaction.atomic():
            self.lock()
            if self.status != self.Status.SEEN:
                return False
            self.status, self.tx_hash, self.block_number = self.Status.OPEN, "", None
            self.save_fields("status", "tx_hash", "block_number")
        return True

    def confirm(self, deposit: Deposit) -> None:
        """OPEN | SEEN | EXPIRED | REVIEW → CONFIRMED. Its caller credits the deposit with it."""
        with transaction.atomic():
            self.lock()
            self.require_status(
                self.Status.OPEN, self.Status.SEEN, self.Status.EXPIRED, self.Status.REVIEW
            )
            self.status = self.Status.CONFIRMED
            self.confirmed_at = timezone.now()
            self.tx_hash, self.block_number = deposit.tx_hash, deposit.block_number
            self.save_fields("status", "confirmed_at", "tx_hash", "block_number")

    def expire(self) -> bool:
        """OPEN → EXPIRED. A payment that was mined in time, or in the grace, still counts."""
        with transaction.atomic():
            self.lock()
            if self.status != self.Status.OPEN or self.expires_at > timezone.now():
                return False
            self.status = self.Status.EXPIRED
            self.save_fields("status")
        return True

    def refer(self) -> bool:
        """OPEN | SEEN | EXPIRED → REVIEW. An operator decides on a payment that is not as asked."""
        with transaction.atomic():
            self.lock()
            if self.status in (self.Status.CONFIRMED, self.Status.REVIEW):
                return False
            self.status = self.Status.REVIEW
            self.save_fields("status")
        return True

    def close_review(self) -> None:
        """REVIEW → EXPIRED. No payment that was not as asked is left to decide on."""
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.REVIEW)
            self.status = self.Status.EXPIRED
            self.save_fields("status")


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
        TopUp,
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
    def of(cls, payment: Payment, token: Token) -> Deposit:
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


def chain_name(chain_id: int) -> str:
    """Returns what people call a chain, also one that is no longer configured."""
    chain: Chain | None = settings.CHAINS.get(chain_id)
    return f"chain {chain_id}" if chain is None else chain.name


def token_text(units: int, decimals: int, symbol: str) -> str:
    """Returns base units as whole tokens with all their digits."""
    whole, rest = divmod(units, 10**decimals)
    return f"{whole}.{rest:0{decimals}d} {symbol}"


def _offered(chain_id: int) -> Chain:
    """Returns a chain that payments are read from now."""
    chains: dict[int, Chain] = settings.CHAINS
    if not chains:
        raise ChainNotOffered("Crypto top-ups are not configured here.")
    chain = chains.get(chain_id)
    if chain is None:
        listed = ", ".join(map(str, chains))
        raise InvalidRequest(
            f"chain_id: must be one of: {listed}.", metadata={"fields": ["chain_id"]}
        )
    state = ChainState.objects.filter(chain_id=chain_id).first()
    if state is None or state.cursor is None:
        raise ChainNotOffered(f"Payments on {chain.name} are not watched yet. Try again shortly.")
    if state.halted_at is not None:
        raise ChainNotOffered(f"Payments on {chain.name} are halted until an operator looks.")
    return chain


def _free_units(chain: Chain, sender: str, units: int) -> int:
    """Adds to base units a random tail that no other top-up of the sender has.

    Requests that name one sender come one after another, whatever organizations they are of.
    """
    token = chain.token.contract
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"top_up|{chain.chain_id}|{token}|{sender}"],
        )
    rows = TopUp.objects.filter(
        chain_id=chain.chain_id,
        token=token,
        sender=sender,
        is_reserved=True,
        units__range=(units + 1, units + MAX_TAIL),
    )
    taken = set(rows.values_list("units", flat=True))
    free = [tail for tail in range(1, MAX_TAIL + 1) if units + tail not in taken]
    if not free:
        raise TooManyTopUps("This sender has too many top-ups of this amount.")
    return units + secrets.choice(free)
