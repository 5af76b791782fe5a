"""The state table of an end user."""

from __future__ import annotations

from typing import Any

import pytest

from endusers.models import EndUser
from tests.support.database.states import check_transition
from tests.support.factories import Tenant

TABLE = [
    ("active", "activate", False),
    ("active", "deactivate", "inactive"),
    ("inactive", "activate", "active"),
    ("inactive", "deactivate", False),
]


@pytest.mark.parametrize(("state", "transition", "expected"), TABLE)
def test_every_transition_of_an_end_user(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    end_user = EndUser.objects.register(organization_id=tenant.organization.pk, user="ada")
    if state == "inactive":
        end_user.deactivate()

    check_transition(
        end_user,
        getattr(end_user, transition),
        expected,
        lambda row: "active" if row.is_active else "inactive",
    )
