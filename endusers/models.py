"""End users: the ids that organizations use for their own customers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Self

from django.db import models, transaction

from accounts.models import Ceilings, LimitOwner, Organization, RateLimit
from config.api.errors import Conflict, NotFound
from config.audit.triggers import Audit
from config.models import BaseModel, OwnedQuerySet


class AlreadyRegistered(Conflict):
    error_type = "already_registered"
    message = "This user is already registered."


class EndUserNotFound(NotFound):
    message = "This user is not registered."


class EndUserQuerySet(OwnedQuerySet["EndUser"]):
    def active(self) -> Self:
        return self.filter(is_active=True)


class EndUserManager(models.Manager.from_queryset(EndUserQuerySet)):  # type: ignore[misc]
    def register(
        self,
        *,
        organization_id: uuid.UUID,
        user: str,
        rate_limits: Mapping[str, Any] | None = None,
    ) -> EndUser:
        """Registers an end user; raises :class:`AlreadyRegistered` when it exists.

        The unique constraint decides between concurrent registrations. ``rate_limits`` are changes
        as :meth:`RateLimitManager.change` takes them.
        """
        end_user = EndUser(organization_id=organization_id, user=user)
        with transaction.atomic():
            if rate_limits is not None:
                RateLimit.objects.change(end_user.limit_owner, rate_limits)
            [stored] = self.bulk_create([end_user], ignore_conflicts=True)
            found: EndUser | None = self.filter(pk=stored.pk).first()
            if found is None:
                raise AlreadyRegistered
        return found


class EndUser(BaseModel):
    """A registered end user; it has no login, and ``is_active`` never blocks inference."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="end_users", db_index=False
    )
    user = models.CharField(max_length=512, db_collation="C", help_text="Case-sensitive.")
    is_active = models.BooleanField(default=True)

    objects = EndUserManager()

    class Meta:
        verbose_name = "end user"
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(fields=("organization", "user"), name="end_user_unique"),
            models.CheckConstraint(condition=~models.Q(user=""), name="end_user_not_empty"),
        ]
        indexes = [
            models.Index(fields=("organization", "created_at", "id"), name="end_user_list"),
            models.Index(fields=("created_at", "id"), name="end_user_latest"),
            models.Index(fields=("user", "id"), name="end_user_by_beginning"),
        ]
        triggers = [Audit()]

    def __str__(self) -> str:
        return self.user

    @property
    def limit_owner(self) -> LimitOwner:
        return LimitOwner(self.organization_id, end_user=self.user)

    def edit(
        self,
        *,
        is_active: bool | None = None,
        rate_limits: Ceilings | Mapping[str, Any] | bool | None = False,
    ) -> bool:
        """Marks the end user and changes its rate limits; returns whether anything changed.

        ``rate_limits`` are changes as :meth:`RateLimitManager.change` takes them; ``False`` leaves
        all of them unchanged.
        """
        with transaction.atomic():
            is_changed = False
            if not isinstance(rate_limits, bool):
                is_changed = RateLimit.objects.change(self.limit_owner, rate_limits)
            if is_active is not None:
                is_changed |= self._set_active(is_active=is_active)
        return is_changed

    def activate(self) -> bool:
        """INACTIVE → ACTIVE. Returns whether anything changed."""
        return self._set_active(is_active=True)

    def deactivate(self) -> bool:
        """ACTIVE → INACTIVE. Returns whether anything changed; the id stays registered."""
        return self._set_active(is_active=False)

    def _set_active(self, *, is_active: bool) -> bool:
        with transaction.atomic():
            self.refresh_from_db(from_queryset=EndUser._base_manager.select_for_update())
            if self.is_active is is_active:
                return False
            self.is_active = is_active
            self.save_fields("is_active")
        return True
