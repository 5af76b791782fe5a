"""Workspaces, their members and budgets; guardrails and their assignments; the organization."""

from __future__ import annotations

import re
from typing import Any, Final
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from accounts.authentication import ManagementKey, caller_of
from accounts.governance_serializers import (
    AddedMembersSerializer,
    AssignedSerializer,
    BudgetListSerializer,
    BudgetResponseSerializer,
    BudgetSerializer,
    CreateGuardrailSerializer,
    CreateWorkspaceSerializer,
    GuardrailListSerializer,
    GuardrailResponseSerializer,
    GuardrailSerializer,
    KeyAssignmentListSerializer,
    KeyAssignmentSerializer,
    KeyHashesSerializer,
    MemberAssignmentListSerializer,
    MemberAssignmentSerializer,
    MemberIdsSerializer,
    MemberListSerializer,
    MemberSerializer,
    RemovedMembersSerializer,
    SetBudgetSerializer,
    SettingsResponseSerializer,
    SettingsSerializer,
    UnassignedSerializer,
    UpdateGuardrailSerializer,
    UpdateSettingsSerializer,
    UpdateWorkspaceSerializer,
    WorkspaceListSerializer,
    WorkspaceMemberListSerializer,
    WorkspaceMemberSerializer,
    WorkspaceMembersSerializer,
    WorkspaceResponseSerializer,
    WorkspaceSerializer,
)
from accounts.models import (
    ApiKey,
    ApiKeyNotFound,
    BudgetInterval,
    BudgetNotFound,
    Guardrail,
    GuardrailNotFound,
    KeyAssignment,
    Member,
    MemberAssignment,
    MemberNotFound,
    Organization,
    Workspace,
    WorkspaceNotFound,
    workspace_for,
)
from accounts.serializers import DeletedSerializer
from config.api.fields import StrictSerializer
from config.api.openapi import PAGE_PARAMETERS, errors
from config.api.params import query_flag, query_uuid, slice_page
from config.api.text import parse_uuid

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_WORKSPACE: Final = OpenApiParameter(
    "workspace_ref", str, OpenApiParameter.PATH, description="The id or the slug."
)
_INTERVAL: Final = OpenApiParameter(
    "interval", str, OpenApiParameter.PATH, enum=BudgetInterval.values
)


class WorkspaceViewSet(ViewSet):
    """The parts of the organization, with who works in them and what they may spend."""

    permission_classes = [ManagementKey]
    lookup_url_kwarg = "workspace_ref"
    lookup_value_regex = "[^/]+"
    schema_tag = "workspaces"

    @extend_schema(
        operation_id="listWorkspaces",
        parameters=[*PAGE_PARAMETERS],
        responses=WorkspaceListSerializer,
        extensions=errors(400),
    )
    def list(self, request: Request) -> Response:
        """Lists the workspaces, oldest first."""
        rows = Workspace.objects.for_organization(caller_of(request).organization_id)
        return _page(request, rows.order_by("created_at", "id"), WorkspaceSerializer)

    @extend_schema(
        operation_id="createWorkspace",
        request=CreateWorkspaceSerializer,
        responses={201: WorkspaceResponseSerializer},
    )
    def create(self, request: Request) -> Response:
        """Creates a workspace; its slug names it as well as its id does."""
        caller = caller_of(request)
        workspace = Workspace.objects.create_workspace(
            organization_id=caller.organization_id,
            created_by=caller.actor,
            **_fields(request, CreateWorkspaceSerializer),
        )
        return Response({"data": WorkspaceSerializer(workspace).data}, status=201)

    @extend_schema(
        operation_id="getWorkspace",
        parameters=[_WORKSPACE],
        responses=WorkspaceResponseSerializer,
        extensions=errors(404),
    )
    def retrieve(self, request: Request, workspace_ref: str) -> Response:
        """Shows a workspace."""
        return Response({"data": WorkspaceSerializer(_workspace(request, workspace_ref)).data})

    @extend_schema(
        operation_id="updateWorkspace",
        parameters=[_WORKSPACE],
        request=UpdateWorkspaceSerializer,
        responses=WorkspaceResponseSerializer,
        extensions=errors(404),
    )
    def partial_update(self, request: Request, workspace_ref: str) -> Response:
        """Changes what is named; what is left out stays as it is, `null` clears."""
        fields = _fields(request, UpdateWorkspaceSerializer)
        workspace = _workspace(request, workspace_ref)
        workspace.edit(**fields)
        return Response({"data": WorkspaceSerializer(workspace).data})

    @extend_schema(
        operation_id="deleteWorkspace",
        parameters=[
            _WORKSPACE,
            OpenApiParameter(
                "confirm_default_workspace_deletion",
                bool,
                description="Demanded for the default workspace, whose inference keys it disables.",
            ),
        ],
        responses={200: DeletedSerializer},
        extensions=errors(400, 404),
    )
    def destroy(self, request: Request, workspace_ref: str) -> Response:
        """Deletes a workspace that has no active API key, with its budgets and guardrails."""
        confirmed = query_flag(request, "confirm_default_workspace_deletion")
        _workspace(request, workspace_ref).close(confirm_default=confirmed)
        return Response({"deleted": True})

    @extend_schema(
        operation_id="listWorkspaceMembers",
        parameters=[_WORKSPACE, *PAGE_PARAMETERS],
        responses=WorkspaceMemberListSerializer,
        extensions=errors(400, 404),
    )
    @action(detail=True, url_path="members")
    def members(self, request: Request, workspace_ref: str) -> Response:
        """Lists who works in a workspace; in the default one that is the whole organization."""
        workspace = _workspace(request, workspace_ref)
        if not workspace.is_default:
            return _page(request, workspace.memberships.all(), WorkspaceMemberSerializer)
        offset, limit = slice_page(request, default_limit=50, maximum_limit=100)
        rows = Member.objects.for_organization(workspace.organization_id)
        page = rows.order_by("created_at", "id")[offset : offset + limit]
        places = [workspace.place_of(member) for member in page]
        data = WorkspaceMemberSerializer(places, many=True).data
        return Response({"data": data, "total_count": rows.count()})

    @extend_schema(
        operation_id="bulkAddWorkspaceMembers",
        parameters=[_WORKSPACE],
        request=WorkspaceMembersSerializer,
        responses={200: AddedMembersSerializer},
        extensions=errors(404),
    )
    @action(detail=True, methods=["post"], url_path="members/add")
    def add_members(self, request: Request, workspace_ref: str) -> Response:
        """Adds members, with the role that they have in the organization."""
        ids = _fields(request, WorkspaceMembersSerializer)["user_ids"]
        workspace = _workspace(request, workspace_ref)
        members = _members(request, ids)
        added = workspace.add_members(members)
        places = (
            [workspace.place_of(member) for member in members]
            if workspace.is_default
            else workspace.memberships.filter(member__in=members)
        )
        data = WorkspaceMemberSerializer(places, many=True).data
        return Response({"data": data, "added_count": added})

    @extend_schema(
        operation_id="bulkRemoveWorkspaceMembers",
        parameters=[_WORKSPACE],
        request=WorkspaceMembersSerializer,
        responses={200: RemovedMembersSerializer},
        extensions=errors(404),
    )
    @action(detail=True, methods=["post"], url_path="members/remove")
    def remove_members(self, request: Request, workspace_ref: str) -> Response:
        """Removes members, all or none: nobody who has an active API key in the workspace."""
        ids = _fields(request, WorkspaceMembersSerializer)["user_ids"]
        workspace = _workspace(request, workspace_ref)
        return Response({"removed_count": workspace.remove_members(_members(request, ids))})

    @extend_schema(
        operation_id="listWorkspaceBudgets",
        parameters=[_WORKSPACE],
        responses=BudgetListSerializer,
        extensions=errors(404),
    )
    @action(detail=True, url_path="budgets")
    def budgets(self, request: Request, workspace_ref: str) -> Response:
        """Lists what the workspace may spend, the shortest interval first."""
        workspace = _workspace(request, workspace_ref)
        order = BudgetInterval.values
        rows = sorted(workspace.budgets.all(), key=lambda budget: order.index(budget.interval))
        return Response(
            {
                "data": BudgetSerializer(rows, many=True).data,
                "include_byok_in_budgets": workspace.include_byok_in_budgets,
            }
        )

    @extend_schema(
        operation_id="getWorkspaceBudget",
        parameters=[_WORKSPACE, _INTERVAL],
        responses=BudgetResponseSerializer,
        extensions=errors(400, 404),
    )
    @action(detail=True, url_path="budgets/(?P<interval>[^/]+)")
    def budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Shows the budget of one interval."""
        wanted = _interval(interval)
        workspace = _workspace(request, workspace_ref)
        found = workspace.budgets.filter(interval=wanted).first()
        if found is None:
            raise BudgetNotFound
        return _budget_response(workspace, found)

    @extend_schema(
        operation_id="upsertWorkspaceBudget",
        parameters=[_WORKSPACE, _INTERVAL],
        request=SetBudgetSerializer,
        responses=BudgetResponseSerializer,
        extensions=errors(404),
    )
    @budget.mapping.put
    def set_budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Limits what the workspace may spend in an interval, less than in every longer one."""
        wanted = _interval(interval)
        fields = _fields(request, SetBudgetSerializer)
        workspace = _workspace(request, workspace_ref)
        budget = workspace.set_budget(
            wanted,
            limit_nano=fields["limit_nano"],
            include_byok=fields.get("include_byok_in_budgets"),
        )
        return _budget_response(workspace, budget)

    @extend_schema(
        operation_id="deleteWorkspaceBudget",
        parameters=[_WORKSPACE, _INTERVAL],
        responses={200: DeletedSerializer},
        extensions=errors(400, 404),
    )
    @budget.mapping.delete
    def lift_budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Takes the budget of an interval away; one that is not there is away already."""
        wanted = _interval(interval)
        _workspace(request, workspace_ref).lift_budget(wanted)
        return Response({"deleted": True})


class GuardrailViewSet(ViewSet):
    """Limits that hold for the keys and members that they are assigned to."""

    permission_classes = [ManagementKey]
    lookup_value_regex = "[^/]+"
    schema_tag = "guardrails"

    @extend_schema(
        operation_id="listGuardrails",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("workspace_id", UUID, description="The default workspace if absent."),
        ],
        responses=GuardrailListSerializer,
        extensions=errors(400, 404),
    )
    def list(self, request: Request) -> Response:
        """Lists the guardrails that are filed in one workspace, oldest first."""
        wanted = query_uuid(request, "workspace_id")
        workspace = workspace_for(caller_of(request).organization_id, wanted)
        rows = workspace.guardrails.order_by("created_at", "id")
        return _page(request, rows, GuardrailSerializer)

    @extend_schema(
        operation_id="createGuardrail",
        request=CreateGuardrailSerializer,
        responses={201: GuardrailResponseSerializer},
        extensions=errors(404),
    )
    def create(self, request: Request) -> Response:
        """Creates a guardrail, which enforces nothing until it is assigned.

        To govern a whole workspace, change its default guardrail instead.
        """
        fields = _fields(request, CreateGuardrailSerializer)
        organization_id = caller_of(request).organization_id
        workspace = workspace_for(organization_id, fields.pop("workspace_id", None))
        guardrail = Guardrail.objects.create_guardrail(workspace=workspace, **fields)
        return Response({"data": GuardrailSerializer(guardrail).data}, status=201)

    @extend_schema(
        operation_id="getGuardrail", responses=GuardrailResponseSerializer, extensions=errors(404)
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        """Shows a guardrail."""
        return Response({"data": GuardrailSerializer(_guardrail(request, pk)).data})

    @extend_schema(
        operation_id="updateGuardrail",
        request=UpdateGuardrailSerializer,
        responses=GuardrailResponseSerializer,
        extensions=errors(404),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes what is named, or brings a workspace's default guardrail into being.

        What is left out stays as it is, `null` removes, and lists are replaced whole.
        """
        fields = _fields(request, UpdateGuardrailSerializer)
        workspace = _governed_by(request, pk)
        if workspace is not None:
            guardrail = Guardrail.objects.edit_workspace_default(workspace, **fields)
        else:
            guardrail = _guardrail(request, pk)
            guardrail.edit(**fields)
        return Response({"data": GuardrailSerializer(guardrail).data})

    @extend_schema(
        operation_id="deleteGuardrail",
        responses={200: DeletedSerializer},
        extensions=errors(404),
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a guardrail with its assignments: what it governed is governed no more."""
        _guardrail(request, pk).remove()
        return Response({"deleted": True})

    @extend_schema(
        operation_id="listKeyAssignments",
        parameters=[*PAGE_PARAMETERS],
        responses=KeyAssignmentListSerializer,
        extensions=errors(400),
    )
    @action(detail=False, url_path="assignments/keys")
    def all_keys(self, request: Request) -> Response:
        """Lists which key has which guardrail, oldest assignment first."""
        return _assigned_keys(request)

    @extend_schema(
        operation_id="listMemberAssignments",
        parameters=[*PAGE_PARAMETERS],
        responses=MemberAssignmentListSerializer,
        extensions=errors(400),
    )
    @action(detail=False, url_path="assignments/members")
    def all_members(self, request: Request) -> Response:
        """Lists which member has which guardrail, oldest assignment first."""
        return _assigned_members(request)

    @extend_schema(
        operation_id="listGuardrailKeyAssignments",
        parameters=[*PAGE_PARAMETERS],
        responses=KeyAssignmentListSerializer,
        extensions=errors(400, 404),
    )
    @action(detail=True, url_path="assignments/keys")
    def keys(self, request: Request, pk: str) -> Response:
        """Lists the keys of a guardrail, oldest assignment first."""
        return _assigned_keys(request, guardrail=_guardrail(request, pk))

    @extend_schema(
        operation_id="bulkAssignKeysToGuardrail",
        request=KeyHashesSerializer,
        responses={200: AssignedSerializer},
        extensions=errors(404),
    )
    @keys.mapping.post
    def assign_keys(self, request: Request, pk: str) -> Response:
        """Makes it the one guardrail of inference keys, in place of any other."""
        hashes = _fields(request, KeyHashesSerializer)["key_hashes"]
        guardrail, keys = _guardrail(request, pk), _keys(request, hashes)
        assigned = guardrail.assign_keys(keys, by=caller_of(request).actor)
        return Response({"assigned_count": assigned})

    @extend_schema(
        operation_id="bulkUnassignKeysFromGuardrail",
        request=KeyHashesSerializer,
        responses={200: UnassignedSerializer},
        extensions=errors(404),
    )
    @action(detail=True, methods=["post"], url_path="assignments/keys/remove")
    def unassign_keys(self, request: Request, pk: str) -> Response:
        """Leaves those of the keys that have this guardrail without one."""
        hashes = _fields(request, KeyHashesSerializer)["key_hashes"]
        guardrail = _guardrail(request, pk)
        return Response({"unassigned_count": guardrail.unassign_keys(_keys(request, hashes))})

    @extend_schema(
        operation_id="listGuardrailMemberAssignments",
        parameters=[*PAGE_PARAMETERS],
        responses=MemberAssignmentListSerializer,
        extensions=errors(400, 404),
    )
    @action(detail=True, url_path="assignments/members")
    def members(self, request: Request, pk: str) -> Response:
        """Lists the members of a guardrail, oldest assignment first."""
        return _assigned_members(request, guardrail=_guardrail(request, pk))

    @extend_schema(
        operation_id="bulkAssignMembersToGuardrail",
        request=MemberIdsSerializer,
        responses={200: AssignedSerializer},
        extensions=errors(404),
    )
    @members.mapping.post
    def assign_members(self, request: Request, pk: str) -> Response:
        """Makes it the one guardrail of members, in place of any other, for all of their keys."""
        ids = _fields(request, MemberIdsSerializer)["member_user_ids"]
        guardrail, members = _guardrail(request, pk), _members(request, ids)
        assigned = guardrail.assign_members(members, by=caller_of(request).actor)
        return Response({"assigned_count": assigned})

    @extend_schema(
        operation_id="bulkUnassignMembersFromGuardrail",
        request=MemberIdsSerializer,
        responses={200: UnassignedSerializer},
        extensions=errors(404),
    )
    @action(detail=True, methods=["post"], url_path="assignments/members/remove")
    def unassign_members(self, request: Request, pk: str) -> Response:
        """Leaves those of the members that have this guardrail without one."""
        ids = _fields(request, MemberIdsSerializer)["member_user_ids"]
        guardrail = _guardrail(request, pk)
        return Response({"unassigned_count": guardrail.unassign_members(_members(request, ids))})


class OrganizationMembersView(APIView):
    """The people of the organization. They are the operator's to add, and not a login."""

    permission_classes = [ManagementKey]
    schema_tag = "organization"

    @extend_schema(
        operation_id="listOrganizationMembers",
        parameters=[*PAGE_PARAMETERS],
        responses=MemberListSerializer,
        extensions=errors(400),
    )
    def get(self, request: Request) -> Response:
        """Lists the members, oldest first."""
        rows = Member.objects.for_organization(caller_of(request).organization_id)
        return _page(request, rows.order_by("created_at", "id"), MemberSerializer)


class OrganizationSettingsView(APIView):
    """What an organization decides for all of its keys."""

    permission_classes = [ManagementKey]
    schema_tag = "organization"

    @extend_schema(operation_id="getOrganizationSettings", responses=SettingsResponseSerializer)
    def get(self, request: Request) -> Response:
        """Shows the settings."""
        return Response({"data": SettingsSerializer(_organization(request)).data})

    @extend_schema(
        operation_id="updateOrganizationSettings",
        request=UpdateSettingsSerializer,
        responses=SettingsResponseSerializer,
    )
    def patch(self, request: Request) -> Response:
        """Changes the settings, from the next request on."""
        fields = _fields(request, UpdateSettingsSerializer)
        organization = _organization(request)
        organization.edit(**fields)
        return Response({"data": SettingsSerializer(organization).data})


def _fields(request: Request, shape: type[StrictSerializer]) -> dict[str, Any]:
    body = shape(data=request.data)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)


def _page(request: Request, rows: Any, serializer: Any) -> Response:
    offset, limit = slice_page(request, default_limit=50, maximum_limit=100)
    data = serializer(rows[offset : offset + limit], many=True).data
    return Response({"data": data, "total_count": rows.count()})


def _organization(request: Request) -> Organization:
    return Organization.objects.get(pk=caller_of(request).organization_id)


def _workspace(request: Request, ref: str) -> Workspace:
    """Loads a workspace of the caller's organization by its id or its slug."""
    rows = Workspace.objects.for_organization(caller_of(request).organization_id)
    pk = parse_uuid(ref)
    # A slug never looks like an id; what no slug can be is not asked for, NUL for instance.
    found: Workspace | None = None
    if pk is not None:
        found = rows.filter(pk=pk).first()
    elif ref.isascii() and ref.isprintable():
        found = rows.filter(slug=ref).first()
    if found is None:
        raise WorkspaceNotFound
    return found


def _interval(text: str) -> BudgetInterval:
    if text not in BudgetInterval.values:
        raise ValidationError(
            {"interval": [f"Must be one of: {', '.join(BudgetInterval.values)}."]}
        )
    return BudgetInterval(text)


def _budget_response(workspace: Workspace, budget: Any) -> Response:
    return Response(
        {
            "data": BudgetSerializer(budget).data,
            "include_byok_in_budgets": workspace.include_byok_in_budgets,
        }
    )


def _guardrail(request: Request, pk: str) -> Guardrail:
    """Loads a guardrail of the caller's organization; anything else does not exist."""
    rows = Guardrail.objects.for_organization(caller_of(request).organization_id)
    found: Guardrail | None = rows.filter(pk=parse_uuid(pk)).first()
    if found is None:
        raise GuardrailNotFound
    return found


def _governed_by(request: Request, pk: str) -> Workspace | None:
    """Returns the workspace whose default guardrail has this key, whether it exists yet."""
    wanted = parse_uuid(pk)
    rows = Workspace.objects.for_organization(caller_of(request).organization_id)
    found = (workspace for workspace in rows if workspace.default_guardrail_id == wanted)
    return next(found, None)


def _members(request: Request, ids: list[str]) -> list[Member]:
    """Loads members of the caller's organization; raises unless each of them is one."""
    wanted = {parse_uuid(text) for text in ids}
    rows = Member.objects.for_organization(caller_of(request).organization_id)
    found = list(rows.filter(pk__in=list(filter(None, wanted))).order_by("created_at", "id"))
    if len(found) != len(wanted):
        raise MemberNotFound
    return found


def _keys(request: Request, hashes: list[str]) -> list[ApiKey]:
    """Loads inference keys of the caller's organization; raises unless each hash is of one."""
    wanted = {text for text in hashes if _DIGEST.fullmatch(text)}
    rows = ApiKey.objects.for_organization(caller_of(request).organization_id).for_inference()
    found = list(rows.filter(digest__in=wanted))
    if len(found) != len(set(hashes)):
        raise ApiKeyNotFound
    return found


def _assigned_keys(request: Request, **only: Guardrail) -> Response:
    rows = KeyAssignment.objects.filter(
        guardrail__organization_id=caller_of(request).organization_id,
        api_key__deleted_at=None,
        **only,
    )
    return _page(request, rows.select_related("api_key"), KeyAssignmentSerializer)


def _assigned_members(request: Request, **only: Guardrail) -> Response:
    rows = MemberAssignment.objects.filter(
        guardrail__organization_id=caller_of(request).organization_id, **only
    )
    return _page(request, rows.select_related("member"), MemberAssignmentSerializer)
