from __future__ import annotations

from collections.abc import Callable

import pytest
import requests
from django.db import IntegrityError, connection, transaction
from rest_framework.test import APIClient

from endpoints.models import Attestation, PrivateEndpoint
from inference.models import Generation
from tests.support import factories
from tests.support.endpoints.creating import ROUTE, body_of
from tests.support.simulator.server import Simulator


def declare(management: APIClient, **declared: object) -> str:
    body = body_of(factories.make_model(), factories.make_provider(), **declared)
    answer = management.post(ROUTE, body, headers={"X-Request-Id": "request-1"})
    assert answer.status_code == 201, answer.content
    return str(answer.json()["data"]["id"])


def test_a_declaration_is_stored_with_its_author_and_request(management: APIClient) -> None:
    endpoint_id = declare(management, declared_zdr=True, declared_region="europe")
    made = Attestation.objects.get(endpoint_id=endpoint_id)
    assert made.declarations == (True, "europe")
    assert made.stated_by.startswith("key mk-cw-")
    assert made.request_id == "request-1"
    assert PrivateEndpoint.objects.get(pk=endpoint_id).attestation == made


def test_an_endpoint_without_declarations_has_no_attestation(management: APIClient) -> None:
    endpoint_id = declare(management)
    assert PrivateEndpoint.objects.get(pk=endpoint_id).attestation is None
    assert Attestation.objects.count() == 0


def test_edit_appends_a_declaration_and_keeps_the_old_one(management: APIClient) -> None:
    endpoint_id = declare(management, declared_zdr=True)
    url = f"{ROUTE}/{endpoint_id}"
    management.patch(url, {"upstream_model_id": "sim-echo", "declared_zdr": False})
    management.patch(url, {"upstream_model_id": "sim-echo", "declared_zdr": False})
    assert [made.declarations for made in Attestation.objects.order_by("id")] == [
        (True, None),
        (False, None),
    ]


def test_a_withdrawn_declaration_is_stored_as_an_attestation(management: APIClient) -> None:
    endpoint_id = declare(management, declared_zdr=True)
    url = f"{ROUTE}/{endpoint_id}"
    answer = management.patch(url, {"upstream_model_id": "other"}).json()
    assert (answer["data"]["declared_zdr"], answer["cleared"]) == (None, ["declared_zdr"])
    again = management.patch(url, {"upstream_model_id": "other"}).json()
    assert again == {"data": answer["data"]}
    assert [made.declarations for made in Attestation.objects.order_by("id")] == [
        (True, None),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("change", "cleared"),
    [
        ({"declared_region": None}, ["declared_region"]),
        ({"upstream_model_id": "other", "declared_zdr": False}, ["declared_region"]),
        ({"base_url": "https://other.example.com/v1"}, ["declared_region", "declared_zdr"]),
        ({"declared_region": "us", "settings": {"context_length": 4096}}, None),
        ({"upstream_model_id": "sim-echo"}, None),
    ],
)
def test_an_edit_names_the_declarations_that_it_clears(
    management: APIClient, change: dict[str, object], cleared: list[str] | None
) -> None:
    endpoint_id = declare(management, declared_zdr=True, declared_region="europe")
    answer = management.patch(f"{ROUTE}/{endpoint_id}", change)
    assert (answer.status_code, answer.json().get("cleared")) == (200, cleared)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE endpoints_attestation SET declared_zdr = false", "DELETE FROM endpoints_attestation"],
    ids=["UPDATE", "DELETE"],
)
def test_attestations_are_append_only(management: APIClient, statement: str) -> None:
    declare(management, declared_zdr=True)
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        connection.cursor().execute(statement)
    assert Attestation.objects.get().declared_zdr is True


def test_a_generation_references_the_current_attestation(
    server: str, simulator: Simulator, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    tenant = factories.make_tenant()
    model, provider = factories.make_model("acme/falcon"), factories.make_provider()
    endpoint = factories.make_active(
        tenant, model, provider, base_url=simulator.base_url, declared_zdr=True
    )
    answer = requests.post(
        f"{server}/api/v1/chat/completions",
        headers={"Authorization": f"Bearer {tenant.api_key}"},
        json={"model": "acme/falcon", "messages": [{"role": "user", "content": "one"}]},
        timeout=60,
    )
    assert answer.status_code == 200
    generation = Generation.objects.get()
    assert endpoint.attestation is not None
    assert generation.attestation == endpoint.attestation
    eventually(lambda: Generation.objects.filter(status="completed").count() == 1)
    # It stands there as it was stated then, whatever is declared later.
    endpoint.declared_zdr = None
    endpoint.save_fields("declared_zdr")
    endpoint.attest(by="somebody")
    shown = factories.client(tenant.api_key).get(f"/api/v1/generation?id={generation.pk}")
    stated = endpoint.attestations.earliest("id")
    assert shown.json()["data"]["attestation"] == {
        "declared_zdr": True,
        "declared_region": None,
        "stated_at": stated.stated_at.isoformat().replace("+00:00", "Z"),
    }
    Generation.objects.update(attestation=endpoint.attestation)
    later = factories.client(tenant.api_key).get(f"/api/v1/generation?id={generation.pk}")
    assert "attestation" not in later.json()["data"]
