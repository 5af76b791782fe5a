"""Who calls: organizations, their workspaces, their API keys and their provider credentials."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Exists, Max, OuterRef, Q
from django.utils import timezone
from django.utils.text import slugify

from accounts.policy import Family, Policy
from config import secrets
from config.errors import InvalidRequest, NotFound
from config.models import BaseModel

HOST_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?")
WORKSPACE_SLUG: Final = re.compile("[a-z0-9]+(?:-[a-z0-9]+)*")
_LIKE_AN_ID: Final = re.compile("[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class Region(models.TextChoices):
    """Where a deployment processes data, as its owner declares it; ``global`` is not regional."""

    GLOBAL = "global", "global"
    EUROPE = "europe", "europe"
    US = "us", "us"


class LimitReset(models.TextChoices):
    """When what a key has spent counts from zero again: at midnight UTC, weeks from Monday."""

    DAILY = "daily", "daily"
    WEEKLY = "weekly", "weekly"
    MONTHLY = "monthly", "monthly"

    def began_at(self, now: datetime) -> datetime:
        """Returns the beginning of the period that holds a moment."""
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self is LimitReset.DAILY:
            return midnight
        if self is LimitReset.WEEKLY:
            return midnight - timedelta(days=midnight.weekday())
        return midnight.replace(day=1)

    def ends_at(self, now: datetime) -> datetime:
        """Returns the beginning of the period after it."""
        began = self.began_at(now)
        if self is LimitReset.DAILY:
            return began + timedelta(days=1)
        if self is LimitReset.WEEKLY:
            return began + timedelta(days=7)
        return (began + timedelta(days=31)).replace(day=1)


class BudgetInterval(models.TextChoices):
    """Over which period a workspace's budget counts; ``lifetime`` is never reset."""

    DAILY = "daily", "daily"
    WEEKLY = "weekly", "weekly"
    MONTHLY = "monthly", "monthly"
    LIFETIME = "lifetime", "lifetime"

    @property
    def reset(self) -> LimitReset | None:
        return None if self is BudgetInterval.LIFETIME else LimitReset(self.value)


class WorkspaceNotFound(NotFound):
    message = "The workspace does not exist."


class GuardrailNotFound(NotFound):
    message = "The guardrail does not exist."


class MemberNotFound(NotFound):
    message = "The member does not exist."


class BudgetNotFound(NotFound):
    message = "The workspace has no budget for this interval."


class ApiKeyNotFound(NotFound):
    message = "The API key does not exist."


class CredentialNotFound(NotFound):
    message = "The BYOK credential does not exist."


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
            return _write(self, changes)


class MemberQuerySet(models.QuerySet["Member"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)


class Member(BaseModel):
    """A person of an organization, known by an address; not a login.

    Keys that a member made fall under what is decided for the member.
    """

    class Role(models.TextChoices):
        ADMIN = "admin", "admin"
        MEMBER = "member", "member"

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    email = models.EmailField(max_length=254)
    first_name = models.CharField(max_length=255, null=True, blank=True)
    last_name = models.CharField(max_length=255, null=True, blank=True)
    role = models.CharField(max_length=16, choices=Role, default=Role.MEMBER)

    objects = MemberQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "email")
        constraints = [
            models.UniqueConstraint(fields=("organization", "email"), name="member_email_unique")
        ]

    def __str__(self) -> str:
        return self.email


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
            _take_turns(organization_id)
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
            raise _refusal("slug", "Must not look like an id.")
        others = Workspace.objects.filter(organization=self.organization_id, slug=slug)
        if others.exclude(pk=self.pk).exists():
            raise _refusal("slug", "Is taken by another workspace.")

    def edit(self, **changes: Any) -> bool:
        """Present, unchanged. Writes the fields that differ; returns whether any did.

        Raises :class:`WorkspaceNotFound` for one that was deleted meanwhile, and
        :class:`InvalidRequest` for a slug that is taken.
        """
        with transaction.atomic():
            self._lock_present()
            if changes.get("slug", self.slug) != self.slug:
                self.require_free(changes["slug"])
            return _write(self, changes)

    def close(self, *, confirm_default: bool = False) -> None:
        """Present → gone. Takes budgets, guardrails and members along, and gives up the slug.

        Refused while the workspace has a usable inference key. The default workspace goes only
        when that is confirmed, and then disables its inference keys: they are those that were made
        without naming a workspace. Management keys are the organization's and survive. The row
        stays, for the generations that point at it. Raises :class:`InvalidRequest` for a refusal,
        and :class:`WorkspaceNotFound` for one that is gone already.
        """
        with transaction.atomic():
            self._lock_present()
            keys = ApiKey.objects.filter(workspace=self, deleted_at=None).for_inference().enabled()
            if self.is_default and not confirm_default:
                raise _refusal(
                    "confirm_default_workspace_deletion",
                    "Must be true to delete the default workspace.",
                )
            if not self.is_default and keys.unexpired().exists():
                raise InvalidRequest(
                    "The workspace has active API keys. Delete, disable or move them first."
                )
            now = timezone.now()
            # In the order in which admission shares them.
            list(keys.order_by("pk").select_for_update(no_key=True).values_list("pk"))
            keys.update(disabled=True, updated_at=now)
            self.budgets.all().delete()
            self.guardrails.all().delete()
            self.memberships.all().delete()
            self.slug, self.deleted_at = self.pk.hex, now
            self.save_fields("slug", "deleted_at")

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
            keys = ApiKey.objects.filter(workspace=self, creator__in=members, deleted_at=None)
            holder = keys.enabled().unexpired().select_related("creator").first()
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
                    raise _refusal(
                        "limit_usd", f"Must be {side} the {other.interval} budget of the workspace."
                    )
            budget = self.budgets.filter(interval=interval).first()
            if budget is None:
                budget = self.budgets.create(interval=interval, limit_nano=limit_nano)
            else:
                _write(budget, {"limit_nano": limit_nano})
            if include_byok is not None:
                _write(self, {"include_byok_in_budgets": include_byok})
        return budget

    def lift_budget(self, interval: BudgetInterval) -> bool:
        """Takes a budget away; returns whether there was one."""
        with transaction.atomic():
            self._lock_present()
            return bool(self.budgets.filter(interval=interval).delete()[0])

    def _lock_present(self) -> None:
        _take_turns(self.organization_id)
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
            _take_turns(workspace.organization_id)
            _require_open(workspace.pk)
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

    def guardrails(self) -> Governance:
        """Returns what governs the key besides its organization, read in one query."""
        default_id = default_guardrail_id(self.workspace_id)
        assigned = MemberAssignment.objects.filter(guardrail=OuterRef("pk"), member=self.creator_id)
        own = KeyAssignment.objects.filter(guardrail=OuterRef("pk"), api_key=self)
        found = list(
            Guardrail.objects.for_organization(self.organization_id)
            .annotate(is_members=Exists(assigned), is_keys=Exists(own))
            .filter(Q(pk=default_id) | Q(is_members=True) | Q(is_keys=True))
        )
        return Governance(
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
            if changes.keys() & {"workspace_id", "disabled"}:
                _take_turns(self.organization_id)
            self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update())
            if self.deleted_at is not None:
                raise ApiKeyNotFound
            if "workspace_id" in changes or changes.get("disabled") is False:
                _require_open(changes.get("workspace_id", self.workspace_id))
            return _write(self, changes)

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
            _take_turns(workspace.organization_id)
            _require_open(workspace.pk)
            guardrail = Guardrail(
                organization_id=workspace.organization_id, workspace=workspace, name=name, **fields
            )
            guardrail.require_whole_budget()
            guardrail.save(force_insert=True)
        return guardrail

    def govern(self, workspace: Workspace, **changes: Any) -> Guardrail:
        """Changes the guardrail of a whole workspace; the first change makes it."""
        with transaction.atomic():
            _take_turns(workspace.organization_id)
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
            raise _refusal(missing, f"Must go together with {given}.")

    def edit(self, **changes: Any) -> bool:
        """Present, unchanged. Writes the fields that differ; returns whether any did.

        Raises :class:`GuardrailNotFound` for one that was deleted meanwhile, and
        :class:`InvalidRequest` when only one of budget and period would be left.
        """
        with transaction.atomic():
            self._lock_present()
            changed = _set(self, changes)
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
        _take_turns(self.organization_id)
        try:
            self.refresh_from_db(
                from_queryset=Guardrail._base_manager.select_for_update(no_key=True)
            )
        except Guardrail.DoesNotExist:
            raise GuardrailNotFound from None


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


class Governance(NamedTuple):
    """The guardrails that govern a key: its workspace's, its creator's and its own."""

    workspace: Guardrail | None
    member: Guardrail | None
    key: Guardrail | None


class ByokCredentialQuerySet(models.QuerySet["ByokCredential"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id, deleted_at=None)

    def usable_in(self, workspace: Workspace, provider_slug: str) -> Self:
        """Returns the credentials that a workspace may use at a provider, in order of trial."""
        return (
            self.for_organization(workspace.organization_id)
            .filter(
                Q(workspace=workspace) | Q(workspace=None),
                provider_slug=provider_slug,
                disabled=False,
            )
            .order_by("is_fallback", "sort_order", "created_at")
        )


class ByokCredentialManager(models.Manager.from_queryset(ByokCredentialQuerySet)):  # type: ignore[misc]
    def store(
        self,
        *,
        organization: Organization,
        workspace: Workspace | None,
        provider_slug: str,
        secret: secrets.Secret,
        **fields: Any,
    ) -> ByokCredential:
        """Seals a provider credential and appends it to the order of its provider."""
        with transaction.atomic():
            # The order is a sequence of the organization: two appends at once take turns.
            Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
            highest = (
                self.for_organization(organization.pk)
                .filter(provider_slug=provider_slug)
                .aggregate(highest=Max("sort_order"))["highest"]
            )
            credential = ByokCredential(
                organization=organization,
                workspace=workspace,
                provider_slug=provider_slug,
                sort_order=0 if highest is None else highest + 1,
                **fields,
            )
            credential.seal(secret)
            credential.save(force_insert=True)
        return credential


class ByokCredential(BaseModel):
    """An organization's own credential at a provider; the secret is write-only."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="byok_credentials", editable=False
    )
    workspace = models.ForeignKey(
        Workspace,
        on_delete=models.CASCADE,
        related_name="byok_credentials",
        null=True,
        blank=True,
        help_text="Empty: usable in every workspace.",
    )
    provider_slug = models.CharField(max_length=255)
    name = models.CharField(max_length=255, null=True, blank=True)
    label = models.CharField(max_length=32, editable=False)
    sealed = models.BinaryField(editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)
    sort_order = models.IntegerField(default=0)
    disabled = models.BooleanField(default=False)
    is_fallback = models.BooleanField(default=False)
    is_required = models.BooleanField(default=False)
    is_byok_only = models.BooleanField(default=False)
    allowed_models = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_api_key_hashes = ArrayField(models.CharField(max_length=64), null=True, blank=True)
    allowed_user_ids = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_hosts = ArrayField(
        models.CharField(max_length=253),
        null=True,
        blank=True,
        help_text="Hosts to which this credential may be sent; empty: any that the policy allows.",
    )
    declared_region = models.CharField(max_length=16, choices=Region, null=True, blank=True)
    declared_zdr = models.BooleanField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = ByokCredentialManager()

    class Meta:
        verbose_name = "BYOK credential"
        ordering = ("organization", "provider_slug", "sort_order")
        indexes = [models.Index(fields=("organization", "provider_slug"), name="byok_lookup")]
        constraints = [
            models.CheckConstraint(
                condition=Q(is_fallback=False) | Q(is_byok_only=False),
                name="byok_fallback_is_not_byok_only",
            ),
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(sealed=b""), name="byok_deleted_is_wiped"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider_slug} {self.label}"

    @property
    def _associated(self) -> str:
        return f"{self.pk}|{self.organization_id}|{self.workspace_id}|{self.provider_slug}"

    def seal(self, secret: secrets.Secret) -> None:
        """Puts the secret in, sealed to this row; the caller saves."""
        self.sealed = secrets.seal(secret, associated=self._associated)
        self.label = secret.label

    def reveal(self) -> secrets.Secret:
        """Opens the secret; raises :class:`config.secrets.DecryptionFailed`."""
        return secrets.unseal(bytes(self.sealed), associated=self._associated)

    def rotate(self, secret: secrets.Secret) -> None:
        """Replaces the secret in place; validations made with the old one become stale."""
        with transaction.atomic():
            self._lock_present()
            self.seal(secret)
            self.version = self.version + 1
            self.save_fields("sealed", "label", "version")

    def edit(self, *, secret: secrets.Secret | None = None, **changes: Any) -> bool:
        """Present, unchanged. Rotates to a secret that is given and writes the fields that differ.

        Returns whether anything changed. Raises :class:`CredentialNotFound` for one that was
        removed meanwhile, and :class:`InvalidRequest` for a fallback that is also BYOK only.
        """
        with transaction.atomic():
            self._lock_present()
            if secret is not None:
                self.rotate(secret)
            if changes.get("is_fallback", self.is_fallback) and changes.get(
                "is_byok_only", self.is_byok_only
            ):
                raise _refusal("is_fallback", "Cannot go with is_byok_only.")
            return _write(self, changes) or secret is not None

    def remove(self) -> None:
        """Present → gone. Wipes the secret and keeps the row, which nothing shows or uses.

        Raises :class:`CredentialNotFound` for one that is gone already.
        """
        with transaction.atomic():
            self._lock_present()
            self.sealed, self.deleted_at = b"", timezone.now()
            self.save_fields("sealed", "deleted_at")

    def _lock_present(self) -> None:
        self.refresh_from_db(from_queryset=ByokCredential._base_manager.select_for_update())
        if self.deleted_at is not None:
            raise CredentialNotFound

    def rewrap(self) -> bool:
        """Puts the secret under the first credential key; returns whether that changed anything.

        Raises :class:`config.secrets.DecryptionFailed` when no configured key opens it.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=ByokCredential._base_manager.select_for_update())
            sealed = bytes(self.sealed)
            if not sealed or secrets.is_current(sealed):
                return False
            self.sealed = secrets.rewrap(sealed, associated=self._associated)
            self.save_fields("sealed")
        return True

    def permits_host(self, host: str) -> bool:
        """Tells whether the credential may travel to a host."""
        return self.allowed_hosts is None or host in self.allowed_hosts


def _take_turns(organization_id: uuid.UUID) -> None:
    """Lets one transaction at a time change how an organization is governed.

    The first lock that such a transaction takes: at its end a trigger locks the same row.
    """
    Organization.objects.select_for_update(no_key=True).get(pk=organization_id)


def _require_open(workspace_id: uuid.UUID) -> None:
    """Raises :class:`WorkspaceNotFound` for a workspace that is deleted."""
    if not Workspace.objects.filter(pk=workspace_id, deleted_at=None).exists():
        raise WorkspaceNotFound


def _refusal(field: str, why: str) -> InvalidRequest:
    """Returns the error that a serializer would raise for a field."""
    return InvalidRequest(f"{field}: {why}", metadata={"fields": {field: why}})


def _set(row: BaseModel, changes: Mapping[str, Any]) -> list[str]:
    """Sets the fields that differ, and returns their names."""
    changed = [name for name, value in changes.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, changes[name])
    return changed


def _write(row: BaseModel, changes: Mapping[str, Any]) -> bool:
    """Writes the fields that differ, of a row that the caller has locked; tells whether any did."""
    changed = _set(row, changes)
    if changed:
        row.save_fields(*changed)
    return bool(changed)


def workspace_for(organization_id: uuid.UUID, workspace_id: uuid.UUID | None) -> Workspace:
    """Loads a workspace of the caller's organization, the default one when none is named.

    Raises :class:`WorkspaceNotFound`, for a foreign workspace as for one that does not exist.
    """
    workspaces = Workspace.objects.for_organization(organization_id)
    found: Workspace | None = (
        workspaces.filter(is_default=True).first()
        if workspace_id is None
        else workspaces.filter(pk=workspace_id).first()
    )
    if found is None:
        raise WorkspaceNotFound
    return found
