"""The caller's organization: its members and its settings."""

from __future__ import annotations

from typing import Any, ClassVar

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
from accounts.views.creations import CreatingViewSet, creates
from config.api.openapi import DeletedSerializer, operation
from config.api.viewsets import OrganizationViewSet, make_list, make_retrieve, make_update
from config.changes.kinds import ChangeKind


class MemberViewSet(CreatingViewSet):
    """The members of the organization; a member is not a login."""

    permission_classes = [ManagementKey]
    queryset = Member.objects.order_by("created_at", "id")
    serializer_class = MemberSerializer
    not_found = MemberNotFound
    schema_tag = "organization"

    list = make_list(
        "listOrganizationMembers", MemberListSerializer, "Lists the members, oldest first."
    )

    @creates(
        "createOrganizationMember",
        CreateMemberSerializer,
        MemberResponseSerializer,
        (404, 409, 422),
    )
    def create(self, fields: dict[str, Any]) -> Member:
        """Creates a member, who joins the workspaces that are named."""
        ids = dict.fromkeys(fields.pop("workspace_ids", ()))
        workspaces = [workspace_for(self.organization_id, each) for each in ids]
        return create_member(self.organization_id, workspaces=workspaces, **fields)

    partial_update = make_update(
        "updateOrganizationMember",
        UpdateMemberSerializer,
        MemberResponseSerializer,
        "Changes the name or the role of a member; roles in workspaces stay as they are.",
    )

    @operation("deleteOrganizationMember", None, {200: DeletedSerializer}, (404, 409))
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

    retrieve = make_retrieve(
        "getOrganizationSettings", SettingsResponseSerializer, "Shows the settings.", ()
    )

    partial_update = make_update(
        "updateOrganizationSettings",
        UpdateSettingsSerializer,
        SettingsResponseSerializer,
        "Changes the settings, from the next request on.",
        (),
    )
