"""The caller's own key, the organization's API keys and its provider credentials."""

from __future__ import annotations

import re
from datetime import UTC, date
from typing import Any, Final, cast
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey, ManagementKey, caller_of
from accounts.models import (
    ApiKey,
    ApiKeyNotFound,
    ByokCredential,
    CredentialNotFound,
    LimitReset,
    Member,
    MemberNotFound,
    Organization,
    Region,
    policy_of,
    workspace_for,
)
from accounts.serializers import (
    ByokListSerializer,
    ByokResponseSerializer,
    ByokSerializer,
    CreateByokSerializer,
    CreatedKeySerializer,
    CreateKeySerializer,
    CurrentKeyResponseSerializer,
    CurrentKeySerializer,
    DeletedSerializer,
    KeyListSerializer,
    KeyResponseSerializer,
    KeySerializer,
    UpdateByokSerializer,
    UpdateKeySerializer,
)
from billing.budgets import Budget, spent
from billing.models import Meter
from catalog.pricing import usd
from config.api.openapi import PAGE_PARAMETERS, errors
from config.api.params import query_flag, query_integer, query_text, query_uuid, slice_page
from config.api.text import parse_uuid
from inference.admission.governance import budgets_of, limit_of

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_HASH: Final = OpenApiParameter(
    "hash", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, OpenApiParameter.PATH
)
_KEYS_PAGE: Final = 100


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


class KeyViewSet(ViewSet):
    """The organization's inference keys. Management keys are the operator's, and not among them."""

    permission_classes = [ManagementKey]
    lookup_url_kwarg = "hash"
    lookup_value_regex = "[^/]+"
    schema_tag = "api-keys"

    @extend_schema(
        operation_id="listKeys",
        parameters=[
            PAGE_PARAMETERS[0],
            OpenApiParameter("workspace_id", UUID, description="The default workspace if absent."),
            OpenApiParameter("include_disabled", bool, description="Disabled ones too."),
            OpenApiParameter("include_expired", bool, description="Expired ones too."),
        ],
        responses=KeyListSerializer,
        extensions=errors(400, 404),
    )
    def list(self, request: Request) -> Response:
        """Lists a hundred keys of one workspace, latest first, with what they have used."""
        organization_id = caller_of(request).organization_id
        offset = query_integer(request, "offset", minimum=0) or 0
        rows = ApiKey.objects.for_organization(organization_id).for_inference()
        if not query_flag(request, "include_disabled"):
            rows = rows.enabled()
        if not query_flag(request, "include_expired"):
            rows = rows.unexpired()
        workspace = workspace_for(organization_id, query_uuid(request, "workspace_id"))
        rows = rows.filter(workspace=workspace).order_by("-created_at", "id")
        return Response({"data": _shown(*rows[offset : offset + _KEYS_PAGE])})

    @extend_schema(
        operation_id="createKeys",
        request=CreateKeySerializer,
        responses={201: CreatedKeySerializer},
        extensions=errors(404),
    )
    def create(self, request: Request) -> Response:
        """Creates an inference key; only this answer ever holds the key itself."""
        body = CreateKeySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = dict(body.validated_data)
        organization_id = caller_of(request).organization_id
        workspace = workspace_for(organization_id, fields.pop("workspace_id", None))
        creator = _creator(organization_id, fields.pop("creator_user_id", None))
        key, secret = ApiKey.objects.create_key(workspace=workspace, creator=creator, **fields)
        [data] = _shown(key)
        return Response({"data": data, "key": secret.reveal()}, status=201)

    @extend_schema(
        operation_id="getKey",
        parameters=[_HASH],
        responses=KeyResponseSerializer,
        extensions=errors(404),
    )
    def retrieve(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Shows a key by its hash, and what it has used."""
        [data] = _shown(_inference_key(request, hash))
        return Response({"data": data})

    @extend_schema(
        operation_id="updateKeys",
        parameters=[_HASH],
        request=UpdateKeySerializer,
        responses=KeyResponseSerializer,
        extensions=errors(404),
    )
    def partial_update(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Changes what is named, from the next request on; what is left out stays."""
        body = UpdateKeySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        key = _inference_key(request, hash)
        if "workspace_id" in body.validated_data:
            workspace_for(key.organization_id, body.validated_data["workspace_id"])
        key.edit(**body.validated_data)
        [data] = _shown(key)
        return Response({"data": data})

    @extend_schema(
        operation_id="deleteKeys",
        parameters=[_HASH],
        responses={200: DeletedSerializer},
        extensions=errors(404),
    )
    def destroy(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Deletes a key for good: it is refused from the next request on."""
        if not _inference_key(request, hash).revoke():
            raise ApiKeyNotFound
        return Response({"deleted": True})


class ByokViewSet(ViewSet):
    """Bring-your-own-key credentials; the secret goes in and never comes out."""

    permission_classes = [ManagementKey]
    lookup_value_regex = "[^/]+"
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
        credential = ByokCredential.objects.create_credential(
            organization=Organization.objects.get(pk=organization_id),
            workspace=workspace_for(organization_id, fields.pop("workspace_id", None)),
            provider_slug=fields.pop("provider"),
            secret=fields.pop("key"),
            **fields,
        )
        return Response({"data": ByokSerializer(credential).data}, status=201)

    @extend_schema(
        operation_id="getBYOKKey", responses=ByokResponseSerializer, extensions=errors(404)
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        """Shows a credential, all but its secret."""
        return Response({"data": ByokSerializer(self._get(request, pk)).data})

    @extend_schema(
        operation_id="updateBYOKKey",
        request=UpdateByokSerializer,
        responses=ByokResponseSerializer,
        extensions=errors(404),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes what is named; `key` replaces the secret, so that validations have to be redone.

        What is left out stays as it is, `null` clears.
        """
        credential = self._get(request, pk)
        body = UpdateByokSerializer(
            data=request.data,
            context={
                "organization_id": credential.organization_id,
                "provider_slug": credential.provider_slug,
            },
        )
        body.is_valid(raise_exception=True)
        fields = dict(body.validated_data)
        credential.edit(secret=fields.pop("key", None), **fields)
        return Response({"data": ByokSerializer(credential).data})

    @extend_schema(
        operation_id="deleteBYOKKey", responses={200: DeletedSerializer}, extensions=errors(404)
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a credential and wipes its secret; nothing is sent with it any more."""
        self._get(request, pk).remove()
        return Response({"deleted": True})

    def _get(self, request: Request, pk: str) -> ByokCredential:
        """Loads a credential of the caller's organization; anything else does not exist."""
        rows = ByokCredential.objects.for_organization(caller_of(request).organization_id)
        found: ByokCredential | None = rows.filter(pk=parse_uuid(pk)).first()
        if found is None:
            raise CredentialNotFound
        return found


def _inference_key(request: Request, digest: str) -> ApiKey:
    """Loads an inference key of the caller's organization; anything else does not exist."""
    rows = ApiKey.objects.for_organization(caller_of(request).organization_id).for_inference()
    found: ApiKey | None = rows.filter(digest=digest).first() if _DIGEST.fullmatch(digest) else None
    if found is None:
        raise ApiKeyNotFound
    return found


def _creator(organization_id: UUID, member_id: UUID | None) -> Member | None:
    """Loads the member of the organization who makes a key, ``None`` when nobody is named."""
    if member_id is None:
        return None
    found = Member.objects.for_organization(organization_id).filter(pk=member_id).first()
    if found is None:
        raise MemberNotFound
    return found


def _shown(*keys: ApiKey) -> Any:
    """Renders keys with what each has used, which is one query for all of them."""
    meters = Meter.objects.in_bulk([key.pk for key in keys])
    rows = [
        {
            "hash": key.digest,
            "name": key.name,
            "label": key.label,
            "workspace_id": key.workspace_id,
            "creator_user_id": key.creator_id,
            "external_user": key.external_user,
            "disabled": key.disabled,
            **_limits(key, meters[key.pk]),
            "expires_at": key.expires_at,
            "last_used_at": meters[key.pk].last_used_at,
            "created_at": key.created_at,
            "updated_at": key.updated_at,
        }
        for key in keys
    ]
    return KeySerializer(rows, many=True).data


def _limits(key: ApiKey, meter: Meter) -> dict[str, Any]:
    """Returns a key's limit, what is left of it, and what was used, in USD."""
    today = timezone.now().astimezone(UTC).date()
    limit = limit_of(key)
    return {
        "limit": None if limit is None else usd(limit.limit_nano),
        "limit_remaining": None
        if limit is None
        else usd(limit.limit_nano - limit.spent(meter, today)),
        "limit_reset": key.limit_reset,
        "include_byok_in_limit": key.include_byok_in_limit,
        **_usage(meter, today),
    }


def _usage(meter: Meter, today: date) -> dict[str, float]:
    """Returns what credits and what own credentials paid: in all, today, this week and month."""
    used: dict[str, float] = {}
    for reset in (None, *LimitReset):
        suffix = "" if reset is None else f"_{reset}"
        cost = spent(meter, reset, today, byok=False)
        used[f"usage{suffix}"] = usd(cost)
        used[f"byok_usage{suffix}"] = usd(spent(meter, reset, today, byok=True) - cost)
    return used


def _current_key(key: ApiKey) -> dict[str, Any]:
    limiting = budgets_of(key)
    meters = Meter.objects.in_bulk({key.pk, *(budget.subject_id for budget in limiting)})
    budgets = [_budget(budget, meters[budget.subject_id]) for budget in limiting]
    ingress_regions = policy_of(key).ingress_regions
    return {
        "label": key.label,
        "organization_id": key.organization_id,
        "workspace_id": key.workspace_id if key.workspace.deleted_at is None else None,
        "creator_user_id": key.creator_id,
        "is_management_key": key.is_management,
        "is_provisioning_key": key.is_management,
        "is_free_tier": False,
        "expires_at": key.expires_at,
        **_limits(key, meters[key.pk]),
        "budgets": budgets,
        "effective_budget": min(
            budgets, key=lambda budget: float(budget["remaining_usd"]), default=None
        ),
        "allowed_data_regions": [
            region
            for region in Region.values
            if ingress_regions is None or region in ingress_regions
        ],
        "free_model_daily_requests": {"limit": 0, "remaining": 0, "used": 0},
        "rate_limit": {
            "requests": -1,
            "interval": "10s",
            "note": "This field is deprecated and safe to ignore.",
        },
    }


def _budget(budget: Budget, meter: Meter) -> dict[str, Any]:
    now = timezone.now().astimezone(UTC)
    spent_nano = budget.spent(meter, now.date())
    return {
        "scope": budget.scope.value,
        "budget_id": budget.budget_id,
        "guardrail_id": budget.guardrail_id,
        "include_byok": budget.include_byok,
        "limit_usd": usd(budget.limit_nano),
        "spend_usd": usd(spent_nano),
        "remaining_usd": usd(budget.limit_nano - spent_nano),
        "reset_interval": budget.reset,
        "resets_at": budget.resets_at(now),
    }
