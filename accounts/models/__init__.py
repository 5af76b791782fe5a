"""Callers and their permissions."""

from accounts.destinations.models import BroadcastDestination, BroadcastProgress, BroadcastWait
from accounts.models.creations import Creation, erase_new_secrets
from accounts.models.credentials import (
    HOST_NAME,
    ByokCredential,
    CredentialNotFound,
    CredentialRest,
    SecretRequired,
)
from accounts.models.guardrails import (
    LIMITS,
    Guardrail,
    GuardrailNotFound,
    GuardrailShadow,
    KeyAssignment,
    KeyGuardrails,
    MemberAssignment,
    ShadowNotFound,
    guardrails_of,
    policy_of,
)
from accounts.models.keys import ApiKey, ApiKeyNotFound, KeyDigest
from accounts.models.limits import OrganizationLimit, OrganizationLimitReached
from accounts.models.members import Member, MemberNotFound
from accounts.models.organizations import Organization
from accounts.models.presets import Preset, PresetNotFound, PresetVersion
from accounts.models.rate_limits import (
    LIMIT_NAMES,
    MOST_RATE,
    AboveCeiling,
    Ceilings,
    LimitOwner,
    RateLimit,
    describe_limits,
)
from accounts.models.terms import BudgetInterval, FallbackField, LimitReset, Region
from accounts.models.workspaces import (
    WORKSPACE_SLUG,
    BudgetNotFound,
    Workspace,
    WorkspaceBudget,
    WorkspaceMember,
    WorkspaceNotFound,
    create_member,
    edit_member,
    remove_member,
    require_workspace,
    workspace_for,
)

# Django finds the models of this app in this package only.
from accounts.webhooks.manual import ManualSends
from accounts.webhooks.models import Delivery, Subscription
