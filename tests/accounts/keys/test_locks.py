"""Changes that meet at the rows of one organization: whichever comes first, both end well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accounts.destinations.models import BroadcastDestination
from accounts.imports import import_keys
from accounts.models import ApiKey, ByokCredential, Guardrail, RateLimit, Workspace
from accounts.rotation import rotate_key
from catalog.models import Provider
from tests.support import factories
from tests.support.broadcast.destinations import make_destination
from tests.support.database.locks import at_once
from tests.support.governance import make_guardrail, make_workspace


def key() -> ApiKey:
    return ApiKey.objects.current().get(name="inference")


def load() -> Any:
    lines = [b"name,limit\n", b"inference,5\n"]
    return import_keys(key().organization_id, lines, as_csv=True, output="unused")


CHANGES: dict[str, Callable[[], Any]] = {
    "rotate": lambda: rotate_key(key(), overlap=60),
    "revoke": lambda: key().revoke(),
    "revoke a former secret": lambda: key().former.get().revoke(),
    "edit": lambda: key().edit(name="inference", limit_nano=7),
    "move": lambda: key().edit(workspace_id=Workspace.objects.get(is_default=False).pk),
    "limit": lambda: RateLimit.objects.change(key().limit_owner, {"requests_per_minute": 7}),
    "import": load,
    "assign": lambda: Guardrail.objects.get().assign_keys([key()], by="test"),
    "edit a destination": lambda: BroadcastDestination.objects.get().edit(name="Other"),
}


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    "names",
    [
        ("edit a destination", "rotate"),
        ("assign", "rotate"),
        ("assign", "revoke"),
        ("limit", "revoke"),
        ("import", "edit"),
        ("move", "revoke a former secret"),
    ],
)
def test_two_changes_at_once_both_end(
    transactional_db: None, names: tuple[str, str], turn: int
) -> None:
    tenant = factories.make_tenant()
    make_workspace(tenant.organization)
    make_guardrail(tenant.workspace)
    rotate_key(key(), overlap=60)
    make_destination(tenant.workspace, api_key_hashes=[key().digest])
    key().edit(rate_limits={"requests_per_minute": 5})
    held = "SELECT 1 FROM accounts_organization FOR UPDATE"
    done = at_once(*(CHANGES[name] for name in names[::turn]), held=held)
    assert all(done)


# Each names the keys of a digest: in a new row, or in the one that there is.
LISTINGS: dict[str, Callable[[Any, list[str]], Any]] = {
    "create a credential": lambda tenant, digests: factories.make_credential(
        tenant, Provider.objects.get(), allowed_api_key_hashes=digests
    ),
    "edit a credential": lambda tenant, digests: ByokCredential.objects.get().edit(
        allowed_api_key_hashes=digests
    ),
    "create a destination": lambda tenant, digests: make_destination(
        tenant.workspace, api_key_hashes=digests
    ),
    "edit a destination": lambda tenant, digests: BroadcastDestination.objects.get().edit(
        api_key_hashes=digests
    ),
}


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("name", LISTINGS)
def test_a_list_of_keys_that_meets_a_rotation_names_the_new_hash(
    transactional_db: None, name: str, turn: int
) -> None:
    tenant, provider = factories.make_tenant(), factories.make_provider()
    if name == "edit a credential":
        factories.make_credential(tenant, provider)
    if name == "edit a destination":
        make_destination(tenant.workspace)
    former = key().digest
    works = (lambda: LISTINGS[name](tenant, [former]), CHANGES["rotate"])
    at_once(*works[::turn], held="SELECT 1 FROM accounts_organization FOR UPDATE")
    both = [former, key().digest]
    assert key().former.get().digest == former
    assert [row.allowed_api_key_hashes for row in ByokCredential.objects.all()] == (
        [both] if "credential" in name else []
    )
    assert [row.api_key_hashes for row in BroadcastDestination.objects.all()] == (
        [both] if "destination" in name else []
    )
