"""Accounts, the append-only transfers between them, grant requests, and the meters of budgets.

All amounts are integers in nano-USD (10⁻⁹ USD). Only :mod:`billing.ledger` and the statements of
admission and settlement write accounts, transfers and meters.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import ClassVar, Final, Self

import pgtrigger
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from accounts.models import ApiKey, Member, Organization, RateLimit, Workspace
from config.api.errors import Conflict
from config.audit.approvals import find_objection
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.clocks.seconds import write_seconds
from config.models import OwnedQuerySet, StatefulModel
from config.partitions.declarations import Partitioning
from config.triggers import AppendOnly, KeepUsed, Trigger, carry


class AccountQuerySet(OwnedQuerySet["Account"]):
    """The rows of organizations."""


class Account(models.Model):
    """One side of an organization's transfers; a trigger creates all five with the organization.

    Credits come from ``grants`` and ``deposits`` and go to ``usage``; ``write_off`` pays for usage
    that nobody is charged for. The balances of an organization therefore add up to zero.
    Organizations share no account, because they would wait for each other's locks.
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
            # Prevents an overdraft even if the code has a bug.
            models.CheckConstraint(
                condition=~Q(kind="credits")
                | Q(posted_credits__gte=F("posted_debits") + F("pending_debits")),
                name="account_not_overdrawn",
            ),
        ]
        triggers = [
            KeepUsed(
                used="billing_transfer WHERE organization_id = OLD.organization_id "
                "AND OLD.id IN (debit_id, credit_id)"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.organization}"

    @property
    def balance(self) -> int:
        """Returns the posted credits less the posted debits; holds are not subtracted."""
        return self.posted_credits - self.posted_debits

    @property
    def available(self) -> int:
        """Returns the balance less the holds: the amount that new holds may use."""
        return self.balance - self.pending_debits


# The references of transfers that belong to a generation lie between these; its id has its second.
OF_GENERATIONS: Final = ("gen-", "gen.")


def reference_bound(moment: datetime) -> str:
    """Returns the lowest reference of the transfers of generations from a moment on."""
    return f"gen-{write_seconds(moment.timestamp())}"


def read_reference_bound(bound: str) -> datetime:
    """Returns the moment of a bound."""
    return datetime.fromtimestamp(int(bound.removeprefix("gen-")), UTC)


class TransferQuerySet(OwnedQuerySet["Transfer"]):
    def pending(self) -> Self:
        return self.filter(status=Transfer.Status.PENDING)


class Transfer(models.Model):
    """An amount that moves from one account to another; once posted or voided, it never changes.

    PENDING → POSTED with ``posted_nano``, at most the amount, or PENDING → VOIDED. A transfer
    without a hold is created as posted. ``reference`` names the generation of a usage or refund,
    the deposit of a deposit, or the dialog of a grant; it is unique for each kind.

    The table has a partition for each month of generations, by their ids. What has no generation
    lies in the partition for odd rows, for ever.
    """

    # The end of a transfer stores the new version of the row beside the old one.
    partitioning: ClassVar = Partitioning(
        "billing_transfer",
        "reference",
        write_bound=reference_bound,
        read_bound=read_reference_bound,
        storage={"fillfactor": 60},
        values=OF_GENERATIONS,
    )

    class Kind(models.TextChoices):
        USAGE = "usage", "usage"
        EXCESS = "excess", "excess that was charged"
        WRITE_OFF = "write_off", "excess that was written off"
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
        db_constraint=False,
    )
    kind = models.CharField(max_length=16, choices=Kind)
    debit = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    credit = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    amount_nano = models.BigIntegerField(help_text="The largest amount to move, in nano-USD.")
    posted_nano = models.BigIntegerField(null=True, help_text="The amount that moved, in nano-USD.")
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
            # No index contains a column that the end of a transfer updates, so the update writes no
            # index.
            models.Index(fields=("organization", "-id"), name="transfer_list"),
            models.Index(
                fields=("kind", "-id"), condition=~Q(kind="usage"), name="transfer_by_kind"
            ),
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
        triggers = [
            AppendOnly(
                message="a transfer is never changed, but ended once",
                allowed="OLD.status = 'pending' AND NEW.status IN ('posted', 'voided')",
                mutable=("status", "posted_nano", "ended_at"),
            ),
            # There are too many transfers of requests to audit; the condition skips them cheaply.
            Audit(operation=pgtrigger.Insert, condition="NEW.kind IN ('grant', 'refund')"),
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.kind}"


class SameOperator(Conflict):
    """An operator tried to approve their own grant request."""

    error_type = "same_operator"
    message = "Another operator than the one who asked for the grant must approve it."


class NotIndependent(Conflict):
    """The approving operator depends on the one who asked, or came or got the role too late."""

    error_type = "not_independent"


class GrantRequest(StatefulModel):
    """A grant above the limit of one operator; a second operator approves or declines it.

    REQUESTED → APPROVED, in the transaction of its transfer, or REQUESTED → DECLINED.
    """

    class Status(models.TextChoices):
        REQUESTED = "requested", "requested"
        APPROVED = "approved", "approved"
        DECLINED = "declined", "declined"

    DECIDE_PERMISSION: Final = "billing.add_transfer"

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", editable=False
    )
    amount_nano = models.BigIntegerField(editable=False, help_text="In nano-USD.")
    note = models.TextField(default="", editable=False)
    status = models.CharField(
        max_length=16, choices=Status, default=Status.REQUESTED, editable=False
    )
    requested_by = models.CharField(max_length=255, editable=False)
    # The database's time, with which the audit log is compared.
    requested_at = models.DateTimeField(db_default=Now(), editable=False)
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
        triggers = [Audit()]

    def __str__(self) -> str:
        return f"grant to {self.organization}"

    def approve(self, *, by: str) -> None:
        """REQUESTED → APPROVED.

        Raises :class:`SameOperator` for the requesting operator, and :class:`NotIndependent` for
        one whom :func:`config.audit.approvals.find_objection` refuses.
        """
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.REQUESTED)
            if by == self.requested_by:
                raise SameOperator
            objection = find_objection(
                by,
                requester=self.requested_by,
                permission=self.DECIDE_PERMISSION,
                since=self.requested_at,
            )
            if objection is not None:
                raise NotIndependent(objection)
            self._decide(self.Status.APPROVED, by)

    def decline(self, *, by: str) -> None:
        """REQUESTED → DECLINED. The requesting operator may decline too."""
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.REQUESTED)
            self._decide(self.Status.DECLINED, by)

    def _decide(self, status: Status, by: str) -> None:
        self.status = status
        self.decided_at, self.decided_by = clock.now(), by
        self.save_fields("status", "decided_at", "decided_by")


class OpenMeter(Trigger):
    """Creates the meter of a new row."""

    name = "open_meter"
    when = pgtrigger.After
    operation = pgtrigger.Insert
    func = (
        "INSERT INTO billing_meter (subject_id, organization_id)\n"
        "VALUES (NEW.id, NEW.organization_id);\n"
        "RETURN NULL;"
    )


class Meter(models.Model):
    """The usage of one key, member or workspace; a trigger creates it with its subject.

    A rate limit of another subject creates a meter too, which counts from then on.

    ``cost…`` is the cost paid by credits, ``byok…`` the upstream cost of BYOK credentials: on
    ``day`` (UTC), in the week (from Monday) and month of that day, and in total. Holds of running
    requests are counted separately. In a period that does not contain ``day`` the usage is zero.
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
    minute = models.DateTimeField(
        null=True, help_text="The last minute in which a request began or ended."
    )
    requests_before = models.BigIntegerField(
        default=0, db_default=0, help_text="Requests before that minute."
    )
    requests_before_day = models.BigIntegerField(
        null=True,
        help_text="Requests before the UTC day of that minute; empty until a request is counted.",
    )
    running = models.BigIntegerField(default=0, db_default=0, help_text="Requests in flight.")
    tokens = models.BigIntegerField(
        default=0, db_default=0, help_text="Prompt and completion tokens of ended requests."
    )
    tokens_before = models.BigIntegerField(
        default=0, db_default=0, help_text="Tokens before that minute."
    )
    held_tokens = models.BigIntegerField(
        default=0, db_default=0, help_text="Tokens that running requests may use."
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


# A new organization gets its accounts.
OrganizationAccounts = carry(
    __name__,
    "OrganizationAccounts",
    Organization,
    Trigger(
        name="open_accounts",
        when=pgtrigger.After,
        operation=pgtrigger.Insert,
        func="INSERT INTO billing_account (organization_id, kind)\n"
        f"SELECT NEW.id, unnest(ARRAY{Account.Kind.values});\n"
        "RETURN NULL;",
    ),
)
ApiKeyMeter = carry(__name__, "ApiKeyMeter", ApiKey, OpenMeter())
MemberMeter = carry(__name__, "MemberMeter", Member, OpenMeter())
WorkspaceMeter = carry(__name__, "WorkspaceMeter", Workspace, OpenMeter())
# The subject of a rate limit may have a meter already.
RateLimitMeter = carry(
    __name__,
    "RateLimitMeter",
    RateLimit,
    Trigger(
        name="open_meter",
        when=pgtrigger.After,
        operation=pgtrigger.Insert,
        func="INSERT INTO billing_meter (subject_id, organization_id)\n"
        "VALUES (NEW.subject_id, NEW.organization_id)\n"
        "ON CONFLICT (subject_id) DO NOTHING;\n"
        "RETURN NULL;",
    ),
)
