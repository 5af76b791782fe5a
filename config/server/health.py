"""The probes of a supervisor: liveness and readiness."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import resolve
from django.views.decorators.csrf import csrf_exempt

from config.api.errors import GatewayError, MethodNotAllowed

_PROBES: Final = frozenset(("/metrics",))


def error_response(error: GatewayError) -> JsonResponse:
    """Returns an error as a plain Django response, for views outside Django REST Framework."""
    return JsonResponse(error.body(), status=error.status, headers=error.headers)


def read_only(
    view: Callable[..., HttpResponseBase],
) -> Callable[..., HttpResponseBase]:
    """Returns a view that serves GET and HEAD; it refuses other methods in the error envelope."""

    @wraps(view)
    def serve(request: HttpRequest, **parameters: str) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD"):
            return error_response(MethodNotAllowed(headers={"Allow": "GET, HEAD"}))
        return view(request, **parameters)

    # Nothing is written, and other methods are refused as such, not for a missing CSRF token.
    return csrf_exempt(serve)


class ProbeMiddleware:
    """Serves the supervisor's routes before any other middleware.

    A probe calls an IP address, which is not in ``ALLOWED_HOSTS``, without a session.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path in _PROBES:
            return resolve(request.path).func(request)
        return self._get_response(request)
