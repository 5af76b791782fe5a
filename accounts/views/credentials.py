"""The organization's own credentials at providers."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import transaction
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
    require_provider,
)
from accounts.views.creations import CreatingViewSet, creates
from config.api.filters import StrictFilterSet, TextFilter, UUIDFilter
from config.api.openapi import operation
from config.api.viewsets import make_destroy, make_list, make_retrieve
from config.changes.kinds import ChangeKind


class ByokFilters(StrictFilterSet):
    workspace_id = UUIDFilter()
    provider = TextFilter(field_name="provider_slug")


class ByokViewSet(CreatingViewSet):
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

    list = make_list(
        "listBYOKKeys",
        ByokListSerializer,
        "Lists the credentials by provider, in the order in which they are tried.",
    )

    @creates("createBYOKKey", CreateByokSerializer, ByokResponseSerializer, (404, 422))
    def create(self, fields: dict[str, Any]) -> ByokCredential:
        """Stores a credential, encrypted, for one workspace of the organization."""
        slug = fields.pop("provider")
        workspace = workspace_for(self.organization_id, fields.pop("workspace_id", None))
        with transaction.atomic():
            organization = Organization.objects.lock(self.organization_id)
            # A private provider is removed under this lock: its next one would get the secret.
            require_provider(self.organization_id, slug)
            return ByokCredential.objects.create_credential(
                organization=organization,
                workspace=workspace,
                provider_slug=slug,
                secret=fields.pop("key"),
                **fields,
            )

    retrieve = make_retrieve(
        "getBYOKKey", ByokResponseSerializer, "Shows a credential without its secret."
    )

    @operation("updateBYOKKey", UpdateByokSerializer, ByokResponseSerializer, (404, 422))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent; `null` clears a field.

        `key` replaces the secret. Endpoints that were validated with another secret must be
        validated again. More `allowed_hosts` than now, or `null` for a list, need `key`: the stored
        secret, or a new one. `null` with `key` also forgets where the secret was used first.
        """
        credential = self.get_object()
        fields = self.read_body(
            UpdateByokSerializer,
            provider_slug=credential.provider_slug,
            find_row=lambda: credential,
        )
        credential.edit(secret=fields.pop("key", None), **fields)
        return self.respond(credential)

    destroy = make_destroy(
        "deleteBYOKKey", "Deletes a credential and erases its secret. No request uses it any more."
    )
