"""The organization's broadcast destinations."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.destinations.models import BroadcastDestination, DestinationNotFound
from accounts.destinations.serializers import (
    CreateDestinationSerializer,
    DestinationListSerializer,
    DestinationResponseSerializer,
    DestinationSerializer,
    UpdateDestinationSerializer,
)
from accounts.models import workspace_for
from accounts.views.creations import CreatingViewSet, creates
from accounts.views.filters import WorkspaceFilter
from config.api.filters import StrictFilterSet
from config.api.openapi import operation
from config.api.viewsets import make_destroy, make_list, make_retrieve
from config.changes.kinds import ChangeKind


class DestinationFilters(StrictFilterSet):
    workspace_id = WorkspaceFilter(help_text="The default workspace if absent.")


class DestinationViewSet(CreatingViewSet):
    """Receivers of the metadata of generations. No answer contains the value of a header."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {"destroy": (ChangeKind.DELETIONS,)}
    queryset = BroadcastDestination.objects.select_related("progress").order_by("created_at", "id")
    serializer_class = DestinationSerializer
    filterset_class = DestinationFilters
    not_found = DestinationNotFound
    schema_tag = "observability"

    list = make_list(
        "listObservabilityDestinations",
        DestinationListSerializer,
        "Lists the destinations of one workspace, oldest first.",
        (400, 404),
    )

    @creates(
        "createObservabilityDestination",
        CreateDestinationSerializer,
        DestinationResponseSerializer,
        (404, 409, 422, 429),
    )
    def create(self, fields: dict[str, Any]) -> BroadcastDestination:
        """Adds a destination, at most five of a type in a workspace.

        It gets the generations that are admitted from now on, while the workspace has
        `is_observability_broadcast_enabled`.
        """
        workspace = workspace_for(self.organization_id, fields.pop("workspace_id", None))
        return BroadcastDestination.objects.create_destination(workspace, **fields)

    retrieve = make_retrieve(
        "getObservabilityDestination",
        DestinationResponseSerializer,
        "Shows a destination and its progress.",
    )

    @operation(
        "updateObservabilityDestination",
        UpdateDestinationSerializer,
        DestinationResponseSerializer,
        (404, 422, 429),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent.

        Members of `config` that are absent, and headers whose value is the mask of an answer, keep
        their value. A change of the host needs the headers again, with their values.
        """
        destination = self.get_object()
        fields = self.read_body(
            UpdateDestinationSerializer, destination=destination, find_row=lambda: destination
        )
        destination.edit(**fields)
        return self.respond(self.get_object())

    destroy = make_destroy(
        "deleteObservabilityDestination",
        "Deletes a destination and erases its headers. Nothing more is sent to it.",
    )
