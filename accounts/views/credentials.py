"""The organization's own credentials at providers."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.models import ByokCredential, CredentialNotFound, Organization, workspace_for
from accounts.serializers.credentials import (
    ByokListSerializer,
    ByokResponseSerializer,
    ByokSerializer,
    CreateByokSerializer,
    UpdateByokSerializer,
)
from accounts.views.creations import CreatingViewSet
from config.api.filters import StrictFilterSet, TextFilter, UUIDFilter
from config.api.openapi import IDEMPOTENCY_KEY, DeletedSerializer, errors
from config.changes.kinds import ChangeKind


class ByokFilters(StrictFilterSet):
    workspace_id = UUIDFilter()
    provider = TextFilter(field_name="provider_slug")


class ByokViewSet(ListModelMixin, CreatingViewSet):
    """Bring-your-own-key credentials. No response contains a secret."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {
        "create": (ChangeKind.CREDENTIALS,),
        "partial_update": (ChangeKind.CREDENTIALS,),
        "destroy": (ChangeKind.DELETIONS,),
    }
    queryset = ByokCredential.objects.select_related("rest").order_by(
        "provider_slug", "sort_order", "id"
    )
    serializer_class = ByokSerializer
    filterset_class = ByokFilters
    not_found = CredentialNotFound
    schema_tag = "byok"

    @extend_schema(
        operation_id="listBYOKKeys", responses=ByokListSerializer, extensions=errors(400)
    )
    def list(self, request: Request) -> Response:
        """Lists the credentials by provider, in the order in which they are tried."""
        return super().list(request)

    @extend_schema(
        operation_id="createBYOKKey",
        request=CreateByokSerializer,
        parameters=[IDEMPOTENCY_KEY],
        responses={201: ByokResponseSerializer},
        extensions=errors(404, 422),
    )
    def create(self, request: Request) -> Response:
        """Stores a credential, encrypted, for one workspace of the organization."""
        credential, _ = self.create_once(CreateByokSerializer, self._create)
        return self.respond(credential, status=201)

    def _create(self, fields: dict[str, Any]) -> tuple[ByokCredential, None]:
        credential: ByokCredential = ByokCredential.objects.create_credential(
            organization=Organization.objects.get(pk=self.organization_id),
            workspace=workspace_for(self.organization_id, fields.pop("workspace_id", None)),
            provider_slug=fields.pop("provider"),
            secret=fields.pop("key"),
            **fields,
        )
        return credential, None

    @extend_schema(
        operation_id="getBYOKKey", responses=ByokResponseSerializer, extensions=errors(404)
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        """Shows a credential without its secret."""
        return self.respond(self.get_object())

    @extend_schema(
        operation_id="updateBYOKKey",
        request=UpdateByokSerializer,
        responses=ByokResponseSerializer,
        extensions=errors(404, 422),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent; `null` clears a field.

        `key` replaces the secret. Endpoints that were validated with another secret must be
        validated again. More `allowed_hosts` than now, or `null` for a list, need `key`: the stored
        secret, or a new one. `null` with `key` also forgets where the secret was used first.
        """
        credential = self.get_object()
        fields = self.read_body(UpdateByokSerializer, provider_slug=credential.provider_slug)
        credential.edit(secret=fields.pop("key", None), **fields)
        return self.respond(credential)

    @extend_schema(
        operation_id="deleteBYOKKey", responses={200: DeletedSerializer}, extensions=errors(404)
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a credential and erases its secret. No request uses it any more."""
        self.get_object().remove()
        return Response({"deleted": True})
