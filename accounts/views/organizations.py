"""The caller's organization: its members and its settings."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.models import Member, Organization
from accounts.serializers.organizations import (
    MemberListSerializer,
    MemberSerializer,
    SettingsResponseSerializer,
    SettingsSerializer,
    UpdateSettingsSerializer,
)
from config.api.openapi import errors
from config.api.viewsets import OrganizationViewSet


class MemberViewSet(ListModelMixin, OrganizationViewSet):
    """The members of the organization. An operator adds them; a member is not a login."""

    permission_classes = [ManagementKey]
    queryset = Member.objects.order_by("created_at", "id")
    serializer_class = MemberSerializer
    schema_tag = "organization"

    @extend_schema(
        operation_id="listOrganizationMembers",
        responses=MemberListSerializer,
        extensions=errors(400),
    )
    def list(self, request: Request) -> Response:
        """Lists the members, oldest first."""
        return super().list(request)


class SettingsViewSet(OrganizationViewSet):
    """The settings of the organization, which hold for all of its keys."""

    permission_classes = [ManagementKey]
    queryset = Organization.objects.all()
    serializer_class = SettingsSerializer
    schema_tag = "organization"

    def get_object(self) -> Organization:
        return Organization.objects.get(pk=self.organization_id)

    @extend_schema(operation_id="getOrganizationSettings", responses=SettingsResponseSerializer)
    def retrieve(self, request: Request) -> Response:
        """Shows the settings."""
        return self.respond(self.get_object())

    @extend_schema(
        operation_id="updateOrganizationSettings",
        request=UpdateSettingsSerializer,
        responses=SettingsResponseSerializer,
    )
    def partial_update(self, request: Request) -> Response:
        """Changes the settings, from the next request on."""
        fields = self.read_body(UpdateSettingsSerializer)
        organization = self.get_object()
        organization.edit(**fields)
        return self.respond(organization)
