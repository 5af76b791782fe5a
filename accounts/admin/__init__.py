"""The console's pages for organizations, their workspaces, people and keys, and for operators."""

from accounts.admin.credentials import ByokCredentialAdmin
from accounts.admin.guardrails import GuardrailAdmin
from accounts.admin.keys import ApiKeyAdmin
from accounts.admin.members import MemberAdmin
from accounts.admin.operators import OperatorAdmin, OperatorGroupAdmin
from accounts.admin.organizations import OrganizationAdmin
from accounts.admin.presets import PresetAdmin
from accounts.admin.webhooks import DeliveryAdmin, SubscriptionAdmin
from accounts.admin.workspaces import WorkspaceAdmin
from accounts.destinations.admin import DestinationAdmin
