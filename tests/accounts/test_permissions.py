"""The permission matrix: the answer of every route of the URLconf to every kind of key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import requests
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from rest_framework.response import Response
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView

from accounts.authentication import AnyKey, Anyone, DenyAll, ManagementKey
from accounts.models import ApiKey
from config.apps import Role
from config.console.sign_in.roles import update_roles
from config.secrets import generate_api_key
from endpoints import validation
from endpoints.models import PrivateEndpoint
from inference.faces.routes import COUNT_TOKENS, EDITS, MESSAGES, RESPONSES, ROUTES
from tests.support import console, factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.inference.pictures import PNG
from tests.support.simulator.server import Simulator

# Routes that answer without a key. The test of a route that is missing here fails.
PUBLIC = {"GET /api/v1/openapi.json"}
# Routes that answer without a key but refuse an invalid key.
OPEN = {
    "GET /api/v1/embeddings/models", "GET /api/v1/endpoints/zdr", "GET /api/v1/images/models",
    "GET /api/v1/images/models/{author}/{slug}/endpoints", "GET /api/v1/model/{author}/{slug}",
    "GET /api/v1/models", "GET /api/v1/models/count", "GET /api/v1/models/{author}/{slug}",
    "GET /api/v1/models/{author}/{slug}/endpoints", "GET /api/v1/models/{name}",
    "GET /api/v1/providers",
}  # fmt: skip
ADMITTED = "admitted"


@dataclass(frozen=True)
class Route:
    """One method of one path, and its view."""

    method: str
    path: str
    view: type[APIView]
    action: str

    @property
    def permissions(self) -> list[type[Any]]:
        """Returns what the view asks of a key for this method."""
        view: Any = self.view()
        view.action = self.action
        return [type(permission) for permission in view.get_permissions()]

    @property
    def example(self) -> str:
        """Returns the path of rows that do not exist."""
        return re.sub(r"\{\w+\}", str(uuid4()), self.path)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _views(resolver: URLResolver, prefix: str = "/") -> Iterator[tuple[str, Any]]:
    for pattern in resolver.url_patterns:
        path = prefix + re.sub(
            r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"{\1}", str(pattern.pattern)
        ).lstrip("^").rstrip("$").replace(r"\Z", "")
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)
        if isinstance(pattern, URLResolver):
            yield from _views(pattern, path)
        elif isinstance(pattern, URLPattern):
            yield path, pattern.callback


def _routes() -> list[Route]:
    found = []
    for path, callback in _views(get_resolver()):
        if not path.startswith("/api/v1/"):
            continue
        methods = getattr(callback, "actions", None) or {
            name: name for name in callback.cls.http_method_names if hasattr(callback.cls, name)
        }
        found += [
            Route(method.upper(), path, callback.cls, action)
            for method, action in methods.items()
            if method not in ("head", "options")
        ]
    return sorted(found, key=str)


ALL_ROUTES = _routes()
KEYED_ROUTES = [route for route in ALL_ROUTES if str(route) not in PUBLIC]


@pytest.fixture
def keys(tenant: Tenant) -> dict[str, str | None]:
    """Returns the key that each actor sends; ``None`` means no header."""
    past = timezone.now() - timedelta(seconds=30)
    make = partial(ApiKey.objects.create_key, workspace=tenant.workspace, is_management=True)
    _, disabled = make(name="disabled")
    ApiKey.objects.filter(name="disabled").update(disabled=True)
    _, expired = make(name="expired", expires_at=past)
    good = tenant.management_key
    return {
        "none": None,
        "garbage": "garbage",
        "bad checksum": good[:-1] + ("0" if good[-1] != "0" else "1"),
        "unknown": generate_api_key(is_management=True).reveal(),
        "expired": expired.reveal(),
        "disabled": disabled.reveal(),
        "inference": tenant.api_key,
        "management": good,
        "other organization": factories.make_tenant("Other").management_key,
    }


ACTORS = {
    **dict.fromkeys(("none", "garbage", "bad checksum", "unknown", "expired", "disabled"), 401),
    "inference": 403,
    "management": ADMITTED,
    "other organization": ADMITTED,
}


def client_of(key: str | None) -> APIClient:
    return APIClient() if key is None else factories.client(key)


def answer(route: Route, key: str | None) -> Any:
    client = client_of(key)
    return client.generic(route.method, route.example, "{}", content_type="application/json")


def test_the_table_has_routes() -> None:
    assert len(KEYED_ROUTES) >= 14
    assert {str(route) for route in ALL_ROUTES} >= {
        "GET /api/v1/key",
        "GET /api/v1/models/user",
        "POST /api/v1/end-users",
        "DELETE /api/v1/end-users/{user}",
        "DELETE /api/v1/external-users/{user}",
        "DELETE /api/v1/keys/{hash}",
        "POST /api/v1/keys/{hash}/rotate",
        "DELETE /api/v1/byok/{pk}",
        "DELETE /api/v1/workspaces/{workspace_ref}",
        "POST /api/v1/workspaces/{workspace_ref}/members/remove",
        "PUT /api/v1/workspaces/{workspace_ref}/budgets/{interval}",
        "DELETE /api/v1/workspaces/{workspace_ref}/budgets/{interval}",
        "PATCH /api/v1/guardrails/{pk}",
        "GET /api/v1/guardrails/assignments/members",
        "POST /api/v1/guardrails/{pk}/assignments/keys",
        "POST /api/v1/guardrails/{pk}/assignments/keys/remove",
        "GET /api/v1/organization/members",
        "POST /api/v1/organization/members",
        "PATCH /api/v1/organization/members/{pk}",
        "DELETE /api/v1/organization/members/{pk}",
        "PATCH /api/v1/organization/settings",
        "POST /api/v1/private-endpoints",
        "POST /api/v1/private-endpoints/{pk}/activate",
        *OPEN,
        *PUBLIC,
    }


@pytest.mark.parametrize("route", ALL_ROUTES, ids=str)
def test_every_route_declares_its_key_type(route: Route) -> None:
    permissions = route.permissions
    if str(route) in PUBLIC:
        assert route.view.authentication_classes == []
    elif str(route) in OPEN:
        assert permissions == [Anyone]
    else:
        assert permissions in ([ManagementKey], [AnyKey])
        assert DenyAll not in permissions


def test_a_view_that_declares_no_key_type_refuses_everybody(tenant: Tenant) -> None:
    class Undeclared(APIView):
        def get(self, request: Any) -> Response:
            return Response("it is served")

    statuses = []
    for key in (None, tenant.api_key, tenant.management_key):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        request = APIRequestFactory().get("/", headers=headers)
        statuses.append(Undeclared.as_view()(request).status_code)
    assert statuses == [401, 403, 403]


@pytest.mark.parametrize("route", KEYED_ROUTES, ids=str)
def test_every_route_gives_every_actor_the_expected_status(
    keys: dict[str, str | None], route: Route
) -> None:
    expected: dict[str, int | str] = dict(ACTORS)
    if route.permissions == [AnyKey]:
        expected["inference"] = ADMITTED
    if str(route) in OPEN:
        expected["none"] = expected["inference"] = ADMITTED
    # Refusals come first: nothing may have changed after them.
    refused = {actor: status for actor, status in expected.items() if status != ADMITTED}
    before = snapshots.everything()
    for actor, status in refused.items():
        response = answer(route, keys[actor])
        assert (actor, response.status_code) == (actor, status)
        error = response.json()["error"]
        assert (actor, error["code"]) == (actor, status)
        error_type = {401: "authentication", 403: "permission_denied"}[response.status_code]
        assert error["metadata"]["error_type"] == error_type
        asks = "Bearer" if status == 401 else None
        assert (actor, response.headers.get("WWW-Authenticate")) == (actor, asks)
        assert (actor, snapshots.everything()) == (actor, before)
    for actor in (actor for actor in expected if actor not in refused):
        status_code = answer(route, keys[actor]).status_code
        assert (actor, status_code in (401, 403), status_code < 500) == (actor, False, True)


@pytest.mark.parametrize("actor", ["inference", "management"])
def test_no_route_fails_where_it_is_asked_what_it_takes(
    keys: dict[str, str | None], actor: str
) -> None:
    client = client_of(keys[actor])
    statuses = {route.path: client.options(route.example).status_code for route in ALL_ROUTES}
    assert {path: status for path, status in statuses.items() if status >= 500} == {}


class Unreadable:
    """A request body that must not be read."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("the body was read")

    readline = readlines = __iter__ = read

    def close(self) -> None:
        pass


@pytest.mark.parametrize("actor", [actor for actor, status in ACTORS.items() if status == 401])
def test_no_route_reads_a_body_before_it_knows_the_caller(
    keys: dict[str, str | None], actor: str
) -> None:
    client = client_of(keys[actor])
    refused = []
    for route in (route for route in KEYED_ROUTES if route.method != "GET"):
        for content_type in ("application/json", "application/x-www-form-urlencoded"):
            body = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": "9", "CONTENT_TYPE": content_type}
            sent = (route.method, route.example, "not JSON,", content_type)
            refused.append(client.generic(*sent, **body).status_code)
    assert set(refused) == {401}


def test_no_management_route_reads_the_body_of_an_inference_key(tenant: Tenant) -> None:
    client = factories.client(tenant.api_key)
    for route in KEYED_ROUTES:
        if route.method != "GET" and route.permissions == [ManagementKey]:
            body = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": "9"}
            sent = (route.method, route.example, "x", "application/json")
            response = client.generic(*sent, **body)
            assert (str(route), response.status_code) == (str(route), 403)


@pytest.mark.parametrize("route", sorted(PUBLIC))
def test_a_public_route_needs_no_key(anonymous: APIClient, route: str) -> None:
    method, _, path = route.partition(" ")
    assert anonymous.generic(method, path).status_code == 200


def test_the_routes_of_the_data_plane_follow_the_same_table(server: str) -> None:
    tenant = factories.make_tenant()
    expected: dict[str | None, int] = {
        None: 401,
        "garbage": 401,
        generate_api_key(is_management=False).reveal(): 401,
        tenant.management_key: 403,
        tenant.api_key: 404,
    }
    asked = {"model": "acme/unknown", "messages": [{"role": "user", "content": "x"}]}
    audio = {"data": "UklGRg==", "format": "wav"}
    body = {**asked, "prompt": "x", "input": "x", "query": "x", "documents": ["x"]}
    body["input_audio"] = audio
    # A prompt of responses is an object, unlike that of completions.
    response = {"model": "acme/unknown", "input": "x"}
    names = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    for path in ROUTES:
        is_messages = path in (MESSAGES, COUNT_TOKENS)
        sent = {**asked, "max_tokens": 1} if is_messages else body
        sent = response if path == RESPONSES else sent
        for key, status in expected.items():
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            if path == EDITS:
                given: dict[str, Any] = {
                    "data": {"model": "acme/unknown", "prompt": "x"},
                    "files": {"image": ("a.png", PNG)},
                }
            else:
                given = {"json": sent}
            got = requests.post(f"{server}{path}", **given, headers=headers, timeout=60)
            if path == COUNT_TOKENS and key == tenant.api_key:
                # This route estimates tokens for any model, even an unknown one.
                assert got.status_code == 200
                continue
            error = got.json()["error"]
            told = error["type"] if is_messages else error["code"]
            wanted = names[status] if is_messages else status
            assert (path, got.status_code, told) == (path, status, wanted)


# Who may have a stored secret sent where: to its provider's own host, to the host of its first
# use, to that of an active endpoint, to another domain, and, before its first use, to any host.
# "no page" means that the role has no Validate at all.
SENT, REFUSED, NO_PAGE = "sent", "refused", "no page"
DESTINATIONS = ("own", "bound", "active", "new", "unused")
MAY_SEND = {
    "management": (SENT, SENT, SENT, REFUSED, SENT),
    Role.ADMINISTRATOR: (SENT, SENT, SENT, REFUSED, SENT),
    Role.SUPPORT: (REFUSED, REFUSED, SENT, REFUSED, REFUSED),
    Role.FINANCE: (NO_PAGE,) * 5,
    Role.READ_ONLY: (NO_PAGE,) * 5,
}


def press_validate(actor: str, draft: PrivateEndpoint, tenant: Tenant) -> int:
    """Validates the draft as an actor and returns the status of the answer."""
    workspace = str(tenant.workspace.pk)
    if actor == "management":
        route = f"/api/v1/private-endpoints/{draft.pk}/validate"
        body = {"workspace_id": workspace}
        return factories.client(tenant.management_key).post(route, body).status_code
    update_roles()
    user = User.objects.create_user("operator", is_staff=True)
    user.groups.add(Group.objects.get(name=actor))
    browser = Client()
    browser.force_login(user)
    form = {**console.SUBMIT, "workspace": workspace}
    return browser.post(console.page(draft, "validate"), form).status_code


@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize("actor", MAY_SEND)
def test_every_actor_sends_a_secret_only_where_it_may(
    tenant: Tenant, simulator: Simulator, actor: str, destination: str
) -> None:
    own = simulator.base_url if destination == "own" else "https://api.acme.example/v1"
    provider = factories.make_provider("acme", base_url=own)
    credential = factories.make_credential(tenant, provider)
    if destination != "unused":
        used = "127.0.0.1" if destination in ("bound", "active") else "llm.corp.example"
        credential.record_use(used, own_hosts=frozenset())
    model = factories.make_model()
    draft = factories.make_draft(tenant, model, provider, base_url=simulator.base_url)
    if destination == "active":
        other = factories.make_draft(tenant, model, provider, base_url=simulator.base_url)
        validation.run(other, workspace_id=tenant.workspace.pk)
        other.activate()
    simulator.clear()
    status = press_validate(actor, draft, tenant)
    expected = MAY_SEND[actor][DESTINATIONS.index(destination)]
    assert (status == 403) is (expected == NO_PAGE)
    assert (len(simulator.requests), simulator.connections > 0) == (
        (2, True) if expected == SENT else (0, False)
    )
