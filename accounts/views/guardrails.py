"""The organization's guardrails, and their assignments to keys and members."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.models import (
    ApiKey,
    Guardrail,
    GuardrailNotFound,
    KeyAssignment,
    Member,
    MemberAssignment,
    Workspace,
    workspace_for,
)
from accounts.serializers.guardrails import (
    AssignedSerializer,
    CreateGuardrailSerializer,
    GuardrailListSerializer,
    GuardrailResponseSerializer,
    GuardrailSerializer,
    KeyAssignmentListSerializer,
    KeyAssignmentSerializer,
    KeyHashesSerializer,
    MemberAssignmentListSerializer,
    MemberAssignmentSerializer,
    MemberIdsSerializer,
    UnassignedSerializer,
    UpdateGuardrailSerializer,
)
from accounts.views.creations import CreatingViewSet, creates
from accounts.views.filters import WorkspaceFilter
from config.api.filters import StrictFilterSet
from config.api.openapi import operation
from config.api.text import parse_uuid
from config.api.viewsets import make_destroy, make_list, make_retrieve
from config.changes.kinds import ChangeKind

_KEYS: Final[dict[str, Any]] = {
    "url_path": "assignments/keys",
    "serializer_class": KeyAssignmentSerializer,
    "filterset_class": None,
    "is_list": True,
}
_MEMBERS: Final[dict[str, Any]] = {
    "url_path": "assignments/members",
    "serializer_class": MemberAssignmentSerializer,
    "filterset_class": None,
    "is_list": True,
}


class GuardrailFilters(StrictFilterSet):
    workspace_id = WorkspaceFilter(help_text="The default workspace if absent.")


class GuardrailViewSet(CreatingViewSet):
    """Limits on the keys and members that they are assigned to."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {
        "partial_update": (ChangeKind.GUARDRAILS,),
        "destroy": (ChangeKind.DELETIONS, ChangeKind.GUARDRAILS),
        "assign_keys": (ChangeKind.GUARDRAILS,),
        "unassign_keys": (ChangeKind.GUARDRAILS,),
        "assign_members": (ChangeKind.GUARDRAILS,),
        "unassign_members": (ChangeKind.GUARDRAILS,),
    }
    queryset = Guardrail.objects.order_by("created_at", "id")
    serializer_class = GuardrailSerializer
    filterset_class = GuardrailFilters
    not_found = GuardrailNotFound
    schema_tag = "guardrails"

    list = make_list(
        "listGuardrails",
        GuardrailListSerializer,
        "Lists the guardrails of one workspace, oldest first.",
        (400, 404),
    )

    @creates(
        "createGuardrail", CreateGuardrailSerializer, GuardrailResponseSerializer, (404, 422, 429)
    )
    def create(self, fields: dict[str, Any]) -> Guardrail:
        """Creates a guardrail, which has no effect until it is assigned.

        To limit a whole workspace, change its default guardrail instead.
        """
        workspace = workspace_for(self.organization_id, fields.pop("workspace_id", None))
        return Guardrail.objects.create_guardrail(workspace=workspace, **fields)

    retrieve = make_retrieve("getGuardrail", GuardrailResponseSerializer, "Shows a guardrail.")

    @operation(
        "updateGuardrail", UpdateGuardrailSerializer, GuardrailResponseSerializer, (404, 422, 429)
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent; `null` clears a field, and a list replaces the old one.

        The first change of a workspace's default guardrail creates it.
        """
        rows = Guardrail.objects.for_organization(self.organization_id).filter(pk=parse_uuid(pk))
        fields = self.read_body(UpdateGuardrailSerializer, find_row=cache(rows.first))
        workspace = self._default_guardrail_workspace(parse_uuid(pk))
        if workspace is not None:
            return self.respond(Guardrail.objects.edit_workspace_default(workspace, **fields))
        guardrail = self.get_object()
        guardrail.edit(**fields)
        return self.respond(guardrail)

    destroy = make_destroy("deleteGuardrail", "Deletes a guardrail with its assignments.")

    @operation("listKeyAssignments", None, KeyAssignmentListSerializer, (400,))
    @action(detail=False, **_KEYS)
    def all_keys(self, request: Request) -> Response:
        """Lists the guardrail assignments of all keys, oldest first."""
        return self.respond_with_page(self._key_assignments())

    @operation("listMemberAssignments", None, MemberAssignmentListSerializer, (400,))
    @action(detail=False, **_MEMBERS)
    def all_members(self, request: Request) -> Response:
        """Lists the guardrail assignments of all members, oldest first."""
        return self.respond_with_page(self._member_assignments())

    @operation("listGuardrailKeyAssignments", None, KeyAssignmentListSerializer, (400, 404))
    @action(detail=True, **_KEYS)
    def keys(self, request: Request, pk: str) -> Response:
        """Lists the keys of a guardrail, oldest assignment first."""
        return self.respond_with_page(self._key_assignments(guardrail=self.get_object()))

    @operation("bulkAssignKeysToGuardrail", KeyHashesSerializer, AssignedSerializer, (404,))
    @keys.mapping.post
    def assign_keys(self, request: Request, pk: str) -> Response:
        """Assigns the guardrail to inference keys; it replaces any other one."""
        hashes = self.read_body(KeyHashesSerializer)["key_hashes"]
        guardrail, keys = self.get_object(), self._find_keys(hashes)
        return Response({"assigned_count": guardrail.assign_keys(keys, by=self.actor)})

    @operation("bulkUnassignKeysFromGuardrail", KeyHashesSerializer, UnassignedSerializer, (404,))
    @action(detail=True, methods=["post"], url_path="assignments/keys/remove")
    def unassign_keys(self, request: Request, pk: str) -> Response:
        """Removes the guardrail from those of the keys that have it."""
        hashes = self.read_body(KeyHashesSerializer)["key_hashes"]
        guardrail, keys = self.get_object(), self._find_keys(hashes)
        return Response({"unassigned_count": guardrail.unassign_keys(keys)})

    @operation("listGuardrailMemberAssignments", None, MemberAssignmentListSerializer, (400, 404))
    @action(detail=True, **_MEMBERS)
    def members(self, request: Request, pk: str) -> Response:
        """Lists the members of a guardrail, oldest assignment first."""
        return self.respond_with_page(self._member_assignments(guardrail=self.get_object()))

    @operation("bulkAssignMembersToGuardrail", MemberIdsSerializer, AssignedSerializer, (404,))
    @members.mapping.post
    def assign_members(self, request: Request, pk: str) -> Response:
        """Assigns the guardrail to members, for all of their keys; it replaces any other one."""
        ids = self.read_body(MemberIdsSerializer)["member_user_ids"]
        guardrail, members = self.get_object(), self._find_members(ids)
        return Response({"assigned_count": guardrail.assign_members(members, by=self.actor)})

    @operation(
        "bulkUnassignMembersFromGuardrail", MemberIdsSerializer, UnassignedSerializer, (404,)
    )
    @action(detail=True, methods=["post"], url_path="assignments/members/remove")
    def unassign_members(self, request: Request, pk: str) -> Response:
        """Removes the guardrail from those of the members that have it."""
        ids = self.read_body(MemberIdsSerializer)["member_user_ids"]
        guardrail, members = self.get_object(), self._find_members(ids)
        return Response({"unassigned_count": guardrail.unassign_members(members)})

    def _default_guardrail_workspace(self, guardrail_id: UUID | None) -> Workspace | None:
        """Returns the workspace whose default guardrail has this id, even if it has no row yet."""
        rows = Workspace.objects.for_organization(self.organization_id)
        return next((row for row in rows if row.default_guardrail_id == guardrail_id), None)

    def _find_keys(self, hashes: Collection[str]) -> Collection[ApiKey]:
        keys = ApiKey.objects.for_organization(self.organization_id).for_inference().current()
        return keys.find_all(hashes)

    def _find_members(self, ids: Collection[str]) -> Collection[Member]:
        return Member.objects.for_organization(self.organization_id).find_all(ids)

    def _key_assignments(self, **only: Guardrail) -> QuerySet[KeyAssignment]:
        return KeyAssignment.objects.filter(
            guardrail__organization_id=self.organization_id, api_key__deleted_at=None, **only
        ).select_related("api_key")

    def _member_assignments(self, **only: Guardrail) -> QuerySet[MemberAssignment]:
        return MemberAssignment.objects.filter(
            guardrail__organization_id=self.organization_id, **only
        ).select_related("member")
