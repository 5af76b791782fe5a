"""Names the organizations of rows that have an organization's ID and no foreign key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db.models import OuterRef, QuerySet, Subquery

from config.apps import tenant_label


def tenants() -> QuerySet[Any]:
    """Returns the rows that own the rows of other models, which are the organizations."""
    return apps.get_model(tenant_label())._default_manager.all()


def annotate_organization(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Returns rows with the name that :func:`name_organization` shows, without more queries."""
    names = tenants().filter(pk=OuterRef("organization_id")).values("name")
    return rows.annotate(organization_name=Subquery(names))


def name_organization(row: Any) -> str:
    """Returns the name of a row's organization, or the ID of one that is not here any more."""
    if row.organization_id is None:
        return ""
    return getattr(row, "organization_name", None) or str(row.organization_id)


def name_tenants(rows: Iterable[Any]) -> None:
    """Sets ``tenant_name`` of rows with an organization's ID to its name, with one query."""
    owned = [row for row in rows if getattr(row, "organization_id", None) is not None]
    keys = {row.organization_id for row in owned}
    names = dict(tenants().filter(pk__in=keys).values_list("pk", "name")) if keys else {}
    for row in owned:
        row.tenant_name = names.get(row.organization_id, "")
