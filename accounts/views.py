"""The caller's own key, and the organization's provider credentials."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey, ManagementKey, caller_of
from accounts.models import ApiKey, ByokCredential, Organization, Region, workspace_for
from accounts.serializers import (
    ByokListSerializer,
    ByokResponseSerializer,
    ByokSerializer,
    CreateByokSerializer,
    CurrentKeyResponseSerializer,
    CurrentKeySerializer,
)
from catalog.pricing import usd
from config.api import query_text, query_uuid, slice_page
from config.openapi import PAGE_PARAMETERS, errors
from inference.models import Generation


class CurrentKeyView(APIView):
    """What a key may learn about itself."""

    permission_classes = [AnyKey]
    schema_tag = "api-keys"

    @extend_schema(operation_id="getCurrentKey", responses=CurrentKeyResponseSerializer)
    def get(self, request: Request) -> Response:
        """Shows the key of this request: its limits and what it has used."""
        return Response(
            {"data": CurrentKeySerializer(_current_key(cast(ApiKey, request.auth))).data}
        )


class ByokViewSet(ViewSet):
    """Bring-your-own-key credentials; the secret goes in and never comes out."""

    permission_classes = [ManagementKey]
    schema_tag = "byok"

    @extend_schema(
        operation_id="listBYOKKeys",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("workspace_id", UUID),
            OpenApiParameter("provider", str),
        ],
        responses=ByokListSerializer,
        extensions=errors(400),
    )
    def list(self, request: Request) -> Response:
        """Lists the credentials, by provider and order of trial."""
        offset, limit = slice_page(request, default_limit=50, maximum_limit=100)
        rows = ByokCredential.objects.for_organization(caller_of(request).organization_id)
        if (provider := query_text(request, "provider")) is not None:
            rows = rows.filter(provider_slug=provider)
        if (workspace_id := query_uuid(request, "workspace_id")) is not None:
            rows = rows.filter(workspace_id=workspace_id)
        page = rows.order_by("provider_slug", "sort_order", "id")[offset : offset + limit]
        return Response({"data": ByokSerializer(page, many=True).data, "total_count": rows.count()})

    @extend_schema(
        operation_id="createBYOKKey",
        request=CreateByokSerializer,
        responses={201: ByokResponseSerializer},
        extensions=errors(404),
    )
    def create(self, request: Request) -> Response:
        """Stores a credential, encrypted, for one workspace of the organization."""
        organization_id = caller_of(request).organization_id
        body = CreateByokSerializer(data=request.data, context={"organization_id": organization_id})
        body.is_valid(raise_exception=True)
        fields = dict(body.validated_data)
        credential = ByokCredential.objects.store(
            organization=Organization.objects.get(pk=organization_id),
            workspace=workspace_for(organization_id, fields.pop("workspace_id", None)),
            provider_slug=fields.pop("provider"),
            secret=fields.pop("key"),
            **fields,
        )
        return Response({"data": ByokSerializer(credential).data}, status=201)


def _current_key(key: ApiKey) -> dict[str, Any]:
    spend = Generation.objects.spend_of_key(key.pk)
    return {
        "label": key.label,
        "organization_id": key.organization_id,
        "workspace_id": key.workspace_id,
        "creator_user_id": None,
        "is_management_key": key.is_management,
        "is_provisioning_key": key.is_management,
        "is_free_tier": False,
        "expires_at": key.expires_at,
        "limit": None,
        "limit_remaining": None,
        "limit_reset": None,
        "include_byok_in_limit": False,
        **{name: usd(nano) for name, nano in spend.items()},
        "budgets": [],
        "effective_budget": None,
        "allowed_data_regions": Region.values,
        "free_model_daily_requests": {"limit": 0, "remaining": 0, "used": 0},
        "rate_limit": {
            "requests": -1,
            "interval": "10s",
            "note": "This field is deprecated and safe to ignore.",
        },
    }
