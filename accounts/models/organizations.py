"""Who calls: organizations, and the workspaces that they are divided into."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from typing import Any, Final, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.text import slugify

from accounts.models.edits import refusal, write_fields
from accounts.models.members import Member
from accounts.models.terms import BudgetInterval
from accounts.policy import Policy
from config.api.errors import InvalidRequest, NotFound, Unavailable
from config.models import BaseModel

WORKSPACE_SLUG: Final = re.compile("[a-z0-9]+(?:-[a-z0-9]+)*")
_TRIES: Final = 5
_LIKE_AN_ID: Final = re.compile("[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class WorkspaceNotFound(NotFound):
    message = "The workspace does not exist."


class BudgetNotFound(NotFound):
    message = "The workspace has no budget for this interval."


class OrganizationManager(models.Manager["Organization"]):
    def establish(self, *, name: str, endpoint_limit: int | None = None) -> Organization:
        """Creates an organization with its default workspace."""
        with transaction.atomic():
            organization = self.create(
                name=name, slug=self._free_slug(name), endpoint_limit=endpoint_limit
            )
            Workspace.objects.create(
                organization=organization, name="Default", slug="default", is_default=True
            )
        return organization

    def _free_slug(self, name: str) -> str:
        base = slugify(name)[:40] or "organization"
        return base if not self.filter(slug=base).exists() else f"{base}-{uuid.uuid4().hex[:8]}"


class Organization(BaseModel):
    """The party that owns everything: keys, endpoints, end users and credits."""

    name = models.CharField(max_length=255)
    slug = models.SlugField(max_length=64, unique=True)
    endpoint_limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Private endpoints at most; empty for the service's default.",
    )
    is_filtered_model_catalog_enabled = models.BooleanField(
        "filtered catalogue",
        default=False,
        db_default=False,
        help_text="The model lists show this organization's keys only what they may use.",
    )
    allowed_providers = ArrayField(
        models.CharField(max_length=255),
        null=True,
        blank=True,
        help_text="Slugs of the only providers that may be used; empty: any.",
    )
    ignored_providers = ArrayField(
        models.CharField(max_length=255),
        null=True,
        blank=True,
        help_text="Slugs of providers that are never used.",
    )
    requires_zdr = models.BooleanField("zero data retention only", default=False, db_default=False)
    forbids_training = models.BooleanField(
        "no training on prompts",
        default=False,
        db_default=False,
        help_text="Endpoints whose provider trains on prompts are never used.",
    )
    routing_version = models.BigIntegerField(
        default=0,
        editable=False,
        help_text="Moves when what this organization may route to changes; kept by triggers.",
    )

    objects = OrganizationManager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def private_endpoint_limit(self) -> int:
        limit: int = settings.PRIVATE_ENDPOINT_LIMIT
        return limit if self.endpoint_limit is None else self.endpoint_limit

    @property
    def default_workspace(self) -> Workspace:
        return self.workspaces.get(is_default=True)

    @property
    def policy(self) -> Policy:
        return Policy.of(
            only=self.allowed_providers,
            ignore=self.ignored_providers,
            zdr=self.requires_zdr,
            no_training=self.forbids_training,
        )

    def edit(self, **changes: Any) -> bool:
        """Writes the fields that differ; returns whether any did."""
        with transaction.atomic():
            self.refresh_from_db(
                from_queryset=Organization._base_manager.select_for_update(no_key=True)
            )
            return write_fields(self, changes)


def default_guardrail_id(workspace_id: uuid.UUID) -> uuid.UUID:
    """Returns the key of the guardrail that governs a whole workspace, whether it exists yet."""
    return uuid.uuid5(workspace_id, "default guardrail")


class WorkspaceQuerySet(models.QuerySet["Workspace"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id, deleted_at=None)


class WorkspaceManager(models.Manager.from_queryset(WorkspaceQuerySet)):  # type: ignore[misc]
    def open(
        self,
        *,
        organization_id: uuid.UUID,
        name: str,
        slug: str,
        created_by: str | None = None,
        **fields: Any,
    ) -> Workspace:
        """Creates a workspace; raises :class:`InvalidRequest` for a slug that is taken."""
        with transaction.atomic():
            take_turns(organization_id)
            workspace = Workspace(
                organization_id=organization_id,
                name=name,
                slug=slug,
                created_by=created_by,
                **fields,
            )
            workspace.require_free(slug)
            workspace.save(force_insert=True)
        return workspace


class Workspace(BaseModel):
    """A part of an organization with credentials and keys of its own."""

    class ProviderSort(models.TextChoices):
        PRICE = "price", "price"
        THROUGHPUT = "throughput", "throughput"
        LATENCY = "latency", "latency"
        EXACTO = "exacto", "exacto"

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="workspaces"
    )
    name = models.CharField(max_length=255)
    slug = models.SlugField(max_length=64)
    is_default = models.BooleanField(default=False)
    description = models.TextField(null=True, blank=True)
    created_by = models.CharField(max_length=255, null=True, editable=False)
    default_text_model = models.CharField(max_length=255, null=True, blank=True)
    default_image_model = models.CharField(max_length=255, null=True, blank=True)
    default_provider_sort = models.CharField(
        max_length=16, choices=ProviderSort, null=True, blank=True
    )
    disabled_server_tools = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    io_logging_api_key_ids = ArrayField(models.BigIntegerField(), null=True, blank=True)
    io_logging_sampling_rate = models.DecimalField(
        max_digits=5, decimal_places=4, default=1, db_default=1
    )
    is_data_discount_logging_enabled = models.BooleanField(default=False, db_default=False)
    is_observability_broadcast_enabled = models.BooleanField(default=False, db_default=False)
    is_observability_io_logging_enabled = models.BooleanField(default=False, db_default=False)
    include_byok_in_budgets = models.BooleanField(default=False, db_default=False)
    deleted_at = models.DateTimeField(null=True, editable=False)

    objects = WorkspaceManager()

    class Meta:
        ordering = ("organization", "name")
        constraints = [
            models.UniqueConstraint(fields=("organization", "slug"), name="workspace_slug_unique"),
            models.UniqueConstraint(
                fields=("organization",),
                condition=Q(is_default=True),
                name="workspace_one_default",
            ),
            models.CheckConstraint(
                condition=Q(io_logging_sampling_rate__gt=0, io_logging_sampling_rate__lte=1),
                name="workspace_sampling_rate",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"

    @property
    def default_guardrail_id(self) -> uuid.UUID:
        """The key of the guardrail that governs the whole workspace, whether it exists yet."""
        return default_guardrail_id(self.pk)

    def require_free(self, slug: str) -> None:
        """Raises :class:`InvalidRequest` for a slug that another workspace has, or reads as an id.

        Paths name a workspace by either.
        """
        if _LIKE_AN_ID.fullmatch(slug):
            raise refusal("slug", "Must not look like an id.")
        others = Workspace.objects.filter(organization=self.organization_id, slug=slug)
        if others.exclude(pk=self.pk).exists():
            raise refusal("slug", "Is taken by another workspace.")

    def edit(self, **changes: Any) -> bool:
        """Present, unchanged. Writes the fields that differ; returns whether any did.

        Raises :class:`WorkspaceNotFound` for one that was deleted meanwhile, and
        :class:`InvalidRequest` for a slug that is taken.
        """
        with transaction.atomic():
            self._lock_present()
            if changes.get("slug", self.slug) != self.slug:
                self.require_free(changes["slug"])
            return write_fields(self, changes)

    def close(self, *, confirm_default: bool = False) -> None:
        """Present → gone. Takes budgets, guardrails and members along, and gives up the slug.

        Refused while the workspace has a usable inference key. The default workspace goes only
        when that is confirmed, and then disables its inference keys: they are those that were made
        without naming a workspace. Management keys are the organization's and survive. The row
        stays, for the generations that point at it. Raises :class:`InvalidRequest` for a refusal,
        :class:`WorkspaceNotFound` for one that is gone already, and :class:`Unavailable` when other
        keys begin to work in it at every try.
        """
        for _ in range(_TRIES):
            if self._close(confirm_default=confirm_default):
                return
        raise Unavailable

    def _close(self, *, confirm_default: bool) -> bool:
        """Closes, unless a key began to work since the others were locked; returns whether it did.

        Admission has keys before organizations, so that one must not be locked any more.
        """
        keys = self.api_keys.for_inference().enabled().filter(deleted_at=None)
        with transaction.atomic():
            in_order = keys.order_by("pk").select_for_update(no_key=True)
            locked = list(in_order.values_list("pk", flat=True))
            self._lock_present()
            if self.is_default and not confirm_default:
                raise refusal(
                    "confirm_default_workspace_deletion",
                    "Must be true to delete the default workspace.",
                )
            if not self.is_default and keys.unexpired().exists():
                raise InvalidRequest(
                    "The workspace has active API keys. Delete, disable or move them first."
                )
            if keys.exclude(pk__in=locked).exists():
                transaction.set_rollback(True)
                return False
            now = timezone.now()
            keys.filter(pk__in=locked).update(disabled=True, updated_at=now)
            self.budgets.all().delete()
            self.guardrails.all().delete()
            self.memberships.all().delete()
            self.slug, self.deleted_at = self.pk.hex, now
            self.save_fields("slug", "deleted_at")
        return True

    def place_of(self, member: Member) -> WorkspaceMember:
        """Returns the place that a member has in the default workspace, where no row says so."""
        return WorkspaceMember(
            id=uuid.uuid5(self.pk, str(member.pk)),
            workspace=self,
            member=member,
            role=member.role,
            created_at=member.created_at,
        )

    def add_members(self, members: Collection[Member]) -> int:
        """Gives members a place, with the role that they have; returns how many had none."""
        with transaction.atomic():
            self._lock_present()
            if self.is_default:
                return 0
            present = set(self.memberships.values_list("member_id", flat=True))
            added = [
                WorkspaceMember(workspace=self, member=member, role=member.role)
                for member in members
                if member.pk not in present
            ]
            WorkspaceMember.objects.bulk_create(added)
            return len(added)

    def remove_members(self, members: Collection[Member]) -> int:
        """Takes the place of members away, of all or of none; returns how many had one.

        Raises :class:`InvalidRequest` for a member with a usable key in the workspace, and for the
        default workspace, which is everybody's.
        """
        with transaction.atomic():
            self._lock_present()
            if self.is_default:
                raise InvalidRequest("Every member is in the default workspace, for good.")
            keys = self.api_keys.enabled().unexpired().filter(creator__in=members, deleted_at=None)
            holder = keys.select_related("creator").first()
            if holder is not None:
                raise InvalidRequest(f"The member {holder.creator} has active API keys here.")
            return self.memberships.filter(member__in=members).delete()[0]

    def set_budget(
        self, interval: BudgetInterval, *, limit_nano: int, include_byok: bool | None = None
    ) -> WorkspaceBudget:
        """Limits what the workspace may spend in a period; ``include_byok`` holds for all periods.

        Raises :class:`InvalidRequest` unless each budget is below those of all longer periods.
        """
        with transaction.atomic():
            self._lock_present()
            order = list(BudgetInterval)
            for other in self.budgets.exclude(interval=interval):
                is_longer = order.index(BudgetInterval(other.interval)) > order.index(interval)
                if is_longer != (limit_nano < other.limit_nano) or limit_nano == other.limit_nano:
                    side = "below" if is_longer else "above"
                    raise refusal(
                        "limit_usd", f"Must be {side} the {other.interval} budget of the workspace."
                    )
            budget = self.budgets.filter(interval=interval).first()
            if budget is None:
                budget = self.budgets.create(interval=interval, limit_nano=limit_nano)
            else:
                write_fields(budget, {"limit_nano": limit_nano})
            if include_byok is not None:
                write_fields(self, {"include_byok_in_budgets": include_byok})
        return budget

    def lift_budget(self, interval: BudgetInterval) -> bool:
        """Takes a budget away; returns whether there was one."""
        with transaction.atomic():
            self._lock_present()
            return bool(self.budgets.filter(interval=interval).delete()[0])

    def _lock_present(self) -> None:
        take_turns(self.organization_id)
        self.refresh_from_db(from_queryset=Workspace._base_manager.select_for_update(no_key=True))
        if self.deleted_at is not None:
            raise WorkspaceNotFound


class WorkspaceMember(BaseModel):
    """A member's place in a workspace; in the default workspace every member has one unwritten."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="memberships")
    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Member.Role)

    class Meta:
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(fields=("workspace", "member"), name="workspace_member_unique")
        ]

    def __str__(self) -> str:
        return f"{self.member} in {self.workspace}"


class WorkspaceBudget(BaseModel):
    """What a whole workspace may spend over one kind of period."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="budgets")
    interval = models.CharField(max_length=16, choices=BudgetInterval)
    limit_nano = models.BigIntegerField(help_text="In nano-USD.")

    class Meta:
        ordering = ("workspace", "interval")
        constraints = [
            models.UniqueConstraint(
                fields=("workspace", "interval"), name="workspace_budget_unique"
            ),
            models.CheckConstraint(condition=Q(limit_nano__gt=0), name="workspace_budget_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.interval} budget of {self.workspace}"


def take_turns(organization_id: uuid.UUID) -> None:
    """Lets one transaction at a time change how an organization is governed.

    The first lock that such a transaction takes, but for those of keys that it changes: admission
    has keys before organizations, and at the transaction's end a trigger locks the same row.
    """
    Organization.objects.select_for_update(no_key=True).get(pk=organization_id)


def require_open(workspace_id: uuid.UUID) -> None:
    """Raises :class:`WorkspaceNotFound` for a workspace that is deleted."""
    if not Workspace.objects.filter(pk=workspace_id, deleted_at=None).exists():
        raise WorkspaceNotFound


def workspace_for(organization_id: uuid.UUID, workspace_id: uuid.UUID | None) -> Workspace:
    """Loads a workspace of the caller's organization, the default one when none is named.

    Raises :class:`WorkspaceNotFound`, for a foreign workspace as for one that does not exist, and
    :class:`InvalidRequest` when none is named and the default one was deleted.
    """
    wanted = Q(is_default=True) if workspace_id is None else Q(pk=workspace_id)
    found: Workspace | None
    found = Workspace.objects.for_organization(organization_id).filter(wanted).first()
    if found is None and workspace_id is None:
        raise refusal("workspace_id", "Is needed, for there is no default workspace.")
    if found is None:
        raise WorkspaceNotFound
    return found
