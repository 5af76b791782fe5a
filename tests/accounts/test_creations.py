"""``Idempotency-Key`` on the routes that create, apart from private endpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import F
from django.test.utils import override_settings
from rest_framework.response import Response
from rest_framework.test import APIClient

from accounts.destinations.models import BroadcastDestination
from accounts.models import (
    ApiKey,
    ByokCredential,
    Creation,
    Guardrail,
    Member,
    PresetVersion,
    Workspace,
    erase_new_secrets,
)
from accounts.models.creations import SECRET_LIFETIME
from accounts.webhooks.models import Delivery, Subscription
from catalog.models import LanguageModel, ModelAlias
from endpoints.models import PrivateProvider
from endusers.models import EndUser
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import assert_refused
from tests.support.factories import Tenant

KEY = "order-1"
SECRET = "provider-secret-0123456789"
# Route, body, another body, and the table of the rows.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "keys": ({"name": "a", "limit": 1.5}, {"limit": 2}, ApiKey),
    "byok": ({"provider": "acme", "key": SECRET}, {"key": f"{SECRET}x"}, ByokCredential),
    "guardrails": ({"name": "a", "limit_usd": 5, "reset_interval": "daily"},
                   {"limit_usd": 6}, Guardrail),
    "workspaces": ({"name": "a", "slug": "a"}, {"slug": "b"}, Workspace),
    "webhooks": ({"url": "https://hooks.example.com/x"}, {"name": "b"}, Subscription),
    "aliases": ({"name": "fast", "targets": ["meta/llama-3"]}, {"name": "quick"}, ModelAlias),
    "end-users": ({"user": "u-1"}, {"user": "u-2"}, EndUser),
    "external-users": ({"user": "u-1"}, {"user": "u-2"}, EndUser),
    "observability/destinations": (
        {"name": "a", "type": "otel-collector", "config": {"endpoint": "https://otel.example/v1"}},
        {"name": "b"}, BroadcastDestination),
    "organization/members": ({"email": "a@example.com"}, {"email": "b@example.com"}, Member),
    "private-models": ({"slug": "rack/one", "name": "a"}, {"name": "b"}, LanguageModel),
    "private-providers": ({"name": "Rack"}, {"name": "Shelf"}, PrivateProvider),
}  # fmt: skip
SECRETS = {"keys": "key", "webhooks": "secret"}
# What PATCH changes of a created row.
CHANGES: dict[str, dict[str, Any]] = {
    "workspaces": {"name": "renamed", "slug": "c"},
    "end-users": {"is_active": False},
    "external-users": {"is_active": False},
    "organization/members": {"first_name": "Ada"},
    "private-providers": {"display_name": "renamed"},
}


def prepare() -> Tenant:
    """Makes what the bodies name, and a tenant."""
    factories.make_provider("acme")
    factories.make_model("meta/llama-3")
    tenant = factories.make_tenant()
    tenant.organization.slug = "rack"
    tenant.organization.save_fields("slug")
    return tenant


@pytest.fixture
def tenant(db: None) -> Tenant:
    return prepare()


@pytest.fixture(params=CASES)
def route(request: pytest.FixtureRequest, tenant: Tenant) -> str:
    name: str = request.param
    return name


def post(client: APIClient, route: str, token: str = KEY, **changes: Any) -> Response:
    body = {**CASES[route][0], **changes}
    return client.post(f"/api/v1/{route}", body, headers={"Idempotency-Key": token})


def path_of(route: str, created: Response) -> str:
    data = created.json()["data"]
    names = {"keys": "hash", "private-models": "slug", "private-providers": "slug"}
    name = "user" if route.endswith("-users") else names.get(route, "id")
    return f"/api/v1/{route}/{data[name]}"


def test_a_repeated_request_is_answered_as_the_first_one(management: APIClient, route: str) -> None:
    first = post(management, route)
    assert first.status_code == 201, first.content
    with snapshots.unchanged():
        # The order of the members does not matter, and null is absent.
        body = dict(reversed({**CASES[route][0], "no_member": None}.items()))
        for changed in (CASES[route][0], body):
            again = management.post(f"/api/v1/{route}", changed, headers={"Idempotency-Key": KEY})
            assert (again.status_code, again.json()) == (201, first.json())
    if (name := SECRETS.get(route)) is not None:
        assert again.json()[name] == first.json()[name]


def test_another_body_is_refused_and_changes_nothing(management: APIClient, route: str) -> None:
    assert post(management, route).status_code == 201
    with snapshots.unchanged():
        error = assert_refused(
            post(management, route, **CASES[route][1]), 422, "idempotency_key_reused"
        )
        assert error["message"].startswith("idempotency_key_reused: ")
        assert_refused(post(management, route, unknown=1), 400, "invalid_request")


def test_a_key_belongs_to_its_route_and_its_organization(management: APIClient, route: str) -> None:
    first = post(management, route).json()
    other = factories.make_tenant("Other")
    own = {"slug": f"{other.organization.slug}/one"} if route == "private-models" else {}
    mine = CASES[route][2]._base_manager.count()
    second = post(factories.client(other.management_key), route, **own)
    assert second.status_code == 201
    assert second.json()["data"] != first["data"]
    assert CASES[route][2]._base_manager.count() == mine + 1
    elsewhere = "guardrails" if route != "guardrails" else "keys"
    assert post(management, elsewhere).status_code == 201


def test_a_refused_request_does_not_use_the_key(management: APIClient, route: str) -> None:
    with snapshots.unchanged():
        assert post(management, route, **dict.fromkeys(CASES[route][0], 7)).status_code == 400
        for token in ("", "a" * 256, "é"):
            assert_refused(post(management, route, token), 400, "invalid_request")
    assert post(management, route).status_code == 201


@pytest.mark.parametrize(
    "route", [each for each in CASES if not each.endswith("-users")], indirect=True
)
def test_what_was_deleted_is_not_created_again(management: APIClient, route: str) -> None:
    assert management.delete(path_of(route, post(management, route))).status_code == 200
    with snapshots.unchanged():
        assert_refused(post(management, route), 404, "not_found")
        assert_refused(post(management, route, **CASES[route][1]), 422, "idempotency_key_reused")
    assert not Creation.objects.exclude(sealed=None).exists()


def test_an_answer_shows_the_row_as_it_is_now(management: APIClient, route: str) -> None:
    first = post(management, route)
    changed = management.patch(path_of(route, first), CHANGES.get(route, {"name": "renamed"}))
    assert changed.status_code == 200, changed.content
    assert post(management, route).json()["data"] == changed.json()["data"]


def test_no_secret_is_stored_in_clear(management: APIClient, route: str) -> None:
    answer = post(management, route).json()
    stored = str(snapshots.everything())
    for secret in (SECRET, *(answer[name] for name in SECRETS.values() if name in answer)):
        assert secret not in stored
    assert (Creation.objects.get().sealed is not None) is (route in SECRETS)


@pytest.mark.parametrize("route", SECRETS, indirect=True)
@pytest.mark.parametrize("is_erased", [True, False])
def test_a_secret_is_erased_after_its_time(
    management: APIClient, route: str, is_erased: bool
) -> None:
    post(management, route)
    erase_new_secrets()
    assert post(management, route).status_code == 201
    Creation.objects.update(created_at=F("created_at") - SECRET_LIFETIME - timedelta(seconds=1))
    if is_erased:
        erase_new_secrets()
        assert Creation.objects.get().sealed is None
    with snapshots.unchanged():
        assert_refused(post(management, route), 409, "secret_erased")


@pytest.mark.parametrize(
    ("route", "verb"), [("keys", "rotate"), ("webhooks", "rotate-secret")], indirect=["route"]
)
def test_a_rotated_secret_is_answered_no_more(management: APIClient, route: str, verb: str) -> None:
    first = post(management, route)
    rotated = management.post(f"{path_of(route, first)}/{verb}", {})
    assert rotated.status_code in (200, 201), rotated.content
    assert_refused(post(management, route), 409, "secret_erased")


def test_a_key_of_an_operator_is_not_answered_what_another_one_created(
    management: APIClient, route: str
) -> None:
    assert post(management, route).status_code == 201
    ApiKey.objects.filter(is_management=True).update(issued_by_operator=True)
    with snapshots.unchanged():
        assert_refused(post(management, route), 422, "idempotency_key_reused")


def test_a_body_is_not_judged_again(management: APIClient) -> None:
    soon = {"expires_at": "2099-01-01T00:00:00Z"}
    first = post(management, "keys", **soon)
    ApiKey.objects.filter(name="a").update(expires_at="2026-01-01T00:00:00Z")
    again = post(management, "keys", **soon)
    assert (again.status_code, again.json()["key"]) == (201, first.json()["key"])


def test_a_secret_is_sealed_again_with_a_new_credential_key(
    management: APIClient, settings: Any
) -> None:
    first = post(management, "keys")
    old = list(settings.CREDENTIAL_KEYS)
    with override_settings(CREDENTIAL_KEYS=[b"n" * 32, *old]):
        call_command("rotate_credential_keys")
    with override_settings(CREDENTIAL_KEYS=[b"n" * 32]):
        assert post(management, "keys").json() == first.json()
    assert_refused(post(management, "keys"), 409, "secret_erased")


def test_an_inference_key_creates_nothing(inference: APIClient, route: str) -> None:
    with snapshots.unchanged():
        assert post(inference, route).status_code == 403


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("route", CASES)
def test_concurrent_requests_create_one_row(route: str, together: Callable[..., list[Any]]) -> None:
    tenant = prepare()
    count = CASES[route][2]._base_manager.count()

    def send(**changes: Any) -> Callable[[], Response]:
        return lambda: post(factories.client(tenant.management_key), route, **changes)

    answers = together(*[send()] * 4, *[send(**CASES[route][1])] * 4)
    assert Counter(answer.status_code for answer in answers) == {201: 4, 422: 4}
    assert CASES[route][2]._base_manager.count() == count + 1
    created = [answer.json() for answer in answers if answer.status_code == 201]
    assert all(each == created[0] for each in created)


PRESET = {"model": "meta/llama-3", "messages": [{"role": "user", "content": "hi"}]}
# Of each action: the route that creates its row, the path after it, a body, another body, the
# table of what it makes.
ACTIONS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any] | None, Any]] = {
    "rotate": ("keys", "/rotate", {"overlap_seconds": 60}, {"overlap_seconds": 61}, ApiKey),
    "rotate-secret": ("webhooks", "/rotate-secret", {}, {"overlap_seconds": 61}, Subscription),
    "test": ("webhooks", "/test", {}, None, Delivery),
    "redeliver": ("webhooks", "/deliveries/{}/redeliver", {}, None, Delivery),
    "chat": ("", "presets/p/chat/completions", PRESET, {"temperature": 1}, PresetVersion),
}


@pytest.fixture(params=ACTIONS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def path_to(management: APIClient, name: str, token: str = "first") -> str:
    """Creates the row on which an action acts, and returns the path of the action."""
    route, rest = ACTIONS[name][:2]
    if not route:
        return f"/api/v1/{rest}"
    row = path_of(route, post(management, route, token))
    if name == "redeliver":
        rest = rest.format(management.post(f"{row}/test", {}).json()["data"]["id"])
    return f"{row}{rest}"


def act(client: APIClient, path: str, name: str, **changes: Any) -> Response:
    body = {**ACTIONS[name][2], **changes}
    return client.post(path, body, headers={"Idempotency-Key": KEY})


def test_a_repeated_action_is_answered_as_the_first_one(management: APIClient, name: str) -> None:
    path = path_to(management, name)
    first = act(management, path, name)
    assert first.status_code in (200, 201, 202), first.content
    before = snapshots.everything()
    again = act(management, path, name)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert snapshots.everything() == before
    for secret in (first.json().get("key"), first.json().get("secret")):
        assert secret is None or secret not in str(before)


def test_another_action_with_the_key_is_refused(
    management: APIClient, inference: APIClient, name: str
) -> None:
    path, elsewhere = path_to(management, name), path_to(management, name, "second")
    if name == "chat":
        elsewhere = path.replace("/p/", "/q/")
    assert act(management, path, name).status_code in (200, 201, 202)
    other = factories.client(factories.make_tenant("Other").management_key)
    with snapshots.unchanged():
        if elsewhere != path:
            assert_refused(act(management, elsewhere, name), 422, "idempotency_key_reused")
        if ACTIONS[name][3] is not None:
            changed = act(management, path, name, **ACTIONS[name][3])
            assert_refused(changed, 422, "idempotency_key_reused")
        if name != "chat":
            assert_refused(act(other, path, name), 404, "not_found")
        assert act(inference, path, name).status_code == 403


@pytest.mark.parametrize("name", ["rotate", "rotate-secret"], indirect=True)
@pytest.mark.parametrize("verb", ["rotate", "delete"])
def test_a_replaced_secret_is_answered_no_more(management: APIClient, name: str, verb: str) -> None:
    path = path_to(management, name)
    row = path_of(ACTIONS[name][0], act(management, path, name))
    ended = management.delete(row) if verb == "delete" else management.post(f"{row}/{name}", {})
    assert ended.status_code in (200, 201), ended.content
    with snapshots.unchanged():
        again = act(management, path, name)
        if (name, verb) == ("rotate-secret", "delete"):
            assert_refused(again, 404, "not_found")
        else:
            assert_refused(again, 409, "secret_erased")
    assert not Creation.objects.exclude(sealed=None).exists()


def test_a_rotated_key_is_the_one_that_the_answer_shows(management: APIClient) -> None:
    path = path_to(management, "rotate")
    first = act(management, path, "rotate").json()
    assert act(management, path, "rotate").json() == first
    assert management.get("/api/v1/keys").json()["data"][0]["hash"] == first["data"]["hash"]
    used = factories.client(first["key"]).get("/api/v1/key")
    assert (used.status_code, used.json()["data"]["label"]) == (200, first["data"]["label"])


@pytest.mark.django_db(transaction=True)
def test_concurrent_actions_are_made_once(name: str, together: Callable[..., list[Any]]) -> None:
    tenant = prepare()
    path = path_to(factories.client(tenant.management_key), name)
    count = ACTIONS[name][4]._base_manager.count()
    answers = together(*[lambda: act(factories.client(tenant.management_key), path, name)] * 4)
    assert {answer.status_code for answer in answers} <= {200, 201, 202}
    assert all(answer.json() == answers[0].json() for answer in answers)
    made = {"rotate": 1, "rotate-secret": 0, "test": 1, "redeliver": 0, "chat": 1}
    assert ACTIONS[name][4]._base_manager.count() == count + made[name]


@pytest.mark.parametrize("route", ["keys"], indirect=True)
def test_a_body_that_is_no_object_is_refused(management: APIClient, route: str) -> None:
    with snapshots.unchanged():
        for body in ([], "text", 7, None):
            headers = {"Idempotency-Key": KEY}
            refused = management.post(f"/api/v1/{route}", body, format="json", headers=headers)
            assert refused.status_code == 400, refused.content
