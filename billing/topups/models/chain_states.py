"""Chain states: the last block of each chain whose payments were read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import models, transaction
from django.db.models import Q

from billing.topups.chains import Chain, Token
from billing.topups.payments import ChainBlock, Cursor
from config.api.errors import InvalidRequest, InvalidTransition
from config.audit.triggers import Audit
from config.clocks.clock import clock

_FIRST_WAIT: Final = 5.0
_LONGEST_WAIT: Final = 300.0


class ChainState(models.Model):
    """The reading state of a chain; a chain without a cursor offers no top-ups yet."""

    chain_id = models.BigIntegerField("chain ID", primary_key=True)
    number = models.BigIntegerField(
        "block", null=True, editable=False, help_text="The last block whose payments are stored."
    )
    block_hash = models.CharField(max_length=66, null=True, editable=False)
    latest_number = models.BigIntegerField("latest block", null=True, editable=False)
    scanned_at = models.DateTimeField(null=True, editable=False)
    halted_at = models.DateTimeField(null=True, editable=False)
    halt_reason = models.CharField(max_length=255, default="", editable=False)
    resumed_at = models.DateTimeField(null=True, editable=False)
    resumed_by = models.CharField(max_length=255, default="", editable=False)
    failures = models.PositiveIntegerField(
        default=0, editable=False, help_text="Consecutive failures to read the node."
    )
    failure = models.CharField(max_length=255, default="", editable=False)
    retry_at = models.DateTimeField(null=True, editable=False)
    span = models.PositiveIntegerField(
        null=True, editable=False, help_text="The number of blocks that the node returns at once."
    )

    token_verified = models.CharField(
        max_length=48,
        default="",
        editable=False,
        db_default="",
        help_text="The contract and the decimals that the chain confirmed.",
    )
    token_checked_at = models.DateTimeField(null=True, editable=False)

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
        triggers = [Audit(key="chain_id")]

    def __str__(self) -> str:
        return chain_name(self.chain_id)

    @property
    def cursor(self) -> Cursor | None:
        if self.number is None or self.block_hash is None:
            return None
        return Cursor(self.number, self.block_hash)

    def has_verified(self, token: Token) -> bool:
        """Returns whether the contract was found to have the decimals of the settings."""
        return self.token_verified == str(token)

    @property
    def is_refused(self) -> bool:
        """Returns whether the contract was asked, and is not the token of the settings."""
        return not self.token_verified and self.token_checked_at is not None

    def record_token(self, token: Token | None) -> None:
        """Records that the contract was asked: for the confirmed token, or for None if it differs.

        A chain whose token differs is neither offered nor read.
        """
        self.token_verified = "" if token is None else str(token)
        self.token_checked_at = clock.now()
        self.save(update_fields=["token_verified", "token_checked_at"])

    def lock(self) -> None:
        """Locks this row until the transaction ends and refreshes this instance."""
        self.refresh_from_db(from_queryset=type(self)._base_manager.select_for_update())

    def advance(self, cursor: Cursor) -> bool:
        """Moves the cursor and returns True; the caller stores the payments up to the cursor.

        Returns False when another watcher moved the cursor meanwhile or the chain was halted. Keeps
        the row locked until the caller's transaction ends.
        """
        before = self.cursor
        with transaction.atomic():
            self.lock()
            if self.cursor != before or self.halted_at is not None:
                return False
            self.number, self.block_hash = cursor.number, cursor.hash
            # The wait grows only while a node makes no progress at all.
            self.failures = 0
            self.save(update_fields=["number", "block_hash", "failures"])
        return True

    def record_success(
        self, *, is_read: bool = True, span: int | None = None, latest: ChainBlock | None = None
    ) -> None:
        """Records a successful round; ``is_read`` tells whether it reached the confirmed head."""
        self.failures, self.failure, self.retry_at = 0, "", None
        fields = ["failures", "failure", "retry_at", *self._learn(is_read, span, latest)]
        self.save(update_fields=fields)

    def record_failure(
        self,
        reason: str,
        retry_after: float | None,
        *,
        is_read: bool = False,
        span: int | None = None,
        latest: ChainBlock | None = None,
    ) -> None:
        """Records a failure and doubles the wait before the next round, up to 5 minutes.

        ``is_read`` tells whether the round had reached the confirmed head before.
        """
        wait = min(_FIRST_WAIT * 2 ** min(self.failures, 10), _LONGEST_WAIT)
        self.failures += 1
        self.failure = reason[:255]
        self.retry_at = clock.now() + timedelta(seconds=max(wait, retry_after or 0.0))
        fields = ["failures", "failure", "retry_at", *self._learn(is_read, span, latest)]
        self.save(update_fields=fields)

    def _learn(self, is_read: bool, span: int | None, latest: ChainBlock | None) -> list[str]:
        """Sets what the round told of the chain and its node; returns the names of these fields.

        A chain is read up to the time of its newest block: a node that has stopped makes it late.
        """
        facts: dict[str, Any] = {"span": span}
        if latest is not None:
            facts["latest_number"] = latest.number
            if is_read:
                facts["scanned_at"] = min(latest.mined_at, clock.now())
        known = [name for name, value in facts.items() if value is not None]
        for name in known:
            setattr(self, name, facts[name])
        return known

    def halt(self, cursor: Cursor, reason: str) -> bool:
        """RUNNING → HALTED. Stops reading until an operator resumes.

        Returns False when the chain is halted already or its cursor has moved.
        """
        with transaction.atomic():
            self.lock()
            if self.halted_at is not None or self.cursor != cursor:
                return False
            self.halted_at = clock.now()
            self.halt_reason = reason[:255]
            self.save(update_fields=["halted_at", "halt_reason"])
        return True

    def resume(self, cursor: Cursor, *, by: str) -> None:
        """HALTED → RUNNING. Continues from a block at or before the old cursor.

        Payments that are read twice are stored once, because their transactions are unique.
        """
        with transaction.atomic():
            self.lock()
            if self.halted_at is None:
                raise InvalidTransition(f"{self} is not halted.")
            self._go_back(cursor, by)

    def read_again(self, cursor: Cursor, *, by: str) -> None:
        """RUNNING → RUNNING. Continues from an earlier block, for instance after a missed payment.

        A watcher that is reading at the same time stores nothing, because the cursor has moved.
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
        self.resumed_at, self.resumed_by = clock.now(), by
        self.failures, self.failure, self.retry_at = 0, "", None
        self.save(
            update_fields=[
                "number", "block_hash", "halted_at", "halt_reason", "resumed_at", "resumed_by",
                "failures", "failure", "retry_at",
            ]
        )  # fmt: skip


def chain_name(chain_id: int) -> str:
    """Returns the configured name of a chain, or ``chain N`` for an unconfigured one."""
    chain: Chain | None = settings.CHAINS.get(chain_id)
    return f"chain {chain_id}" if chain is None else chain.name
