"""Abstract base models."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import models

from config.api.errors import InvalidTransition

# Django finds the models of the app ``config`` in this module only.
from config.audit.entries import AuditEntry as AuditEntry
from config.clocks.clock import clock
from config.clocks.leases import Lease as Lease
from config.console.sign_in.models import SecondFactor as SecondFactor
from config.console.sign_in.models import SignInLimit as SignInLimit


class StampField(models.DateTimeField):  # type: ignore[type-arg]
    """A time that ``auto_now`` or ``auto_now_add`` sets by the database's clock."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if not (self.auto_now or (self.auto_now_add and add)):
            return super().pre_save(model_instance, add)
        value = clock.now()
        setattr(model_instance, self.attname, value)
        return value

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Describes the column for migrations as the usual field, whose column it has."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


class BaseModel(models.Model):
    """A row with a UUID primary key and the times of its creation and its last change."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = StampField(auto_now_add=True, editable=False)
    updated_at = StampField(auto_now=True, editable=False)

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
