"""Abstract base models, and the leases of scheduled duties."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from config.api.errors import InvalidTransition

# Django finds the models of the app ``config`` in this module only.
from config.audit.entries import AuditEntry as AuditEntry
from config.console.sign_in.models import SecondFactor as SecondFactor
from config.console.sign_in.models import SignInLimit as SignInLimit


class BaseModel(models.Model):
    """A row with a UUID primary key and the times of its creation and its last change."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = models.DateTimeField(auto_now_add=True, editable=False)
    updated_at = models.DateTimeField(auto_now=True, editable=False)

    class Meta:
        abstract = True

    def save_fields(self, *fields: str) -> None:
        """Saves only the named fields and ``updated_at``."""
        self.save(update_fields=[*fields, "updated_at"])


class StatefulModel(BaseModel):
    """A row whose ``status`` only its transition methods write."""

    status: Any

    class Meta:
        abstract = True

    def lock(self) -> None:
        """Locks the row until the transaction ends and refreshes this instance from it.

        Raises ``TransactionManagementError`` outside a transaction, and the model's
        ``DoesNotExist`` when the row was deleted.
        """
        self.refresh_from_db(from_queryset=type(self)._base_manager.select_for_update())

    def require_status(self, *allowed: str) -> None:
        """Raises :class:`InvalidTransition` unless ``status`` is one of the allowed ones."""
        if self.status not in allowed:
            names = " or ".join(str(status) for status in allowed)
            raise InvalidTransition(
                f"The {self._meta.verbose_name} is {self.status}; this needs it to be {names}.",
                metadata={"status": str(self.status)},
            )


class LeaseManager(models.Manager["Lease"]):
    def take(self, name: str, *, seconds: float) -> bool:
        """Takes the lease of a duty; only one of several concurrent calls returns True.

        The duty is due again after ``seconds``, whether its holder finished or died.
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
    """The exclusive right of one process to do a scheduled duty until a time."""

    name = models.CharField(primary_key=True, max_length=64)
    until = models.DateTimeField()

    objects = LeaseManager()

    def __str__(self) -> str:
        return self.name
