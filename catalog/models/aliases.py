"""The aliases of models."""

from __future__ import annotations

import uuid
from typing import Final, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from accounts.models import Organization
from catalog.aliases.resolution import Alias
from catalog.models.versions import OwnedVersionBump
from config.api.errors import NotFound
from config.audit.triggers import Audit
from config.models import BaseModel, OwnedQuerySet

MAX_TARGETS: Final = 10
_EXISTS: Final = "There is an alias of this name already."


class AliasNotFound(NotFound):
    message = "The alias does not exist."


class ModelAliasQuerySet(OwnedQuerySet["ModelAlias"]):
    def of_owner(self, organization_id: uuid.UUID | None) -> Self:
        """Returns the aliases of an organization, or the operator's without one."""
        return self.filter(organization_id=organization_id)

    def read(self) -> list[Alias]:
        return [row.alias for row in self]


class ModelAlias(BaseModel):
    """Another name for a model, or for several that are tried in order.

    One without an organization is the operator's, and applies to everybody. ``name`` may have one
    ``*``, which stands for any text. ``targets`` are names of models, with or without a variant,
    never other aliases, so that no alias can lead back to itself.
    """

    organization = models.ForeignKey(
        Organization,
        on_delete=models.CASCADE,
        related_name="model_aliases",
        null=True,
        blank=True,
        help_text="Empty: an alias of the operator, which applies to all organizations.",
        db_index=False,
    )
    name = models.CharField(
        max_length=255, help_text="The name that callers send. One * stands for any text."
    )
    targets = ArrayField(
        models.CharField(max_length=255),
        help_text="Names of models, separated by commas. The first one is tried first.",
    )

    objects = ModelAliasQuerySet.as_manager()

    class Meta:
        verbose_name = "alias"
        verbose_name_plural = "aliases"
        ordering = ("name", "id")
        constraints = [
            models.UniqueConstraint(
                fields=("organization", "name"),
                name="model_alias_unique_in_organization",
                violation_error_message=_EXISTS,
            ),
            models.UniqueConstraint(
                fields=("name",),
                condition=Q(organization=None),
                name="model_alias_unique_of_operator",
                violation_error_message=_EXISTS,
            ),
            models.CheckConstraint(
                condition=Q(targets__len__gte=1, targets__len__lte=MAX_TARGETS),
                name="model_alias_has_targets",
            ),
            models.CheckConstraint(condition=~Q(name=""), name="model_alias_has_name"),
        ]
        triggers = [OwnedVersionBump(), Audit()]

    def __str__(self) -> str:
        return self.name

    @property
    def alias(self) -> Alias:
        return Alias(self.name, tuple(self.targets))
