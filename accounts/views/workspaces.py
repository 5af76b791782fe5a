"""The organization's workspaces, with their members and budgets."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey, require_one_person
from accounts.models import (
    BudgetInterval,
    BudgetNotFound,
    Member,
    Workspace,
    WorkspaceBudget,
    WorkspaceNotFound,
)
from accounts.serializers.workspaces import (
    AddedMembersSerializer,
    BudgetListSerializer,
    BudgetResponseSerializer,
    BudgetSerializer,
    CreateWorkspaceSerializer,
    RemovedMembersSerializer,
    SetBudgetSerializer,
    UpdateWorkspaceSerializer,
    WorkspaceListSerializer,
    WorkspaceMemberListSerializer,
    WorkspaceMemberSerializer,
    WorkspaceMembersSerializer,
    WorkspaceResponseSerializer,
    WorkspaceSerializer,
)
from accounts.views.creations import CreatingViewSet, creates
from config.api.openapi import DeletedSerializer, operation
from config.api.params import FlagParameter, read_parameter
from config.api.text import parse_uuid
from config.api.viewsets import make_list, make_retrieve
from config.changes.kinds import ChangeKind

_CONFIRMATION: Final = "confirm_default_workspace_deletion"
_WORKSPACE: Final = OpenApiParameter(
    "workspace_ref", str, OpenApiParameter.PATH, description="The id or the slug."
)
_INTERVAL: Final = OpenApiParameter(
    "interval", str, OpenApiParameter.PATH, enum=BudgetInterval.values
)


class WorkspaceViewSet(CreatingViewSet):
    """The workspaces of the organization."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {"destroy": (ChangeKind.DELETIONS, ChangeKind.GUARDRAILS)}
    queryset = Workspace.objects.order_by("created_at", "id")
    serializer_class = WorkspaceSerializer
    lookup_url_kwarg = "workspace_ref"
    not_found = WorkspaceNotFound
    shared_parameters = (_WORKSPACE, _INTERVAL)
    schema_tag = "workspaces"

    def get_object(self) -> Workspace:
        """Returns the workspace that the path names by its id or its slug."""
        # A slug never looks like an id.
        self.lookup_field = "slug" if parse_uuid(self.kwargs["workspace_ref"]) is None else "pk"
        return super().get_object()

    list = make_list(
        "listWorkspaces", WorkspaceListSerializer, "Lists the workspaces, oldest first."
    )

    @creates("createWorkspace", CreateWorkspaceSerializer, WorkspaceResponseSerializer, (404, 422))
    def create(self, fields: dict[str, Any]) -> Workspace:
        """Creates a workspace. Paths name it by its id or its slug."""
        if fields.get("fallback") is not None:
            require_one_person(self.request, ChangeKind.GUARDRAILS)
        return Workspace.objects.create_workspace(
            organization_id=self.organization_id, created_by=self.actor, **fields
        )

    retrieve = make_retrieve("getWorkspace", WorkspaceResponseSerializer, "Shows a workspace.")

    @operation(
        "updateWorkspace", UpdateWorkspaceSerializer, WorkspaceResponseSerializer, (404, 422)
    )
    def partial_update(self, request: Request, workspace_ref: str) -> Response:
        """Changes the fields that are sent; `null` clears a field."""
        fields = self.read_body(UpdateWorkspaceSerializer, find_row=self.get_object)
        workspace = self.get_object()
        with transaction.atomic():
            # The owner may have changed the level since this request has read it.
            workspace.lock_present()
            if fields.get("fallback", workspace.fallback) != workspace.fallback:
                require_one_person(request, ChangeKind.GUARDRAILS)
            workspace.edit(**fields)
        return self.respond(workspace)

    @operation(
        "deleteWorkspace",
        None,
        {200: DeletedSerializer},
        (400, 404),
        parameters=[
            OpenApiParameter(
                _CONFIRMATION,
                bool,
                description="Required for the default workspace, whose inference keys it disables.",
            )
        ],
    )
    def destroy(self, request: Request, workspace_ref: str) -> Response:
        """Deletes a workspace without active API keys, with its budgets, guardrails and presets."""
        confirmed = read_parameter(request, _CONFIRMATION, FlagParameter())
        self.get_object().close(confirm_default=confirmed)
        return Response({"deleted": True})

    @operation("listWorkspaceMembers", None, WorkspaceMemberListSerializer, (400, 404))
    @action(detail=True, serializer_class=WorkspaceMemberSerializer, is_list=True)
    def members(self, request: Request, workspace_ref: str) -> Response:
        """Lists the members of a workspace; the default one has all members of the organization."""
        workspace = self.get_object()
        if not workspace.is_default:
            return self.respond_with_page(workspace.memberships.all())
        members = Member.objects.for_organization(self.organization_id).order_by("created_at", "id")
        page = self.paginate_queryset(members) or ()
        places: Any = [workspace.place_of(member) for member in page]
        return self.get_paginated_response(WorkspaceMemberSerializer(places, many=True).data)

    @operation(
        "bulkAddWorkspaceMembers", WorkspaceMembersSerializer, AddedMembersSerializer, (404,)
    )
    @action(detail=True, methods=["post"], url_path="members/add")
    def add_members(self, request: Request, workspace_ref: str) -> Response:
        """Adds members, each with the role that the member has in the organization."""
        ids = self.read_body(WorkspaceMembersSerializer)["user_ids"]
        workspace = self.get_object()
        members = Member.objects.for_organization(self.organization_id).find_all(ids)
        added = workspace.add_members(members)
        places: Any = workspace.memberships.filter(member__in=members)
        if workspace.is_default:
            places = [workspace.place_of(member) for member in members]
        data = WorkspaceMemberSerializer(places, many=True).data
        return Response({"data": data, "added_count": added})

    @operation(
        "bulkRemoveWorkspaceMembers", WorkspaceMembersSerializer, RemovedMembersSerializer, (404,)
    )
    @action(detail=True, methods=["post"], url_path="members/remove")
    def remove_members(self, request: Request, workspace_ref: str) -> Response:
        """Removes members, all or none; refused if one has an active API key in the workspace."""
        ids = self.read_body(WorkspaceMembersSerializer)["user_ids"]
        workspace = self.get_object()
        members = Member.objects.for_organization(self.organization_id).find_all(ids)
        return Response({"removed_count": workspace.remove_members(members)})

    @operation("listWorkspaceBudgets", None, BudgetListSerializer, (400, 404))
    @action(detail=True, serializer_class=BudgetSerializer, pagination_class=None, is_list=True)
    def budgets(self, request: Request, workspace_ref: str) -> Response:
        """Lists the budgets of a workspace, the shortest interval first."""
        workspace = self.get_object()
        order = BudgetInterval.values
        rows = sorted(workspace.budgets.all(), key=lambda budget: order.index(budget.interval))
        return _respond_with_budgets(workspace, rows, many=True)

    @operation("getWorkspaceBudget", None, BudgetResponseSerializer, (400, 404))
    @action(detail=True, url_path="budgets/(?P<interval>[^/]+)")
    def budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Shows the budget of one interval."""
        parsed = _parse_interval(interval)
        workspace = self.get_object()
        budget = workspace.budgets.filter(interval=parsed).first()
        if budget is None:
            raise BudgetNotFound
        return _respond_with_budgets(workspace, budget)

    @operation("upsertWorkspaceBudget", SetBudgetSerializer, BudgetResponseSerializer, (404,))
    @budget.mapping.put
    def set_budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Limits the spending of one interval; the limit must be below that of a longer one."""
        parsed = _parse_interval(interval)
        fields = self.read_body(SetBudgetSerializer)
        workspace = self.get_object()
        budget = workspace.set_budget(
            parsed,
            limit_nano=fields["limit_nano"],
            include_byok=fields.get("include_byok_in_budgets"),
        )
        return _respond_with_budgets(workspace, budget)

    @operation("deleteWorkspaceBudget", None, {200: DeletedSerializer}, (400, 404))
    @budget.mapping.delete
    def lift_budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Removes the budget of an interval, if there is one."""
        parsed = _parse_interval(interval)
        self.get_object().lift_budget(parsed)
        return Response({"deleted": True})


def _parse_interval(text: str) -> BudgetInterval:
    if text not in BudgetInterval.values:
        raise ValidationError(
            {"interval": [f"Must be one of: {', '.join(BudgetInterval.values)}."]}
        )
    return BudgetInterval(text)


def _respond_with_budgets(
    workspace: Workspace, budgets: WorkspaceBudget | list[WorkspaceBudget], *, many: bool = False
) -> Response:
    rendered: Any = BudgetSerializer(budgets, many=many)
    return Response(
        {
            "data": rendered.data,
            "include_byok_in_budgets": workspace.include_byok_in_budgets,
        }
    )
