"""Form fields for models and providers of the catalogue and for amounts of USD."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, cast
from uuid import UUID

from django import forms
from django.http import HttpRequest
from rest_framework.exceptions import ValidationError as NotInCatalogue

from accounts.models import Organization, Workspace
from accounts.serializers.guardrails import Known, canonical_models, keep_stored, known_providers
from config.console.forms import ConsoleForm
from config.console.unfold import TextWidget


class CatalogueForm(ConsoleForm):
    """Checks that new entries of its lists name models and providers of the catalogue.

    Those that the organization has of its own are known too. What a list names already may have
    left the catalogue later.
    """

    catalogue_fields: dict[str, Known] = {
        "allowed_models": canonical_models,
        "ignored_models": canonical_models,
        "allowed_providers": known_providers,
        "ignored_providers": known_providers,
    }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        owner = self._find_owner(cleaned)
        for name, known in self.catalogue_fields.items():
            if (given := cleaned.get(name)) is None:
                continue
            try:
                cleaned[name] = keep_stored(given, self.initial.get(name) or (), known, owner)
            except NotInCatalogue as exc:
                self.add_error(name, [str(text) for text in cast("list[str]", exc.detail)])
        return cleaned

    def _find_owner(self, cleaned: dict[str, Any]) -> UUID | None:
        """Returns whose row it is; ``None`` for a new one whose owner is not chosen."""
        if isinstance(self.instance, Organization):
            return self.instance.pk
        stored: UUID | None = self.instance.organization_id
        if stored is None and (chosen := cleaned.get("owner")) is not None:
            stored = chosen.pk
        if stored is None and (workspace := cleaned.get("workspace")) is not None:
            stored = workspace.organization_id
        return stored


class DollarsFormField(forms.DecimalField):
    """Takes an amount of USD with at most nine decimals."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            min_value=0,
            max_value=1_000_000_000,
            decimal_places=9,
            widget=TextWidget(attrs={"inputmode": "decimal"}),
            **kwargs,
        )


def nano_of(dollars: Decimal | None) -> int | None:
    """Returns USD as nano-USD."""
    return None if dollars is None else int(dollars.scaleb(9))


def initial_workspace(tenant_id: UUID) -> dict[str, Any]:
    """Returns the default workspace of an organization, if present, as the initial value."""
    rows = Workspace.objects.for_organization(tenant_id).filter(is_default=True)
    return {"workspace": rows.values_list("pk", flat=True).first()}


POINTS_SECRETS: Final = "accounts.change_byokcredential"


def may_point_secrets(request: HttpRequest) -> bool:
    """Returns whether an operator may see a secret of an organization, or choose its hosts.

    An operator who may not replace a secret may not send it, or events, to another host.
    """
    return request.user.has_perm(POINTS_SECRETS)
