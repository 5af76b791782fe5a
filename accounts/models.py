"""Who calls: organizations, their workspaces, their API keys and their provider credentials."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Max, Q
from django.utils import timezone
from django.utils.text import slugify

from accounts.policy import Family, Policy
from config import secrets
from config.errors import InvalidRequest, NotFound
from config.models import BaseModel

HOST_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?")


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


class WorkspaceQuerySet(models.QuerySet["Workspace"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id, deleted_at=None)


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

    objects = WorkspaceQuerySet.as_manager()

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
        return uuid.uuid5(self.pk, "default guardrail")


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
        """Creates a key and returns it with its secret, which is stored nowhere."""
        secret = secrets.generate_api_key(is_management=is_management)
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
        """Returns what governs the key besides its organization."""
        own = Guardrail.objects.filter(key_assignments__api_key=self)
        default = Guardrail.objects.filter(pk=self.workspace.default_guardrail_id)
        creators = Guardrail.objects.none()
        if self.creator_id is not None:
            creators = Guardrail.objects.filter(member_assignments__member=self.creator_id)
        return Governance(default.first(), creators.first(), own.first())

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

        Raises :class:`ApiKeyNotFound` for a key that was revoked meanwhile.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update())
            if self.deleted_at is not None:
                raise ApiKeyNotFound
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

    objects = GuardrailQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "created_at", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(limit_nano=None) | Q(limit_nano__gte=0),
                name="guardrail_limit_not_negative",
            )
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
                refused = {"is_fallback": "Cannot go with is_byok_only."}
                raise InvalidRequest(
                    "is_fallback: Cannot go with is_byok_only.", metadata={"fields": refused}
                )
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


def _write(row: BaseModel, changes: Mapping[str, Any]) -> bool:
    """Writes the fields that differ, of a row that the caller has locked; tells whether any did."""
    changed = [name for name, value in changes.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, changes[name])
    if changed:
        row.save_fields(*changed)
    return bool(changed)


def workspace_for(organization_id: uuid.UUID, workspace_id: uuid.UUID | None) -> Workspace:
    """Loads a workspace of the caller's organization, the default one when none is named.

    Raises :class:`WorkspaceNotFound`, for a foreign workspace as for one that does not exist.
    """
    workspaces = Workspace.objects.for_organization(organization_id)
    found = (
        workspaces.filter(is_default=True).first()
        if workspace_id is None
        else workspaces.filter(pk=workspace_id).first()
    )
    if found is None:
        raise WorkspaceNotFound
    return found
