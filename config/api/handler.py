"""Turns exceptions into responses, for Django REST Framework and for Django itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import (
    DisallowedHost,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from rest_framework import exceptions as drf
from rest_framework.fields import Field
from rest_framework.response import Response

from config.api.errors import (
    Forbidden,
    GatewayError,
    HostNotServed,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from config.database.outages import is_away, outages
from config.database.patience import CommitUnknown
from config.server.health import error_response
from config.telemetry.access_log import ENTRY

_MISSING: Final = str(Field.default_error_messages["required"])


def from_framework(exc: BaseException) -> GatewayError | None:
    """Maps an exception of Django, Django REST Framework or the database driver to our tree.

    Returns ``None`` for any other exception: it is a bug, which Django logs before its handler500.
    """
    match exc:
        case GatewayError():
            return exc
        case drf.ValidationError():
            return _from_validation(exc)
        case drf.NotAuthenticated() | drf.AuthenticationFailed():
            return Unauthenticated()
        case drf.PermissionDenied() | PermissionDenied():
            return Forbidden()
        case drf.NotFound() | Http404():
            return NotFound()
        case drf.MethodNotAllowed():
            return MethodNotAllowed()
        case drf.UnsupportedMediaType():
            return UnsupportedMediaType()
        case drf.ParseError():
            return InvalidRequest(str(exc.detail))
        case drf.NotAcceptable():
            return InvalidRequest("This service answers in JSON; 'Accept' must allow it.")
        case RequestDataTooBig():
            return PayloadTooLarge()
        case DisallowedHost():
            return HostNotServed()
        case SuspiciousOperation():
            return InvalidRequest()
        case OperationalError() if isinstance(exc.__cause__, CommitUnknown):
            outages.report(exc)
            return OutcomeUnknown()
        case OperationalError() | InterfaceError() | InternalError() if is_away(exc):
            outages.report(exc)
            return Unavailable()
        case _:
            return None


def _from_validation(exc: drf.ValidationError) -> InvalidRequest:
    fields = dict(_flatten(exc.detail))
    missing = [name for name, text in fields.items() if text == _MISSING]
    names, text = next(iter(fields.items()), ("", "Invalid."))
    rest = len(fields) - 1
    if len(missing) > 1:
        names, text = ", ".join(missing), "These fields are required."
        rest = len(fields) - len(missing)
    message = f"{names}: {text}" if names else text
    if rest > 0:
        message += f" (and {rest} more)"
    return InvalidRequest(message, metadata={"fields": fields} if any(fields) else None)


def _flatten(detail: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(detail, dict):
        return [
            pair
            for key, inner in detail.items()
            for pair in _flatten(
                inner, path if key == "non_field_errors" else f"{path}.{key}".lstrip(".")
            )
        ]
    if isinstance(detail, list):
        if detail and all(isinstance(item, str) for item in detail):
            return [(path, " ".join(map(str, detail)))]
        return [
            pair
            for index, inner in enumerate(detail)
            for pair in _flatten(inner, f"{path}[{index}]")
        ]
    return [(path, str(detail))]


def handle_exception(exc: Exception, context: Mapping[str, Any]) -> Response | None:
    """Renders an exception of a view; set as Django REST Framework's ``EXCEPTION_HANDLER``."""
    error = from_framework(exc)
    if error is None:
        return None
    entry = getattr(context["request"], "scope", {}).get(ENTRY)
    if entry is not None:
        entry.name_field(error)
    headers = dict(error.headers)
    if isinstance(exc, drf.MethodNotAllowed):
        headers["Allow"] = ", ".join(context["view"].allowed_methods)
    return Response(error.body(), status=error.status, headers=headers)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Renders a request that Django refuses before a view runs; set as ``handler400``."""
    return error_response(from_framework(exception) or InvalidRequest())


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Renders a refusal by Django on a route of the API."""
    return error_response(Forbidden())


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Renders a path without a route; set as ``handler404``."""
    return error_response(NotFound("There is no such route."))


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Renders an unexpected exception: 503 for a lost database, else 500; set as ``handler500``."""
    exc = sys.exc_info()[1]
    error = from_framework(exc) if exc is not None and is_away(exc) else None
    return error_response(error or GatewayError())
