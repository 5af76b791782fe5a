"""Abstract bases that every app's models share, and the few tables that belong to no app."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db import models, transaction
from django.db.models.functions import Now
from django.utils import timezone
from django_otp.plugins.otp_static.models import StaticDevice
from django_otp.plugins.otp_totp.models import TOTPDevice

from config import secrets
from config.api.errors import InvalidTransition


class BaseModel(models.Model):
    """A row with a UUID key and two stamps."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = models.DateTimeField(auto_now_add=True, editable=False)
    updated_at = models.DateTimeField(auto_now=True, editable=False)

    class Meta:
        abstract = True

    def save_fields(self, *fields: str) -> None:
        """Writes the named columns and ``updated_at`` of a stored row, and no others."""
        self.save(update_fields=[*fields, "updated_at"])


class StatefulModel(BaseModel):
    """A row whose ``status`` is written by its transition methods alone."""

    status: Any

    class Meta:
        abstract = True

    def lock(self) -> None:
        """Locks this row until the transaction ends and refreshes this very instance.

        Raises ``TransactionManagementError`` outside a transaction, and the model's
        ``DoesNotExist`` when the row is gone.
        """
        self.refresh_from_db(from_queryset=type(self)._base_manager.select_for_update())

    def require_status(self, *allowed: str) -> None:
        """Raises :class:`InvalidTransition` unless the row is in one of the states."""
        if self.status not in allowed:
            names = " or ".join(str(status) for status in allowed)
            raise InvalidTransition(
                f"The {self._meta.verbose_name} is {self.status}; this needs it to be {names}.",
                metadata={"status": str(self.status)},
            )


class LeaseManager(models.Manager["Lease"]):
    def take(self, name: str, *, seconds: float) -> bool:
        """Takes a duty for so many seconds; of any number of runners, one gets ``True``.

        The duty is due again when the lease has run out, whether its holder finished or died.
        """
        now = timezone.now()
        until = now + timedelta(seconds=seconds)
        with transaction.atomic():
            self.bulk_create([Lease(name=name, until=now)], ignore_conflicts=True)
            lease = (
                self.select_for_update(skip_locked=True).filter(name=name, until__lte=now).first()
            )
            if lease is None:
                return False
            lease.until = until
            lease.save(update_fields=["until"])
        return True


class Lease(models.Model):
    """Who may do a scheduled duty now: nobody else, until then."""

    name = models.CharField(primary_key=True, max_length=64)
    until = models.DateTimeField()

    objects = LeaseManager()

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """One change of one row by an operator, a management key or a command; never changed itself.

    Triggers write it, in the transaction of the change. ``before`` and ``after`` hold the columns
    that differ, all of them for a new and for a deleted row; a secret is masked in both. What an
    import did to many rows is one entry with counts.
    """

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

    def __str__(self) -> str:
        return f"#{self.pk} {self.action}"

    @property
    def change(self) -> str:
        """What became of the row."""
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


class SecondFactor(TOTPDevice):  # type: ignore[misc]
    """An operator's authenticator app; the key that its codes are made from is sealed.

    The package's column is wide enough for a sealed key of its usual 20 bytes.
    """

    class Meta:
        proxy = True
        # The page is the package's model's, and so are its permissions.
        default_permissions = ()

    key: str
    user_id: int

    @staticmethod
    def sealed(key: bytes, *, user_id: int) -> str:
        """Returns what ``key`` holds of an operator's key; in another's row it does not open."""
        return secrets.seal_key(key, associated=f"second factor|{user_id}")

    @property
    def bin_key(self) -> bytes:
        """The key itself; raises :class:`config.secrets.DecryptionFailed`."""
        return secrets.unseal_key(self.key, associated=f"second factor|{self.user_id}")

    def rewrap(self) -> bool:
        """Puts the key under the first credential key; returns whether it was not.

        Raises :class:`config.secrets.DecryptionFailed` when no configured key opens it.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=SecondFactor.objects.select_for_update())
            if secrets.is_current_key(self.key):
                return False
            self.key = self.sealed(self.bin_key, user_id=self.user_id)
            self.save(update_fields=["key"])
        return True


class BackupCodes(StaticDevice):  # type: ignore[misc]
    """An operator's backup codes; only digests of them are stored, and each lets in once."""

    class Meta:
        proxy = True
        default_permissions = ()

    def verify_token(self, token: str) -> bool:
        return bool(super().verify_token(secrets.digest_backup_code(self.user_id, token)))
