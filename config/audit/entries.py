"""The rows of the audit log, and the proxy models that record changes of operators in it."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import Group, User
from django.db import models
from django.db.models.functions import Now

from config.audit.triggers import Audit
from config.partitions.declarations import Partitioning
from config.partitions.spans import QUARTER
from config.triggers import AppendOnly, carry


class AuditEntry(models.Model):
    """One change of one row by an operator, a management key or a command; append-only.

    A trigger of the changed table writes the entry in the transaction of the change. ``before`` and
    ``after`` contain the columns that differ; for a new or deleted row they contain all columns.
    Secrets are masked. An import writes one entry with counts. The table has a partition for each
    quarter.
    """

    # Approvals trace operators and their permissions by these rows, however long ago they changed.
    partitioning: ClassVar = Partitioning(
        "config_auditentry", "at", QUARTER, keeps="starts_with(kind, 'auth.')"
    )

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=Now(), editable=False)
    actor = models.CharField(max_length=255, editable=False)
    action = models.CharField(max_length=255, editable=False)
    kind = models.CharField(max_length=100, editable=False, help_text="As app.model.")
    object_id = models.CharField("object ID", max_length=255, editable=False)
    organization_id = models.UUIDField("organization ID", null=True, editable=False)
    before = models.JSONField(null=True, editable=False)
    after = models.JSONField(null=True, editable=False)
    request_id = models.CharField(
        "request ID", max_length=64, default="", db_default="", editable=False
    )

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("at",), name="audit_by_time"),
            models.Index(fields=("kind", "-id"), name="audit_by_kind"),
            models.Index(fields=("object_id", "-id"), name="audit_by_object"),
            models.Index(fields=("organization_id", "-id"), name="audit_by_organization"),
            models.Index(fields=("actor", "-id"), name="audit_by_actor"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(before__isnull=False) | models.Q(after__isnull=False),
                name="audit_says_something",
            )
        ]
        triggers = [AppendOnly(message="the audit log is never changed")]

    def __str__(self) -> str:
        return f"#{self.pk} {self.action}"

    @property
    def change(self) -> str:
        """Whether the row was created, changed or deleted; "recorded" for an event."""
        if "." not in self.kind:
            return "recorded"
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


# Django's own models cannot declare triggers; these proxies declare them for their tables.
AuditedUser = carry(
    __name__,
    "AuditedUser",
    User,
    Audit(masked=("password",), ignored=("last_login", "date_joined")),
)
AuditedGroup = carry(__name__, "AuditedGroup", Group, Audit())
for _name, _model, _key in (
    ("AuditedUserGroup", User.groups.through, "user_id"),
    ("AuditedUserPermission", User.user_permissions.through, "user_id"),
    ("AuditedGroupPermission", Group.permissions.through, "group_id"),
):
    carry(__name__, _name, _model, Audit(key=_key, ignored=("id",)))
