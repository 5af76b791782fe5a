"""Every error has the same envelope, whether a view, the routing, Django or a bug raises it."""

from __future__ import annotations

import json
import logging
from copy import copy
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from django.test import Client, RequestFactory
from rest_framework import exceptions as drf
from rest_framework.test import APIClient

from config.api import handler
from config.api.errors import GatewayError, error_body
from config.api.handler import from_framework
from config.server.batching.waits import Blocked


def envelope(code: int, message: str, error_type: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "metadata": {"error_type": error_type}}}


def _tree(root: type[GatewayError]) -> list[type[GatewayError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


@pytest.mark.parametrize(
    "kind",
    sorted(
        (kind for kind in _tree(GatewayError) if kind.__module__ == "config.api.errors"),
        key=lambda kind: kind.__name__,
    ),
)
def test_every_error_has_a_status_and_a_symbolic_type(kind: type[GatewayError]) -> None:
    error = kind()
    assert error.body() == envelope(kind.status, error.message, kind.error_type)
    assert str(error) == error.message
    json.dumps(error.body())


def test_a_copy_of_a_shared_error_changes_alone() -> None:
    shared = Blocked(UUID(int=1))
    own = copy(shared)
    own.details["more"] = own.metadata["more"] = True
    assert shared.body() == envelope(503, Blocked.message, "server")
    assert own.body()["more"] is own.body()["error"]["metadata"]["more"] is True
    assert (type(own), str(own), own.organization_id) == (Blocked, Blocked.message, UUID(int=1))


def test_metadata_is_added_to_the_symbolic_type() -> None:
    assert error_body(409, "No.", error_type="conflict", metadata={"status": "draft"}) == {
        "error": {
            "code": 409,
            "message": "No.",
            "metadata": {"error_type": "conflict", "status": "draft"},
        }
    }


@pytest.mark.parametrize(
    ("foreign", "status", "error_type"),
    [
        (drf.NotAuthenticated(), 401, "authentication"),
        (drf.AuthenticationFailed(), 401, "authentication"),
        (drf.PermissionDenied(), 403, "permission_denied"),
        (PermissionDenied(), 403, "permission_denied"),
        (drf.NotFound(), 404, "not_found"),
        (Http404(), 404, "not_found"),
        (drf.MethodNotAllowed("PUT"), 405, "invalid_request"),
        (drf.UnsupportedMediaType("text/plain"), 415, "invalid_request"),
        (drf.ParseError("Broken."), 400, "invalid_request"),
        (drf.NotAcceptable(), 400, "invalid_request"),
        (drf.ValidationError("Broken."), 400, "invalid_request"),
        (RequestDataTooBig(), 413, "payload_too_large"),
        (SuspiciousOperation(), 400, "invalid_request"),
        (OperationalError(), 503, "server"),
        (InterfaceError(), 503, "server"),
    ],
)
def test_a_framework_exception_becomes_a_causeway_error(
    foreign: Exception, status: int, error_type: str
) -> None:
    error = from_framework(foreign)
    assert error is not None
    assert (error.status, error.error_type) == (status, error_type)


def test_from_framework_ignores_other_exceptions() -> None:
    assert from_framework(ZeroDivisionError()) is None


@pytest.mark.parametrize(
    ("detail", "message", "fields"),
    [
        ("Broken.", "Broken.", None),
        (["Broken.", "Worse."], "Broken. Worse.", None),
        ({"name": ["Broken."]}, "name: Broken.", {"name": "Broken."}),
        ({"name": ["Broken."], "size": ["Worse."]}, "name: Broken. (and 1 more)",
         {"name": "Broken.", "size": "Worse."}),
        (
            {"name": ["This field is required."], "size": ["This field is required."]},
            "name, size: These fields are required.",
            {"name": "This field is required.", "size": "This field is required."},
        ),
        ({"pricing": {"prompt": ["Broken."]}}, "pricing.prompt: Broken.",
         {"pricing.prompt": "Broken."}),
        ({"pricing": {"non_field_errors": ["Broken."]}}, "pricing: Broken.",
         {"pricing": "Broken."}),
        ({"items": [{}, {"name": ["Broken."]}]}, "items[1].name: Broken.",
         {"items[1].name": "Broken."}),
        ({"items": {1: ["Broken."]}}, "items.1: Broken.", {"items.1": "Broken."}),
    ],
)  # fmt: skip
def test_a_refused_field_is_named_by_its_path(
    detail: Any, message: str, fields: dict[str, str] | None
) -> None:
    error = from_framework(drf.ValidationError(detail))
    assert error is not None
    assert error.message == message
    assert error.metadata == ({} if fields is None else {"fields": fields})


@pytest.mark.parametrize(
    "path",
    ["/api/v1/unknown", "/api/v2/key", "/api/v1/key/", "/unknown", "/api/v1/", "/api/v1/%00"],
)
def test_an_unknown_route_is_404(management: APIClient, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        response = management.generic(method, path)
        assert response.status_code == 404
        assert response.headers["Content-Type"] == "application/json"
        assert response.json() == envelope(404, "There is no such route.", "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/private-endpoints", {"GET", "POST", "HEAD", "OPTIONS"}),
        ("DELETE", "/api/v1/end-users", {"POST", "OPTIONS"}),
        ("POST", "/api/v1/key", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/api/v1/models/user", {"GET", "HEAD", "OPTIONS"}),
        ("TRACE", "/api/v1/key", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_a_wrong_method_is_405_and_lists_the_allowed_methods(
    management: APIClient, method: str, path: str, allowed: set[str]
) -> None:
    response = management.generic(method, path)
    assert response.status_code == 405
    assert response.json() == envelope(405, "This method is not allowed here.", "invalid_request")
    assert set(response.headers["Allow"].split(", ")) >= allowed - {"HEAD", "OPTIONS"}
    assert method not in response.headers["Allow"].split(", ")


def test_a_missing_key_is_reported_before_a_wrong_method(anonymous: APIClient) -> None:
    response = anonymous.put("/api/v1/private-endpoints")
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/api/v1/key", "/docs", "/unknown"])
@pytest.mark.parametrize("host", ["evil.example", "a b", "testserver@evil"])
def test_a_forbidden_host_is_400(management: APIClient, path: str, host: str) -> None:
    response = management.get(path, headers={"Host": host})
    assert response.status_code == 400
    assert response.json() == envelope(400, "This host name is not served here.", "invalid_request")


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "image/*"])
def test_an_answer_in_another_format_is_refused(management: APIClient, accept: str) -> None:
    response = management.get("/api/v1/key", headers={"Accept": accept})
    assert response.status_code == 400
    assert response.json() == envelope(
        400, "This service answers in JSON; 'Accept' must allow it.", "invalid_request"
    )


@pytest.mark.parametrize(
    "accept", ["*/*", "application/json", "application/*", "text/html, */*;q=0.1"]
)
def test_an_answer_in_json_is_accepted(management: APIClient, accept: str) -> None:
    assert management.get("/api/v1/key", headers={"Accept": accept}).status_code == 200


@pytest.mark.urls("tests.support.contract.exploding_urls")
@pytest.mark.parametrize("path", ["/plain", "/rest"])
def test_a_bug_is_500_without_its_detail(
    db: None, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        response = Client(raise_request_exception=False).get(path)
    assert response.status_code == 500
    assert response.headers["Content-Type"] == "application/json"
    assert response.json() == envelope(500, "Internal server error.", "server")
    assert "a secret detail" in caplog.text


@pytest.mark.urls("tests.support.contract.exploding_urls")
def test_a_lost_database_is_503(db: None) -> None:
    response = Client(raise_request_exception=False).get("/rest-database")
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert response.json() == envelope(
        503, "The service is temporarily unavailable. Try again shortly.", "server"
    )


def test_django_error_handlers_answer_in_the_envelope(rf: RequestFactory) -> None:
    request = rf.get("/")
    for response, code in (
        (handler.bad_request(request, SuspiciousOperation()), 400),
        (handler.bad_request(request, ValueError()), 400),
        (handler.bad_request(request, RequestDataTooBig()), 413),
        (handler.permission_denied(request, PermissionDenied()), 403),
        (handler.page_not_found(request, Http404()), 404),
        (handler.server_error(request), 500),
    ):
        assert response.status_code == code
        assert json.loads(response.content)["error"]["code"] == code
