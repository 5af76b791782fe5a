"""Change sets: operations that wait for a second person, and the rules that demand one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from config import secrets
from config.api.errors import Conflict, Forbidden, InvalidTransition
from config.audit.approvals import find_objection
from config.audit.triggers import Audit
from config.changes.kinds import ChangeKind
from config.clocks.clock import clock
from config.triggers import AppendOnly

# What a decision writes; everything else of a change set stays as it was proposed.
_DECIDED: Final = ("status", "decided_at", "decided_by", "outcome", "sealed_arguments")


class NotAnotherPerson(Forbidden):
    """The operator is not a second, independent person."""

    error_type = "not_another_person"
    message = "Another operator than the one who proposed this must approve it."


class ProposerGone(Conflict):
    """The operator who proposed a change may no longer make it."""

    error_type = "proposer_gone"
    message = (
        "The operator who proposed this is no longer active, or may no longer do it. Nothing was "
        "changed. Reject it, and propose it again."
    )


class ChangeRule(models.Model):
    """Whether changes of a kind need a second person; a kind without a row does not."""

    kind = models.CharField(max_length=16, primary_key=True, choices=ChangeKind, editable=False)
    is_required = models.BooleanField("second person", default=False, editable=False)

    class Meta:
        ordering = ("kind",)
        triggers = [Audit(key="kind")]

    def __str__(self) -> str:
        return str(self.get_kind_display())

    def require(self) -> bool:
        """OFF → ON. Demands a second person from now on; returns whether that is new."""
        return self._set(True)

    def relax(self) -> bool:
        """ON → OFF. One person is enough again; returns whether that is new."""
        return self._set(False)

    def _set(self, is_required: bool) -> bool:
        with transaction.atomic():
            locked = type(self)._base_manager.select_for_update()
            self.refresh_from_db(from_queryset=locked)
            if self.is_required == is_required:
                return False
            self.is_required = is_required
            self.save(update_fields=["is_required"])
        return True


class ChangeSet(models.Model):
    """An operation that one operator proposed and that another must approve before it happens.

    PROPOSED → APPLIED, in the transaction of the change; → REJECTED; → WITHDRAWN, by the proposer;
    → OUTDATED, when its object has changed since; → EXPIRED, after ``CHANGE_SET_DAYS``.
    ``operation`` is what the page of ``page`` does to the object ``object_id``, with ``arguments``
    as its form sent them. Secrets among them are encrypted in ``sealed_arguments`` and erased by
    the decision. ``state`` has the digests of the object's columns at that time, and ``changes``
    what people see. ``needs`` is the permission that both people must have.
    """

    class Status(models.TextChoices):
        PROPOSED = "proposed", "proposed"
        APPLIED = "applied", "applied"
        REJECTED = "rejected", "rejected"
        WITHDRAWN = "withdrawn", "withdrawn"
        OUTDATED = "outdated", "outdated"
        EXPIRED = "expired", "expired"

    # What the operation found out before the transaction of its approval; never stored.
    prepared: Any = None

    id = models.BigAutoField("number", primary_key=True)
    kind = models.CharField(max_length=16, choices=ChangeKind, editable=False)
    operation = models.CharField(max_length=64, editable=False)
    page = models.CharField(max_length=100, editable=False, help_text="As app.model.")
    object_id = models.CharField("object ID", max_length=255, default="", editable=False)
    subject = models.CharField(max_length=1100, editable=False)
    organization_id = models.UUIDField("organization ID", null=True, editable=False)
    needs = models.CharField(max_length=200, editable=False)
    arguments = models.JSONField(editable=False)
    sealed_arguments = models.BinaryField(null=True, editable=False)
    state = models.JSONField(editable=False)
    changes = models.JSONField(editable=False)
    reason = models.TextField(editable=False)
    status = models.CharField(
        max_length=16, choices=Status, default=Status.PROPOSED, editable=False
    )
    proposed_by = models.CharField(max_length=255, editable=False)
    # The database's time, with which the audit log is compared.
    proposed_at = models.DateTimeField(db_default=Now(), editable=False)
    decided_at = models.DateTimeField(null=True, editable=False)
    decided_by = models.CharField(max_length=255, default="", editable=False)
    outcome = models.TextField(default="", editable=False)

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(
                fields=("proposed_at",), condition=Q(status="proposed"), name="change_sets_waiting"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status="proposed", decided_at=None)
                | (Q(decided_at__isnull=False, sealed_arguments=None) & ~Q(status="proposed")),
                name="change_set_is_consistent",
            ),
            models.CheckConstraint(
                condition=~Q(status="applied") | ~Q(decided_by=F("proposed_by")),
                name="change_set_needs_two",
            ),
        ]
        triggers = [
            AppendOnly(
                message="a change set stays as it was proposed",
                allowed="OLD.status = 'proposed'",
                mutable=_DECIDED,
            ),
            Audit(
                masked=("sealed_arguments",),
                ignored=("arguments", "state", "changes", "proposed_at"),
                organization="organization_id",
            ),
        ]

    def __str__(self) -> str:
        return f"change set {self.pk}"

    @property
    def expires_at(self) -> datetime:
        return self.proposed_at + timedelta(days=settings.CHANGE_SET_DAYS)

    @property
    def associated(self) -> str:
        """The text that binds sealed arguments to what they were proposed for."""
        return f"change set|{self.page}|{self.object_id}|{self.operation}|{self.proposed_by}"

    def lock(self) -> None:
        """Locks the row until the transaction ends, and refreshes this instance from it."""
        self.refresh_from_db(from_queryset=ChangeSet._base_manager.select_for_update())

    def require_proposed(self) -> None:
        """Raises :class:`InvalidTransition` unless the change set still waits."""
        if self.status != self.Status.PROPOSED:
            raise InvalidTransition(
                f"The change set is {self.status} already. Nothing was changed.",
                metadata={"status": str(self.status)},
            )

    def require_independent(self, by: str) -> None:
        """Raises :class:`NotAnotherPerson` unless an actor may approve what the proposer asks."""
        if by == self.proposed_by:
            raise NotAnotherPerson
        objection = find_objection(
            by, requester=self.proposed_by, permission=self.needs, since=self.proposed_at
        )
        if objection is not None:
            raise NotAnotherPerson(objection)

    def mark_applied(self, *, by: str, outcome: str) -> None:
        """PROPOSED → APPLIED. The caller makes the change in the same transaction."""
        with transaction.atomic():
            self.lock()
            self.require_proposed()
            self.require_independent(by)
            self._decide(self.Status.APPLIED, by, outcome)

    def reject(self, *, by: str, note: str = "") -> None:
        """PROPOSED → REJECTED. Nothing changes."""
        with transaction.atomic():
            self.lock()
            self.require_proposed()
            self._decide(self.Status.REJECTED, by, note)

    def withdraw(self, *, by: str) -> None:
        """PROPOSED → WITHDRAWN, by the operator who proposed it."""
        with transaction.atomic():
            self.lock()
            self.require_proposed()
            if by != self.proposed_by:
                raise Forbidden("Only the operator who proposed this may withdraw it. Reject it.")
            self._decide(self.Status.WITHDRAWN, by, "")

    def mark_outdated(self, *, by: str, outcome: str) -> None:
        """PROPOSED → OUTDATED. The object is not as it was; nothing changes."""
        with transaction.atomic():
            self.lock()
            self.require_proposed()
            self._decide(self.Status.OUTDATED, by, outcome)

    def expire(self) -> None:
        """PROPOSED → EXPIRED. Nobody has decided in time."""
        with transaction.atomic():
            self.lock()
            self.require_proposed()
            self._decide(self.Status.EXPIRED, "", "Nobody decided in time.")

    def rewrap_arguments(self) -> bool:
        """Encrypts the secrets with the first credential key; returns whether the row changed."""
        return secrets.rewrap_row(self, "sealed_arguments", associated=self.associated)

    def _decide(self, status: Status, by: str, outcome: str) -> None:
        self.status = status
        self.decided_at, self.decided_by, self.outcome = clock.now(), by, outcome
        # A secret outlives no decision.
        self.sealed_arguments = None
        self.save(update_fields=list(_DECIDED))


def expire_due() -> int:
    """Expires the change sets that waited for too long; returns their number."""
    until = clock.now() - timedelta(days=settings.CHANGE_SET_DAYS)
    waiting = ChangeSet.objects.filter(status=ChangeSet.Status.PROPOSED, proposed_at__lte=until)
    done = 0
    for found in waiting.order_by("proposed_at").iterator():
        with transaction.atomic():
            locked = waiting.select_for_update(skip_locked=True).filter(pk=found.pk)
            if locked.exists():
                found.expire()
                done += 1
    return done


def list_requirements() -> dict[str, bool]:
    """Returns the kinds, and whether their changes need a second person."""
    stored: dict[str, Any] = dict(ChangeRule.objects.values_list("kind", "is_required"))
    return {str(kind): bool(stored.get(kind)) for kind in ChangeKind}
