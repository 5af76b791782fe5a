"""The operator's pages: organizations and what is theirs, credentials included, and operators."""

from accounts.admin.credentials import ByokCredentialAdmin
from accounts.admin.guardrails import GuardrailAdmin
from accounts.admin.keys import ApiKeyAdmin
from accounts.admin.operators import OperatorAdmin, OperatorGroupAdmin
from accounts.admin.organizations import MemberAdmin, OrganizationAdmin
from accounts.admin.workspaces import WorkspaceAdmin

__all__ = [
    "ApiKeyAdmin",
    "ByokCredentialAdmin",
    "GuardrailAdmin",
    "MemberAdmin",
    "OperatorAdmin",
    "OperatorGroupAdmin",
    "OrganizationAdmin",
    "WorkspaceAdmin",
]
