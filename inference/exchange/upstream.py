"""Sends a call to a candidate and translates its errors for the caller."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings

from catalog.dialects.base import (
    Call,
    Dialect,
    InvalidReply,
    InvalidStream,
    ProviderFailure,
    Untranslatable,
    parse_error,
)
from catalog.dialects.shared.refusals import Refusal, classify_refusal
from config import egress
from config.api.errors import (
    ContentRefused,
    ContextTooShort,
    GatewayError,
    PayloadTooLarge,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from config.credentials import Secret
from config.egress.client import EgressClient, OutboundResponse
from config.egress.limits import tighten
from inference.requests.operations import ROWS
from inference.requests.operations.completions import BOUNDS, EFFORTS
from inference.requests.operations.server_tools import OPERATOR_FIELDS, leave_out
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Candidate

_MAX_ERROR_BYTES: Final = 1_048_576
# How long the body of an error may take: its status is enough for the next candidate.
_ERROR_SECONDS: Final = 10.0
_REFUSALS: Final[Mapping[Refusal, type[UpstreamRefused]]] = {
    Refusal.CONTEXT_LENGTH: ContextTooShort,
    Refusal.CONTENT: ContentRefused,
}
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,4})h)?(?:([0-9]{1,6})m(?!s))?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?(?:([0-9]{1,9})ms)?"
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)?",
    re.ASCII,
)
# How long nothing is sent when the upstream does not say.
_UNKNOWN_PAUSE: Final = 5.0
_SECONDS: Final = re.compile(r"[0-9]{1,6}")


class RequestUntranslatable(UpstreamRefused):
    """The provider's wire format cannot express the request; that of another candidate may."""

    retryable = True


def build_request(dialect: Dialect, candidate: Candidate, call: Call) -> egress.OutboundRequest:
    """Returns the HTTP request of a call; raises :class:`RequestUntranslatable`."""
    try:
        return dialect.build(call)
    except Untranslatable as exc:
        raise RequestUntranslatable(
            str(exc), metadata={"provider_name": candidate.route.facts.provider_name}
        ) from None


async def start(
    client: EgressClient,
    candidate: Candidate,
    outbound: egress.OutboundRequest,
    deadline: float,
) -> OutboundResponse:
    """Begins to send a request and returns its response, whose head is still to come.

    No wait for the upstream lasts longer than until ``deadline``, a time of ``time.monotonic``;
    nothing else bounds the waits for its answer. Raises :class:`GatewayError` if the upstream
    cannot be reached. The caller closes the response.
    """
    connect_timeout = settings.EGRESS_POLICY.connect_timeout
    try:
        return await client.start(
            outbound,
            connect_timeout=tighten(connect_timeout, candidate.route.time_limits.connect),
            idle_timeout=math.inf,
            deadline=deadline,
        )
    except egress.EgressError as exc:
        raise translate(exc, candidate.secret) from None


async def accept(
    response: OutboundResponse, candidate: Candidate, timeout: float = math.inf
) -> None:
    """Waits ``timeout`` seconds for the head of a response, and returns if its status is 200.

    Raises :class:`GatewayError` if the upstream fails or refuses the request. A call that was
    cancelled may be repeated.
    """
    try:
        if not response.status:
            await response.receive_head(timeout)
    except egress.EgressError as exc:
        raise translate(exc, candidate.secret) from None
    if response.status != 200:
        raise await _read_refusal(response, candidate)


def build_call(
    candidate: Candidate, request: InferenceRequest, user: str | None, max_tokens: int | None
) -> Call:
    """Returns the call that a dialect puts into the provider's format.

    ``user`` is the pseudonym of the end user. ``max_tokens`` bounds the answer if the request does
    not.
    """
    route = candidate.route
    options = candidate.options or {}
    fields = {**request.fields, **options}
    if not EFFORTS.isdisjoint(options):
        for name in EFFORTS - options.keys():
            fields.pop(name, None)
    if (known := route.supported_parameters) is not None:
        # Some providers refuse unknown parameters, even those without effect. The output bound is
        # never left out, because the hold is computed from it.
        for name in request.parameters - known - BOUNDS:
            fields.pop(name, None)
        if request.max_tokens and BOUNDS & fields.keys() and not BOUNDS & fields.keys() <= known:
            # The endpoint must apply the bound, so it is sent under a name that the endpoint lists.
            max_tokens = request.max_tokens
    names = ROWS[request.operation].bound_names
    for name in BOUNDS.difference(names):
        fields.pop(name, None)
    if not candidate.is_byok:
        for name in OPERATOR_FIELDS - (known or frozenset()):
            fields.pop(name, None)
    if unpriced := candidate.find_unpriced(request.server_tools):
        leave_out(fields, unpriced)
    if user is not None:
        fields["user"] = user
    if max_tokens is not None:
        for name in BOUNDS:
            fields.pop(name, None)
        fields[_bound_name(names, route.supported_parameters)] = max_tokens
    return Call(
        native=candidate.native_of(request),
        keeps_lifetimes=not candidate.shortens_caches(request),
        operation=request.operation,
        base_url=route.base_url,
        model=route.upstream_model_id,
        secret=candidate.secret,
        fields=fields,
        stream=request.stream,
        max_completion_tokens=route.max_completion_tokens,
        is_byok=candidate.is_byok,
        supported_parameters=route.listed_parameters,
        capabilities=route.capabilities,
        files=request.files,
        is_billed_by_token=route.price.bills_completions,
    )


def _bound_name(names: Sequence[str], supported: frozenset[str] | None) -> str:
    """Returns the first name of the bound, or another one if the endpoint lists only that."""
    return next((name for name in names if supported is None or name in supported), names[0])


def translate(exc: Exception, secret: Secret) -> GatewayError:
    """Maps an error of the egress client or of a dialect to our tree of errors."""
    match exc:
        case GatewayError():
            return exc
        case egress.TimedOut() | asyncio.TimeoutError():
            return UpstreamTimeout()
        case egress.EgressError():
            return UpstreamError(exc.public)
        case InvalidReply() | InvalidStream():
            return UpstreamError(f"The upstream provider's answer is not valid: {exc}")
        case ProviderFailure():
            failure = exc.clean(secret)
            metadata = {} if failure.code is None else {"provider_code": failure.code}
            if (refusal := classify_refusal(200, failure)) is not None:
                return _REFUSALS[refusal](failure.message, metadata=metadata)
            return UpstreamError(
                failure.message or "The upstream provider reported an error.", metadata=metadata
            )
        case _:
            raise exc


def read_pause(response: OutboundResponse) -> float | None:
    """Returns the seconds until the upstream takes another request, if it says that none is left.

    These are the headers of OpenAI, which most providers send; others name no such limit.
    """
    pause: float | None = None
    for kind in ("requests", "tokens"):
        if response.headers.get(f"X-RateLimit-Remaining-{kind}") == "0":
            reset = _parse_duration(response.headers.get(f"X-RateLimit-Reset-{kind}", ""))
            pause = max(pause or 0.0, reset)
    return pause


def _parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as ``6m0s``, ``20ms`` or ``12.5``; 5 otherwise."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return _UNKNOWN_PAUSE
    hours, minutes, seconds, milliseconds, plain = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000 + plain


async def _read_refusal(response: OutboundResponse, candidate: Candidate) -> Exception:
    """Reads an error response and returns the error for the caller."""
    status = response.status
    try:
        async with asyncio.timeout(_ERROR_SECONDS):
            body = await response.read(limit=_MAX_ERROR_BYTES)
    except (egress.EgressError, TimeoutError):
        body = b""
    finally:
        response.close()
    failure = parse_error(body).clean(candidate.secret)
    metadata: dict[str, Any] = {"provider_name": candidate.route.facts.provider_name}
    if 400 <= status <= 599:
        metadata["upstream_status"] = status
    if failure.code is not None:
        metadata["provider_code"] = failure.code
    message = failure.message
    if (refusal := classify_refusal(status, failure)) is not None:
        return _REFUSALS[refusal](message, upstream_status=status, metadata=metadata)
    if status == 413:
        return PayloadTooLarge(message, metadata=metadata)
    if status == 429:
        retry_after = response.headers.get("Retry-After", "")
        headers = {"Retry-After": retry_after} if _SECONDS.fullmatch(retry_after) else {}
        return UpstreamRateLimited(
            message, upstream_status=status, metadata=metadata, headers=headers
        )
    if status in (408, 504, 524):
        return UpstreamTimeout(message, upstream_status=status, metadata=metadata)
    if status == 503:
        return UpstreamUnavailable(message, upstream_status=status, metadata=metadata)
    if status == 529:
        return UpstreamOverloaded(message, upstream_status=status, metadata=metadata)
    # The error concerns this candidate's credential or model, so the next candidate may succeed.
    if status in (401, 402, 403, 404, 424) or status >= 500 or status < 400:
        return UpstreamError(message, upstream_status=status, metadata=metadata)
    return UpstreamRefused(message, upstream_status=status, metadata=metadata)
