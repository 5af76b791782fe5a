"""Who calls: organizations, their workspaces, their API keys and their provider credentials."""

from accounts.models.credentials import HOST_NAME, ByokCredential, CredentialNotFound
from accounts.models.keys import (
    ApiKey,
    ApiKeyNotFound,
    Guardrail,
    GuardrailNotFound,
    KeyAssignment,
    KeyGuardrails,
    MemberAssignment,
)
from accounts.models.members import Member, MemberNotFound
from accounts.models.organizations import (
    WORKSPACE_SLUG,
    BudgetNotFound,
    Organization,
    Workspace,
    WorkspaceBudget,
    WorkspaceMember,
    WorkspaceNotFound,
    workspace_for,
)
from accounts.models.terms import BudgetInterval, LimitReset, Region

__all__ = [
    "HOST_NAME",
    "WORKSPACE_SLUG",
    "ApiKey",
    "ApiKeyNotFound",
    "BudgetInterval",
    "BudgetNotFound",
    "ByokCredential",
    "CredentialNotFound",
    "Guardrail",
    "GuardrailNotFound",
    "KeyAssignment",
    "KeyGuardrails",
    "LimitReset",
    "Member",
    "MemberAssignment",
    "MemberNotFound",
    "Organization",
    "Region",
    "Workspace",
    "WorkspaceBudget",
    "WorkspaceMember",
    "WorkspaceNotFound",
    "workspace_for",
]
