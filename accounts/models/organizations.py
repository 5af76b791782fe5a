"""Organizations: the tenants that own everything else."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models, transaction
from django.db.models import Q
from django.utils.text import slugify

from accounts.models.edits import refusal, write_fields
from accounts.models.limits import MOST, OrganizationLimit, OrganizationLimitReached
from accounts.models.terms import FallbackField
from accounts.policy import Policy
from config.api.errors import InvalidRequest
from config.api.text import CONTROL_CHARACTERS
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.egress.addresses import Reach
from config.models import BaseModel, ReachingModel, index_beginnings
from config.triggers import TRANSACTION_ID, Trigger

MAX_REASON: Final = 500
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('causeway_slug ' || %s, 0))"


class OrganizationManager(models.Manager["Organization"]):
    def create_organization(self, *, name: str, endpoint_limit: int | None = None) -> Organization:
        """Creates an organization with its default workspace."""
        with transaction.atomic():
            organization = self.create(
                name=name,
                slug=self._unused_slug(name),
                endpoint_limit=endpoint_limit,
            )
            organization.workspaces.create(name="Default", slug="default", is_default=True)
        return organization

    def lock(self, organization_id: uuid.UUID) -> Organization:
        """Locks an organization's row until the transaction ends and returns it.

        Transactions that change an organization's rules or count its rows take this lock, so they
        run one after another. All take their locks in one order: credentials, private endpoints,
        API keys, former secrets, the organization, and then its other rows. At commit a trigger
        locks this row too, after the one that was changed.
        """
        return self.select_for_update(no_key=True).get(pk=organization_id)

    def lock_with_room(
        self,
        organization_id: uuid.UUID,
        limit: OrganizationLimit,
        rows: models.QuerySet[Any],
    ) -> Organization:
        """Locks an organization for one more row and returns it.

        ``rows`` are those that it has. They are counted under the lock, so concurrent creations do
        not pass the limit. Raises :class:`OrganizationLimitReached`.
        """
        organization = self.lock(organization_id)
        organization.require_room(limit, rows.count())
        return organization

    def _unused_slug(self, name: str) -> str:
        """Returns a slug that stays unused until the caller's transaction ends."""
        base = slugify(name)[:40] or "organization"
        with connection.cursor() as cursor:
            cursor.execute(_LOCK, [base])
        return base if not self.filter(slug=base).exists() else f"{base}-{uuid.uuid4().hex[:8]}"


class Organization(ReachingModel, BaseModel):
    """A tenant: it owns keys, endpoints, end users and credits."""

    name = models.CharField(max_length=255)
    slug = models.SlugField(max_length=64, unique=True)
    endpoint_limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="At most this many private endpoints; empty for the service's default.",
    )
    is_filtered_model_catalog_enabled = models.BooleanField(
        "filtered catalogue",
        default=False,
        db_default=False,
        help_text="Model lists show each key only the models that it may use.",
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
    fallback = FallbackField(null=True)
    own_limits = models.JSONField(
        null=True,
        editable=False,
        help_text="Limits that differ from the service's, by the names of the settings.",
    )
    routing_version = models.BigIntegerField(
        default=0,
        editable=False,
        help_text="Triggers raise it when the keys, endpoints or rules of the organization change.",
    )

    suspended_at = models.DateTimeField(null=True, editable=False)
    suspended_by = models.CharField(max_length=255, default="", db_default="", editable=False)
    suspension_reason = models.CharField(
        max_length=MAX_REASON,
        default="",
        db_default="",
        editable=False,
        help_text="The sentence that refused callers read; empty unless it is suspended.",
    )

    objects = OrganizationManager()

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=Q(suspended_at=None, suspension_reason="")
                | Q(suspended_at__isnull=False) & ~Q(suspension_reason=""),
                name="organization_suspended_with_reason",
            ),
        ]
        indexes = [index_beginnings("name", "organization_by_name")]
        triggers = [
            Trigger(
                name="settings_changed",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange(
                    "allowed_networks",
                    "ca_certificates",
                    "allowed_providers",
                    "ignored_providers",
                    "requires_zdr",
                    "forbids_training",
                    "fallback",
                    "suspension_reason",
                ),
                func=f"NEW.routing_version := {TRANSACTION_ID};\nRETURN NEW;",
            ),
            # A hint for processes that have a copy of the organization; nothing relies on it.
            Trigger(
                name="announce_version",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange("routing_version"),
                func="PERFORM pg_notify('causeway_versions', NEW.id::text);\nRETURN NULL;",
            ),
            Audit(organization="id", ignored=("routing_version",)),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def reach(self) -> Reach:
        return super().reach._replace(owner=str(self.pk))

    @property
    def is_suspended(self) -> bool:
        return self.suspended_at is not None

    @property
    def private_endpoint_limit(self) -> int:
        limit: int = settings.PRIVATE_ENDPOINT_LIMIT
        return limit if self.endpoint_limit is None else self.endpoint_limit

    def limit_of(self, limit: OrganizationLimit) -> int:
        """Returns the organization's own limit, or the service's."""
        default: int = getattr(settings, limit)
        own: int | None = (self.own_limits or {}).get(limit)
        return default if own is None else own

    def require_room(self, limit: OrganizationLimit, present: int, added: int = 1) -> None:
        """Raises :class:`OrganizationLimitReached` if ``added`` more rows would exceed a limit.

        The caller holds the lock of the organization, and has counted under it.
        """
        most = self.limit_of(limit)
        if added and present + added > most:
            raise OrganizationLimitReached(limit, most, present=present, added=added)

    def set_limits(self, limits: Mapping[OrganizationLimit, int | None]) -> bool:
        """Sets limits for this organization alone; returns whether any differed before.

        ``None`` returns to the service's limit. What is above a lower limit stays. Raises
        :class:`InvalidRequest` for a number that cannot be a limit.
        """
        for limit, most in limits.items():
            if most is not None and not 0 <= most <= MOST:
                raise refusal(limit, f"Must be from 0 to {MOST}.")
        with transaction.atomic():
            self._lock()
            found = {**(self.own_limits or {}), **limits}
            own = {str(name): most for name, most in found.items() if most is not None}
            return write_fields(self, {"own_limits": own or None})

    @property
    def policy(self) -> Policy:
        return Policy.of(
            only=self.allowed_providers,
            ignore=self.ignored_providers,
            zdr=self.requires_zdr,
            no_training=self.forbids_training,
            fallback=self.fallback,
        )

    def suspend(self, *, reason: str, by: str) -> bool:
        """ACTIVE → SUSPENDED. Refuses its inference from the next request on.

        Requests that run are answered and billed, and keys stay as they are. Returns False, and
        changes nothing, if it was suspended before. Raises :class:`InvalidRequest` without a
        reason, because every refused caller reads it.
        """
        reason = reason.strip()
        if not 0 < len(reason) <= MAX_REASON or CONTROL_CHARACTERS.search(reason):
            raise InvalidRequest(
                f"reason must have 1 to {MAX_REASON} characters, and no control characters."
            )
        with transaction.atomic():
            self._lock()
            if self.suspended_at is not None:
                return False
            self.suspended_at, self.suspended_by = clock.now(), by[:255]
            self.suspension_reason = reason
            self.save_fields("suspended_at", "suspended_by", "suspension_reason")
        return True

    def resume(self) -> bool:
        """SUSPENDED → ACTIVE. Serves its inference again; returns whether it was suspended."""
        with transaction.atomic():
            self._lock()
            if self.suspended_at is None:
                return False
            self.suspended_at, self.suspended_by, self.suspension_reason = None, "", ""
            self.save_fields("suspended_at", "suspended_by", "suspension_reason")
        return True

    def _lock(self) -> None:
        rows = Organization._base_manager.select_for_update(no_key=True)
        self.refresh_from_db(from_queryset=rows)

    def edit(self, **changes: Any) -> bool:
        """Writes the fields that differ and returns whether any did."""
        with transaction.atomic():
            self._lock()
            return write_fields(self, changes)
