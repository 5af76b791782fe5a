"""Filters that several lists of accounts share."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from accounts.models import workspace_for
from config.api.filters import UUIDFilter


class WorkspaceFilter(UUIDFilter):
    """Keeps the rows of one workspace, the default workspace when none is named.

    Raises :class:`WorkspaceNotFound`.
    """

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        organization_id = self.parent.request.user.organization_id
        return qs.filter(workspace=workspace_for(organization_id, value))
