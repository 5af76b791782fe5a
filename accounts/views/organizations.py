"""The caller's organization: its members and its settings."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.models import Member, Organization, create_member, remove_member, workspace_for
from accounts.models.members import MemberNotFound
from accounts.serializers.organizations import (
    CreateMemberSerializer,
    MemberListSerializer,
    MemberResponseSerializer,
    MemberSerializer,
    OrganizationSettingsSerializer,
    SettingsResponseSerializer,
    UpdateMemberSerializer,
    UpdateSettingsSerializer,
)
from accounts.views.creations import CreatingViewSet
from config.api.openapi import IDEMPOTENCY_KEY, DeletedSerializer, errors
from config.api.viewsets import OrganizationViewSet
from config.changes.kinds import ChangeKind


class MemberViewSet(ListModelMixin, CreatingViewSet):
    """The members of the organization; a member is not a login."""

    permission_classes = [ManagementKey]
    queryset = Member.objects.order_by("created_at", "id")
    serializer_class = MemberSerializer
    not_found = MemberNotFound
    schema_tag = "organization"

    @extend_schema(
        operation_id="listOrganizationMembers",
        responses=MemberListSerializer,
        extensions=errors(400),
    )
    def list(self, request: Request) -> Response:
        """Lists the members, oldest first."""
        return super().list(request)

    @extend_schema(
        operation_id="createOrganizationMember",
        request=CreateMemberSerializer,
        parameters=[IDEMPOTENCY_KEY],
        responses={201: MemberResponseSerializer},
        extensions=errors(404, 409, 422),
    )
    def create(self, request: Request) -> Response:
        """Creates a member, who joins the workspaces that are named."""
        member, _ = self.create_once(CreateMemberSerializer, self._create)
        return self.respond(member, 201)

    def _create(self, fields: dict[str, Any]) -> tuple[Member, None]:
        ids = dict.fromkeys(fields.pop("workspace_ids", ()))
        workspaces = [workspace_for(self.organization_id, each) for each in ids]
        return create_member(self.organization_id, workspaces=workspaces, **fields), None

    @extend_schema(
        operation_id="updateOrganizationMember",
        request=UpdateMemberSerializer,
        responses=MemberResponseSerializer,
        extensions=errors(404),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the name or the role of a member; roles in workspaces stay as they are."""
        fields = self.read_body(UpdateMemberSerializer)
        member = self.get_object()
        member.edit(**fields)
        return self.respond(member)

    @extend_schema(
        operation_id="deleteOrganizationMember",
        responses={200: DeletedSerializer},
        extensions=errors(404, 409),
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a member, whose keys were deleted before; reports still name the member."""
        remove_member(self.get_object())
        return Response({"deleted": True})


class SettingsViewSet(OrganizationViewSet):
    """The settings of the organization, which hold for all of its keys."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {"partial_update": (ChangeKind.GUARDRAILS,)}
    queryset = Organization.objects.all()
    serializer_class = OrganizationSettingsSerializer
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
