"""Every error that a caller can meet, and the one envelope that carries them.

An error is raised anywhere, models included, and becomes a response in exactly one place per half
of the service: :func:`handle_exception` for Django REST Framework, ``inference.asgi`` for the data
plane. After the first byte of a stream the same exception becomes one error chunk.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.exceptions import (
    DisallowedHost,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from rest_framework import exceptions as drf
from rest_framework.response import Response

logger = logging.getLogger(__name__)


def error_body(
    code: int, message: str, *, error_type: str, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Builds the error envelope, the only place that spells its keys.

    ``code`` equals the HTTP status. ``metadata.error_type`` is the symbolic name that programs
    branch on; optional members that have no value are left out, because one of the public clients
    refuses ``null`` where a field is merely optional.
    """
    return {
        "error": {
            "code": code,
            "message": message,
            "metadata": {"error_type": error_type, **(metadata or {})},
        }
    }


class GatewayError(Exception):
    """The root of the tree: an error with a status, a symbolic type and a text for the caller.

    ``retryable`` tells the router whether another candidate may succeed where this one failed.
    """

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "server"
    retryable: ClassVar[bool] = False
    message: str = "Internal server error."

    def __init__(
        self,
        message: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if message is not None:
            self.message = message
        self.metadata = dict(metadata or {})
        self.headers = dict(headers or {})
        # Members that stand beside ``error`` in the envelope.
        self.details: dict[str, Any] = {}
        super().__init__(self.message)

    def body(self) -> dict[str, Any]:
        body = error_body(
            self.status, self.message, error_type=self.error_type, metadata=self.metadata
        )
        return {**body, **self.details}

    def response(self) -> JsonResponse:
        """Returns the error as a plain Django response, for views outside the REST framework."""
        return JsonResponse(self.body(), status=self.status, headers=self.headers)


class InvalidRequest(GatewayError):
    """The request is malformed: wrong type, format, size of a field, or an unknown field."""

    status = 400
    error_type = "invalid_request"
    message = "The request is malformed."


class HostNotServed(InvalidRequest):
    message = "This host name is not served here."


class Unauthenticated(GatewayError):
    status = 401
    error_type = "authentication"
    message = "Authentication is missing or invalid. Send 'Authorization: Bearer <API key>'."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"})


class PaymentRequired(GatewayError):
    """There is not enough left for the request: of the credits, or of a budget."""

    status = 402
    error_type = "payment_required"
    message = "There are not enough credits for this request."


class Forbidden(GatewayError):
    status = 403
    error_type = "permission_denied"
    message = "This key is not allowed to do that."


class NotFound(GatewayError):
    status = 404
    error_type = "not_found"
    message = "Not found."


class MethodNotAllowed(GatewayError):
    status = 405
    error_type = "invalid_request"
    message = "This method is not allowed here."


class RequestTimeout(GatewayError):
    """The operation ran past its time limit."""

    status = 408
    error_type = "timeout"
    message = "The operation exceeded its time limit."


class Conflict(GatewayError):
    status = 409
    error_type = "conflict"
    message = "The request conflicts with the present state."


class InvalidTransition(Conflict):
    """A transition was asked of an object that is not in the state from which it starts."""

    error_type = "invalid_state"


class PayloadTooLarge(GatewayError):
    status = 413
    error_type = "payload_too_large"
    message = "The request body is too large."


class UnsupportedMediaType(GatewayError):
    status = 415
    error_type = "invalid_request"
    message = "Send a JSON body with 'Content-Type: application/json'."


class HeadersTooLarge(GatewayError):
    status = 431
    error_type = "payload_too_large"
    message = "The request headers are too large."


class Unprocessable(GatewayError):
    """The request is well formed and refused for what it says."""

    status = 422
    error_type = "unprocessable"
    message = "The request was understood and refused."


class Unavailable(GatewayError):
    """The service cannot answer now; nothing was changed, and trying again is safe."""

    status = 503
    error_type = "server"
    message = "The service is temporarily unavailable. Try again shortly."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, headers={"Retry-After": "1"})


class UpstreamError(GatewayError):
    """An upstream deployment failed before it produced anything; another candidate may do better.

    ``upstream_status`` is the HTTP status that the deployment answered, when it answered at all.
    """

    status = 502
    error_type = "provider_unavailable"
    retryable = True
    message = "The upstream provider failed."

    def __init__(
        self,
        message: str | None = None,
        *,
        upstream_status: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, metadata=metadata, headers=headers)
        self.upstream_status = upstream_status


class UpstreamTimeout(UpstreamError):
    status = 504
    error_type = "timeout"
    message = "The upstream provider did not answer in time."


class UpstreamOverloaded(UpstreamError):
    status = 529
    error_type = "provider_overloaded"
    message = "The upstream provider is overloaded."


class UpstreamUnavailable(UpstreamOverloaded):
    status = 503


class UpstreamRateLimited(UpstreamError):
    status = 429
    error_type = "rate_limit_exceeded"
    message = "The upstream provider refused the request for its rate."


class UpstreamRefused(UpstreamError):
    """The deployment says that the request itself is wrong: no other candidate is tried."""

    status = 400
    error_type = "invalid_request"
    retryable = False
    message = "The upstream provider refused the request."


def from_framework(exc: BaseException) -> GatewayError | None:
    """Maps an exception of Django, Django REST Framework or the database driver to ours.

    Returns ``None`` for what nobody foresaw: that is a bug, and Django's 500 handler logs it.
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
        case OperationalError() | InterfaceError():
            logger.error("database unavailable: %s", type(exc).__name__)
            return Unavailable()
        case _:
            return None


def _from_validation(exc: drf.ValidationError) -> InvalidRequest:
    fields = dict(_flatten(exc.detail))
    first = next(iter(fields.items()), ("", "Invalid."))
    message = f"{first[0]}: {first[1]}" if first[0] else first[1]
    if len(fields) > 1:
        message += f" (and {len(fields) - 1} more)"
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
    """Django REST Framework's one exception handler: every error leaves in the envelope."""
    error = from_framework(exc)
    if error is None:
        return None
    headers = dict(error.headers)
    if isinstance(exc, drf.MethodNotAllowed):
        headers["Allow"] = ", ".join(context["view"].allowed_methods)
    return Response(error.body(), status=error.status, headers=headers)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """``handler400``: what Django refuses before any view runs, a forbidden host for instance."""
    return (from_framework(exception) or InvalidRequest()).response()


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return Forbidden().response()


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return NotFound("There is no such route.").response()


def server_error(request: HttpRequest) -> HttpResponseBase:
    """``handler500``: what no view foresaw; only a database that is away is told apart."""
    exc = sys.exc_info()[1]
    error = from_framework(exc) if isinstance(exc, OperationalError | InterfaceError) else None
    return (error or GatewayError()).response()
