"""The end users that an organization registers."""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import unquote_to_bytes

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import ManagementKey, caller_of
from config.api.fields import StrictSerializer
from config.api.openapi import PAGE_PARAMETERS, errors
from config.api.params import query_flag, query_text, slice_page
from config.api.text import NOT_STORABLE
from endusers.models import EndUser, EndUserNotFound
from endusers.serializers import (
    CreateExternalSerializer,
    CreateSerializer,
    EndUserListSerializer,
    EndUserResponseSerializer,
    EndUserSerializer,
    UpdateSerializer,
)

_USER: Final = OpenApiParameter(
    "user",
    {"type": "string", "minLength": 1},
    OpenApiParameter.PATH,
    description=(
        "The tracking string, URL-encoded. Clients resolve `.` and `..` away: the list's `user` "
        "finds those."
    ),
)
_FILTERS: Final = (
    *PAGE_PARAMETERS,
    OpenApiParameter("user", str, description="Exactly this tracking string."),
    OpenApiParameter("include_inactive", bool, description="Inactive ones too."),
)


class EndUserViewSet(ViewSet):
    """Tracking strings; registering one creates no login, policy or credential."""

    permission_classes = [ManagementKey]
    lookup_url_kwarg = "user"
    # A tracking string has every character that a URL can carry, slashes and line ends included.
    lookup_value_regex = r"[\s\S]+"
    schema_tag = "end-users"
    create_serializer: ClassVar[type[StrictSerializer]] = CreateSerializer

    @extend_schema(
        operation_id="listEndUsers",
        parameters=[*_FILTERS],
        responses=EndUserListSerializer,
        extensions=errors(400),
    )
    def list(self, request: Request) -> Response:
        """Lists the registrations, oldest first; only active ones unless asked otherwise."""
        offset, limit = slice_page(request, default_limit=50, maximum_limit=100)
        rows = EndUser.objects.for_organization(caller_of(request).organization_id)
        if not query_flag(request, "include_inactive"):
            rows = rows.active()
        if (user := self.wanted(request)) is not None:
            rows = rows.filter(user=user)
        page = rows.order_by("created_at", "id")[offset : offset + limit]
        return Response(
            {"data": EndUserSerializer(page, many=True).data, "total_count": rows.count()}
        )

    @extend_schema(
        operation_id="createEndUser",
        request=CreateSerializer,
        responses={201: EndUserResponseSerializer},
        extensions=errors(404, 409),
    )
    def create(self, request: Request) -> Response:
        """Registers a tracking string under the organization."""
        body = self.create_serializer(data=request.data)
        body.is_valid(raise_exception=True)
        end_user = EndUser.objects.register(
            organization_id=caller_of(request).organization_id, user=body.validated_data["user"]
        )
        return Response({"data": EndUserSerializer(end_user).data}, status=201)

    @extend_schema(
        operation_id="getEndUser",
        parameters=[_USER],
        responses=EndUserResponseSerializer,
        extensions=errors(400, 404),
    )
    def retrieve(self, request: Request, user: str) -> Response:
        """Shows a registration, active or not."""
        return Response({"data": EndUserSerializer(self._get(request, user)).data})

    @extend_schema(
        operation_id="updateEndUser",
        parameters=[_USER],
        request=UpdateSerializer,
        responses=EndUserResponseSerializer,
        extensions=errors(404),
    )
    def partial_update(self, request: Request, user: str) -> Response:
        """Marks a registration active or inactive, which never blocks inference."""
        body = UpdateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        end_user = self._get(request, user)
        if body.validated_data["is_active"]:
            end_user.activate()
        else:
            end_user.deactivate()
        return Response({"data": EndUserSerializer(end_user).data})

    @extend_schema(
        operation_id="deleteEndUser",
        parameters=[_USER],
        responses={204: None},
        extensions=errors(400, 404),
    )
    def destroy(self, request: Request, user: str) -> Response:
        """Marks a registration inactive, again and again; the string stays taken."""
        self._get(request, user).deactivate()
        return Response(status=204)

    def wanted(self, request: Request) -> str | None:
        """Returns the tracking string that the list is filtered by."""
        return query_text(request, "user")

    def _get(self, request: Request, user: str) -> EndUser:
        """Loads a registration of the caller's organization; anything else does not exist."""
        # The server puts U+FFFD for octets that are not UTF-8; they name nobody.
        raw: bytes = getattr(request._request, "scope", {}).get("raw_path", b"")
        try:
            unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise EndUserNotFound from None
        return EndUser.objects.registered(
            organization_id=caller_of(request).organization_id, user=user
        )


@extend_schema_view(
    list=extend_schema(operation_id="listExternalUsers"),
    create=extend_schema(operation_id="createExternalUser", request=CreateExternalSerializer),
    retrieve=extend_schema(operation_id="getExternalUser"),
    partial_update=extend_schema(operation_id="updateExternalUser"),
    destroy=extend_schema(operation_id="deleteExternalUser"),
)
class ExternalUserViewSet(EndUserViewSet):
    """The same rows under their later name, which takes longer and freer strings."""

    schema_tag = "external-users"
    create_serializer = CreateExternalSerializer

    def wanted(self, request: Request) -> str | None:
        user: str | None = request.query_params.get("user")
        if user is not None and NOT_STORABLE.search(user):
            raise ValidationError({"user": ["Must not contain NUL."]})
        return user
