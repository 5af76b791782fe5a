"""``PATCH`` with ``activate``: another deployment in the place of an active one, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.db import connections
from rest_framework.test import APIClient

from accounts.models import ApiKey, ByokCredential
from catalog.models import LanguageModel
from config.apps import Role
from config.events.outbox import Event
from endpoints import watch
from endpoints.models import PrivateEndpoint, Validation
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.load import Load
from tests.support.console import messages_of
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE, managed_view
from tests.support.endpoints.validating import failed, held, row_of
from tests.support.factories import Tenant
from tests.support.inference.site import Site, content_of, events_of
from tests.support.operators.four_eyes import press, sign_in
from tests.support.simulator.server import Simulator

HINT = (
    "The allowed_hosts of the credential do not name 127.0.0.1. To allow it, send the secret as "
    "`key` together with `allowed_hosts`: PATCH /byok/{id}."
)


@pytest.fixture
def make_active(
    make_draft: Callable[..., PrivateEndpoint], model: LanguageModel, credential: ByokCredential
) -> Callable[..., PrivateEndpoint]:
    """Makes an active endpoint, which was not validated by a call."""

    def make(**fields: Any) -> PrivateEndpoint:
        made = make_draft(model, **fields)
        factories.make_validation(made, credential)
        made.activate(by="somebody")
        return made

    return make


@pytest.fixture
def active(make_active: Callable[..., PrivateEndpoint]) -> PrivateEndpoint:
    return make_active(declared_zdr=True)


@pytest.fixture
def undeclared(
    transactional_db: None, make_active: Callable[..., PrivateEndpoint]
) -> PrivateEndpoint:
    """Returns an active endpoint that declares nothing, and that other threads see."""
    return make_active()


def patch(client: APIClient, endpoint: PrivateEndpoint, tenant: Tenant, **fields: Any) -> Any:
    body = {"activate": {"workspace_id": str(tenant.workspace.pk)}, **fields}
    return client.patch(f"{ROUTE}/{endpoint.pk}", body)


def test_a_passed_validation_swaps_the_deployment(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    before = row_of(active)
    PrivateEndpoint.objects.filter(pk=active.pk).update(drifted_at=active.activated_at)
    response = patch(
        management,
        active,
        tenant,
        upstream_model_id="sim-extra",
        pricing={"prompt": "0.5", "completion": "0.25"},
        settings={"context_length": 4096, "fallback": "none"},
        declared_parameters=["seed"],
    )
    assert response.status_code == 200, response.content
    assert response.json()["cleared"] == ["declared_zdr"]
    shown = response.json()["data"]
    assert shown == management.get(f"{ROUTE}/{active.pk}").json()["data"]
    assert (shown["id"], shown["status"]) == (str(active.pk), "active")
    assert (shown["upstream_model_id"], shown["base_url"]) == ("sim-extra", upstream.base_url)
    assert (shown["declared_zdr"], shown["declared_parameters"]) == (None, ["seed"])
    assert shown["pricing"]["prompt"] == "0.5"
    assert (shown["settings"]["context_length"], shown["settings"]["fallback"]) == (4096, "none")
    active.refresh_from_db()
    found = Validation.objects.exclude(pk=before["validation_id"]).get()
    assert (active.validation, found.passed, found.workspace) == (found, True, tenant.workspace)
    assert found.configuration == active.configuration
    assert active.drifted_at is None
    assert active.attestation is not None
    assert active.attestation.declarations == (None, None)
    kept = ("activated_at", "activated_by", "created_at", "idempotency_key", "status")
    assert [row_of(active)[name] for name in kept] == [before[name] for name in kept]
    assert upstream.total_requests == 2
    told = Event.objects.filter(kind="endpoint.activated").order_by("id")
    assert [event.data["upstream_model_id"] for event in told] == ["sim-echo", "sim-extra"]


def test_a_declaration_alone_is_validated_too(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    before = row_of(active)
    response = patch(management, active, tenant, declared_region="europe")
    assert response.status_code == 200, response.content
    shown = response.json()["data"]
    assert (shown["declared_region"], shown["declared_zdr"]) == ("europe", True)
    assert row_of(active)["validation_id"] != before["validation_id"]
    assert upstream.total_requests == 2


@pytest.mark.parametrize("fields", [{}, {"upstream_model_id": "sim-echo", "declared_zdr": True}])
def test_the_same_deployment_again_changes_and_asks_nothing(
    management: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    upstream: Simulator,
    fields: dict[str, Any],
) -> None:
    with snapshots.unchanged():
        assert patch(management, active, tenant, **fields).status_code == 200
    again = patch(management, active, tenant, upstream_model_id="sim-extra")
    first = snapshots.everything()
    once_more = patch(management, active, tenant, upstream_model_id="sim-extra").json()
    assert once_more == {"data": again.json()["data"]}
    assert snapshots.everything() == first
    assert upstream.total_requests == 2


def test_other_changes_need_no_validation(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    before = row_of(active)
    response = patch(management, active, tenant, settings={"context_length": 8192})
    assert response.json()["data"]["settings"]["context_length"] == 8192
    assert row_of(active)["validation_id"] == before["validation_id"]
    assert upstream.connections == 0


@pytest.mark.parametrize("fields", [{}, {"settings": {"context_length": 8192}}])
def test_an_unknown_workspace_is_refused_where_nothing_needs_a_validation(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, fields: dict[str, Any]
) -> None:
    stranger = factories.make_tenant("Stranger").workspace.pk
    with snapshots.unchanged():
        for workspace_id in (str(uuid4()), str(stranger)):
            changes = {**fields, "activate": {"workspace_id": workspace_id}}
            response = patch(management, active, tenant, **changes)
            assert (response.status_code, list(response.json())) == (404, ["error"])


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"upstream_model_id": "sim-status:500"}, 422, "completion (upstream_error)."),
        ({"upstream_model_id": "sim-wrong-model"}, 422, "model (model_mismatch)."),
        ({"upstream_model_id": "sim-no-usage"}, 422, "usage (missing_usage)."),
        ({"upstream_model_id": "sim-connect-reset"}, 502, "completion (upstream_error)."),
        (
            {"upstream_model_id": "sim-extra", "activate": {"workspace_id": str(uuid4())}},
            404,
            "workspace (workspace_not_found).",
        ),
    ],
)
def test_a_failed_validation_changes_nothing(
    management: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    change: dict[str, Any],
    status: int,
    message: str,
) -> None:
    before = row_of(active)
    shown = management.get(f"{ROUTE}/{active.pk}").json()
    more = {"pricing": {"prompt": "9", "completion": "9"}, "settings": {"fallback": "none"}}
    response = patch(management, active, tenant, **more, **change)
    assert response.status_code == status, response.content
    body = response.json()
    assert set(body) == {"error", "data"}
    text = f"The validation failed: {message} Nothing was changed."
    assert body["error"] == {"code": status, "message": text}
    assert body["data"]["endpoint"]["status"] == "active"
    assert body["data"]["validation"]["passed"] is False
    assert row_of(active) == before
    assert management.get(f"{ROUTE}/{active.pk}").json() == shown
    # The history keeps what was tried, and who tried it.
    assert Validation.objects.exclude(pk=before["validation_id"]).get().passed is False
    key = tenant.management_key
    last = management.get(f"{ROUTE}/{active.pk}/history").json()["data"][0]
    assert (last["kind"], last["by"]) == ("validated", f"key {key[:9]}…{key[-3:]}")


def test_a_host_that_the_credential_may_not_go_to_is_refused_with_the_remedy(
    management: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    credential: ByokCredential,
    upstream: Simulator,
) -> None:
    credential.allowed_hosts = ["api.acme.example"]
    credential.save_fields("allowed_hosts")
    before = row_of(active)
    response = patch(management, active, tenant, upstream_model_id="sim-extra")
    assert response.status_code == 422
    assert response.json()["error"]["message"] == (
        f"The validation failed: base_url (invalid_base_url). {HINT} Nothing was changed."
    )
    [*_, check] = response.json()["data"]["validation"]["checks"]
    assert check == failed("base_url", "invalid_base_url", HINT)
    assert row_of(active) == before
    assert upstream.connections == 0


def test_the_time_limit_changes_nothing(
    management: APIClient, tenant: Tenant, active: PrivateEndpoint, settings: Any
) -> None:
    settings.VALIDATION_TIMEOUT = 1.0
    before = row_of(active)
    response = patch(management, active, tenant, upstream_model_id="sim-stall")
    assert response.status_code == 408
    assert response.json()["error"] == {
        "code": 408,
        "message": "The validation exceeded its time limit. Nothing was changed.",
        "metadata": {"error_type": "timeout", "endpoint_id": str(active.pk)},
    }
    assert row_of(active) == before


@pytest.mark.parametrize(
    ("change", "status", "error_type"),
    [
        ({"base_url": "http://llm.example.com/v1"}, 422, "invalid_base_url"),
        ({"base_url": "https://169.254.169.254/v1"}, 422, "invalid_base_url"),
        ({"upstream_model_id": "  "}, 400, "invalid_request"),
        ({"activate": {}}, 400, "invalid_request"),
        ({"activate": {"workspace_id": "x"}}, 400, "invalid_request"),
        ({"activate": {"workspace_id": str(uuid4()), "force": True}}, 400, "invalid_request"),
        ({"settings": {"max_prompt_tokens": 9, "context_length": 8}}, 400, "settings_invalid"),
        ({"declared_parameters": ["tool_choice"]}, 400, "parameters_invalid"),
        ({"activate": None}, 409, "already_active"),
    ],
)
def test_a_refused_change_asks_and_stores_nothing(
    management: APIClient,
    tenant: Tenant,
    active: PrivateEndpoint,
    upstream: Simulator,
    change: dict[str, Any],
    status: int,
    error_type: str,
) -> None:
    with snapshots.unchanged():
        response = patch(management, active, tenant, **{"upstream_model_id": "sim-extra", **change})
        assert response.status_code == status, response.content
        assert set(response.json()) == {"error"}
        assert response.json()["error"]["metadata"]["error_type"] == error_type
    assert upstream.connections == 0


def test_strangers_and_inference_keys_replace_nothing(
    inference: APIClient, tenant: Tenant, active: PrivateEndpoint, upstream: Simulator
) -> None:
    stranger = factories.make_tenant("Stranger")
    client = factories.client(stranger.management_key)
    with snapshots.unchanged():
        fields = {"upstream_model_id": "sim-extra"}
        assert patch(client, active, stranger, **fields).status_code == 404
        assert patch(inference, active, tenant, **fields).status_code == 403
    assert upstream.connections == 0


INTERFERENCES: dict[str, tuple[Callable[[PrivateEndpoint], object], str]] = {
    "disable": (
        lambda endpoint: endpoint.disable(),
        "The private endpoint is disabled; this needs it to be active. Nothing was changed.",
    ),
    "edit": (
        lambda endpoint: endpoint.edit(settings={"context_length": 4096}),
        "The endpoint was changed meanwhile. Nothing was changed.",
    ),
    "replace": (
        lambda endpoint: PrivateEndpoint.objects.filter(pk=endpoint.pk).update(
            upstream_model_id="sim-versioned"
        ),
        "The endpoint was changed meanwhile. Nothing was changed.",
    ),
    "archive the workspace": (
        lambda endpoint: endpoint.validation.workspace.close(confirm_default=True),  # type: ignore[union-attr]
        "The workspace does not exist. Nothing was changed.",
    ),
    "rotate": (
        lambda endpoint: endpoint.validation.credential.rotate(  # type: ignore[union-attr]
            endpoint.validation.credential.reveal()  # type: ignore[union-attr]
        ),
        "The credential or the model was changed meanwhile. Nothing was changed.",
    ),
    "delete": (lambda endpoint: endpoint.remove(), "The private endpoint does not exist."),
}


@pytest.mark.parametrize("interference", INTERFERENCES)
def test_a_change_meanwhile_is_kept_and_refuses_the_replacement(
    undeclared: PrivateEndpoint,
    management: APIClient,
    tenant: Tenant,
    upstream: Simulator,
    interference: str,
) -> None:
    fields = {"upstream_model_id": "sim-held", "declared_zdr": True}
    interfere, message = INTERFERENCES[interference]
    with held(upstream, lambda: patch(management, undeclared, tenant, **fields)) as pending:
        interfere(PrivateEndpoint.objects.get())
        meanwhile = row_of(undeclared)
    response = pending.result()
    status = 404 if interference in ("delete", "archive the workspace") else 409
    assert response.status_code == status, response.content
    assert response.json()["error"]["message"] == message
    assert row_of(undeclared) == meanwhile
    if interference != "delete":
        assert response.json()["data"]["validation"]["passed"] is True
        stored = managed_view(undeclared, status=meanwhile["status"])
        assert response.json()["data"]["endpoint"] == stored


def test_a_key_that_is_revoked_meanwhile_replaces_nothing(
    undeclared: PrivateEndpoint, management: APIClient, tenant: Tenant, upstream: Simulator
) -> None:
    before = row_of(undeclared)
    fields = {"upstream_model_id": "sim-held"}
    with held(upstream, lambda: patch(management, undeclared, tenant, **fields)) as pending:
        ApiKey.objects.get(name="management").revoke()
    assert pending.result().status_code == 401
    assert row_of(undeclared) == before


def test_an_operator_who_loses_the_power_meanwhile_replaces_nothing(
    undeclared: PrivateEndpoint, tenant: Tenant, upstream: Simulator
) -> None:
    before = row_of(undeclared)
    client = sign_in("ann", Role.ADMINISTRATOR)
    form = {
        "base_url": upstream.base_url, "upstream_model_id": "sim-held", "declared_zdr": "true",
        "workspace": str(tenant.workspace.pk),
    }  # fmt: skip
    with held(upstream, lambda: press(client, undeclared, "replace_deployment", **form)) as pending:
        User.objects.get(username="ann").groups.set(Group.objects.filter(name=Role.READ_ONLY))
    refusal = "You may not do this any more. Nothing was changed."
    assert messages_of(pending.result()) == [refusal]
    assert row_of(undeclared) == before


def test_of_two_replacements_one_wins(
    undeclared: PrivateEndpoint, tenant: Tenant, upstream: Simulator
) -> None:
    def replace(zdr: bool) -> Any:
        try:
            client = factories.client(tenant.management_key)
            fields = {"upstream_model_id": "sim-held", "declared_zdr": zdr}
            return patch(client, undeclared, tenant, **fields)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        pending = [pool.submit(replace, zdr) for zdr in (True, False)]
        assert upstream.wait_until(lambda: upstream.total_requests == 2)
        upstream.release(4)
        answers = [each.result(60) for each in pending]
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    undeclared.refresh_from_db()
    assert undeclared.declared_zdr is (answers[0].status_code == 200)
    assert undeclared.validation is not None
    assert undeclared.validation.configuration == undeclared.configuration


def test_a_watch_of_the_old_deployment_says_nothing_of_the_new_one(
    tenant: Tenant, active: PrivateEndpoint, settings: Any
) -> None:
    settings.WATCH_DISABLES = True
    active.drifted_at = active.activated_at
    active.save_fields("drifted_at")
    watching = PrivateEndpoint.objects.get()
    validation = Validation(
        endpoint=active,
        workspace=tenant.workspace,
        configuration=active.configuration,
        outcome=Validation.Outcome.FAILED,
        checks=[{"name": "model", "passed": False, "reason": "model_mismatch"}],
    )
    PrivateEndpoint.objects.filter(pk=active.pk).update(
        upstream_model_id="sim-extra", drifted_at=None
    )
    watching.record_watch(validation)
    assert (watching.drifted_at, watching.status) == (None, "active")
    assert watch.watch(PrivateEndpoint.objects.get()) is not None
    assert PrivateEndpoint.objects.get().status == "active"


def test_running_requests_end_where_they_began(site: Site) -> None:
    endpoint = site.own("sim-gated")
    client = factories.client(site.tenant.management_key)
    answer = site.post(site.chat_body("one two", stream=True), stream=True)
    chunks = answer.iter_content(None)
    first = next(chunks).decode()
    activate = {"workspace_id": str(site.tenant.workspace.pk), "probe_parameters": False}
    fields = {"upstream_model_id": "sim-echo", "activate": activate}
    response = patch(client, endpoint, site.tenant, **fields)
    assert response.status_code == 200, response.content
    later = site.chat("three")
    assert later.json()["choices"][0]["message"]["content"] == "You said: three"
    site.upstream.release(7)
    events = events_of(first + b"".join(chunks).decode())
    assert (content_of(events), events[-1]) == ("You said: one two", "[DONE]")
    models = [request.model for request in site.dialled()]
    assert (models[0], set(models[1:])) == ("sim-gated", {"sim-echo"})


def replace_under_load(site: Site, times: int) -> None:
    """Replaces the deployment of a busy endpoint; every request is answered, by it alone."""
    endpoint = site.own()
    site.publish()
    client = factories.client(site.tenant.management_key)
    activate = {"workspace_id": str(site.tenant.workspace.pk), "probe_parameters": False}
    with Load(site, [site.tenant.api_key] * 2) as load:
        load.wait_for_answers(1)
        for number in range(times):
            fields = {"upstream_model_id": f"falcon-{number}", "activate": activate}
            answer = patch(client, endpoint, site.tenant, **fields)
            assert answer.status_code == 200, answer.content
        load.wait_for_answers(1)
    assert set(load.statuses()) == {200}
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert set(Generation.objects.values_list("private_endpoint", flat=True)) == {endpoint.pk}
    assert Validation.objects.filter(outcome="passed").count() == times + 1


def test_no_request_fails_while_the_deployment_is_replaced(site: Site) -> None:
    replace_under_load(site, 12)


def test_no_request_fails_during_two_hundred_replacements(site: Site) -> None:
    replace_under_load(site, 200)
