"""Top-ups: requests of organizations to buy credits with a payment on a chain."""

from __future__ import annotations

import math
import secrets
import uuid
from datetime import datetime, timedelta
from typing import Any, Final, Self

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import Count, Max, Q

from accounts.models import Organization
from accounts.models.edits import refusal
from billing.topups.chains import Chain, Token
from billing.topups.models.chain_states import ChainState, chain_name
from billing.topups.models.units import UnitsField, token_text
from config.api.errors import GatewayError, NotFound
from config.api.idempotency import IdempotentModel, find_replay, fingerprint_of
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import OwnedQuerySet, StatefulModel

MAX_OPEN: Final = 5
MAX_TAIL: Final = 9_999


class TopUpNotFound(NotFound):
    error_type = "top_up_not_found"
    message = "The top-up does not exist."


class TooManyTopUps(GatewayError):
    """The organization has reached its limit of open top-ups."""

    status = 429
    error_type = "rate_limit_exceeded"
    message = (
        f"The organization has {MAX_OPEN} open top-ups. Pay one of them, or wait until one expires."
    )


class ChainNotOffered(GatewayError):
    """The watcher does not read the chain at the moment."""

    status = 503
    error_type = "top_up_unavailable"


class TopUpQuerySet(OwnedQuerySet["TopUp"]):
    def open(self) -> Self:
        """Returns the top-ups that wait for a payment and have not expired."""
        return self.filter(status=TopUp.Status.OPEN, expires_at__gt=clock.now())

    def awaited(self) -> Self:
        """Returns the top-ups whose payments are looked for: reserved, or paid but not finally."""
        return self.filter(Q(is_reserved=True) | Q(status=TopUp.Status.SEEN))


class TopUpManager(models.Manager.from_queryset(TopUpQuerySet)):  # type: ignore[misc]
    def create_top_up(
        self,
        *,
        organization_id: uuid.UUID,
        chain_id: int,
        usd_cents: int,
        sender: str,
        idempotency_key: str | None = None,
        by: str = "",
    ) -> TopUp:
        """(none) → OPEN. Requests an exact amount that identifies the payment.

        A repeated ``idempotency_key`` returns the top-up of the first request in its present state,
        unless it is open and its chain has left the settings.
        The lock on the organization lets only one request check the key and the limit at a time.
        Raises :class:`IdempotencyKeyReused`, :class:`InvalidRequest`, :class:`ChainNotOffered` and
        :class:`TooManyTopUps`.
        """
        fingerprint = fingerprint_of(chain_id, usd_cents, sender)
        with transaction.atomic():
            organization = Organization.objects.lock(organization_id)
            rows = self.filter(organization=organization)
            first: TopUp | None = find_replay(rows, idempotency_key, fingerprint)
            if first is not None:
                first.require_read_chain()
                return first
            chain = _require_offered(chain_id)
            now = clock.now()
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

    def former_payees(self, chain: Chain) -> tuple[tuple[Token, str], ...]:
        """Returns the awaited tokens and recipients that the settings no longer name."""
        rows = (
            self.filter(chain_id=chain.chain_id)
            .awaited()
            .exclude(token=chain.token.contract, recipient=chain.recipient)
            .order_by("token", "recipient")
            .values_list("token", "token_decimals", "token_symbol", "recipient")
            .distinct()
        )
        return tuple((Token(*token), recipient) for *token, recipient in rows)

    def warn_of_left_chains(self) -> list[str]:
        """Returns a warning for each chain that left the settings before its top-ups were read."""
        rows = (
            self.filter(is_reserved=True)
            .exclude(chain_id__in=settings.CHAINS)
            .exclude(status=TopUp.Status.CONFIRMED)
            .values("chain_id")
            .annotate(count=Count("pk"), until=Max("payable_until"))
            .order_by("chain_id")
        )
        return [
            f"Chain {row['chain_id']} has {row['count']} reserved top-ups and is not in "
            "CHAIN_RPC_URLS, so their payments are not credited. Put it back until it has been "
            f"read past {row['until']:%Y-%m-%d %H:%M} UTC."
            for row in rows
        ]

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


class TopUp(IdempotentModel, StatefulModel):
    """A request to pay an exact amount on a chain, from one sender, before a deadline.

    The digits below one cent identify the payment. The amount stays reserved until the chain is
    read past ``payable_until``, so that a late or repeated payment cannot pay another top-up.
    """

    class Status(models.TextChoices):
        OPEN = "open", "open"
        SEEN = "seen", "seen"
        CONFIRMED = "confirmed", "confirmed"
        EXPIRED = "expired", "expired"
        REVIEW = "review", "review"

    organization = models.ForeignKey(
        Organization,
        on_delete=models.PROTECT,
        related_name="top_ups",
        editable=False,
        db_index=False,
    )
    status = models.CharField(max_length=16, choices=Status, default=Status.OPEN, editable=False)
    amount_nano = models.BigIntegerField(
        editable=False, help_text="The amount requested, in nano-USD."
    )
    chain_id = models.BigIntegerField("chain ID", editable=False)
    token = models.CharField(max_length=42, editable=False)
    token_symbol = models.CharField(max_length=16, editable=False)
    token_decimals = models.PositiveSmallIntegerField(editable=False)
    sender = models.CharField(max_length=42, editable=False)
    recipient = models.CharField(max_length=42, editable=False)
    units = UnitsField(editable=False, help_text="The amount to pay, in the token's base units.")
    expires_at = models.DateTimeField(editable=False)
    payable_until = models.DateTimeField(
        editable=False, help_text="Payments mined until then are credited."
    )
    is_reserved = models.BooleanField(default=True, editable=False)
    tx_hash = models.CharField("transaction", max_length=66, default="", editable=False)
    block_number = models.BigIntegerField("block", null=True, editable=False)
    confirmed_at = models.DateTimeField(null=True, editable=False)
    requested_by = models.CharField(max_length=255, default="", editable=False)

    objects = TopUpManager()

    class Meta:
        verbose_name = "top-up"
        ordering = ("-created_at", "id")
        indexes = [
            models.Index(
                fields=("tx_hash",), condition=~Q(tx_hash=""), name="top_up_by_transaction"
            ),
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
        triggers = [Audit(ignored=("request_fingerprint",))]

    def __str__(self) -> str:
        return f"{self.amount_text} on {chain_name(self.chain_id)}"

    @property
    def amount_text(self) -> str:
        """Returns the exact amount to pay, in whole tokens."""
        return token_text(self.units, self.token_decimals, self.token_symbol)

    @property
    def is_chain_read(self) -> bool:
        """Returns whether the settings name the chain; payments on any other one wait for it."""
        return self.chain_id in settings.CHAINS

    @property
    def shown_status(self) -> TopUp.Status:
        """Returns the status for payers: an open top-up that must not be paid is EXPIRED.

        That is one past its deadline, and one whose chain is not read. The second is open again
        when the chain comes back, so it is not stored as expired.
        """
        is_payable = self.expires_at > clock.now() and self.is_chain_read
        if self.status == self.Status.OPEN and not is_payable:
            return self.Status.EXPIRED
        return self.Status(self.status)

    @property
    def payment_uri(self) -> str:
        """Returns the payment request that a wallet scans as a QR code (EIP-681)."""
        return (
            f"ethereum:{self.token}@{self.chain_id}/transfer"
            f"?address={self.recipient}&uint256={self.units}"
        )

    @property
    def confirmations(self) -> int:
        """Returns the number of blocks since the payment, including its own block."""
        if self.block_number is None:
            return 0
        latest = ChainState.objects.values_list("latest_number", flat=True).filter(
            chain_id=self.chain_id
        )
        return max((latest.first() or 0) - self.block_number + 1, 1)

    @property
    def call_data(self) -> dict[str, Any]:
        """Returns the payment in the shape of the public API; the signature is empty."""
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

    def require_read_chain(self) -> None:
        """Raises :class:`ChainNotOffered` for an open top-up whose chain is not read."""
        if self.status == self.Status.OPEN and not self.is_chain_read:
            raise ChainNotOffered(
                f"This service does not read {chain_name(self.chain_id)} any more. Do not pay the "
                "top-up. Ask the operator of this service."
            )

    def mark_seen(self, *, tx_hash: str, block_number: int) -> bool:
        """OPEN | EXPIRED | SEEN → SEEN. Records a payment that is mined but not final.

        Returns whether anything changed. A payment that moved to another block updates the record.
        """
        with transaction.atomic():
            self.lock()
            if self.status not in (self.Status.OPEN, self.Status.EXPIRED, self.Status.SEEN):
                return False
            seen = (self.Status.SEEN, tx_hash, block_number)
            if (self.status, self.tx_hash, self.block_number) == seen:
                return False
            self.status, self.tx_hash, self.block_number = seen
            self.save_fields("status", "tx_hash", "block_number")
        return True

    def mark_unseen(self) -> bool:
        """SEEN → OPEN. The payment's block was replaced; no other block contains the payment."""
        with transaction.atomic():
            self.lock()
            if self.status != self.Status.SEEN:
                return False
            self.status, self.tx_hash, self.block_number = self.Status.OPEN, "", None
            self.save_fields("status", "tx_hash", "block_number")
        return True

    def confirm(self, *, tx_hash: str, block_number: int) -> None:
        """OPEN | SEEN | EXPIRED | REVIEW → CONFIRMED. The caller credits the payment's deposit."""
        with transaction.atomic():
            self.lock()
            self.require_status(
                self.Status.OPEN, self.Status.SEEN, self.Status.EXPIRED, self.Status.REVIEW
            )
            self.status = self.Status.CONFIRMED
            self.confirmed_at = clock.now()
            self.tx_hash, self.block_number = tx_hash, block_number
            self.save_fields("status", "confirmed_at", "tx_hash", "block_number")

    def expire(self) -> bool:
        """OPEN → EXPIRED. Payments mined until ``payable_until`` are still credited."""
        with transaction.atomic():
            self.lock()
            if self.status != self.Status.OPEN or self.expires_at > clock.now():
                return False
            self.status = self.Status.EXPIRED
            self.save_fields("status")
        return True

    def send_to_review(self) -> bool:
        """OPEN | SEEN | EXPIRED → REVIEW. The payment differs, so an operator decides on it."""
        with transaction.atomic():
            self.lock()
            if self.status in (self.Status.CONFIRMED, self.Status.REVIEW):
                return False
            self.status = self.Status.REVIEW
            self.save_fields("status")
        return True

    def close_review(self) -> None:
        """REVIEW → OPEN, or → EXPIRED after ``expires_at``.

        The caller has checked that none of the top-up's deposits is in review any more.
        """
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.REVIEW)
            is_over = self.expires_at <= clock.now()
            self.status = self.Status.EXPIRED if is_over else self.Status.OPEN
            self.tx_hash, self.block_number = "", None
            self.save_fields("status", "tx_hash", "block_number")


def _require_offered(chain_id: int) -> Chain:
    """Returns a chain; raises :class:`ChainNotOffered` unless the watcher reads it."""
    chains: dict[int, Chain] = settings.CHAINS
    if not chains:
        raise ChainNotOffered("This service has no chain configured for top-ups. Ask its operator.")
    chain = chains.get(chain_id)
    if chain is None:
        listed = ", ".join(map(str, chains))
        raise refusal("chain_id", f"Must be one of: {listed}.")
    state = ChainState.objects.filter(chain_id=chain_id).first()
    if state is not None and state.is_refused:
        raise ChainNotOffered(
            f"Top-ups on {chain.name} are not offered, because its token is not the one of the "
            "settings. Ask the operator of this service."
        )
    if state is None or state.cursor is None or not state.has_verified(chain.token):
        raise ChainNotOffered(f"The service does not read {chain.name} yet. Try again in a minute.")
    if state.halted_at is not None:
        raise ChainNotOffered(
            f"Top-ups on {chain.name} are halted until an operator has checked the chain."
        )
    return chain


def _free_units(chain: Chain, sender: str, units: int) -> int:
    """Returns base units plus a random tail that no other top-up of the sender has.

    The tail stands in the third to sixth decimal, which every wallet shows. An advisory lock makes
    concurrent requests with the same sender run one after another.
    """
    token, step = chain.token.contract, chain.token.units_per_micro
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
        units__range=(units + step, units + MAX_TAIL * step),
    )
    taken = set(rows.values_list("units", flat=True))
    free = [units + tail * step for tail in range(1, MAX_TAIL + 1)]
    free = [amount for amount in free if amount not in taken]
    if not free:
        raise TooManyTopUps(
            "This sender has too many open top-ups of this amount. Choose another amount."
        )
    return secrets.choice(free)
