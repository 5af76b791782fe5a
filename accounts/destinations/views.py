"""The organization's broadcast destinations."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.mixins import ListModelMixin
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
from accounts.views.creations import CreatingViewSet
from accounts.views.filters import WorkspaceFilter
from config.api.filters import StrictFilterSet
from config.api.openapi import IDEMPOTENCY_KEY, DeletedSerializer, errors
from config.changes.kinds import ChangeKind


class DestinationFilters(StrictFilterSet):
    workspace_id = WorkspaceFilter(help_text="The default workspace if absent.")


class DestinationViewSet(ListModelMixin, CreatingViewSet):
    """Receivers of the metadata of generations. No answer contains the value of a header."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {"destroy": (ChangeKind.DELETIONS,)}
    queryset = BroadcastDestination.objects.select_related("progress").order_by("created_at", "id")
    serializer_class = DestinationSerializer
    filterset_class = DestinationFilters
    not_found = DestinationNotFound
    schema_tag = "observability"

    @extend_schema(
        operation_id="listObservabilityDestinations",
        responses=DestinationListSerializer,
        extensions=errors(400, 404),
    )
    def list(self, request: Request) -> Response:
        """Lists the destinations of one workspace, oldest first."""
        return super().list(request)

    @extend_schema(
        operation_id="createObservabilityDestination",
        request=CreateDestinationSerializer,
        parameters=[IDEMPOTENCY_KEY],
        responses={201: DestinationResponseSerializer},
        extensions=errors(404, 409, 422, 429),
    )
    def create(self, request: Request) -> Response:
        """Adds a destination, at most five of a type in a workspace.

        It gets the generations that are admitted from now on, while the workspace has
        `is_observability_broadcast_enabled`.
        """
        destination, _ = self.create_once(CreateDestinationSerializer, self._create)
        return self.respond(destination, status=201)

    def _create(self, fields: dict[str, Any]) -> tuple[BroadcastDestination, None]:
        workspace = workspace_for(self.organization_id, fields.pop("workspace_id", None))
        return BroadcastDestination.objects.create_destination(workspace, **fields), None

    @extend_schema(
        operation_id="getObservabilityDestination",
        responses=DestinationResponseSerializer,
        extensions=errors(404),
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        """Shows a destination and its progress."""
        return self.respond(self.get_object())

    @extend_schema(
        operation_id="updateObservabilityDestination",
        request=UpdateDestinationSerializer,
        responses=DestinationResponseSerializer,
        extensions=errors(404, 422, 429),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent.

        Members of `config` that are absent, and headers whose value is the mask of an answer, keep
        their value. A change of the host needs the headers again, with their values.
        """
        destination = self.get_object()
        fields = self.read_body(UpdateDestinationSerializer, destination=destination)
        destination.edit(**fields)
        return self.respond(self.get_object())

    @extend_schema(
        operation_id="deleteObservabilityDestination",
        responses={200: DeletedSerializer},
        extensions=errors(404),
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a destination and erases its headers. Nothing more is sent to it."""
        self.get_object().remove()
        return Response({"deleted": True})
