"""The limits of time that a private endpoint has of its own."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from catalog.models import LanguageModel, Provider
from config.bulk.rows import read_lines
from config.egress.rules import NO_OWN_LIMITS, TimeLimits
from endpoints import imports
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.console import SUBMIT
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE
from tests.support.factories import Tenant

ALL = {"connect": 2, "headers": 30, "first_event": 60, "idle": 45, "total": 300}
STATES = ("draft", "active", "disabled")


@pytest.fixture
def draft(tenant: Tenant, model: LanguageModel, provider: Provider) -> PrivateEndpoint:
    return factories.make_draft(tenant, model, provider)


def shown(management: APIClient, endpoint_id: Any) -> Any:
    return management.get(f"{ROUTE}/{endpoint_id}").json()["data"].get("timeouts", "absent")


def test_a_create_stores_the_limits_and_the_view_shows_them(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    created = management.post(ROUTE, request_body | {"timeouts": ALL})
    assert created.status_code == 201
    assert shown(management, created.json()["data"]["id"]) == ALL
    assert PrivateEndpoint.objects.get().time_limits == TimeLimits(2, 30, 60, 45, 300)


@pytest.mark.parametrize("sent", [None, {}, {"idle": None}])
def test_no_limit_of_its_own_is_not_shown(
    management: APIClient, request_body: dict[str, Any], sent: Any
) -> None:
    created = management.post(ROUTE, request_body | {"timeouts": sent})
    assert created.status_code == 201
    assert shown(management, created.json()["data"]["id"]) == "absent"
    assert PrivateEndpoint.objects.get().time_limits == NO_OWN_LIMITS


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        *(({name: 0}, f"timeouts.{name}") for name in ALL),
        *(({name: value}, f"timeouts.{name}") for name in ALL for value in (-1, 1.5, "5", True)),
        ({"connect": 6}, "timeouts.connect"),
        *(({name: 601}, f"timeouts.{name}") for name in ("headers", "first_event", "idle")),
        ({"total": 901}, "timeouts.total"),
        ({"read": 5}, "timeouts.read"),
        ([], "timeouts"),
        (5, "timeouts"),
    ],
)
@pytest.mark.parametrize("call", ["create", "patch", "put"])
def test_another_limit_is_refused_by_name_and_changes_nothing(
    management: APIClient,
    request_body: dict[str, Any],
    draft: PrivateEndpoint,
    call: str,
    sent: Any,
    named: str,
) -> None:
    with snapshots.unchanged():
        path = f"{ROUTE}/{draft.pk}"
        if call == "create":
            refused = management.post(ROUTE, request_body | {"timeouts": sent})
        elif call == "patch":
            body = {"upstream_model_id": draft.upstream_model_id, "timeouts": sent}
            refused = management.patch(path, body)
        else:
            refused = management.put(f"{path}/timeouts", {"timeouts": sent})
        assert refused.status_code == 400
        assert named in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "sent", [{"connect": 5}, {"headers": 600}, {"first_event": 1}, {"total": 900}]
)
def test_the_operators_own_limits_are_the_highest(
    management: APIClient, draft: PrivateEndpoint, sent: dict[str, int]
) -> None:
    changed = management.put(f"{ROUTE}/{draft.pk}/timeouts", {"timeouts": sent})
    assert changed.status_code == 200
    assert changed.json()["data"]["timeouts"] == sent


def test_a_message_names_the_setting(
    management: APIClient, draft: PrivateEndpoint, settings: LazySettings
) -> None:
    settings.UPSTREAM_IDLE_TIMEOUT = 20.0
    refused = management.put(f"{ROUTE}/{draft.pk}/timeouts", {"timeouts": {"idle": 21}})
    assert refused.json()["error"]["message"] == (
        "timeouts.idle: Must be from 1 to 20, the operator's UPSTREAM_IDLE_TIMEOUT."
    )


@pytest.mark.parametrize("state", STATES)
def test_limits_change_in_every_state_and_leave_the_rest(
    management: APIClient, tenant: Tenant, model: LanguageModel, provider: Provider, state: str
) -> None:
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    if state != "draft":
        factories.make_validation(endpoint, credential)
        endpoint.activate()
    if state == "disabled":
        endpoint.disable()
    endpoint.refresh_from_db()
    path = f"{ROUTE}/{endpoint.pk}/timeouts"
    assert management.put(path, {"timeouts": ALL}).json()["data"]["timeouts"] == ALL
    assert "timeouts" not in management.put(path, {"timeouts": None}).json()["data"]
    stored = PrivateEndpoint.objects.get()
    assert (stored.status, stored.validation) == (endpoint.status, endpoint.validation)
    assert management.put(path, {}).status_code == 400


def test_an_edit_of_a_draft_sets_limits_and_keeps_the_validation(
    management: APIClient, tenant: Tenant, model: LanguageModel, provider: Provider
) -> None:
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    factories.make_validation(endpoint, credential)
    path, same = f"{ROUTE}/{endpoint.pk}", {"upstream_model_id": endpoint.upstream_model_id}
    assert management.patch(path, same | {"timeouts": ALL}).json()["data"]["timeouts"] == ALL
    assert management.patch(path, same).json()["data"]["timeouts"] == ALL
    assert PrivateEndpoint.objects.get().validation is not None
    assert "timeouts" not in management.patch(path, same | {"timeouts": None}).json()["data"]


def test_a_replay_compares_the_limits_only_if_there_are_any(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    def create(key: str, **fields: Any) -> int:
        answer = management.post(ROUTE, request_body | fields, HTTP_IDEMPOTENCY_KEY=key)
        return int(answer.status_code)

    assert create("plain") == create("plain", timeouts=None) == create("plain", timeouts={}) == 201
    assert create("plain", timeouts={"idle": 5}) == 422
    assert create("limited", timeouts={"idle": 5, "total": 9}) == 201
    assert create("limited", timeouts={"total": 9, "idle": 5}) == 201
    assert create("limited", timeouts={"idle": 6, "total": 9}) == 422
    assert PrivateEndpoint.objects.count() == 2


def test_an_export_and_an_import_carry_the_limits(
    tenant: Tenant, request_body: dict[str, Any]
) -> None:
    def load(**fields: Any) -> tuple[int, int, int]:
        line = json.dumps({**request_body, **fields}).encode()
        report = imports.apply(tenant.organization.pk, read_lines(io.BytesIO(line)))
        return tuple(  # type: ignore[return-value]
            kind["private_endpoints"] for kind in (report.created, report.updated, report.unchanged)
        )

    assert load(timeouts=ALL) == (1, 0, 0)
    [line] = imports.export(tenant.organization.pk)
    assert json.loads(line)["timeouts"] == ALL
    assert load(**json.loads(line)) == (0, 0, 1)
    assert load() == (0, 0, 1)
    assert load(timeouts={"idle": 7}) == (0, 1, 0)
    assert PrivateEndpoint.objects.get().time_limits == TimeLimits(idle=7)
    assert load(timeouts=None) == (0, 1, 0)
    [line] = imports.export(tenant.organization.pk)
    assert "timeouts" not in json.loads(line)


@pytest.mark.parametrize("state", STATES)
def test_an_operator_limits_the_time_in_the_console(
    operator: Client, tenant: Tenant, model: LanguageModel, provider: Provider, state: str
) -> None:
    endpoint = factories.make_draft(tenant, model, provider)
    stamps = {"draft": {}, "active": {"activated_at": endpoint.created_at}}
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(
        status=state, **stamps.get(state, stamps["active"])
    )
    page = reverse("admin:endpoints_privateendpoint_limit_time", args=[endpoint.pk])
    dialog = operator.get(page).content.decode()
    assert "Empty means 600, which UPSTREAM_IDLE_TIMEOUT says." in dialog
    form = {**SUBMIT, "idle_timeout": "601", "total_timeout": ""}
    operator.post(page, form)
    assert PrivateEndpoint.objects.get().time_limits == NO_OWN_LIMITS
    operator.post(page, form | {"idle_timeout": "600"})
    assert PrivateEndpoint.objects.get().time_limits == TimeLimits(idle=600)


@pytest.mark.parametrize("seconds", [0, 86_401])
def test_the_database_holds_no_other_limits(draft: PrivateEndpoint, seconds: int) -> None:
    rows = PrivateEndpoint.objects.filter(pk=draft.pk)
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.update(idle_timeout=seconds)
    assert rows.update(idle_timeout=86_400) == rows.update(idle_timeout=1) == 1
