"""The organization's workspaces, with their members and budgets."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
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
from accounts.views.creations import CreatingViewSet
from config.api.openapi import IDEMPOTENCY_KEY, DeletedSerializer, errors
from config.api.params import FlagParameter, read_parameter
from config.api.text import parse_uuid

_CONFIRMATION: Final = "confirm_default_workspace_deletion"
_WORKSPACE: Final = OpenApiParameter(
    "workspace_ref", str, OpenApiParameter.PATH, description="The id or the slug."
)
_INTERVAL: Final = OpenApiParameter(
    "interval", str, OpenApiParameter.PATH, enum=BudgetInterval.values
)


class WorkspaceViewSet(ListModelMixin, CreatingViewSet):
    """The workspaces of the organization."""

    permission_classes = [ManagementKey]
    queryset = Workspace.objects.order_by("created_at", "id")
    serializer_class = WorkspaceSerializer
    lookup_url_kwarg = "workspace_ref"
    not_found = WorkspaceNotFound
    schema_tag = "workspaces"

    def get_object(self) -> Workspace:
        """Returns the workspace that the path names by its id or its slug."""
        # A slug never looks like an id.
        self.lookup_field = "slug" if parse_uuid(self.kwargs["workspace_ref"]) is None else "pk"
        workspace: Workspace = super().get_object()
        return workspace

    @extend_schema(
        operation_id="listWorkspaces", responses=WorkspaceListSerializer, extensions=errors(400)
    )
    def list(self, request: Request) -> Response:
        """Lists the workspaces, oldest first."""
        return super().list(request)

    @extend_schema(
        operation_id="createWorkspace",
        request=CreateWorkspaceSerializer,
        parameters=[IDEMPOTENCY_KEY],
        responses={201: WorkspaceResponseSerializer},
        extensions=errors(404, 422),
    )
    def create(self, request: Request) -> Response:
        """Creates a workspace. Paths name it by its id or its slug."""
        workspace, _ = self.create_once(CreateWorkspaceSerializer, self._create)
        return self.respond(workspace, status=201)

    def _create(self, fields: dict[str, Any]) -> tuple[Workspace, None]:
        workspace: Workspace = Workspace.objects.create_workspace(
            organization_id=self.organization_id, created_by=self.actor, **fields
        )
        return workspace, None

    @extend_schema(
        operation_id="getWorkspace",
        parameters=[_WORKSPACE],
        responses=WorkspaceResponseSerializer,
        extensions=errors(404),
    )
    def retrieve(self, request: Request, workspace_ref: str) -> Response:
        """Shows a workspace."""
        return self.respond(self.get_object())

    @extend_schema(
        operation_id="updateWorkspace",
        parameters=[_WORKSPACE],
        request=UpdateWorkspaceSerializer,
        responses=WorkspaceResponseSerializer,
        extensions=errors(404, 422),
    )
    def partial_update(self, request: Request, workspace_ref: str) -> Response:
        """Changes the fields that are sent; `null` clears a field."""
        fields = self.read_body(UpdateWorkspaceSerializer)
        workspace = self.get_object()
        workspace.edit(**fields)
        return self.respond(workspace)

    @extend_schema(
        operation_id="deleteWorkspace",
        parameters=[
            _WORKSPACE,
            OpenApiParameter(
                _CONFIRMATION,
                bool,
                description="Required for the default workspace, whose inference keys it disables.",
            ),
        ],
        responses={200: DeletedSerializer},
        extensions=errors(400, 404),
    )
    def destroy(self, request: Request, workspace_ref: str) -> Response:
        """Deletes a workspace without active API keys, with its budgets and guardrails."""
        confirmed = read_parameter(request, _CONFIRMATION, FlagParameter())
        self.get_object().close(confirm_default=confirmed)
        return Response({"deleted": True})

    @extend_schema(
        operation_id="listWorkspaceMembers",
        parameters=[_WORKSPACE],
        responses=WorkspaceMemberListSerializer,
        extensions=errors(400, 404),
    )
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

    @extend_schema(
        operation_id="bulkAddWorkspaceMembers",
        parameters=[_WORKSPACE],
        request=WorkspaceMembersSerializer,
        responses={200: AddedMembersSerializer},
        extensions=errors(404),
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

    @extend_schema(
        operation_id="bulkRemoveWorkspaceMembers",
        parameters=[_WORKSPACE],
        request=WorkspaceMembersSerializer,
        responses={200: RemovedMembersSerializer},
        extensions=errors(404),
    )
    @action(detail=True, methods=["post"], url_path="members/remove")
    def remove_members(self, request: Request, workspace_ref: str) -> Response:
        """Removes members, all or none; refused if one has an active API key in the workspace."""
        ids = self.read_body(WorkspaceMembersSerializer)["user_ids"]
        workspace = self.get_object()
        members = Member.objects.for_organization(self.organization_id).find_all(ids)
        return Response({"removed_count": workspace.remove_members(members)})

    @extend_schema(
        operation_id="listWorkspaceBudgets",
        parameters=[_WORKSPACE],
        responses=BudgetListSerializer,
        extensions=errors(404),
    )
    @action(detail=True)
    def budgets(self, request: Request, workspace_ref: str) -> Response:
        """Lists the budgets of a workspace, the shortest interval first."""
        workspace = self.get_object()
        order = BudgetInterval.values
        rows = sorted(workspace.budgets.all(), key=lambda budget: order.index(budget.interval))
        return _respond_with_budgets(workspace, rows, many=True)

    @extend_schema(
        operation_id="getWorkspaceBudget",
        parameters=[_WORKSPACE, _INTERVAL],
        responses=BudgetResponseSerializer,
        extensions=errors(400, 404),
    )
    @action(detail=True, url_path="budgets/(?P<interval>[^/]+)")
    def budget(self, request: Request, workspace_ref: str, interval: str) -> Response:
        """Shows the budget of one interval."""
        parsed = _parse_interval(interval)
        workspace = self.get_object()
        budget = workspace.budgets.filter(interval=parsed).first()
        if budget is None:
            raise BudgetNotFound
        return _respond_with_budgets(workspace, budget)

    @extend_schema(
        operation_id="upsertWorkspaceBudget",
        parameters=[_WORKSPACE, _INTERVAL],
        request=SetBudgetSerializer,
        responses=BudgetResponseSerializer,
        extensions=errors(404),
    )
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

    @extend_schema(
        operation_id="deleteWorkspaceBudget",
        parameters=[_WORKSPACE, _INTERVAL],
        responses={200: DeletedSerializer},
        extensions=errors(400, 404),
    )
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
