"""Filters that several lists of accounts share."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from accounts.models import Workspace, workspace_for
from config.api.filters import UUIDFilter


class WorkspaceFilter(UUIDFilter):
    """Keeps the rows of one workspace, the default workspace when none is named.

    ``takes_deleted`` lets a deleted one be named, too. Raises :class:`WorkspaceNotFound`.
    """

    def __init__(self, *, takes_deleted: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._takes_deleted = takes_deleted

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        organization_id = self.parent.request.user.organization_id
        if self._takes_deleted and value is not None:
            workspaces = Workspace.objects.filter(organization=organization_id, pk=value)
            if workspaces.exists():
                return qs.filter(workspace=value)
        return qs.filter(workspace=workspace_for(organization_id, value))
