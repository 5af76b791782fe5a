"""The states of a private endpoint, and the changes that make its validation stale."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.models import LanguageModel, PriceVersion, Provider
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation
from endpoints.models import endpoint as module
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

STATES = ("draft", "validated", "active", "disabled")


@pytest.fixture
def endpoint(
    request: pytest.FixtureRequest,
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
    credential: ByokCredential,
) -> PrivateEndpoint:
    """Returns an endpoint in the state of the test's parameter, by default a validated draft."""
    state = getattr(request, "param", "validated")
    made = make_draft(model)
    if state != "draft":
        factories.make_validation(made, credential)
    if state in ("active", "disabled"):
        made.activate()
    if state == "disabled":
        made.disable()
    return made


# What each verb leads to, in the order of STATES.
REFUSED, BOUND = "409 invalid_state", "409 already_active"
TABLE: dict[str, tuple[str, str, str, str]] = {
    "activate": ("409 not_validated", "200 active", REFUSED, REFUSED),
    "disable": (REFUSED, REFUSED, "200 disabled", REFUSED),
    "enable": (REFUSED, REFUSED, REFUSED, "200 active"),
    "validate": ("200 draft", "200 draft", REFUSED, REFUSED),
    "patch": ("200 draft", "200 draft", BOUND, BOUND),
    "patch activate": (REFUSED, REFUSED, "200 active", REFUSED),
    "patch settings": ("200 draft", "200 draft", "200 active", "200 disabled"),
    "pricing": ("200 draft", "200 draft", "200 active", "200 disabled"),
    "delete": ("200 gone", "200 gone", "200 gone", "200 gone"),
    "delete release": ("200 gone", "200 gone", "200 gone", "200 gone"),
    "delete draft_only": ("200 gone", "200 gone", REFUSED, REFUSED),
}


def act(client: APIClient, tenant: Tenant, endpoint: PrivateEndpoint, verb: str) -> Any:
    path = f"{ROUTE}/{endpoint.pk}"
    match verb:
        case "patch":
            return client.patch(path, {"upstream_model_id": "sim-extra"})
        case "patch activate":
            body = {"workspace_id": str(tenant.workspace.pk), "probe_parameters": False}
            return client.patch(path, {"upstream_model_id": "sim-extra", "activate": body})
        case "patch settings":
            return client.patch(path, {"settings": {"fallback": "none"}})
        case "pricing":
            pricing = {"prompt": "0.5", "completion": "0.25"}
            return client.put(f"{path}/pricing", {"pricing": pricing})
        case "delete":
            return client.delete(path)
        case "delete release":
            return client.delete(f"{path}?release=true")
        case "delete draft_only":
            return client.delete(f"{path}?draft_only=true")
        case "validate":
            workspace = {"workspace_id": str(tenant.workspace.pk)}
            return client.post(f"{path}/validate", workspace)
        case _:
            return client.post(f"{path}/{verb}")


@pytest.mark.parametrize(
    ("endpoint", "verb", "expected"),
    [
        (state, verb, expected)
        for verb, row in TABLE.items()
        for state, expected in zip(STATES, row, strict=True)
    ],
    indirect=["endpoint"],
)
def test_a_verb_leads_to_the_state_of_the_table(
    management: APIClient, tenant: Tenant, endpoint: PrivateEndpoint, verb: str, expected: str
) -> None:
    before = snapshots.everything()
    response = act(management, tenant, endpoint, verb)
    status, _, outcome = expected.partition(" ")
    assert response.status_code == int(status), response.content
    shown = management.get(f"{ROUTE}/{endpoint.pk}")
    if status == "409":
        error = response.json()["error"]
        assert error["code"] == 409
        assert error["metadata"]["error_type"] == outcome
        assert snapshots.everything() == before
    elif outcome == "gone":
        assert response.json()["data"] == {"id": str(endpoint.pk)}
        assert response.json()["traffic"]["requests_last_hour"] == 0
        assert shown.status_code == 404
    else:
        assert shown.json()["data"]["status"] == outcome


@pytest.mark.parametrize(
    "verb",
    ["activate", "disable", "enable", "validate", "patch", "patch activate", "pricing", "delete"],
)
def test_a_deleted_endpoint_refuses_every_verb(
    management: APIClient, tenant: Tenant, endpoint: PrivateEndpoint, verb: str
) -> None:
    endpoint.remove()
    with snapshots.unchanged():
        response = act(management, tenant, endpoint, verb)
        assert response.status_code == 404
        assert response.json()["error"]["message"] == "The private endpoint does not exist."


@pytest.mark.parametrize("endpoint", STATES, indirect=True)
def test_delete_refuses_an_invalid_draft_only(
    management: APIClient, endpoint: PrivateEndpoint
) -> None:
    with snapshots.unchanged():
        for value in ("yes", "1", "True", ""):
            response = management.delete(f"{ROUTE}/{endpoint.pk}?draft_only={value}")
            assert response.status_code == 400
            assert response.json()["error"]["metadata"]["fields"] == {
                "draft_only": "Must be true or false."
            }


def test_activated_at_is_set_once(endpoint: PrivateEndpoint) -> None:
    endpoint.activate()
    activated_at = endpoint.activated_at
    assert activated_at is not None
    endpoint.disable()
    assert endpoint.disabled_at is not None
    endpoint.enable()
    stored = PrivateEndpoint.objects.get()
    assert (stored.activated_at, stored.disabled_at) == (activated_at, None)


@pytest.mark.parametrize("verb", ["activate", "enable", "disable"])
@pytest.mark.parametrize("endpoint", STATES, indirect=True)
def test_a_verb_refuses_unknown_fields(
    management: APIClient, endpoint: PrivateEndpoint, verb: str
) -> None:
    path = f"{ROUTE}/{endpoint.pk}/{verb}"
    with snapshots.unchanged():
        response = management.post(path, {"workspace_id": "x"})
        assert response.status_code == 400
        assert response.json()["error"]["metadata"]["fields"] == {"workspace_id": "Unknown field."}


def test_a_verb_accepts_an_empty_object(management: APIClient, endpoint: PrivateEndpoint) -> None:
    for verb, status in (("activate", "active"), ("disable", "disabled"), ("enable", "active")):
        response = management.post(f"{ROUTE}/{endpoint.pk}/{verb}", {})
        assert (response.status_code, response.json()["data"]["status"]) == (200, status)


def test_a_failed_validation_does_not_activate(
    management: APIClient, tenant: Tenant, endpoint: PrivateEndpoint
) -> None:
    endpoint.edit(upstream_model_id="sim-no-usage")
    validation.run(endpoint, workspace_id=tenant.workspace.pk)
    with snapshots.unchanged():
        response = management.post(f"{ROUTE}/{endpoint.pk}/activate")
        assert response.status_code == 409
        assert response.json()["error"]["metadata"] == {"error_type": "not_validated"}


def test_withdrawn_endpoints_keep_a_limited_number_of_models(
    management: APIClient,
    make_draft: Callable[..., PrivateEndpoint],
    credential: ByokCredential,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers have in memory what is kept, so that nobody may add to it without end."""

    def make(model: LanguageModel | None = None) -> PrivateEndpoint:
        count = PrivateEndpoint.objects.count()
        made = make_draft(model or factories.make_model(f"acme/owl-{count}"))
        factories.make_validation(made, credential)
        return made

    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    kept = [make() for _ in range(2)]
    for each in kept:
        each.activate()
        each.remove()
    draft = make()
    with snapshots.unchanged():
        response = management.post(f"{ROUTE}/{draft.pk}/activate")
    assert response.status_code == 422
    assert response.json()["error"]["metadata"] == {"error_type": "endpoint_limit_reached"}
    # Another endpoint of a model that is kept at its provider adds nothing.
    make(kept[1].model).activate()
    kept[0].release()
    assert management.post(f"{ROUTE}/{draft.pk}/activate").status_code == 200


def test_a_later_failed_validation_replaces_a_passed_one(
    tenant: Tenant, endpoint: PrivateEndpoint, credential: ByokCredential, management: APIClient
) -> None:
    credential.disabled = True
    credential.save_fields("disabled")
    assert not validation.run(endpoint, workspace_id=tenant.workspace.pk).passed
    credential.disabled = False
    credential.save_fields("disabled")
    response = management.post(f"{ROUTE}/{endpoint.pk}/activate")
    assert response.json()["error"]["metadata"] == {"error_type": "not_validated"}


@pytest.mark.parametrize(
    ("cause", "error_type"),
    [
        *(
            (cause, "validation_stale")
            for cause in (
                *("age", "credential rotated", "credential disabled", "credential deleted"),
                *("model changed", "model left", "dialect changed"),
            )
        ),
        *(
            (cause, "not_validated")
            for cause in ("upstream model", "base url", "declared region", "declared zdr")
        ),
    ],
)
def test_activate_refuses_a_stale_or_cleared_validation(
    management: APIClient,
    endpoint: PrivateEndpoint,
    credential: ByokCredential,
    settings: Any,
    cause: str,
    error_type: str,
) -> None:
    path = f"{ROUTE}/{endpoint.pk}"
    same = {"upstream_model_id": "sim-echo"}
    match cause:
        case "age":
            past = timezone.now() - timedelta(seconds=settings.VALIDATION_MAX_AGE)
            Validation.objects.update(created_at=past)
        case "credential rotated":
            credential.rotate(credential.reveal())
        case "credential disabled":
            credential.disabled = True
            credential.save_fields("disabled")
        case "credential deleted":
            credential.remove()
        case "model changed":
            endpoint.model.context_length = 1
            endpoint.model.save_fields("context_length")
        case "model left":
            endpoint.model.delist()
        case "dialect changed":
            endpoint.provider.dialect = "anthropic"
            endpoint.provider.save_fields("dialect")
        case "upstream model":
            management.patch(path, {"upstream_model_id": "sim-extra"})
        case "base url":
            management.patch(path, same | {"base_url": "https://llm.example.com"})
        case "declared region":
            management.patch(path, same | {"declared_region": "us"})
        case "declared zdr":
            management.patch(path, same | {"declared_zdr": True})
    with snapshots.unchanged():
        response = management.post(f"{path}/activate")
        assert response.status_code == 409
        assert response.json()["error"]["metadata"] == {"error_type": error_type}


def test_activate_accepts_a_validation_just_below_the_maximum_age(
    endpoint: PrivateEndpoint, settings: Any
) -> None:
    age = timedelta(seconds=settings.VALIDATION_MAX_AGE - 60)
    Validation.objects.update(created_at=timezone.now() - age)
    endpoint.activate()
    assert endpoint.status == "active"


def test_a_new_validation_replaces_a_stale_one(
    tenant: Tenant, endpoint: PrivateEndpoint, credential: ByokCredential
) -> None:
    credential.rotate(credential.reveal())
    assert validation.run(endpoint, workspace_id=tenant.workspace.pk).passed
    endpoint.activate()
    assert endpoint.status == "active"


def test_a_new_price_keeps_the_validation(endpoint: PrivateEndpoint) -> None:
    endpoint.reprice(factories.make_price("1", "2"))
    endpoint.activate()
    assert endpoint.status == "active"


def test_patch_returns_the_full_view(management: APIClient, endpoint: PrivateEndpoint) -> None:
    body = {
        "upstream_model_id": "other",
        "base_url": "https://other.example.com/v1/",
        "declared_region": "europe",
        "declared_zdr": False,
    }
    response = management.patch(f"{ROUTE}/{endpoint.pk}", body)
    assert response.status_code == 200
    data = response.json()["data"]
    assert data["upstream_model_id"] == "other"
    assert data["base_url"] == "https://other.example.com/v1"
    assert (data["declared_region"], data["declared_zdr"]) == ("europe", False)
    assert data == management.get(f"{ROUTE}/{endpoint.pk}").json()["data"]


def test_a_patch_with_the_stored_values_changes_nothing(
    management: APIClient, endpoint: PrivateEndpoint, upstream: Simulator
) -> None:
    with snapshots.unchanged():
        for body in (
            {"upstream_model_id": "sim-echo"},
            {"upstream_model_id": "sim-echo", "base_url": f"{upstream.base_url}/"},
            {"upstream_model_id": "sim-echo", "declared_region": None, "declared_zdr": None},
        ):
            assert management.patch(f"{ROUTE}/{endpoint.pk}", body).status_code == 200
    endpoint.activate()


def test_a_patch_of_the_upstream_clears_the_declarations(
    management: APIClient, endpoint: PrivateEndpoint
) -> None:
    path = f"{ROUTE}/{endpoint.pk}"

    def patch(**body: Any) -> tuple[Any, Any]:
        data = management.patch(path, body).json()["data"]
        return data["declared_region"], data["declared_zdr"]

    both = {"declared_region": "us", "declared_zdr": True}
    assert patch(upstream_model_id="sim-echo", **both) == ("us", True)
    assert patch(upstream_model_id="sim-echo") == ("us", True)
    assert patch(upstream_model_id="sim-echo", declared_zdr=None) == ("us", None)
    assert patch(upstream_model_id="sim-extra") == (None, None)
    assert patch(upstream_model_id="sim-extra", **both) == ("us", True)
    assert patch(upstream_model_id="sim-extra", base_url="https://other.example.com") == (
        None,
        None,
    )
    assert patch(upstream_model_id="sim-echo", **both) == ("us", True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"upstream_model_id": ""}, 400),
        ({"upstream_model_id": None}, 400),
        ({"base_url": None}, 422),
        ({"base_url": ""}, 400),
        ({"declared_zdr": "no"}, 400),
        ({"declared_region": "mars"}, 400),
        ({"model_permaslug": "acme/other"}, 400),
        ({"provider_slug": "other"}, 400),
        ({"pricing": {"prompt": "1"}}, 400),
        ({"settings": {"fallback": "some"}}, 400),
        ({"settings": {"other": 1}}, 400),
        ({"status": "active"}, 400),
        ({"base_url": "http://other.example.com"}, 422),
        ({"base_url": "https://10.0.0.1"}, 422),
        ({"base_url": "nonsense"}, 422),
    ],
)
def test_patch_refuses_an_invalid_body(
    management: APIClient, endpoint: PrivateEndpoint, body: dict[str, Any], status: int
) -> None:
    with snapshots.unchanged():
        response = management.patch(f"{ROUTE}/{endpoint.pk}", {"upstream_model_id": "x", **body})
        assert response.status_code == status
        assert response.json()["error"]["code"] == status


def test_patch_refuses_a_base_url_if_the_credential_contains_it(
    management: APIClient, tenant: Tenant, model: LanguageModel, cloud: Provider
) -> None:
    endpoint = factories.make_draft(tenant, model, cloud, base_url=None)
    with snapshots.unchanged():
        body = {"upstream_model_id": "x", "base_url": "https://llm.example.com"}
        response = management.patch(f"{ROUTE}/{endpoint.pk}", body)
        assert response.status_code == 422
        assert response.json()["error"]["metadata"] == {"error_type": "invalid_base_url"}


def test_put_pricing_replaces_every_rate(management: APIClient, endpoint: PrivateEndpoint) -> None:
    path = f"{ROUTE}/{endpoint.pk}/pricing"
    cached = {"prompt": "1", "completion": "2", "cache_read": "0.1", "cache_write": "1.25"}
    response = management.put(path, {"pricing": cached})
    assert response.status_code == 200
    assert response.json()["data"]["pricing"] == cached
    first = PrivateEndpoint.objects.get().price
    plain = {"prompt": "1", "completion": "2"}
    assert management.put(path, {"pricing": plain}).json()["data"]["pricing"] == plain
    stored = PrivateEndpoint.objects.get().price
    assert stored.pk != first.pk
    assert PriceVersion.objects.get(pk=first.pk).price == first.price
    assert PriceVersion.objects.filter(subject_id=endpoint.pk).count() == 3


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"pricing": None},
        {"pricing": {}},
        {"pricing": {"prompt": "1"}},
        {"pricing": {"prompt": "-1", "completion": "1"}},
        {"pricing": {"prompt": 1, "completion": 1}},
        {"prompt": "1", "completion": "1"},
        {"pricing": {"prompt": "1", "completion": "1"}, "status": "active"},
    ],
)
def test_put_pricing_refuses_an_invalid_body(
    management: APIClient, endpoint: PrivateEndpoint, body: dict[str, Any]
) -> None:
    with snapshots.unchanged():
        response = management.put(f"{ROUTE}/{endpoint.pk}/pricing", body)
        assert response.status_code == 400


def test_a_deleted_endpoint_keeps_its_row(management: APIClient, endpoint: PrivateEndpoint) -> None:
    endpoint.activate()
    assert management.delete(f"{ROUTE}/{endpoint.pk}").status_code == 200
    stored = PrivateEndpoint.objects.get()
    assert stored.deleted_at is not None
    assert list(PrivateEndpoint.objects.routable()) == []
    assert management.get(ROUTE).json() == {"data": []}


@pytest.mark.parametrize("endpoint", STATES, indirect=True)
def test_only_an_active_endpoint_is_routable(
    endpoint: PrivateEndpoint, request: pytest.FixtureRequest
) -> None:
    routable = PrivateEndpoint.objects.routable().filter(pk=endpoint.pk).exists()
    assert routable is (request.node.callspec.params["endpoint"] == "active")


def test_the_database_refuses_an_active_endpoint_that_was_never_activated(
    endpoint: PrivateEndpoint,
) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        PrivateEndpoint.objects.filter(pk=endpoint.pk).update(status="active")
    with pytest.raises(IntegrityError), transaction.atomic():
        PrivateEndpoint.objects.filter(pk=endpoint.pk).update(activated_at=timezone.now())
