"""Rows that can have rate limits."""

from __future__ import annotations

import pytest

from accounts.models import ApiKey, LimitOwner
from endusers.models import EndUser
from tests.support.factories import Tenant


@pytest.fixture(params=["keys", "workspaces", "end-users"])
def limited(request: pytest.FixtureRequest, tenant: Tenant) -> tuple[str, LimitOwner]:
    """The path of a row that can have rate limits, and the owner of its limits."""
    match request.param:
        case "keys":
            key = ApiKey.objects.get(name="inference")
            return f"/api/v1/keys/{key.digest}", key.limit_owner
        case "workspaces":
            return f"/api/v1/workspaces/{tenant.workspace.slug}", tenant.workspace.limit_owner
        case _:
            end_user = EndUser.objects.register(
                organization_id=tenant.organization.pk, user="customer-42"
            )
            return "/api/v1/end-users/customer-42", end_user.limit_owner


@pytest.fixture
def route(limited: tuple[str, LimitOwner]) -> str:
    """The path of a row that can have rate limits."""
    return limited[0]
