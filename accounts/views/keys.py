"""The caller's own key, and the organization's API keys."""

from __future__ import annotations

from typing import Final, cast

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey, ManagementKey
from accounts.models import ApiKey, ApiKeyNotFound, Member, workspace_for
from accounts.serializers.keys import (
    CreatedKeySerializer,
    CreateKeySerializer,
    CurrentKeyResponseSerializer,
    CurrentKeySerializer,
    KeyListSerializer,
    KeyResponseSerializer,
    KeySerializer,
    UpdateKeySerializer,
)
from accounts.views.filters import WorkspaceFilter
from config.api.filters import FlagFilter, StrictFilterSet
from config.api.openapi import DeletedSerializer, errors
from config.api.pagination import UncountedPagination
from config.api.viewsets import OrganizationViewSet

_HASH: Final = OpenApiParameter(
    "hash", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, OpenApiParameter.PATH
)


class CurrentKeyViewSet(ViewSet):
    """The key that makes the request."""

    permission_classes = [AnyKey]
    schema_tag = "api-keys"

    @extend_schema(operation_id="getCurrentKey", responses=CurrentKeyResponseSerializer)
    def retrieve(self, request: Request) -> Response:
        """Shows the key of this request: its limits and its usage."""
        return Response({"data": CurrentKeySerializer(cast(ApiKey, request.auth)).data})


class KeyFilters(StrictFilterSet):
    include_disabled = FlagFilter(unless_set="enabled", help_text="Disabled keys too.")
    include_expired = FlagFilter(unless_set="unexpired", help_text="Expired keys too.")
    workspace_id = WorkspaceFilter(help_text="The default workspace if absent.")


class KeyViewSet(ListModelMixin, OrganizationViewSet):
    """The organization's inference keys. Only an operator manages management keys."""

    permission_classes = [ManagementKey]
    queryset = ApiKey.objects.for_inference().order_by("-created_at", "id")
    serializer_class = KeySerializer
    filterset_class = KeyFilters
    pagination_class = UncountedPagination
    lookup_field = "digest"
    lookup_url_kwarg = "hash"
    not_found = ApiKeyNotFound
    schema_tag = "api-keys"

    @extend_schema(
        operation_id="listKeys", responses=KeyListSerializer, extensions=errors(400, 404)
    )
    def list(self, request: Request) -> Response:
        """Lists at most 100 keys of one workspace, latest first, with their usage."""
        return super().list(request)

    @extend_schema(
        operation_id="createKeys",
        request=CreateKeySerializer,
        responses={201: CreatedKeySerializer},
        extensions=errors(404),
    )
    def create(self, request: Request) -> Response:
        """Creates an inference key. No other response ever contains the key itself."""
        fields = self.read_body(CreateKeySerializer)
        workspace = workspace_for(self.organization_id, fields.pop("workspace_id", None))
        creator = None
        if (creator_id := fields.pop("creator_user_id", None)) is not None:
            members = Member.objects.for_organization(self.organization_id)
            [creator] = members.find_all([str(creator_id)])
        key, secret = ApiKey.objects.create_key(workspace=workspace, creator=creator, **fields)
        return Response({"data": self.get_serializer(key).data, "key": secret.reveal()}, 201)

    @extend_schema(
        operation_id="getKey",
        parameters=[_HASH],
        responses=KeyResponseSerializer,
        extensions=errors(404),
    )
    def retrieve(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Shows a key by its hash, with its usage."""
        return self.respond(self.get_object())

    @extend_schema(
        operation_id="updateKeys",
        parameters=[_HASH],
        request=UpdateKeySerializer,
        responses=KeyResponseSerializer,
        extensions=errors(404, 422),
    )
    def partial_update(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Changes the fields that are sent, from the next request on."""
        fields = self.read_body(UpdateKeySerializer)
        key = self.get_object()
        if "workspace_id" in fields:
            workspace_for(self.organization_id, fields["workspace_id"])
        key.edit(**fields)
        return self.respond(key)

    @extend_schema(
        operation_id="deleteKeys",
        parameters=[_HASH],
        responses={200: DeletedSerializer},
        extensions=errors(404),
    )
    def destroy(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Deletes a key for good: it is refused from the next request on."""
        if not self.get_object().revoke():
            raise ApiKeyNotFound
        return Response({"deleted": True})
