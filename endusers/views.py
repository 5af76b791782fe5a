"""The end users that an organization registers."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.views.creations import CreatingViewSet
from config.api.fields import StrictSerializer
from config.api.filters import FlagFilter, StateFilter, StrictFilterSet, TextFilter, TrackingFilter
from config.api.openapi import creation, operation
from config.api.text import is_utf8_path
from config.api.viewsets import make_list, make_retrieve
from endusers.models import EndUser, EndUserNotFound
from endusers.serializers import (
    CreateExternalSerializer,
    EndUserCreateSerializer,
    EndUserListSerializer,
    EndUserResponseSerializer,
    EndUserSerializer,
    EndUserUpdateSerializer,
)

_USER: Final = OpenApiParameter(
    "user",
    {"type": "string", "minLength": 1},
    OpenApiParameter.PATH,
    description=(
        "The tracking string, URL-encoded. Clients normalize `.` and `..` away: use the list's "
        "`user` parameter for these two."
    ),
)


class EndUserFilters(StrictFilterSet):
    include_inactive = FlagFilter(unless_set="active", help_text="Inactive ones too.")
    is_active = StateFilter(
        help_text="Extension: only active ones, or only inactive ones, whatever `include_inactive` "
        "says."
    )
    user = TextFilter(help_text="Exactly this tracking string.")

    def filter_queryset(self, queryset: QuerySet[EndUser]) -> QuerySet[EndUser]:
        if self.form.cleaned_data["is_active"] is not None:
            self.form.cleaned_data["include_inactive"] = True
        return super().filter_queryset(queryset)


class ExternalUserFilters(EndUserFilters):
    user = TrackingFilter(help_text="Exactly this tracking string.")


class EndUserViewSet(CreatingViewSet):
    """Registered tracking strings. Registering one creates no login, policy or credential."""

    permission_classes = [ManagementKey]
    queryset = EndUser.objects.order_by("created_at", "id")
    serializer_class = EndUserSerializer
    filterset_class: ClassVar[type[StrictFilterSet]] = EndUserFilters
    lookup_field = "user"
    # A tracking string may contain any character of a URL, including slashes and line ends.
    lookup_value_regex = r"[\s\S]+"
    not_found = EndUserNotFound
    shared_parameters = (_USER,)
    schema_tag = "end-users"
    create_serializer: ClassVar[type[StrictSerializer]] = EndUserCreateSerializer

    def get_object(self) -> EndUser:
        # The server replaces bytes that are not UTF-8 with U+FFFD, which would name another user.
        if not is_utf8_path(getattr(self.request._request, "scope", {}).get("raw_path", b"")):
            raise EndUserNotFound
        return super().get_object()

    list = make_list(
        "listEndUsers",
        EndUserListSerializer,
        "Lists the registrations, oldest first; only active ones unless asked otherwise.",
    )

    @creation("createEndUser", EndUserCreateSerializer, EndUserResponseSerializer, (404, 409, 422))
    def create(self, request: Request) -> Response:
        """Registers a tracking string under the organization."""
        end_user, _ = self.create_once(self.create_serializer, self._create)
        return self.respond(end_user, status=201)

    def _create(self, fields: dict[str, Any]) -> tuple[EndUser, None]:
        return EndUser.objects.register(organization_id=self.organization_id, **fields), None

    retrieve = make_retrieve(
        "getEndUser", EndUserResponseSerializer, "Shows a registration, active or not.", (400, 404)
    )

    @operation("updateEndUser", EndUserUpdateSerializer, EndUserResponseSerializer, (404, 422))
    def partial_update(self, request: Request, user: str) -> Response:
        """Marks a registration active or inactive, and changes its rate limits.

        Inference works either way, within the rate limits.
        """
        fields = self.read_body(EndUserUpdateSerializer, find_row=self.get_object)
        end_user = self.get_object()
        end_user.edit(**fields)
        return self.respond(end_user)

    @operation("deleteEndUser", None, {204: None}, (400, 404))
    def destroy(self, request: Request, user: str) -> Response:
        """Marks a registration inactive. It stays, so its string cannot be registered again."""
        self.get_object().deactivate()
        return Response(status=204)


@extend_schema_view(
    list=extend_schema(operation_id="listExternalUsers"),
    create=extend_schema(operation_id="createExternalUser", request=CreateExternalSerializer),
    retrieve=extend_schema(operation_id="getExternalUser"),
    partial_update=extend_schema(operation_id="updateExternalUser"),
    destroy=extend_schema(operation_id="deleteExternalUser"),
)
class ExternalUserViewSet(EndUserViewSet):
    """The same registrations under their later name, which accepts longer and freer strings."""

    filterset_class = ExternalUserFilters
    schema_tag = "external-users"
    create_serializer = CreateExternalSerializer
