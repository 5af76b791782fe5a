"""An organization that does not live here is refused, by both planes, until it does."""

from __future__ import annotations

import pytest

from accounts.models import ApiKey, Organization, OrganizationElsewhere
from billing import ledger
from tests.support import factories
from tests.support.database.snapshots import everything
from tests.support.factories import Tenant


@pytest.mark.parametrize("residence", ["leaving", "left", "arriving"])
def test_the_control_plane_refuses_and_says_when_to_repeat(tenant: Tenant, residence: str) -> None:
    organization = tenant.organization
    before = organization.routing_version
    organization.residence = residence
    organization.save_fields("residence")
    response = factories.client(tenant.management_key).get("/api/v1/keys")
    assert (response.status_code, response["Retry-After"]) == (503, "1")
    assert response.json()["error"]["metadata"]["error_type"] == "organization_moving"
    # Workers compare the version at each admission.
    organization.refresh_from_db()
    assert organization.routing_version != before
    with pytest.raises(OrganizationElsewhere):
        ApiKey.objects.create_key(workspace=tenant.workspace, name="late")


def test_the_ledger_of_an_organization_elsewhere_is_closed(tenant: Tenant) -> None:
    Organization.objects.update(residence="left", other_cell="north")
    before = everything()
    with pytest.raises(OrganizationElsewhere):
        ledger.grant(tenant.organization.pk, 10**9, actor="test", note="late")
    assert everything() == before


def test_an_older_organization_gets_its_code_with_its_next_key(tenant: Tenant) -> None:
    Organization.objects.update(code=None)
    _, first = ApiKey.objects.create_key(workspace=tenant.workspace, name="first")
    _, second = ApiKey.objects.create_key(workspace=tenant.workspace, name="second")
    code = Organization.objects.get().code
    assert {key.reveal().split("-")[2] for key in (first, second)} == {code}
