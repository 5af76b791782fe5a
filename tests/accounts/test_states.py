"""The state tables of API keys, provider credentials and workspaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from accounts.models import (
    ApiKey,
    ApiKeyNotFound,
    ByokCredential,
    CredentialNotFound,
    Workspace,
    WorkspaceNotFound,
)
from config.api.errors import InvalidRequest
from config.credentials import Secret
from tests.support import factories
from tests.support.database.states import cells, check_transition
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_workspace

KEY_TRANSITIONS: dict[str, Callable[[ApiKey], object]] = {
    "disable": lambda key: key.edit(disabled=True),
    "enable": lambda key: key.edit(disabled=False),
    "revoke": lambda key: key.revoke(),
}

# The outcomes are in the order of KEY_TRANSITIONS.
KEYS: dict[str, tuple[Any, ...]] = {
    "enabled": ("disabled", False, "revoked"),
    "disabled": (False, "enabled", "revoked"),
    "revoked": (ApiKeyNotFound, ApiKeyNotFound, False),
}


def state_of_key(key: ApiKey) -> str:
    if key.deleted_at is not None:
        return "revoked"
    return "disabled" if key.disabled else "enabled"


def presence(row: Any) -> str:
    return "present" if row.deleted_at is None else "deleted"


@pytest.mark.parametrize(("state", "transition", "expected"), cells(KEYS, KEY_TRANSITIONS))
def test_every_transition_of_a_key(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    key = make_key(tenant, disabled=state == "disabled")
    if state == "revoked":
        key.revoke()

    check_transition(key, lambda: KEY_TRANSITIONS[transition](key), expected, state_of_key)


CREDENTIAL_TRANSITIONS: dict[str, Callable[[ByokCredential], object]] = {
    "edit": lambda credential: credential.edit(name="other"),
    "rotate": lambda credential: credential.rotate(Secret("another-secret-0123456789")),
    "remove": lambda credential: credential.remove(),
}

# The outcomes are in the order of CREDENTIAL_TRANSITIONS.
CREDENTIALS: dict[str, tuple[Any, ...]] = {
    "present": ("present", "present", "deleted"),
    "deleted": (CredentialNotFound, CredentialNotFound, CredentialNotFound),
}


@pytest.mark.parametrize(
    ("state", "transition", "expected"), cells(CREDENTIALS, CREDENTIAL_TRANSITIONS)
)
def test_every_transition_of_a_credential(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    credential = factories.make_credential(tenant, factories.make_provider())
    if state == "deleted":
        credential.remove()

    transit = partial(CREDENTIAL_TRANSITIONS[transition], credential)
    check_transition(credential, transit, expected, presence)


WORKSPACE_TRANSITIONS: dict[str, Callable[[Workspace], object]] = {
    "edit": lambda workspace: workspace.edit(name="other"),
    "close": lambda workspace: workspace.close(),
    "close as default": lambda workspace: workspace.close(confirm_default=True),
}
GONE, REFUSED = WorkspaceNotFound, InvalidRequest

# The outcomes are in the order of WORKSPACE_TRANSITIONS.
WORKSPACES: dict[str, tuple[Any, ...]] = {
    "empty": ("present", "deleted", "deleted"),
    "with a usable key": ("present", REFUSED, REFUSED),
    "with a disabled key": ("present", "deleted", "deleted"),
    "default": ("present", REFUSED, "deleted"),
    "deleted": (GONE, GONE, GONE),
}


@pytest.mark.parametrize(
    ("state", "transition", "expected"), cells(WORKSPACES, WORKSPACE_TRANSITIONS)
)
def test_every_transition_of_a_workspace(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    workspace = tenant.workspace if state == "default" else make_workspace(tenant.organization)
    if "key" in state:
        make_key(tenant, workspace=workspace, disabled="disabled" in state)
    if state == "deleted":
        workspace.close()

    transit = partial(WORKSPACE_TRANSITIONS[transition], workspace)
    check_transition(workspace, transit, expected, presence)
