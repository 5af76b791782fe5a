from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from catalog.models import LanguageModel
from endpoints.models import PrivateEndpoint, Validation
from tests.support.endpoints.creating import ROUTE, assert_refused, managed_view
from tests.support.endpoints.validating import failed
from tests.support.factories import Tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def refuse() -> Iterator[Callable[[str, str], None]]:
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


def test_a_validation_that_cannot_be_stored_is_a_database_error(
    management: APIClient, activating: dict[str, Any], refuse: Callable[[str, str], None]
) -> None:
    refuse("endpoints_validation", "INSERT")
    answer = management.post(ROUTE, activating)
    assert answer.status_code == 500
    check = answer.json()["data"]["validation"]["checks"][-1]
    assert check == failed("database", "database_error")
    assert answer.json()["data"]["endpoint"]["status"] == "draft"
    assert PrivateEndpoint.objects.get().status == "draft"
    assert Validation.objects.count() == 0


def test_an_activation_that_cannot_be_stored_keeps_the_draft(
    management: APIClient, activating: dict[str, Any], refuse: Callable[[str, str], None]
) -> None:
    refuse("endpoints_privateendpoint", "UPDATE OF activated_at")
    answer = management.post(ROUTE, activating)
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "code": 500,
        "message": "The endpoint could not be activated. The draft was kept.",
    }
    assert answer.json()["data"]["validation"]["passed"] is True
    stored = PrivateEndpoint.objects.get()
    assert answer.json()["data"]["endpoint"] == managed_view(stored)
    assert stored.status == "draft"


def test_a_deleted_endpoint_cannot_be_validated(
    management: APIClient,
    tenant: Tenant,
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
) -> None:
    url = f"{ROUTE}/{make_draft(model).pk}"
    assert management.delete(url).status_code == 200
    answer = management.post(f"{url}/validate", {"workspace_id": str(tenant.workspace.pk)})
    assert_refused(answer, 404, "endpoint_not_found")
