"""An organization that does not live here is refused, by both planes, until it does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from accounts.cells import metrics
from accounts.models import (
    ApiKey,
    Member,
    Organization,
    OrganizationElsewhere,
    Preset,
    PresetVersion,
    Workspace,
)
from billing import ledger
from config.api.errors import Unavailable
from config.api.handler import from_framework
from config.partitions.tables import read_now
from endpoints.models import Attestation, PrivateEndpoint, Validation
from endusers.models import EndUser
from tests.support import factories
from tests.support.database.snapshots import everything
from tests.support.factories import Tenant
from tests.support.governance import make_member, make_preset, make_workspace


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


WRITES: dict[str, Callable[[Tenant], Any]] = {
    "a new end user": lambda tenant: EndUser.objects.register(
        organization_id=tenant.organization.pk, user="ann"
    ),
    "a new preset": lambda tenant: make_preset(tenant.workspace, slug="late"),
    "a new version of a preset": lambda tenant: PresetVersion.objects.create(
        preset=Preset.objects.get(), version=7, config="{}", created_by="test"
    ),
    "a new member of a workspace": lambda tenant: Workspace.objects.get(name="More").add_members(
        Member.objects.all()
    ),
    "an end user who leaves": lambda tenant: EndUser.objects.all().delete(),
    "a new declaration": lambda tenant: Attestation.objects.create(
        endpoint=PrivateEndpoint.objects.get(), declared_zdr=True
    ),
    "a changed draft": lambda tenant: PrivateEndpoint.objects.update(upstream_model_id="late"),
    "a changed member": lambda tenant: Member.objects.update(email="late@example.com"),
    "a policy": lambda tenant: tenant.organization.edit(requires_zdr=True),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_began_before_the_move_is_refused(tenant: Tenant, write: str) -> None:
    """Its request was recognized while the organization was still here."""
    make_member(tenant.organization)
    make_workspace(tenant.organization)
    make_preset(tenant.workspace, slug="early")
    EndUser.objects.register(organization_id=tenant.organization.pk, user="bob")
    factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    Organization.objects.update(residence="left", other_cell="north")
    before = everything()
    with pytest.raises(OperationalError) as caught, transaction.atomic():
        WRITES[write](tenant)
    error = from_framework(caught.value)
    assert isinstance(error, Unavailable)
    assert (error.status, error.headers["Retry-After"]) == (503, "1")
    assert str(error).startswith("The organization is moving to another cell")
    assert everything() == before


def test_the_ledger_of_an_organization_elsewhere_is_closed(tenant: Tenant) -> None:
    Organization.objects.update(residence="left", other_cell="north")
    before = everything()
    with pytest.raises(OrganizationElsewhere):
        ledger.grant(tenant.organization.pk, 10**9, actor="test", note="late")
    assert everything() == before


def test_a_validation_that_ends_after_the_move_is_not_stored(tenant: Tenant) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    draft = factories.make_draft(tenant, factories.make_model(), provider)
    result = Validation(
        endpoint=draft,
        workspace=tenant.workspace,
        credential=credential,
        credential_version=credential.version,
        configuration=draft.configuration,
        outcome="passed",
    )
    Organization.objects.update(residence="left", other_cell="north")
    before = everything()
    with pytest.raises(OrganizationElsewhere):
        draft.record_validation(result)
    assert everything() == before


def test_feedback_after_the_move_is_not_stored(tenant: Tenant) -> None:
    row = factories.make_generation(tenant)
    client = factories.client(tenant.management_key)
    Organization.objects.update(residence="left", other_cell="north")
    before = everything()
    body = {"generation_id": row.pk, "category": "latency"}
    answer = client.post("/api/v1/generation/feedback", body, format="json")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert everything() == before


def test_an_older_organization_gets_its_code_with_its_next_key(tenant: Tenant) -> None:
    Organization.objects.update(code=None)
    _, first = ApiKey.objects.create_key(workspace=tenant.workspace, name="first")
    _, second = ApiKey.objects.create_key(workspace=tenant.workspace, name="second")
    code = Organization.objects.get().code
    assert {key.reveal().split("-")[2] for key in (first, second)} == {code}


def read_oldest_move() -> float:
    """Returns for how long the oldest move has been under way, as the metrics show it."""
    [value] = (
        sample.value
        for family in metrics.CellCollector().collect()
        for sample in family.samples
        if sample.name == "causeway_oldest_move_seconds"
    )
    return value


@pytest.mark.parametrize(
    ("residence", "seconds"), [("here", 0), ("leaving", 90), ("arriving", 90), ("left", 0)]
)
def test_a_move_that_nobody_finishes_is_seen(
    tenant: Tenant, residence: str, seconds: float
) -> None:
    assert read_oldest_move() == 0
    changed = {"residence": residence, "updated_at": read_now() - timedelta(seconds=90)}
    Organization.objects.filter(pk=tenant.organization.pk).update(**changed)
    assert read_oldest_move() == seconds


def test_an_unfinished_move_is_found_by_index(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {metrics._OLDEST_MOVE}")
        assert "organization_on_its_way" in "\n".join(line for (line,) in cursor.fetchall())
