"""API keys."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any, Self

from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from accounts.models.edits import write_fields
from accounts.models.members import Member
from accounts.models.organizations import Organization
from accounts.models.terms import LimitReset
from accounts.models.workspaces import Workspace, require_workspace
from config import secrets
from config.api.errors import NotFound
from config.audit.triggers import Audit
from config.credentials import Secret
from config.models import BaseModel


class ApiKeyNotFound(NotFound):
    message = "The API key does not exist."


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id, deleted_at=None)

    def for_inference(self) -> Self:
        return self.filter(is_management=False)

    def enabled(self) -> Self:
        return self.filter(disabled=False)

    def unexpired(self) -> Self:
        return self.exclude(expires_at__lte=timezone.now())

    def find_all(self, digests: Collection[str]) -> list[ApiKey]:
        """Returns the keys with these digests.

        Raises :class:`ApiKeyNotFound` unless every digest belongs to a key of this queryset.
        """
        found = list(self.filter(digest__in=set(digests)))
        if len(found) != len(set(digests)):
            raise ApiKeyNotFound
        return found


class ApiKeyManager(models.Manager.from_queryset(ApiKeyQuerySet)):  # type: ignore[misc]
    def create_key(
        self,
        *,
        workspace: Workspace,
        name: str,
        is_management: bool = False,
        expires_at: datetime | None = None,
        **fields: Any,
    ) -> tuple[ApiKey, Secret]:
        """Creates a key and returns it with its secret; only a digest of the secret is stored.

        Raises :class:`WorkspaceNotFound` when the workspace was deleted meanwhile.
        """
        secret = secrets.generate_api_key(is_management=is_management)
        with transaction.atomic():
            Organization.objects.lock(workspace.organization_id)
            require_workspace(workspace.pk)
            key = self.create(
                organization_id=workspace.organization_id,
                workspace=workspace,
                name=name,
                is_management=is_management,
                expires_at=expires_at,
                digest=secrets.digest_api_key(secret.reveal()),
                label=secrets.label_api_key(secret),
                **fields,
            )
        return key, secret


class ApiKey(BaseModel):
    """A bearer key, either for inference or for management."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="api_keys", editable=False
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=255)
    label = models.CharField(max_length=32, editable=False)
    digest = models.CharField(
        max_length=64, unique=True, editable=False, help_text="HMAC-SHA256 of the key."
    )
    is_management = models.BooleanField(default=False)
    disabled = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    limit_nano = models.BigIntegerField(
        null=True,
        editable=False,
        help_text="The most that the key may spend, in nano-USD; empty for no limit.",
    )
    limit_reset = models.CharField(max_length=16, choices=LimitReset, null=True, editable=False)
    include_byok_in_limit = models.BooleanField(default=False, db_default=False, editable=False)
    external_user = models.CharField(
        max_length=512,
        null=True,
        db_collation="C",
        editable=False,
        help_text="The end user that the key belongs to.",
    )
    creator = models.ForeignKey(
        Member,
        on_delete=models.PROTECT,
        related_name="api_keys",
        db_index=False,
        null=True,
        blank=True,
        help_text="The member who created the key; that member's guardrail applies to it.",
    )
    deleted_at = models.DateTimeField(null=True, editable=False)

    objects = ApiKeyManager()

    class Meta:
        verbose_name = "API key"
        ordering = ("-created_at",)
        constraints = [
            models.CheckConstraint(
                condition=Q(limit_nano=None) | Q(limit_nano__gte=0),
                name="api_key_limit_not_negative",
            ),
            # This way, code that checks only `disabled` also refuses deleted keys.
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(disabled=True), name="api_key_deleted_is_disabled"
            ),
        ]
        triggers = [Audit(masked=("digest",))]

    def __str__(self) -> str:
        return f"{self.name} ({self.label})"

    @property
    def is_usable(self) -> bool:
        return not self.disabled and (self.expires_at is None or self.expires_at > timezone.now())

    def edit(self, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        Raises :class:`ApiKeyNotFound` when the key was revoked meanwhile, and
        :class:`WorkspaceNotFound` when the key would become usable in a deleted workspace.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update(no_key=True))
            if self.deleted_at is not None:
                raise ApiKeyNotFound
            if changes.keys() & {"workspace_id", "disabled"}:
                Organization.objects.lock(self.organization_id)
            if "workspace_id" in changes or changes.get("disabled") is False:
                require_workspace(changes.get("workspace_id", self.workspace_id))
            return write_fields(self, changes)

    def revoke(self) -> bool:
        """PRESENT → DELETED. Refuses the key from the next request on.

        Returns False if the key was already deleted. The row stays because generations point at it.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update())
            if self.deleted_at is not None:
                return False
            self.disabled, self.deleted_at = True, timezone.now()
            self.save_fields("disabled", "deleted_at")
        return True
