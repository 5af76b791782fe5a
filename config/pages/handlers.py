"""Django's handlers of failures: a page for a person, the error envelope for a program."""

from __future__ import annotations

import sys
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from config.api import handler
from config.api.errors import GatewayError, InvalidRequest, NotFound
from config.console.sign_in.recognition import PREFIX
from config.database.outages import is_away
from config.pages.failures import page_of


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answers a request that Django refuses before a view runs; set as ``handler400``."""
    if not _is_read_by_a_person(request):
        return handler.bad_request(request, exception)
    return _respond(handler.from_framework(exception) or InvalidRequest())


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answers a path without a route; set as ``handler404``."""
    if not _is_read_by_a_person(request):
        return handler.page_not_found(request, exception)
    return _respond(NotFound())


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Answers an unexpected exception: 503 for a lost database, else 500; set as ``handler500``."""
    if not _is_read_by_a_person(request):
        return handler.server_error(request)
    exc = sys.exc_info()[1]
    error = handler.from_framework(exc) if exc is not None and is_away(exc) else None
    return _respond(error or GatewayError())


def _is_read_by_a_person(request: HttpRequest) -> bool:
    """Returns whether a browser shows the answer: in the console, or beside the API."""
    path = request.path_info
    if path.startswith(PREFIX):
        return True
    return not path.startswith("/api/") and "text/html" in request.headers.get("Accept", "")


def _respond(error: GatewayError) -> HttpResponse:
    headers: dict[str, Any] = {"Cache-Control": "no-store", **error.headers}
    return HttpResponse(page_of(error), status=error.status, headers=headers)
