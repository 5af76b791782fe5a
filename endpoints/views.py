"""The private endpoints of the caller's organization."""

from __future__ import annotations

import logging
import re
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import ManagementKey, caller_of
from accounts.models import workspace_for
from config.api.errors import GatewayError, InvalidTransition, RequestTimeout
from config.api.fields import StrictSerializer
from config.api.idempotency import idempotency_key_of
from config.api.openapi import ErrorSerializer, errors
from config.api.params import query_flag
from endpoints import validation
from endpoints.models import EndpointNotFound, PrivateEndpoint, Validation
from endpoints.serializers import (
    ActivationSerializer,
    CreateSerializer,
    DeletedResponseSerializer,
    FullResponseSerializer,
    FullSerializer,
    ManagedResponseSerializer,
    ManagedSerializer,
    SummaryListSerializer,
    SummarySerializer,
    UpdatePricingSerializer,
    UpdateSerializer,
    ValidationFailedSerializer,
    ValidationResponseSerializer,
    ValidationSerializer,
)

logger = logging.getLogger(__name__)

_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ERROR_OR_DRAFT: Final = PolymorphicProxySerializer(
    component_name="PrivateEndpointCreateError",
    serializers=[ValidationFailedSerializer, ErrorSerializer],
    resource_type_field_name=None,
)
_MISSING: Final = (
    validation.Reason.WORKSPACE_NOT_FOUND,
    validation.Reason.MODEL_NOT_FOUND,
    validation.Reason.PROVIDER_NOT_FOUND,
)
_WRITE_ERRORS: Final = (400, 404, 408, 409, 422, 502)


class NotActivated(GatewayError):
    """The draft was created and kept, and could not be activated: specification 7.2."""

    def __init__(
        self, status: int, message: str, endpoint: PrivateEndpoint, result: Validation | None
    ) -> None:
        super().__init__(message)
        self.status = status  # type: ignore[misc]
        self._data = {
            "endpoint": ManagedSerializer(endpoint).data,
            "validation": None if result is None else ValidationSerializer(result).data,
        }

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.status, "message": self.message}, "data": self._data}


class PrivateEndpointViewSet(ViewSet):
    """Create, validate, activate and manage private endpoints."""

    permission_classes = [ManagementKey]
    lookup_value_regex = "[^/]+"
    schema_tag = "private-endpoints"

    @extend_schema(operation_id="listPrivateEndpoints", responses=SummaryListSerializer)
    def list(self, request: Request) -> Response:
        """Lists every private endpoint of the organization, drafts included."""
        rows = PrivateEndpoint.objects.for_organization(
            caller_of(request).organization_id
        ).select_related("model", "provider")
        return Response({"data": SummarySerializer(rows, many=True).data})

    @extend_schema(
        operation_id="createPrivateEndpoint",
        request=CreateSerializer,
        parameters=[
            OpenApiParameter(
                "Idempotency-Key",
                {"type": "string", "minLength": 1, "maxLength": 255},
                OpenApiParameter.HEADER,
                description="A repeated create with the same key answers with the first endpoint.",
            )
        ],
        responses={
            201: ManagedResponseSerializer,
            **dict.fromkeys((404, 409, 422, 500, 502), _ERROR_OR_DRAFT),
        },
        extensions=errors(400, 408),
    )
    def create(self, request: Request) -> Response:
        """Creates a draft; with `activate`, also validates it by a live call and activates it."""
        key = idempotency_key_of(request.headers)
        body = CreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = dict(body.validated_data)
        activation = fields.pop("activate", None)
        endpoint, is_new = PrivateEndpoint.objects.create_draft(
            organization_id=caller_of(request).organization_id,
            model_permaslug=fields["model_permaslug"],
            provider_slug=fields["provider_slug"],
            upstream_model_id=fields["upstream_model_id"],
            base_url=fields.get("base_url"),
            declared_region=fields.get("declared_region"),
            declared_zdr=fields.get("declared_zdr"),
            price=fields.get("pricing"),
            idempotency_key=key,
            by=caller_of(request).actor,
        )
        if is_new and activation is not None:
            _validate_and_activate(
                endpoint, activation["workspace_id"], by=caller_of(request).actor
            )
        return Response({"data": ManagedSerializer(endpoint).data}, status=201)

    @extend_schema(
        operation_id="getPrivateEndpoint", responses=FullResponseSerializer, extensions=errors(404)
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        """Shows one private endpoint with its upstream configuration and price."""
        return Response({"data": FullSerializer(self._get(request, pk)).data})

    @extend_schema(
        operation_id="updatePrivateEndpoint",
        request=UpdateSerializer,
        responses=FullResponseSerializer,
        extensions=errors(*_WRITE_ERRORS),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Replaces the upstream configuration of a draft; any change clears its validation."""
        body = UpdateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        endpoint = self._get(request, pk)
        endpoint.edit(by=caller_of(request).actor, **body.validated_data)
        return Response({"data": FullSerializer(endpoint).data})

    @extend_schema(
        operation_id="deletePrivateEndpoint",
        parameters=[
            OpenApiParameter(
                "draft_only", bool, description="Refuse once the endpoint has been activated."
            )
        ],
        responses={200: DeletedResponseSerializer},
        extensions=errors(*_WRITE_ERRORS),
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a private endpoint; nothing is routed to it any more."""
        draft_only = query_flag(request, "draft_only")
        endpoint = self._get(request, pk)
        endpoint.remove(draft_only=draft_only, by=caller_of(request).actor)
        return Response({"data": {"id": str(endpoint.pk)}})

    @extend_schema(
        operation_id="validatePrivateEndpoint",
        request=ActivationSerializer,
        responses=ValidationResponseSerializer,
        extensions=errors(*_WRITE_ERRORS),
    )
    @action(detail=True, methods=["post"])
    def validate(self, request: Request, pk: str) -> Response:
        """Makes a live plain and a streamed call with the workspace's BYOK credential."""
        body = ActivationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        endpoint = self._get(request, pk)
        workspace = workspace_for(
            caller_of(request).organization_id, body.validated_data["workspace_id"]
        )
        endpoint.require_status(PrivateEndpoint.Status.DRAFT)
        result = validation.run(endpoint, workspace_id=workspace.pk)
        return Response({"data": ValidationSerializer(result).data})

    @extend_schema(
        operation_id="activatePrivateEndpoint",
        request=None,
        responses=ManagedResponseSerializer,
        extensions=errors(*_WRITE_ERRORS),
    )
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, pk: str) -> Response:
        """Activates a draft whose validation passed and is current."""
        _take_no_fields(request)
        endpoint = self._get(request, pk)
        endpoint.activate(by=caller_of(request).actor)
        return Response({"data": ManagedSerializer(endpoint).data})

    @extend_schema(
        operation_id="enablePrivateEndpoint",
        request=None,
        responses=ManagedResponseSerializer,
        extensions=errors(*_WRITE_ERRORS),
    )
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, pk: str) -> Response:
        """Routes to a disabled endpoint again."""
        _take_no_fields(request)
        endpoint = self._get(request, pk)
        endpoint.enable(by=caller_of(request).actor)
        return Response({"data": ManagedSerializer(endpoint).data})

    @extend_schema(
        operation_id="disablePrivateEndpoint",
        request=None,
        responses=ManagedResponseSerializer,
        extensions=errors(*_WRITE_ERRORS),
    )
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, pk: str) -> Response:
        """Stops routing to an active endpoint and keeps it."""
        _take_no_fields(request)
        endpoint = self._get(request, pk)
        endpoint.disable(by=caller_of(request).actor)
        return Response({"data": ManagedSerializer(endpoint).data})

    @extend_schema(
        operation_id="updatePrivateEndpointPricing",
        request=UpdatePricingSerializer,
        responses=FullResponseSerializer,
        extensions=errors(*_WRITE_ERRORS),
    )
    @action(detail=True, methods=["put"])
    def pricing(self, request: Request, pk: str) -> Response:
        """Replaces the negotiated rates, for later requests only."""
        body = UpdatePricingSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        endpoint = self._get(request, pk)
        endpoint.reprice(body.validated_data["pricing"])
        return Response({"data": FullSerializer(endpoint).data})

    def _get(self, request: Request, pk: str) -> PrivateEndpoint:
        """Loads an endpoint of the caller's organization; anything else does not exist."""
        endpoint: PrivateEndpoint | None = None
        if re.fullmatch(_UUID, pk):
            endpoint = (
                PrivateEndpoint.objects.for_organization(caller_of(request).organization_id)
                .select_related("model", "provider", "price")
                .filter(pk=UUID(pk))
                .first()
            )
        if endpoint is None:
            raise EndpointNotFound
        return endpoint


def _take_no_fields(request: Request) -> None:
    """Refuses a body with members: a verb without fields would ignore what the caller asks for."""
    StrictSerializer(data=request.data).is_valid(raise_exception=True)


def _validate_and_activate(endpoint: PrivateEndpoint, workspace_id: UUID, *, by: str) -> None:
    """Raises :class:`NotActivated`, or :class:`RequestTimeout` at the limit; keeps the draft."""
    result = validation.run(endpoint, workspace_id=workspace_id)
    if result.outcome == Validation.Outcome.TIMED_OUT:
        raise RequestTimeout(
            "The validation exceeded its time limit; the draft was kept.",
            metadata={"endpoint_id": str(endpoint.pk)},
        )
    if not result.passed:
        status, text = _failure(result)
        raise NotActivated(status, f"{text} The draft was kept.", endpoint, result)
    try:
        endpoint.activate(by=by)
    except InvalidTransition as exc:
        raise NotActivated(exc.status, exc.message, endpoint, result) from exc
    except DatabaseError as exc:
        logger.exception("a validated endpoint was not activated")
        raise NotActivated(
            500, "The endpoint could not be activated; the draft was kept.", endpoint, result
        ) from exc


def _failure(result: Validation) -> tuple[int, str]:
    """Returns the status and the sentence of a failed validation."""
    check = next(check for check in result.checks if not check["passed"])
    text = f"The validation failed: {check['name']} ({check['reason']})."
    if check["reason"] in _MISSING:
        return 404, text
    if result.outcome == Validation.Outcome.UNREACHABLE:
        return 502, text
    if result.outcome == Validation.Outcome.BROKEN:
        return 500, text
    return 422, text
