"""Presets: defaults of requests that a workspace stores under a name, in numbered versions."""

from __future__ import annotations

import re
from typing import Any, Final

from django.db import models, transaction
from django.db.models import Max, Q

from accounts.models.edits import refusal, write_fields
from accounts.models.limits import OrganizationLimit
from accounts.models.organizations import Organization
from accounts.models.workspaces import Workspace, require_workspace
from config.api.errors import NotFound
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import BaseModel, OwnedQuerySet, StatefulModel

PRESET_SLUG: Final = re.compile("[a-z0-9]+(?:[-_][a-z0-9]+)*")
MAX_SLUG: Final = 64
# The JSON of a version's fields together with its system prompt, in bytes.
MAX_VERSION_BYTES: Final = 65_536
MAX_PRESETS: Final = 200
MAX_VERSIONS: Final = 200


class PresetNotFound(NotFound):
    error_type = "preset_not_found"
    message = "The workspace has no preset of this name."


class PresetQuerySet(OwnedQuerySet["Preset"]):
    present = {"workspace__deleted_at": None}


class PresetManager(models.Manager.from_queryset(PresetQuerySet)):  # type: ignore[misc]
    def store_version(
        self, workspace: Workspace, slug: str, *, config: str, system_prompt: str | None, by: str
    ) -> Preset:
        """Creates a preset with its first version, or adds a version to it that applies at once.

        ``config`` is the JSON of the fields. Raises :class:`InvalidRequest` for a bad slug, for a
        version that is too large, and for one preset of the workspace or version too many, and
        :class:`OrganizationLimitReached`.
        """
        _require_slug(slug)
        size = len(config.encode()) + len((system_prompt or "").encode())
        if size > MAX_VERSION_BYTES:
            raise refusal(
                "preset", f"Has {size:,} bytes; a preset has at most {MAX_VERSION_BYTES:,}."
            )
        with transaction.atomic():
            organization = Organization.objects.lock(workspace.organization_id)
            require_workspace(workspace.pk)
            preset: Preset | None = self.filter(workspace=workspace, slug=slug).first()
            if preset is None:
                if self.filter(workspace=workspace).count() >= MAX_PRESETS:
                    raise refusal("slug", f"A workspace has at most {MAX_PRESETS} presets.")
                present = self.for_organization(organization.pk).count()
                organization.require_room(OrganizationLimit.PRESETS, present)
                preset = self.model(
                    organization_id=workspace.organization_id,
                    workspace=workspace,
                    slug=slug,
                    name=slug,
                )
                preset.save(force_insert=True)
            preset._add_version(config, system_prompt, by)
        return preset


class Preset(StatefulModel):
    """Defaults that a request of the workspace takes over by naming the preset.

    Requests read the designated version from the database each time, so a change applies to the
    next request in every worker.
    """

    class Status(models.TextChoices):
        ACTIVE = "active", "active"
        DISABLED = "disabled", "disabled"
        ARCHIVED = "archived", "archived"

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="presets", editable=False
    )
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="presets", db_index=False
    )
    slug = models.CharField(max_length=MAX_SLUG)
    name = models.CharField(max_length=255)
    description = models.TextField(null=True, blank=True)
    status = models.CharField(
        max_length=16, choices=Status, default=Status.ACTIVE, db_default=Status.ACTIVE
    )
    status_updated_at = models.DateTimeField(null=True, editable=False)
    designated_version = models.ForeignKey(
        "PresetVersion",
        on_delete=models.SET_NULL,
        null=True,
        editable=False,
        related_name="+",
        db_index=False,
    )

    objects = PresetManager()

    class Meta:
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(fields=("workspace", "slug"), name="preset_slug_unique"),
            models.CheckConstraint(
                condition=Q(status__in=("active", "disabled", "archived")), name="preset_status"
            ),
        ]
        triggers = [Audit()]

    def __str__(self) -> str:
        return self.slug

    def edit(self, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the name and the description; returns whether any differed."""
        with transaction.atomic():
            self._lock_present()
            return write_fields(self, changes)

    def change(
        self, *, status: str | None = None, designated_version: int | None = None, **fields: Any
    ) -> None:
        """Applies several changes together, each by its transition."""
        with transaction.atomic():
            self._lock_present()
            if designated_version is not None:
                self.designate(designated_version)
            if status is not None:
                self._move(self.Status(status))
            if fields:
                self.edit(**fields)

    def activate(self) -> bool:
        """DISABLED, ARCHIVED → ACTIVE. Returns whether the preset was not active before."""
        return self._move(self.Status.ACTIVE)

    def disable(self) -> bool:
        """ACTIVE, ARCHIVED → DISABLED. Requests that name the preset are refused."""
        return self._move(self.Status.DISABLED)

    def archive(self) -> bool:
        """ACTIVE, DISABLED → ARCHIVED. Requests that name the preset are refused."""
        return self._move(self.Status.ARCHIVED)

    def designate(self, number: int) -> bool:
        """PRESENT → PRESENT. Makes a stored version apply; returns whether another one did."""
        with transaction.atomic():
            self._lock_present()
            version = self.versions.filter(version=number).first()
            if version is None:
                raise refusal("designated_version", "The preset has no version of this number.")
            return write_fields(self, {"designated_version": version})

    def remove(self) -> None:
        """PRESENT → DELETED. Deletes the preset and its versions."""
        with transaction.atomic():
            self._lock_present()
            self.delete()

    def _move(self, status: Status) -> bool:
        with transaction.atomic():
            self._lock_present()
            if self.status == status:
                return False
            self.status, self.status_updated_at = status, clock.now()
            self.save_fields("status", "status_updated_at")
        return True

    def _add_version(self, config: str, system_prompt: str | None, by: str) -> None:
        self._lock_present()
        last = self.versions.aggregate(last=Max("version"))["last"] or 0
        if last >= MAX_VERSIONS:
            raise refusal("slug", f"A preset has at most {MAX_VERSIONS} versions. Make another.")
        self.designated_version = self.versions.create(
            version=last + 1, config=config, system_prompt=system_prompt, created_by=by
        )
        self.save_fields("designated_version")

    def _lock_present(self) -> None:
        self.lock_row(PresetNotFound)


class PresetVersion(BaseModel):
    """One version of a preset; it never changes."""

    preset = models.ForeignKey(
        Preset, on_delete=models.CASCADE, related_name="versions", db_index=False
    )
    version = models.IntegerField()
    config = models.TextField(help_text="The fields of a chat completion, as JSON.")
    system_prompt = models.TextField(null=True, blank=True)
    created_by = models.CharField(max_length=255)

    class Meta:
        ordering = ("preset", "-version")
        constraints = [
            models.UniqueConstraint(fields=("preset", "version"), name="preset_version_unique")
        ]
        triggers = [
            # A system prompt is the customer's text, and may be long.
            Audit(organization="preset__organization", masked=("config", "system_prompt")),
        ]

    def __str__(self) -> str:
        return f"version {self.version} of {self.preset}"


def _require_slug(slug: str) -> None:
    if len(slug) > MAX_SLUG or not PRESET_SLUG.fullmatch(slug):
        raise refusal(
            "slug",
            f"Must be lower-case letters and digits with single hyphens, at most {MAX_SLUG} "
            "characters.",
        )
