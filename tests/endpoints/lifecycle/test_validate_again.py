"""``POST /private-endpoints/{id}/validate`` with ``again``: a new look at an active deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from rest_framework.test import APIClient

from catalog.models import LanguageModel
from config.clocks.clock import clock
from config.events.outbox import Event
from endpoints.models import PrivateEndpoint, Proof, Validation
from tests.support import factories
from tests.support.console import messages_of
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import held, row_of
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press
from tests.support.simulator.server import Simulator


@pytest.fixture
def active(active: PrivateEndpoint, upstream: Simulator) -> PrivateEndpoint:
    """Returns the room's active endpoint, of which the upstream has forgotten the requests."""
    upstream.clear()
    return active


def validate(client: APIClient, endpoint: PrivateEndpoint, tenant: Tenant) -> Any:
    body = {"workspace_id": str(tenant.workspace.pk), "probe_parameters": False, "again": True}
    return client.post(f"{ROUTE}/{endpoint.pk}/validate", body)


def change(endpoint: PrivateEndpoint, **fields: Any) -> dict[str, Any]:
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(**fields)
    return row_of(endpoint)


def test_a_passed_one_is_the_new_baseline_and_ends_a_drift(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    first = Validation.objects.get()
    evidence = {**first.evidence, "prompt_tokens": 1}
    proofs = {"seed": Proof.NO_EFFECT}
    Validation.objects.update(evidence=evidence, parameters=proofs)
    before = change(active, drifted_at=clock.now())
    answer = validate(management, active, tenant)
    assert answer.status_code == 200, answer.content
    assert answer.json()["data"]["passed"] is True
    assert upstream.total_requests == 2
    found = Validation.objects.exclude(pk=first.pk).get()
    assert (found.changes, found.parameters) == (
        [{"name": "prompt_tokens", "was": 1, "is": first.evidence["prompt_tokens"]}],
        proofs,
    )
    after = row_of(active)
    assert after.pop("validation_id") == found.pk
    assert (after.pop("drifted_at"), after.pop("updated_at") > before["updated_at"]) == (None, True)
    assert after.items() <= before.items()
    history = management.get(f"{ROUTE}/{active.pk}/history").json()["data"]
    assert {entry["by"] for entry in history[:2]} == {
        f"key {tenant.management_key[:9]}…{tenant.management_key[-3:]}"
    }
    assert [entry["kind"] for entry in history[:2]] == ["changed", "validated"]
    assert history[0]["changes"][0]["field"] == "drifted_at"
    assert history[1]["changes"][0]["field"] == "prompt_tokens"


@pytest.mark.parametrize(
    ("upstream_model_id", "is_drift"),
    [("sim-status:429", False), ("sim-connect-reset", False), ("sim-wrong-model", True)],
)
def test_a_failed_one_leaves_the_endpoint_and_tells_a_drift(
    management: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    settings: Any,
    upstream_model_id: str,
    is_drift: bool,
) -> None:
    settings.WATCH_DISABLES = True
    before = change(active, upstream_model_id=upstream_model_id)
    for _ in range(2):
        answer = validate(management, active, tenant)
        assert answer.status_code == 200, answer.content
        assert answer.json()["data"]["passed"] is False
    after = row_of(active)
    assert (after.pop("drifted_at") is not None) is is_drift
    assert after.pop("updated_at") >= before["updated_at"]
    assert after.items() <= before.items()
    assert Validation.objects.filter(validated_by__startswith="key ").count() == 2
    assert Event.objects.filter(kind="endpoint.drifted").count() == is_drift


def test_a_lost_operation_is_named(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint
) -> None:
    operations = {"chat/completions": Proof.PROVEN, "embeddings": Proof.PROVEN}
    evidence = {**Validation.objects.get().evidence, "operations": operations}
    Validation.objects.update(evidence=evidence)
    change(active, upstream_model_id="sim-status:404")
    assert validate(management, active, tenant).json()["data"]["passed"] is False
    [changed] = Validation.objects.latest("created_at").changes
    assert changed == {
        "name": "operations",
        "was": "chat/completions, embeddings",
        "is": "embeddings",
    }
    assert row_of(active)["drifted_at"] is not None


def test_another_deployment_meanwhile_is_not_judged(
    transactional_db: None,
    management: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    upstream: Simulator,
) -> None:
    change(active, upstream_model_id="sim-held")
    with held(upstream, lambda: validate(management, active, tenant)) as pending:
        meanwhile = change(active, upstream_model_id="sim-extra")
    assert pending.result().json()["data"]["passed"] is True
    after = row_of(active)
    assert {**after, "updated_at": None} == {**meanwhile, "updated_at": None}
    assert Validation.objects.count() == 2


def test_a_draft_is_not_validated_again(
    management: APIClient,
    tenant: Tenant,
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
    upstream: Simulator,
) -> None:
    draft = make_draft(model)
    with snapshots.unchanged():
        answer = validate(management, draft, tenant)
        assert (answer.status_code, answer.json()["error"]["metadata"]) == (
            409,
            {"error_type": "invalid_state", "status": "draft"},
        )
    assert upstream.connections == 0


def test_an_active_one_is_validated_only_if_that_is_asked_for(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    with snapshots.unchanged():
        for again in ({}, {"again": False}, {"again": None}):
            body = {"workspace_id": str(tenant.workspace.pk), **again}
            answer = management.post(f"{ROUTE}/{active.pk}/validate", body)
            assert answer.status_code == 409, answer.content
            error = answer.json()["error"]
            assert error["message"] == (
                "The private endpoint is active; only a draft is validated without again. Send "
                "again: true to validate an active endpoint."
            )
            assert error["metadata"] == {"error_type": "invalid_state", "status": "active"}
    assert upstream.connections == 0


def test_strangers_and_wrong_bodies_ask_nothing(
    management: APIClient,
    inference: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    upstream: Simulator,
) -> None:
    stranger = factories.make_tenant("Stranger")
    before = snapshots.everything()
    path = f"{ROUTE}/{active.pk}/validate"
    assert validate(factories.client(stranger.management_key), active, stranger).status_code == 404
    assert validate(inference, active, tenant).status_code == 403
    assert validate(management, active, stranger).status_code == 404
    for body, status in (({}, 400), ({"workspace_id": "x"}, 400), ({"workspace_id": 1}, 400)):
        assert management.post(path, body).status_code == status
    assert management.post(path, {"workspace_id": str(uuid4())}).status_code == 404
    assert snapshots.everything() == before
    assert upstream.connections == 0


def test_the_console_validates_an_active_endpoint_again(
    operator: Client, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    workspace = str(tenant.workspace.pk)
    answer = press(operator, active, "validate_again", workspace=workspace)
    assert messages_of(answer) == ["The validation passed."]
    found = Validation.objects.latest("created_at")
    assert (row_of(active)["validation_id"], found.validated_by) == (found.pk, "operator operator")
    # It may have to be proven before it is enabled.
    active.disable()
    answer = press(operator, active, "validate_again", workspace=workspace)
    assert messages_of(answer) == ["The validation passed."]
    assert row_of(active)["validation_id"] == Validation.objects.latest("created_at").pk
