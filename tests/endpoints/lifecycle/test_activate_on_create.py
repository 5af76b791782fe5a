"""``POST /private-endpoints`` with ``activate``: a failed activation keeps the draft."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from accounts.models import ApiKey, ByokCredential
from catalog.models import Provider
from config.changes.kinds import ChangeKind
from config.clocks.clock import clock
from endpoints.models import PrivateEndpoint, Validation, ValidationSlot
from endpoints.models import endpoint as module
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import KEY, ROUTE, assert_refused, managed_view
from tests.support.endpoints.validating import failed, held, passed
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import demand
from tests.support.simulator.server import Simulator


def assert_draft_kept(response: Any, status: int, message: str) -> dict[str, Any] | None:
    """Asserts the envelope of section 7.2 and the stored draft; returns the validation."""
    assert response.status_code == status, response.content
    body = response.json()
    assert set(body) == {"error", "data"}
    assert body["error"] == {"code": status, "message": message}
    assert set(body["data"]) == {"endpoint", "validation"}
    stored = PrivateEndpoint.objects.get(deleted_at=None)
    assert body["data"]["endpoint"] == managed_view(stored)
    assert stored.status == "draft"
    result: dict[str, Any] | None = body["data"]["validation"]
    return result


def test_a_passed_validation_activates(
    management: APIClient, activating: dict[str, Any], upstream: Simulator
) -> None:
    response = management.post(ROUTE, activating)
    assert response.status_code == 201
    assert set(response.json()) == {"data"}
    assert response.json()["data"]["status"] == "active"
    stored = PrivateEndpoint.objects.get()
    assert stored.status == "active"
    assert stored.activated_at is not None
    assert stored.validation == Validation.objects.get()
    assert upstream.total_requests == 2


@pytest.mark.parametrize(
    ("behaviour", "status", "check"),
    [
        ("sim-status:401", 422, failed(
            "completion", "upstream_error", "Incorrect API key provided.", status=401)),
        ("sim-redirect", 422, failed(
            "completion", "upstream_error", "The upstream answered with a redirect.")),
        ("sim-html", 422, failed(
            "completion", "invalid_response", "The answer is not a JSON object.")),
        ("sim-cut-event", 422, failed(
            "stream", "invalid_stream", "The stream was cut off inside an event.")),
        ("sim-no-usage", 422, failed("usage", "missing_usage")),
        ("sim-wrong-model", 422,
         failed("model", "model_mismatch") | {"actual_model": "another-model"}),
        ("sim-connect-reset", 502, failed(
            "completion", "upstream_error", "The upstream could not be reached.", kind="reset")),
    ],
)  # fmt: skip
def test_a_failed_check_keeps_the_draft(
    management: APIClient,
    activating: dict[str, Any],
    behaviour: str,
    status: int,
    check: dict[str, Any],
) -> None:
    response = management.post(ROUTE, activating | {"upstream_model_id": behaviour})
    result = assert_draft_kept(
        response,
        status,
        f"The validation failed: {check['name']} ({check['reason']}). The draft was kept.",
    )
    assert result is not None
    assert result["passed"] is False
    assert [entry for entry in result["checks"] if not entry["passed"]] == [check]


@pytest.mark.parametrize("is_foreign", [False, True])
def test_an_unknown_or_foreign_workspace_keeps_the_draft(
    management: APIClient, activating: dict[str, Any], upstream: Simulator, is_foreign: bool
) -> None:
    workspace_id = factories.make_tenant("Other").workspace.pk if is_foreign else uuid4()
    activating["activate"] = {"workspace_id": str(workspace_id)}
    result = assert_draft_kept(
        management.post(ROUTE, activating),
        404,
        "The validation failed: workspace (workspace_not_found). The draft was kept.",
    )
    assert result == {"passed": False, "checks": [failed("workspace", "workspace_not_found")]}
    assert upstream.connections == 0


def test_no_credential_keeps_the_draft(
    management: APIClient,
    activating: dict[str, Any],
    credential: ByokCredential,
    upstream: Simulator,
) -> None:
    credential.delete()
    result = assert_draft_kept(
        management.post(ROUTE, activating),
        422,
        "The validation failed: byok_key (no_byok_key). The draft was kept.",
    )
    hint = "The workspace has no credential for acme. Store one with POST /byok."
    check = failed("byok_key", "no_byok_key", hint)
    assert result == {"passed": False, "checks": [*passed(["workspace"]), check]}
    assert upstream.connections == 0


def test_a_credential_that_cannot_be_decrypted_keeps_the_draft(
    management: APIClient, activating: dict[str, Any], upstream: Simulator, settings: Any
) -> None:
    settings.CREDENTIAL_KEYS = [b"k" * 32]
    result = assert_draft_kept(
        management.post(ROUTE, activating),
        500,
        "The validation failed: byok_key (key_decryption_failed). The draft was kept.",
    )
    check = failed("byok_key", "key_decryption_failed")
    assert result == {"passed": False, "checks": [*passed(["workspace"]), check]}
    assert upstream.connections == 0


def test_a_host_that_the_credential_does_not_allow_keeps_the_draft(
    management: APIClient,
    activating: dict[str, Any],
    credential: ByokCredential,
    upstream: Simulator,
) -> None:
    credential.allowed_hosts = ["api.acme.example"]
    credential.save_fields("allowed_hosts")
    assert_draft_kept(
        management.post(ROUTE, activating),
        422,
        "The validation failed: base_url (invalid_base_url). The allowed_hosts of the credential "
        "do not name 127.0.0.1. To allow it, send the secret as `key` together with "
        "`allowed_hosts`: PATCH /byok/{id}. The draft was kept.",
    )
    assert upstream.connections == 0


def test_a_host_that_nobody_has_named_keeps_the_draft_and_tells_its_id(
    management: APIClient, activating: dict[str, Any], upstream: Simulator
) -> None:
    ApiKey.objects.filter(name="management").update(issued_by_operator=True)
    demand(ChangeKind.CREDENTIALS)
    error = assert_refused(management.post(ROUTE, activating), 403, "second_person_needed")
    stored = PrivateEndpoint.objects.get()
    assert (stored.status, error["metadata"]["endpoint_id"]) == ("draft", str(stored.pk))
    assert error["message"].startswith("Provider credentials: two people must name 127.0.0.1 ")
    assert error["message"].endswith(" Nothing was sent. The draft was kept.")
    assert (upstream.connections, ValidationSlot.objects.exists()) == (0, False)


@pytest.mark.parametrize("behaviour", ["sim-stall", "sim-drip", "sim-stall-stream"])
def test_the_time_limit_keeps_the_draft(
    management: APIClient, activating: dict[str, Any], settings: Any, behaviour: str
) -> None:
    settings.VALIDATION_TIMEOUT = 1.0
    response = management.post(ROUTE, activating | {"upstream_model_id": behaviour})
    assert response.status_code == 408
    stored = PrivateEndpoint.objects.get()
    assert stored.status == "draft"
    assert response.json() == {
        "error": {
            "code": 408,
            "message": "The validation exceeded its time limit. The draft was kept.",
            "metadata": {"error_type": "timeout", "endpoint_id": str(stored.pk)},
        }
    }


@pytest.mark.parametrize(
    ("change", "status", "error_type"),
    [
        ({"model_permaslug": "acme/unknown"}, 404, "model_not_found"),
        ({"provider_slug": "unknown"}, 404, "provider_not_found"),
        ({"base_url": "http://llm.example.com/v1"}, 422, "invalid_base_url"),
        ({"upstream_model_id": ""}, 400, "invalid_request"),
        ({"activate": {"workspace_id": "x"}}, 400, "invalid_request"),
    ],
)
def test_a_refused_create_returns_the_standard_envelope(
    management: APIClient,
    activating: dict[str, Any],
    upstream: Simulator,
    change: dict[str, Any],
    status: int,
    error_type: str,
) -> None:
    with snapshots.unchanged():
        response = management.post(ROUTE, activating | change)
        assert response.status_code == status
        assert set(response.json()) == {"error"}
        assert response.json()["error"]["metadata"]["error_type"] == error_type
    assert upstream.connections == 0


def test_the_limit_is_checked_before_any_connection(
    management: APIClient, activating: dict[str, Any], upstream: Simulator, settings: Any
) -> None:
    settings.PRIVATE_ENDPOINT_LIMIT = 0
    response = management.post(ROUTE, activating)
    assert response.status_code == 422
    assert response.json()["error"]["metadata"] == {"error_type": "endpoint_limit_reached"}
    assert PrivateEndpoint.objects.count() == 0
    assert upstream.connections == 0


def withdraw_another(tenant: Tenant, credential: ByokCredential) -> None:
    """Withdraws an endpoint of another model, which stays private."""
    provider = Provider.objects.get()
    other = factories.make_draft(tenant, factories.make_model("acme/owl"), provider)
    factories.make_validation(other, credential)
    other.activate()
    other.remove()


def test_room_for_another_kept_model_is_asked_for_before_any_connection(
    management: APIClient,
    tenant: Tenant,
    activating: dict[str, Any],
    credential: ByokCredential,
    upstream: Simulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 1)
    withdraw_another(tenant, credential)
    with snapshots.unchanged():
        response = management.post(ROUTE, activating, headers=KEY)
    assert_refused(response, 422, "endpoint_limit_reached")
    assert upstream.connections == 0
    PrivateEndpoint.objects.get().release()
    response = management.post(ROUTE, activating, headers=KEY)
    assert (response.status_code, response.json()["data"]["status"]) == (201, "active")


def test_a_model_that_is_kept_during_the_validation_leaves_a_draft(
    transactional_db: None,
    management: APIClient,
    tenant: Tenant,
    activating: dict[str, Any],
    credential: ByokCredential,
    upstream: Simulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 1)
    body = activating | {"upstream_model_id": "sim-held"}
    with held(upstream, lambda: management.post(ROUTE, body)) as pending:
        withdraw_another(tenant, credential)
    result = assert_draft_kept(
        pending.result(),
        422,
        "Deleted and disabled endpoints of the organization keep 1 models private, and no more "
        "can be kept. Delete such endpoints with release=true first. The draft was kept.",
    )
    assert result is not None
    assert result["passed"] is True


def test_a_failed_activation_keeps_the_key_and_the_draft_can_be_repaired(
    management: APIClient, tenant: Tenant, activating: dict[str, Any], upstream: Simulator
) -> None:
    broken = activating | {"upstream_model_id": "sim-status:500"}
    first = management.post(ROUTE, broken, headers=KEY)
    assert first.status_code == 422
    draft = first.json()["data"]["endpoint"]
    upstream.clear()
    again = management.post(ROUTE, broken, headers=KEY)
    assert again.status_code == 201
    assert again.json() == {"data": draft}
    assert upstream.connections == 0
    path = f"{ROUTE}/{draft['id']}"
    assert management.patch(path, {"upstream_model_id": "sim-echo"}).status_code == 200
    workspace = {"workspace_id": str(tenant.workspace.pk)}
    assert management.post(f"{path}/validate", workspace).json()["data"]["passed"] is True
    assert management.post(f"{path}/activate").json()["data"]["status"] == "active"


@pytest.mark.parametrize("interference", ["edit", "delete", "rotate"])
def test_a_change_during_the_validation_prevents_the_activation(
    transactional_db: None,
    management: APIClient,
    activating: dict[str, Any],
    credential: ByokCredential,
    upstream: Simulator,
    interference: str,
) -> None:
    body = activating | {"upstream_model_id": "sim-held"}
    with held(upstream, lambda: management.post(ROUTE, body)) as pending:
        endpoint = PrivateEndpoint.objects.get()
        match interference:
            case "edit":
                endpoint.edit(upstream_model_id="sim-other")
            case "delete":
                endpoint.remove()
            case "rotate":
                credential.rotate(credential.reveal())
    response = pending.result()
    stored = PrivateEndpoint.objects.get()
    assert stored.status == "draft"
    if interference == "delete":
        assert response.status_code == 404
        assert set(response.json()) == {"error"}
        return
    messages = {
        "edit": "The endpoint has no passed validation: call validate first. The draft was kept.",
        "rotate": (
            "The endpoint has changed since its validation: call validate again. The draft was "
            "kept."
        ),
    }
    result = assert_draft_kept(response, 409, messages[interference])
    assert result is not None
    assert result["passed"] is True


def test_a_key_that_is_revoked_during_the_validation_activates_nothing(
    transactional_db: None, management: APIClient, activating: dict[str, Any], upstream: Simulator
) -> None:
    body = activating | {"upstream_model_id": "sim-held"}
    with held(upstream, lambda: management.post(ROUTE, body)) as pending:
        ApiKey.objects.get(name="management").revoke()
    response = pending.result()
    assert response.status_code == 401
    assert set(response.json()) == {"error"}
    stored = PrivateEndpoint.objects.get()
    assert (stored.status, stored.activated_at) == ("draft", None)
    assert not ValidationSlot.objects.exists()


def test_a_repeated_creation_says_that_its_activation_runs(
    transactional_db: None, tenant: Tenant, activating: dict[str, Any], upstream: Simulator
) -> None:
    body = activating | {"upstream_model_id": "sim-held"}

    def create() -> Any:
        return factories.client(tenant.management_key).post(ROUTE, body, headers=KEY)

    with held(upstream, create) as pending:
        again = create()
        assert (again.status_code, again.json()["activation"]) == (201, "running")
        assert again.json()["data"]["status"] == "draft"
        # The slot of a process that was killed ends by itself.
        ends = ValidationSlot.objects.get().until
        ValidationSlot.objects.update(until=clock.now() - timedelta(minutes=1))
        assert set(create().json()) == {"data"}
        ValidationSlot.objects.update(until=ends)
    first = pending.result()
    assert (first.status_code, first.json()["data"]["status"]) == (201, "active")
    assert create().json() == first.json()
    assert upstream.total_requests == 2
