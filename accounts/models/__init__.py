"""Callers and their permissions."""

from accounts.models.cells import (
    Cell,
    CellBeat,
    CellIdentity,
    DirectoryEntry,
    OrganizationElsewhere,
    Residence,
    require_here,
)
from accounts.models.credentials import (
    HOST_NAME,
    ByokCredential,
    CredentialNotFound,
    SecretRequired,
)
from accounts.models.guardrails import (
    Guardrail,
    GuardrailNotFound,
    KeyAssignment,
    KeyGuardrails,
    MemberAssignment,
    guardrails_of,
    policy_of,
)
from accounts.models.keys import ApiKey, ApiKeyNotFound, KeyDigest
from accounts.models.members import Member, MemberNotFound
from accounts.models.organizations import Organization
from accounts.models.presets import Preset, PresetNotFound, PresetVersion
from accounts.models.rate_limits import (
    LIMIT_NAMES,
    MOST_RATE,
    LimitOwner,
    RateLimit,
    describe_limits,
)
from accounts.models.terms import BudgetInterval, LimitReset, Region
from accounts.models.workspaces import (
    WORKSPACE_SLUG,
    BudgetNotFound,
    Workspace,
    WorkspaceBudget,
    WorkspaceMember,
    WorkspaceNotFound,
    workspace_for,
)

__all__ = [
    "HOST_NAME",
    "LIMIT_NAMES",
    "MOST_RATE",
    "WORKSPACE_SLUG",
    "ApiKey",
    "ApiKeyNotFound",
    "BudgetInterval",
    "BudgetNotFound",
    "ByokCredential",
    "Cell",
    "CellBeat",
    "CellIdentity",
    "CredentialNotFound",
    "DirectoryEntry",
    "Guardrail",
    "GuardrailNotFound",
    "KeyAssignment",
    "KeyDigest",
    "KeyGuardrails",
    "LimitOwner",
    "LimitReset",
    "Member",
    "MemberAssignment",
    "MemberNotFound",
    "Organization",
    "OrganizationElsewhere",
    "Preset",
    "PresetNotFound",
    "PresetVersion",
    "RateLimit",
    "Region",
    "Residence",
    "SecretRequired",
    "Workspace",
    "WorkspaceBudget",
    "WorkspaceMember",
    "WorkspaceNotFound",
    "describe_limits",
    "guardrails_of",
    "policy_of",
    "require_here",
    "workspace_for",
]
