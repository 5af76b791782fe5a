"""Workspaces of organizations, with their members and budgets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q

from accounts.models.edits import refusal, write_fields
from accounts.models.limits import OrganizationLimit
from accounts.models.members import Member
from accounts.models.organizations import Organization
from accounts.models.rate_limits import LimitOwner, RateLimit
from accounts.models.terms import BudgetInterval, FallbackField, number_of_key
from accounts.models.versions import RoutingVersionBump
from config.api.errors import InvalidRequest, NotFound, Unavailable
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import BaseModel, OwnedQuerySet, index_beginnings

# Settings that are stored and that nothing reads yet, with the values that switch nothing on.
_UNREAD: Final[Mapping[str, tuple[Any, ...]]] = {
    "is_data_discount_logging_enabled": (False,),
}
WORKSPACE_SLUG: Final = re.compile("[a-z0-9]+(?:-[a-z0-9]+)*")
_TRIES: Final = 5
_LIKE_AN_ID: Final = re.compile("[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class WorkspaceNotFound(NotFound):
    message = "The workspace does not exist."


class BudgetNotFound(NotFound):
    message = "The workspace has no budget for this interval."


def default_guardrail_id(workspace_id: uuid.UUID) -> uuid.UUID:
    """Returns the primary key of the guardrail that applies to a whole workspace.

    The first change to the guardrail creates its row.
    """
    return uuid.uuid5(workspace_id, "default guardrail")


class WorkspaceQuerySet(OwnedQuerySet["Workspace"]):
    present = {"deleted_at": None}


class WorkspaceManager(models.Manager.from_queryset(WorkspaceQuerySet)):  # type: ignore[misc]
    def create_workspace(
        self,
        *,
        organization_id: uuid.UUID,
        name: str,
        slug: str,
        created_by: str | None = None,
        rate_limits: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Workspace:
        """Creates a workspace; raises :class:`InvalidRequest` for a slug that is taken.

        ``rate_limits`` are changes as :meth:`RateLimitManager.change` takes them. Raises
        :class:`OrganizationLimitReached`.
        """
        with transaction.atomic():
            present = self.for_organization(organization_id)
            Organization.objects.lock_with_room(
                organization_id, OrganizationLimit.WORKSPACES, present
            )
            workspace = Workspace(
                organization_id=organization_id,
                name=name,
                slug=slug,
                created_by=created_by,
                **fields,
            )
            workspace.require_free(slug)
            _require_storage(workspace, fields)
            _refuse_unread(Workspace(), fields)
            _require_logging(workspace, fields)
            workspace.save(force_insert=True)
            if rate_limits is not None:
                RateLimit.objects.change(workspace.limit_owner, rate_limits)
        return workspace


class LoggingSettings(models.Model):
    """The settings of a workspace that say which inputs and outputs are stored, and how long."""

    io_logging_api_key_ids = ArrayField(
        models.BigIntegerField(),
        verbose_name="keys that are logged",
        null=True,
        blank=True,
        help_text="Numbers of API keys. Empty for all keys of the workspace.",
    )
    io_logging_sampling_rate = models.DecimalField(
        "sampling rate",
        max_digits=5,
        decimal_places=4,
        default=1,
        db_default=1,
        help_text="The part of the requests that is stored: 1 for all, 0.01 for one in a hundred.",
    )
    io_logging_retention_days = models.PositiveSmallIntegerField(
        "days of retention",
        null=True,
        blank=True,
        help_text="Texts are deleted after this many days. Empty for as many as the operator "
        "allows.",
    )
    is_observability_io_logging_enabled = models.BooleanField(
        "log inputs and outputs",
        default=False,
        db_default=False,
        help_text="Prompts and completions are stored, encrypted and for a limited time. Never "
        "those of requests under zero data retention.",
    )

    class Meta:
        abstract = True


class Workspace(LoggingSettings, BaseModel):
    """A part of an organization with its own credentials and keys."""

    class ProviderSort(models.TextChoices):
        PRICE = "price", "price"
        THROUGHPUT = "throughput", "throughput"
        LATENCY = "latency", "latency"
        EXACTO = "exacto", "exacto"

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="workspaces", db_index=False
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
    fallback = FallbackField(null=True)
    is_data_discount_logging_enabled = models.BooleanField(default=False, db_default=False)
    is_observability_broadcast_enabled = models.BooleanField(
        "broadcast generations",
        default=False,
        db_default=False,
        help_text="The metadata of generations, never their texts, goes to the enabled "
        "destinations of the workspace.",
    )
    include_byok_in_budgets = models.BooleanField(default=False, db_default=False)
    is_answer_storage_enabled = models.BooleanField(
        "keep answers",
        default=False,
        db_default=False,
        help_text="Answers are kept, encrypted and for a limited time, for requests that are sent "
        "again with their Idempotency-Key and for the response cache.",
    )
    is_response_caching_enabled = models.BooleanField(
        "cache responses",
        default=False,
        db_default=False,
        help_text="Requests use the response cache unless they say otherwise. Needs kept answers.",
    )
    deleted_at = models.DateTimeField(null=True, editable=False)

    objects = WorkspaceManager()

    class Meta:
        ordering = ("organization", "name")
        indexes = [index_beginnings("name", "workspace_by_name")]
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
            models.CheckConstraint(
                condition=Q(io_logging_retention_days__gt=0), name="workspace_retention_days"
            ),
            models.CheckConstraint(
                condition=Q(is_response_caching_enabled=False) | Q(is_answer_storage_enabled=True),
                name="workspace_cache_keeps_answers",
            ),
        ]
        triggers = [
            RoutingVersionBump(operation=pgtrigger.Insert | pgtrigger.Update),
            Audit(),
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"

    @property
    def default_guardrail_id(self) -> uuid.UUID:
        """Returns the primary key of the guardrail that applies to the whole workspace."""
        return default_guardrail_id(self.pk)

    @property
    def limit_owner(self) -> LimitOwner:
        return LimitOwner(self.organization_id, workspace_id=self.pk)

    def require_free(self, slug: str) -> None:
        """Raises :class:`InvalidRequest` for a slug that is taken or looks like an id.

        Paths name a workspace by its slug or by its id.
        """
        if _LIKE_AN_ID.fullmatch(slug):
            raise refusal("slug", "Must not look like an id.")
        others = Workspace.objects.filter(organization=self.organization_id, slug=slug)
        if others.exclude(pk=self.pk).exists():
            raise refusal("slug", "Is taken by another workspace.")

    def edit(self, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        ``rate_limits`` are changes as :meth:`RateLimitManager.change` takes them. Raises
        :class:`WorkspaceNotFound` when the workspace was deleted meanwhile, and
        :class:`InvalidRequest` for a slug that is taken.
        """
        with transaction.atomic():
            self.lock_present()
            _refuse_unread(self, changes)
            _require_logging(self, changes)
            if changes.get("slug", self.slug) != self.slug:
                self.require_free(changes["slug"])
            _require_storage(self, changes)
            is_limited = False
            if "rate_limits" in changes:
                is_limited = RateLimit.objects.change(self.limit_owner, changes.pop("rate_limits"))
            return _write_settings(self, changes) or is_limited

    def close(self, *, confirm_default: bool = False) -> None:
        """PRESENT → DELETED. Deletes budgets, guardrails, presets and memberships; frees the slug.

        Disables its destinations. Refuses a workspace with a usable inference key. Deletes the
        default workspace only with ``confirm_default``; its inference keys are then disabled,
        because callers created them without naming a workspace. Management keys belong to the
        organization and stay usable. The row stays because generations point at it.

        Raises :class:`InvalidRequest` for a refusal, :class:`WorkspaceNotFound` when the workspace
        is already deleted, and :class:`Unavailable` when new keys start to work in it during every
        attempt.
        """
        for _ in range(_TRIES):
            if self._close(confirm_default=confirm_default):
                return
        raise Unavailable

    def _close(self, *, confirm_default: bool) -> bool:
        """Deletes the workspace and returns True, or returns False when a new key became usable.

        Keys are locked before organizations. So a key that became usable after the keys were locked
        cannot be locked now; the caller starts again.
        """
        keys = self.api_keys.for_inference().enabled().filter(deleted_at=None)
        with transaction.atomic():
            locked = keys.lock_in_order()
            self.lock_present()
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
            now = clock.now()
            keys.filter(pk__in=locked).update(disabled=True, updated_at=now)
            self.budgets.all().delete()
            self.guardrails.all().delete()
            # Their system prompts are texts of the customer.
            self.presets.all().delete()
            self.memberships.all().delete()
            self.rate_limits.all().delete()
            for destination in self.destinations.all():
                destination.close()
            self.slug, self.deleted_at = self.pk.hex, now
            self.save_fields("slug", "deleted_at")
        return True

    def place_of(self, member: Member) -> WorkspaceMember:
        """Returns an unsaved membership for the default workspace, which has every member."""
        return WorkspaceMember(
            id=uuid.uuid5(self.pk, str(member.pk)),
            workspace=self,
            member=member,
            role=member.role,
            created_at=member.created_at,
        )

    def add_members(self, members: Collection[Member]) -> int:
        """Adds members with their current role and returns how many were new.

        Raises :class:`MemberNotFound` when one was deleted meanwhile.
        """
        with transaction.atomic():
            self.lock_present()
            Member.objects.require_present(*(member.pk for member in members))
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
        """Removes all the members, or none of them, and returns how many there were.

        Raises :class:`InvalidRequest` for a member with a usable key in the workspace, and for the
        default workspace, which always has every member.
        """
        with transaction.atomic():
            self.lock_present()
            if self.is_default:
                raise InvalidRequest("Members cannot be removed from the default workspace.")
            keys = self.api_keys.enabled().unexpired().filter(creator__in=members, deleted_at=None)
            holder = keys.select_related("creator").first()
            if holder is not None:
                raise InvalidRequest(f"The member {holder.creator} has active API keys here.")
            return self.memberships.filter(member__in=members).delete()[0]

    def set_budget(
        self, interval: BudgetInterval, *, limit_nano: int, include_byok: bool | None = None
    ) -> WorkspaceBudget:
        """Sets the budget of one interval; ``include_byok`` applies to all budgets.

        Raises :class:`InvalidRequest` unless each budget is below the budgets of longer intervals.
        """
        with transaction.atomic():
            self.lock_present()
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
        """Deletes the budget of one interval and returns whether there was one."""
        with transaction.atomic():
            self.lock_present()
            return bool(self.budgets.filter(interval=interval).delete()[0])

    def lock_present(self) -> None:
        """Locks the organization and the row; raises :class:`WorkspaceNotFound` if deleted."""
        Organization.objects.lock(self.organization_id)
        self.refresh_from_db(from_queryset=Workspace._base_manager.select_for_update(no_key=True))
        if self.deleted_at is not None:
            raise WorkspaceNotFound


def _refuse_unread(workspace: Workspace, changes: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidRequest` for a change that would switch on what nothing does."""
    for name, idle in _UNREAD.items():
        value = changes.get(name, idle[0])
        if value not in idle and value != getattr(workspace, name):
            raise refusal(name, "This service does not do this yet. Leave it out.")


def _write_settings(workspace: Workspace, changes: Mapping[str, Any]) -> bool:
    """Writes the fields that differ; destinations begin anew when broadcasting is switched on."""
    was_broadcasting = workspace.is_observability_broadcast_enabled
    is_changed = write_fields(workspace, changes)
    if workspace.is_observability_broadcast_enabled and not was_broadcasting:
        for destination in workspace.destinations.all():
            # What ended while nothing was broadcast stays here.
            destination.restart()
    return is_changed


def _require_storage(workspace: Workspace, changes: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidRequest` for a response cache without kept answers."""
    names = ("is_response_caching_enabled", "is_answer_storage_enabled")
    is_cached, is_kept = (changes.get(name, getattr(workspace, name)) for name in names)
    if is_cached and not is_kept:
        raise refusal(names[0], f"Needs {names[1]}.")


def _require_logging(workspace: Workspace, changes: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidRequest` for input/output logging that this service would not do.

    The operator's limit bounds the days of every workspace, also of one that names none.
    """
    most = settings.IO_LOGGING_DAYS
    if changes.get("is_observability_io_logging_enabled") and not most:
        raise refusal(
            "is_observability_io_logging_enabled",
            "The operator of this service does not allow it (IO_LOGGING_DAYS is 0). Leave it out.",
        )
    days = changes.get("io_logging_retention_days")
    if days is not None and not 0 < days <= most:
        raise refusal(
            "io_logging_retention_days",
            f"Must be at least 1 and at most {most}, which the operator of this service allows, "
            "or null for as many.",
        )
    numbers = changes.get("io_logging_api_key_ids")
    if numbers and (workspace._state.adding or numbers != workspace.io_logging_api_key_ids):
        keys = Organization(pk=workspace.organization_id).api_keys.for_inference()
        known = keys.filter(deleted_at=None).values_list("pk", flat=True)
        unknown = set(numbers) - {number_of_key(key_id) for key_id in known.iterator()}
        if unknown:
            raise refusal(
                "io_logging_api_key_ids",
                f"The organization has no inference key with the number {min(unknown)}: send the "
                "`number` of keys from GET /keys.",
            )


class WorkspaceMember(BaseModel):
    """A membership in a workspace; the default workspace has every member without such rows."""

    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="memberships", db_index=False
    )
    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Member.Role)

    class Meta:
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(fields=("workspace", "member"), name="workspace_member_unique")
        ]
        triggers = [Audit(organization="workspace__organization")]

    def __str__(self) -> str:
        return f"{self.member} in {self.workspace}"


class WorkspaceBudget(BaseModel):
    """The limit on the spending of a whole workspace in one interval."""

    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="budgets", db_index=False
    )
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
        triggers = [
            RoutingVersionBump(through="workspace"),
            Audit(organization="workspace__organization"),
        ]

    def __str__(self) -> str:
        return f"{self.interval} budget of {self.workspace}"


def create_member(
    organization_id: uuid.UUID, *, email: str, workspaces: Collection[Workspace] = (), **fields: Any
) -> Member:
    """Creates a member who joins workspaces, with the role in the organization.

    Raises :class:`MemberExists`, and :class:`WorkspaceNotFound` for a workspace that was deleted
    meanwhile.
    """
    with transaction.atomic():
        Organization.objects.lock(organization_id)
        Member.objects.require_free(organization_id, email)
        member = Member.objects.create(organization_id=organization_id, email=email, **fields)
        for workspace in workspaces:
            workspace.add_members([member])
    return member


def edit_member(member: Member, **changes: Any) -> bool:
    """Edits a member as :meth:`Member.edit` does, and its address too.

    Raises :class:`MemberExists` for the address of another member.
    """
    with transaction.atomic():
        Organization.objects.lock(member.organization_id)
        if "email" in changes:
            others = Member.objects.exclude(pk=member.pk)
            others.require_free(member.organization_id, changes["email"])
        return member.edit(**changes)


def remove_member(member: Member) -> None:
    """Deletes a member as :meth:`Member.remove` does, while no key is created."""
    with transaction.atomic():
        Organization.objects.lock(member.organization_id)
        member.remove()


def require_workspace(workspace_id: uuid.UUID) -> None:
    """Raises :class:`WorkspaceNotFound` for a deleted workspace."""
    if not Workspace.objects.filter(pk=workspace_id, deleted_at=None).exists():
        raise WorkspaceNotFound


def workspace_for(organization_id: uuid.UUID, workspace_id: uuid.UUID | None) -> Workspace:
    """Returns a workspace of an organization: the one with the id, or the default one for ``None``.

    Raises :class:`WorkspaceNotFound` for an unknown id and for one of another organization, and
    :class:`InvalidRequest` for ``None`` when the default workspace was deleted.
    """
    match = Q(is_default=True) if workspace_id is None else Q(pk=workspace_id)
    workspace: Workspace | None
    workspace = Workspace.objects.for_organization(organization_id).filter(match).first()
    if workspace is None and workspace_id is None:
        raise refusal("workspace_id", "Is required because there is no default workspace.")
    if workspace is None:
        raise WorkspaceNotFound
    return workspace
