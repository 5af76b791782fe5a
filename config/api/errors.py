"""The tree of errors that callers receive, and the one envelope that carries them; pure.

Any module raises these errors, models included. ``config.api.handler`` turns them into responses of
the control plane, ``inference.asgi`` into responses of the data plane. After the first byte of a
stream the same exception becomes one error chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

# Some clients wait for as long as ``Retry-After`` says, so no error says more.
LONGEST_RETRY_AFTER: Final = 60


def error_body(
    code: int, message: str, *, error_type: str, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the error envelope; no other function spells its keys.

    ``code`` equals the HTTP status. Programs branch on ``metadata.error_type``. A member without a
    value is left out, because one of the public clients refuses ``null`` in an optional field.
    """
    return {
        "error": {
            "code": code,
            "message": message,
            "metadata": {"error_type": error_type, **(metadata or {})},
        }
    }


class GatewayError(Exception):
    """The root of the tree: an error with a status, a symbolic type and a message for the caller.

    ``retryable`` tells the router to try the next candidate. ``is_final`` tells the caller, in the
    header ``x-should-retry``, that a repetition cannot succeed: the SDKs of OpenAI and Anthropic
    repeat a conflict otherwise.
    """

    status: int = 500
    error_type: ClassVar[str] = "server"
    retryable: ClassVar[bool] = False
    is_final: ClassVar[bool] = False
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
        if self.is_final:
            self.headers.setdefault("x-should-retry", "false")
        # Members of the body beside ``error``.
        self.details: dict[str, Any] = {}
        super().__init__(self.message)

    def __copy__(self) -> Self:
        """Returns an error that one request may change, of one that requests share."""
        made = type(self).__new__(type(self), *self.args)
        vars(made).update(vars(self), metadata={**self.metadata}, details={**self.details})
        return made

    def body(self) -> dict[str, Any]:
        """Returns the response body."""
        body = error_body(
            self.status, self.message, error_type=self.error_type, metadata=self.metadata
        )
        return {**body, **self.details}


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
    """The credits or a budget do not cover the request."""

    status = 402
    error_type = "payment_required"
    is_final = True
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
    is_final = True
    message = "The request conflicts with the present state."


class InvalidTransition(Conflict):
    """The object is not in the state from which the requested transition starts."""

    error_type = "invalid_state"


class Gone(GatewayError):
    """The route existed once and was removed for good."""

    status = 410
    error_type = "gone"
    message = "This route was removed."


class PayloadTooLarge(GatewayError):
    status = 413
    error_type = "payload_too_large"
    message = "The request body is too large."


class UnsupportedMediaType(GatewayError):
    status = 415
    error_type = "invalid_request"
    message = "Send a JSON body with 'Content-Type: application/json'."


class TooManyRequests(GatewayError):
    """The caller does more at once, or in a minute, than it may; ``Retry-After`` says when."""

    status = 429
    error_type = "rate_limit_exceeded"
    message = "Too many requests. Try again shortly."


class HeadersTooLarge(GatewayError):
    status = 431
    error_type = "payload_too_large"
    message = "The request headers are too large."


class Unprocessable(GatewayError):
    """The request is well formed, and a rule refuses it."""

    status = 422
    error_type = "unprocessable"
    message = "The request was understood and refused."


class Unavailable(GatewayError):
    """The service cannot answer now. Nothing was changed, so a retry is safe."""

    status = 503
    error_type = "server"
    message = "The service is temporarily unavailable. Try again shortly."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, headers={"Retry-After": "1"})


class OutcomeUnknown(Unavailable):
    """The database did not confirm a commit: it may be stored, and may be lost in a failover."""

    message = (
        "The database did not confirm in time that this is stored, so its outcome is unknown. Look "
        "whether it is there before you repeat it."
    )


class UpstreamError(GatewayError):
    """An upstream endpoint failed before it produced output; another candidate may succeed.

    ``upstream_status`` is the endpoint's HTTP status, ``None`` without a response. ``retry_after``
    is the wait in seconds that the endpoint asks for. ``is_health_neutral`` says that the failure
    tells nothing about the health of the endpoint.

    ``kind`` and ``limit`` name the failure and the time limit exactly, and ``reason`` explains it,
    for the operator; what the caller may know of them is in ``metadata``.
    """

    status = 502
    error_type = "provider_unavailable"
    retryable = True
    is_health_neutral: ClassVar[bool] = False
    message = "The upstream provider failed."

    def __init__(
        self,
        message: str | None = None,
        *,
        upstream_status: int | None = None,
        retry_after: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if retry_after is not None:
            seconds = max(1, math.ceil(min(retry_after, LONGEST_RETRY_AFTER)))
            headers = {**(headers or {}), "Retry-After": str(seconds)}
        super().__init__(message, metadata=metadata, headers=headers)
        self.upstream_status = upstream_status
        self.retry_after = retry_after
        self.kind: str | None = self.metadata.get("kind")
        self.limit: str | None = self.metadata.get("limit")
        self.reason = ""


class UnusableAnswer(UpstreamError):
    """The answer is valid in a form that this request cannot use, such as URLs instead of data."""

    is_health_neutral = True


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
    """The upstream endpoint refused the request itself, so no other candidate is tried.

    Its subclasses are refusals that another candidate may not share.
    """

    status = 400
    error_type = "invalid_request"
    retryable = False
    message = "The upstream provider refused the request."


class ContextTooShort(UpstreamRefused):
    """The prompt is too long for the endpoint's model; one with a longer context may serve it."""

    error_type = "context_length_exceeded"
    retryable = True
    message = "The prompt is longer than the context of the model."


class ContentRefused(UpstreamRefused):
    """A moderation of the provider refused the content; another model may accept it."""

    error_type = "content_policy_violation"
    retryable = True
    message = "The upstream provider refused the content."

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        if self.upstream_status == 403:
            self.status = 403
