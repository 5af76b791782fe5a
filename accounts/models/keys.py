"""API keys, and the guardrails that limit them, their makers and whole workspaces."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from accounts.models.edits import refusal, set_fields, write_fields
from accounts.models.members import Member
from accounts.models.organizations import (
    Organization,
    Workspace,
    default_guardrail_id,
    require_open,
    take_turns,
)
from accounts.models.terms import LimitReset, Region
from accounts.policy import Family, Policy
from config import secrets
from config.api.errors import NotFound
from config.models import BaseModel


class ApiKeyNotFound(NotFound):
    message = "The API key does not exist."


class GuardrailNotFound(NotFound):
    message = "The guardrail does not exist."


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id, deleted_at=None)

    def for_inference(self) -> Self:
        return self.filter(is_management=False)

    def enabled(self) -> Self:
        return self.filter(disabled=False)

    def unexpired(self) -> Self:
        return self.exclude(expires_at__lte=timezone.now())


class ApiKeyManager(models.Manager.from_queryset(ApiKeyQuerySet)):  # type: ignore[misc]
    def issue(
        self,
        *,
        workspace: Workspace,
        name: str,
        is_management: bool = False,
        expires_at: datetime | None = None,
        **fields: Any,
    ) -> tuple[ApiKey, secrets.Secret]:
        """Creates a key and returns it with its secret, which is stored nowhere.

        Raises :class:`WorkspaceNotFound` for a workspace that was deleted meanwhile.
        """
        secret = secrets.generate_api_key(is_management=is_management)
        with transaction.atomic():
            take_turns(workspace.organization_id)
            require_open(workspace.pk)
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
    """A bearer key: for inference, or for management, never for both."""

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
        null=True, editable=False, help_text="What it may spend, in nano-USD; empty: no limit."
    )
    limit_reset = models.CharField(max_length=16, choices=LimitReset, null=True, editable=False)
    include_byok_in_limit = models.BooleanField(default=False, db_default=False, editable=False)
    external_user = models.CharField(
        max_length=512, null=True, db_collation="C", editable=False, help_text="Whose key it is."
    )
    creator = models.ForeignKey(
        Member,
        on_delete=models.PROTECT,
        related_name="api_keys",
        db_index=False,
        null=True,
        blank=True,
        help_text="The member who made it, and under whose guardrail it falls.",
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
            # Whoever asks only whether a key is disabled refuses a deleted one too.
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(disabled=True), name="api_key_deleted_is_disabled"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.label})"

    @property
    def is_usable(self) -> bool:
        return not self.disabled and (self.expires_at is None or self.expires_at > timezone.now())

    def guardrails(self) -> KeyGuardrails:
        """Returns what governs the key besides its organization, read in one query."""
        default_id = default_guardrail_id(self.workspace_id)
        assigned = MemberAssignment.objects.filter(guardrail=OuterRef("pk"), member=self.creator_id)
        own = KeyAssignment.objects.filter(guardrail=OuterRef("pk"), api_key=self)
        found = list(
            Guardrail.objects.for_organization(self.organization_id)
            .annotate(is_members=Exists(assigned), is_keys=Exists(own))
            .filter(Q(pk=default_id) | Q(is_members=True) | Q(is_keys=True))
        )
        return KeyGuardrails(
            next((row for row in found if row.pk == default_id), None),
            next((row for row in found if row.is_members), None),
            next((row for row in found if row.is_keys), None),
        )

    @property
    def policy(self) -> Policy:
        """What everyone who has a say permits together: all but the request itself."""
        policy = self.organization.policy
        for guardrail in self.guardrails():
            if guardrail is not None:
                policy &= guardrail.policy
        return policy

    def edit(self, **changes: Any) -> bool:
        """Present, unchanged. Writes the fields that differ; returns whether any did.

        Raises :class:`ApiKeyNotFound` for a key that was revoked meanwhile, and
        :class:`WorkspaceNotFound` when it would work in a workspace that was deleted.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update(no_key=True))
            if self.deleted_at is not None:
                raise ApiKeyNotFound
            if changes.keys() & {"workspace_id", "disabled"}:
                take_turns(self.organization_id)
            if "workspace_id" in changes or changes.get("disabled") is False:
                require_open(changes.get("workspace_id", self.workspace_id))
            return write_fields(self, changes)

    def revoke(self) -> bool:
        """Present → gone, for good, from the next request on; returns whether it was there.

        The row stays, for the generations that point at it.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update())
            if self.deleted_at is not None:
                return False
            self.disabled, self.deleted_at = True, timezone.now()
            self.save_fields("disabled", "deleted_at")
        return True


class GuardrailQuerySet(models.QuerySet["Guardrail"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)


class GuardrailManager(models.Manager.from_queryset(GuardrailQuerySet)):  # type: ignore[misc]
    def establish(self, *, workspace: Workspace, name: str, **fields: Any) -> Guardrail:
        """Files a guardrail in a workspace, where it governs nothing until it is assigned.

        Raises :class:`InvalidRequest` for a budget without a period, or a period without a budget,
        and :class:`WorkspaceNotFound` for a workspace that was deleted meanwhile.
        """
        with transaction.atomic():
            take_turns(workspace.organization_id)
            require_open(workspace.pk)
            guardrail = Guardrail(
                organization_id=workspace.organization_id,
                workspace=workspace,
                name=name,
                **_for_families(fields),
            )
            guardrail.require_whole_budget()
            guardrail.save(force_insert=True)
        return guardrail

    def govern(self, workspace: Workspace, **changes: Any) -> Guardrail:
        """Changes the guardrail of a whole workspace; the first change makes it."""
        with transaction.atomic():
            take_turns(workspace.organization_id)
            found: Guardrail | None = self.filter(pk=workspace.default_guardrail_id).first()
            if found is None:
                fields = {"name": "Workspace default", **changes}
                return self.establish(
                    workspace=workspace, id=workspace.default_guardrail_id, **fields
                )
            found.edit(**changes)
        return found


class Guardrail(BaseModel):
    """Limits that hold for the keys and members that it is assigned to.

    A workspace's default guardrail (:attr:`Workspace.default_guardrail_id`) needs no assignment: it
    holds for all of the workspace. Flags of ``None`` leave the decision to the organization, which
    a guardrail can only tighten. Its budget counts what each key, or each member, spends by itself.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="guardrails", editable=False
    )
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="guardrails", null=True, blank=True
    )
    name = models.CharField(max_length=255)
    description = models.TextField(null=True, blank=True)
    allowed_models = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    ignored_models = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_providers = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    ignored_providers = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_data_regions = ArrayField(
        models.CharField(max_length=16, choices=Region), null=True, blank=True
    )
    enforce_zdr = models.BooleanField(null=True, blank=True)
    enforce_zdr_anthropic = models.BooleanField(null=True, blank=True)
    enforce_zdr_google = models.BooleanField(null=True, blank=True)
    enforce_zdr_openai = models.BooleanField(null=True, blank=True)
    enforce_zdr_xai = models.BooleanField(null=True, blank=True)
    enforce_zdr_other = models.BooleanField(null=True, blank=True)
    allow_safety_retention_google = models.BooleanField(null=True, blank=True)
    allow_safety_retention_other = models.BooleanField(null=True, blank=True)
    enable_free_model_publication = models.BooleanField(null=True, blank=True)
    enable_free_model_training = models.BooleanField(null=True, blank=True)
    enable_paid_model_training = models.BooleanField(null=True, blank=True)
    content_filters = models.JSONField(null=True, blank=True)
    content_filter_builtins = models.JSONField(null=True, blank=True)
    limit_nano = models.BigIntegerField(null=True, blank=True, help_text="In nano-USD.")
    reset_interval = models.CharField(max_length=16, choices=LimitReset, null=True, blank=True)
    include_byok_in_budgets = models.BooleanField(default=False)

    objects = GuardrailManager()

    class Meta:
        ordering = ("organization", "created_at", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(limit_nano=None) | Q(limit_nano__gte=0),
                name="guardrail_limit_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(limit_nano=None, reset_interval=None)
                | Q(limit_nano__isnull=False, reset_interval__isnull=False),
                name="guardrail_budget_whole",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def policy(self) -> Policy:
        """What it permits, as one policy."""
        return Policy.of(
            only=self.allowed_providers,
            ignore=self.ignored_providers,
            models=self.allowed_models,
            ignored_models=self.ignored_models,
            zdr=[family for family in Family if getattr(self, f"enforce_zdr_{family}")],
            no_training=self.enable_paid_model_training is False,
            no_free_training=self.enable_free_model_training is False,
            entrances=self.allowed_data_regions,
        )

    def require_whole_budget(self) -> None:
        """Raises :class:`InvalidRequest` for a limit without a period or a period without one."""
        if (self.limit_nano is None) != (self.reset_interval is None):
            missing, given = "reset_interval", "limit_usd"
            if self.limit_nano is None:
                missing, given = given, missing
            raise refusal(missing, f"Must go together with {given}.")

    def edit(self, **changes: Any) -> bool:
        """Present, unchanged. Writes the fields that differ; returns whether any did.

        ``enforce_zdr`` goes into the families that are not named, as it does in a new guardrail.
        Raises :class:`GuardrailNotFound` for one that was deleted meanwhile, and
        :class:`InvalidRequest` when only one of budget and period would be left.
        """
        with transaction.atomic():
            self._lock_present()
            changed = set_fields(self, _for_families(changes))
            self.require_whole_budget()
            if changed:
                self.save_fields(*changed)
        return bool(changed)

    def remove(self) -> None:
        """Present → gone, with its assignments; raises :class:`GuardrailNotFound` when it was."""
        with transaction.atomic():
            self._lock_present()
            self.delete()

    def assign_keys(self, keys: Collection[ApiKey], *, by: str) -> int:
        """Makes it the one guardrail of keys; returns of how many it was not."""
        return self._assign(KeyAssignment, "api_key", keys, by)

    def unassign_keys(self, keys: Collection[ApiKey]) -> int:
        """Leaves keys without a guardrail of their own; returns of how many it was that."""
        return self._unassign(KeyAssignment, "api_key", keys)

    def assign_members(self, members: Collection[Member], *, by: str) -> int:
        """Makes it the one guardrail of members; returns of how many it was not."""
        return self._assign(MemberAssignment, "member", members, by)

    def unassign_members(self, members: Collection[Member]) -> int:
        """Leaves members without a guardrail; returns of how many it was that."""
        return self._unassign(MemberAssignment, "member", members)

    def _assign(
        self,
        kind: type[KeyAssignment] | type[MemberAssignment],
        name: str,
        subjects: Iterable[ApiKey] | Iterable[Member],
        by: str,
    ) -> int:
        with transaction.atomic():
            self._lock_present()
            manager: Any = kind._default_manager
            wanted = {subject.pk: subject for subject in subjects}
            ours = manager.filter(guardrail=self, **{f"{name}__in": wanted})
            for pk in ours.values_list(f"{name}_id", flat=True):
                del wanted[pk]
            manager.filter(**{f"{name}__in": wanted}).delete()
            manager.bulk_create(
                kind(guardrail=self, assigned_by=by, **{name: subject})
                for subject in wanted.values()
            )
        return len(wanted)

    def _unassign(
        self,
        kind: type[KeyAssignment] | type[MemberAssignment],
        name: str,
        subjects: Iterable[ApiKey] | Iterable[Member],
    ) -> int:
        with transaction.atomic():
            self._lock_present()
            manager: Any = kind._default_manager
            gone: int = manager.filter(
                guardrail=self, **{f"{name}__in": [subject.pk for subject in subjects]}
            ).delete()[0]
        return gone

    def _lock_present(self) -> None:
        take_turns(self.organization_id)
        try:
            self.refresh_from_db(
                from_queryset=Guardrail._base_manager.select_for_update(no_key=True)
            )
        except Guardrail.DoesNotExist:
            raise GuardrailNotFound from None


def _for_families(fields: dict[str, Any]) -> dict[str, Any]:
    """Copies ``enforce_zdr``, which decides nothing by itself, into the families not named."""
    if "enforce_zdr" not in fields:
        return fields
    return {**{f"enforce_zdr_{family}": fields["enforce_zdr"] for family in Family}, **fields}


class KeyAssignment(BaseModel):
    """The one guardrail of a key."""

    guardrail = models.ForeignKey(
        Guardrail, on_delete=models.CASCADE, related_name="key_assignments"
    )
    api_key = models.OneToOneField(
        ApiKey, on_delete=models.CASCADE, related_name="guardrail_assignment"
    )
    assigned_by = models.CharField(max_length=255, null=True, editable=False)

    class Meta:
        ordering = ("created_at", "id")

    def __str__(self) -> str:
        return f"{self.guardrail} for {self.api_key}"


class MemberAssignment(BaseModel):
    """The one guardrail of a member, which holds for every key that the member made."""

    guardrail = models.ForeignKey(
        Guardrail, on_delete=models.CASCADE, related_name="member_assignments"
    )
    member = models.OneToOneField(
        Member, on_delete=models.CASCADE, related_name="guardrail_assignment"
    )
    assigned_by = models.CharField(max_length=255, null=True, editable=False)

    class Meta:
        ordering = ("created_at", "id")

    def __str__(self) -> str:
        return f"{self.guardrail} for {self.member}"


class KeyGuardrails(NamedTuple):
    """The guardrails that govern a key: its workspace's, its creator's and its own."""

    workspace: Guardrail | None
    member: Guardrail | None
    key: Guardrail | None
