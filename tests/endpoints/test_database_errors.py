from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from rest_framework.test import APIClient

from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def refuse() -> Iterator[object]:
    """Yields a function that makes PostgreSQL refuse an operation on a table (disk full)."""
    made: list[str] = []

    def install(table: str, operation: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$"
            )
            cursor.execute(
                f"CREATE TRIGGER test_refuse BEFORE {operation} ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION test_refuse()"
            )
        made.append(table)

    yield install
    with connection.cursor() as cursor:
        for table in made:
            cursor.execute(f"DROP TRIGGER test_refuse ON {table}")


def create(tenant: Tenant, simulator: Simulator) -> object:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_credential(tenant, provider)
    return factories.client(tenant.management_key).post(
        "/api/v1/private-endpoints",
        {
            "model_permaslug": model.canonical_slug,
            "provider_slug": provider.slug,
            "upstream_model_id": "sim-echo",
            "base_url": simulator.base_url,
            "activate": {"workspace_id": str(tenant.workspace.pk)},
        },
    )


def test_a_validation_that_cannot_be_stored_is_a_database_error(
    simulator: Simulator, refuse: object
) -> None:
    tenant = factories.make_tenant()
    refuse("endpoints_validation", "INSERT")
    answer = create(tenant, simulator)
    assert answer.status_code == 500
    assert answer.json()["data"]["validation"]["checks"][-1] == {
        "name": "database",
        "passed": False,
        "reason": "database_error",
    }
    assert answer.json()["data"]["endpoint"]["status"] == "draft"
    assert PrivateEndpoint.objects.get().status == "draft"
    assert Validation.objects.count() == 0


def test_an_activation_that_cannot_be_stored_keeps_the_draft(
    simulator: Simulator, refuse: object
) -> None:
    tenant = factories.make_tenant()
    refuse("endpoints_privateendpoint", "UPDATE OF activated_at")
    answer = create(tenant, simulator)
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "code": 500,
        "message": "The endpoint could not be activated. The draft was kept.",
    }
    assert answer.json()["data"]["validation"]["passed"] is True
    assert PrivateEndpoint.objects.get().status == "draft"


def test_a_deleted_endpoint_cannot_be_validated(simulator: Simulator) -> None:
    tenant = factories.make_tenant()
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider, base_url=simulator.base_url)
    management: APIClient = factories.client(tenant.management_key)
    url = f"/api/v1/private-endpoints/{endpoint.pk}"
    assert management.delete(url).status_code == 200
    answer = management.post(f"{url}/validate", {"workspace_id": str(tenant.workspace.pk)})
    assert answer.status_code == 404
    assert answer.json()["error"]["metadata"]["error_type"] == "endpoint_not_found"
