"""Translates the failures of a candidate to the errors that callers get.

Each error says in its metadata which provider failed and of what ``kind`` the failure is:

===============  ===================================================================================
kind             meaning
===============  ===================================================================================
status           the provider answered with an error status, ``upstream_status``
reported         the provider reported an error inside an answer of status 200
credential       the provider refused the operator's own credential or account
name             the name of the provider has no address
refused          no server accepts connections at the address
certificate      the certificate or the handshake is wrong
policy           the operator's rules of outbound addresses refuse the URL
unreachable      one of the last four, or a timeout of the connection: callers learn no more, which
                 would tell the names and ports of an internal network
timeout          the time limit ``limit`` passed
reset            the provider closed the connection before the answer was complete
protocol         the answer breaks HTTP or the provider's wire format, or is too large
untranslatable   the provider's wire format cannot express the request
unknown_model    the provider does not know the model that the endpoint names
unable           the provider cannot do what the endpoint lists: ``lacks`` names it
===============  ===================================================================================

A provider that refuses the operator's own credential is no problem of the caller: the error has a
fixed text, and neither the provider's message nor its code or status. A busy provider often names
the operator's account, its limit and what all callers used of it: the error has a fixed text too,
and the provider's code, status and wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from msgspec import Raw

from catalog.dialects.base import (
    InvalidReply,
    InvalidStream,
    ProviderFailure,
    Untranslatable,
    UnusableReply,
    parse_error,
)
from catalog.dialects.shared.refusals import (
    Asked,
    DialectRefusal,
    NamedFault,
    find_fault,
    infer_status,
    is_account_refused,
    is_file_refused,
    is_permission_refused,
)
from config import egress
from config.api.errors import (
    ContentRefused,
    ContextTooShort,
    GatewayError,
    PayloadTooLarge,
    UnusableAnswer,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from config.clocks.clock import clock
from config.egress.client import OutboundResponse
from config.egress.retry_after import read_number, read_retry_after
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import Failure
from inference.routing.routes import Candidate

logger = logging.getLogger(__name__)

# The errors by which an attempt fails; any other exception is a bug or a cancellation.
FAILURES: Final = (
    GatewayError,
    InvalidReply,
    InvalidStream,
    ProviderFailure,
    TimeoutError,
    Untranslatable,
    egress.EgressError,
)
# The last frames of a traceback that are logged: a recursion has hundreds.
_FRAMES: Final = 20
# A duration of hours, minutes, seconds and milliseconds, or a plain number of seconds.
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,4})h)?(?:([0-9]{1,6})m(?!s))?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?(?:([0-9]{1,9})ms)?"
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)?",
    re.ASCII,
)
# The headers that say how much is left of a limit, and when it is full again.
_LIMIT_HEADERS: Final = tuple(
    (f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
    for kind in ("requests", "tokens")
)
PAUSING_HEADERS: Final = frozenset(remaining for remaining, _ in _LIMIT_HEADERS)
# How long nothing is sent when the upstream does not say.
_UNKNOWN_PAUSE: Final = 5.0

_MAX_ERROR_BYTES: Final = 1_048_576
# How long the body of an error may take: its status is enough for the next candidate.
_ERROR_SECONDS: Final = 10.0
# The names of limits whose names at a connection differ.
_LIMITS: Final[Mapping[str, str]] = {"first byte": "headers"}
_REFUSALS: Final[Mapping[DialectRefusal, type[UpstreamRefused]]] = {
    DialectRefusal.CONTEXT_LENGTH: ContextTooShort,
    DialectRefusal.CONTENT: ContentRefused,
}
_ERRORS: Final[Mapping[int, type[UpstreamError]]] = {
    408: UpstreamTimeout,
    429: UpstreamRateLimited,
    503: UpstreamUnavailable,
    504: UpstreamTimeout,
    524: UpstreamTimeout,
    529: UpstreamOverloaded,
}
# Members of a request that an error may be about.
_NAMED_PARTS: Final = frozenset(("tools", "voice", "reasoning", "reasoning_effort"))
# With these and all from 500 on, the error concerns the candidate's credential or model, so the
# next candidate may succeed.
_RETRYABLE: Final = frozenset((401, 402, 403, 404, 424))
# The statuses by which a provider refuses the operator's credential, if it says nothing better.
_UNAUTHORIZED: Final = frozenset((401, 402, 403))
# The statuses by which some providers say that they are busy, which the name of the error tells.
_MISNAMED: Final = frozenset((400, 413, 422, 500, 502))
_BUSY: Final = frozenset((429, 529))
# The statuses whose words are about the account, not about the request.
_OF_ACCOUNT: Final = _BUSY | {503}
_ACCOUNT: Final = frozenset((401, 402))


def read_wait(headers: Mapping[str, str], asked: float | None, now: float) -> float | None:
    """Returns the seconds after which the upstream takes another request, if it says so.

    ``retry-after-ms`` is the most exact, then ``Retry-After`` (seconds or a date), then ``asked``,
    which is the wait in the body, then the headers of a limit of which nothing is left. ``now`` is
    Unix time; the upstream's own ``Date`` replaces it, because a date is one of its clock. What is
    neither a number nor a date, or lies in the past, says nothing. The result may be of any length.
    """
    milliseconds = read_number(headers.get("Retry-After-Ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = read_retry_after(headers, now)
    if seconds is None:
        seconds = asked
    return read_pause(headers) if seconds is None else seconds


def read_pause(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds until the upstream takes another request, if it says that none is left.

    These are the headers of OpenAI, which most providers send; others name no such limit.
    """
    pause: float | None = None
    for remaining, reset in _LIMIT_HEADERS:
        if headers.get(remaining) == "0":
            pause = max(pause or 0.0, _parse_duration(headers.get(reset, "")))
    return pause


def _parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as ``6m0s``, ``20ms`` or ``12.5``; 5 otherwise."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return _UNKNOWN_PAUSE
    hours, minutes, seconds, milliseconds, plain = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000 + plain


class RequestUntranslatable(UpstreamRefused):
    """The provider's wire format cannot express the request; that of another candidate may."""

    retryable = True


class UnableEndpoint(UpstreamRefused):
    """The provider cannot do what its endpoint lists; another candidate may be able to."""

    retryable = True
    message = "The endpoint cannot do this."


class UnconvertedAnswer(UpstreamError):
    """The answer is whole, and the interface that its caller chose cannot have it: it is paid."""

    is_final = True


class UnknownModel(UpstreamError):
    """The provider does not know the model that its endpoint names, which only an owner mends."""

    status = 503
    message = (
        "The provider does not know the model of its endpoint. Try again later, or let the request "
        "fall back to other providers."
    )


class RefusedScope(Enum):
    """The part of a provider's service that it refuses to the operator's credential."""

    ACCOUNT = "everything"
    MODEL = "this model"


class CredentialRefused(UpstreamError):
    """A provider refused the operator's own credential or account, which only the operator mends.

    ``reason`` is the provider's code and message, for the operator. A refusal without a ``scope``
    may be a firewall's, which any caller can provoke, so it alarms nobody.
    """

    message = (
        "The provider refused the gateway's own credential, which only its operator can change. "
        "Try again later, or let the request fall back to other providers."
    )

    def __init__(
        self,
        candidate: Candidate,
        failure: ProviderFailure,
        status: int | None,
        scope: RefusedScope | None = None,
    ) -> None:
        super().__init__(upstream_status=status, metadata=describe(candidate, "credential"))
        self.scope = scope
        named = [text for text in (failure.code, failure.message) if text]
        self.reason = ": ".join(named) or "without a reason"


def describe(candidate: Candidate, kind: str, **members: Any) -> dict[str, Any]:
    """Returns the metadata of a failure of a candidate."""
    return {"provider_name": candidate.route.facts.provider_name, "kind": kind, **members}


def describe_failure(error: BaseException) -> Failure:
    """Returns an error as its caller could see it, without its traceback."""
    if not isinstance(error, GatewayError):
        error = GatewayError()
    return Failure(error.status, error.message, error.metadata.get("provider_name"))


def blame_answer(exc: Exception, kind: type[InvalidReply | InvalidStream]) -> Exception:
    """Returns the failure for an error in what reads an answer: itself if it is one of those.

    Any other error is a bug that the answer has met. It is logged without its text, which may
    repeat the answer, and the next candidate is tried as after any other invalid answer.
    """
    if isinstance(exc, FAILURES):
        return exc
    logger.error(
        "an upstream's answer could not be read (%s)\n%s",
        type(exc).__name__,
        "".join(traceback.format_tb(exc.__traceback__, -_FRAMES)),
    )
    return kind("It could not be read.")


def translate(
    exc: Exception,
    candidate: Candidate,
    request: InferenceRequest | None = None,
    *,
    limit: str = "first_event",
) -> GatewayError:
    """Maps an error of the egress client or of a dialect to our tree of errors.

    ``limit`` names the time limit of a :class:`TimeoutError`. What a provider reports in an answer
    is read with the facts of the ``request``.
    """
    match exc:
        case UpstreamError():
            for name, value in describe(candidate, "protocol").items():
                exc.metadata.setdefault(name, value)
            exc.kind = exc.kind or exc.metadata["kind"]
            return exc
        case GatewayError():
            return exc
        case egress.EgressError():
            return _translate_egress(exc, candidate)
        case TimeoutError():
            return UpstreamTimeout(metadata=describe(candidate, "timeout", limit=limit))
        case UnusableReply():
            return UnusableAnswer(
                f"The upstream provider's answer cannot be used: {exc}",
                metadata=describe(candidate, "protocol"),
            )
        case InvalidReply() | InvalidStream():
            return UpstreamError(
                f"The upstream provider's answer is not valid: {exc}",
                metadata=describe(candidate, "protocol"),
            )
        case ProviderFailure():
            return _translate_reported(exc, candidate, request)
        case Untranslatable():
            field, mark, problem = str(exc).partition(":")
            name = field if request is None else request.words.get(field, field)
            text = f"{name}{mark}{problem}"
            return RequestUntranslatable(text, metadata=describe(candidate, "untranslatable"))
        case _:
            raise exc


def _translate_egress(exc: egress.EgressError, candidate: Candidate) -> UpstreamError:
    limit = _LIMITS.get(exc.phase, exc.phase) if isinstance(exc, egress.TimedOut) else None
    error: UpstreamError
    if limit is not None and not exc.is_unreachable:
        error = UpstreamTimeout(metadata=describe(candidate, exc.kind, limit=limit))
    else:
        kind = "unreachable" if exc.is_unreachable else exc.kind
        error = UpstreamError(exc.public, metadata=describe(candidate, kind))
    error.kind, error.limit, error.reason = exc.kind, limit, str(exc)
    return error


def _translate_reported(
    reported: ProviderFailure, candidate: Candidate, request: InferenceRequest | None
) -> GatewayError:
    """Returns the error for one that a provider reports inside an answer of status 200."""
    failure = reported.clean(candidate.secret)
    status = infer_status(failure)
    if not candidate.is_byok and (is_account_refused(200, failure) or status in _ACCOUNT):
        return CredentialRefused(candidate, failure, None, RefusedScope.ACCOUNT)
    metadata = _describe_reported(candidate, "reported", failure)
    fault = find_fault(200, reported, _read_facts(request))
    if fault is None or status in _BUSY:
        _hide_account(candidate, failure, status)
    if fault is not None:
        return _blame(fault, failure, None, metadata)
    if not candidate.is_byok and status in _UNAUTHORIZED:
        return CredentialRefused(candidate, failure, None)
    kind = UpstreamError if status is None else _ERRORS.get(status, UpstreamError)
    return kind(
        failure.message or None,
        retry_after=failure.retry_after if kind.status in (429, 503, 529) else None,
        metadata=metadata,
    )


def _hide_account(candidate: Candidate, failure: ProviderFailure, status: int | None) -> None:
    """Drops the words of a busy provider if they are about the operator's account."""
    if not candidate.is_byok and status in _OF_ACCOUNT:
        failure.message = None


def _blame(
    fault: NamedFault, failure: ProviderFailure, status: int | None, metadata: dict[str, Any]
) -> GatewayError:
    """Returns the error for a fault that a provider's own words name."""
    match fault.refusal:
        case DialectRefusal.MODEL:
            # The provider's words may have its own name for the model.
            metadata.pop("provider_code", None)
            metadata["kind"] = "unknown_model"
            return UnknownModel(upstream_status=status, metadata=metadata)
        case DialectRefusal.ABILITY:
            text = failure.message or UnableEndpoint.message
            metadata |= {"kind": "unable", "fields": {fault.member: text}}
            metadata["lacks"] = fault.part or "operation"
            return UnableEndpoint(
                f"{fault.member}: {text}", upstream_status=status, metadata=metadata
            )
        case DialectRefusal.INPUT:
            return UpstreamRefused(failure.message, upstream_status=status, metadata=metadata)
    kind = _REFUSALS[fault.refusal]
    return kind(failure.message, upstream_status=status, metadata=metadata)


def _read_facts(request: InferenceRequest | None) -> Asked:
    """Returns the facts of a request that an error is read with."""
    if request is None:
        return Asked()
    fields = request.fields

    def wrote(text: str) -> bool:
        sought = text.encode()
        return any(
            sought in bytes(value).lower() for value in fields.values() if isinstance(value, Raw)
        )

    parts = {*request.inputs, request.operation.value, *_NAMED_PARTS.intersection(fields)}
    return Asked(frozenset(parts), wrote)


async def read_refusal(
    response: OutboundResponse, candidate: Candidate, request: InferenceRequest
) -> GatewayError:
    """Reads an error response and returns the error for the caller."""
    status = response.status
    try:
        async with asyncio.timeout(_ERROR_SECONDS):
            body = await response.read(limit=_MAX_ERROR_BYTES)
    except (egress.EgressError, TimeoutError):
        body = b""
    finally:
        response.close()
    reported = parse_error(body)
    failure = reported.clean(candidate.secret)
    if not candidate.is_byok and is_account_refused(status, failure):
        return CredentialRefused(candidate, failure, status, RefusedScope.ACCOUNT)
    metadata = _describe_reported(candidate, "status", failure)
    if 400 <= status <= 599:
        metadata["upstream_status"] = status
    # A limit of the account by a status that says something else, such as Groq's 413.
    named = infer_status(failure) if status in _MISNAMED else None
    meant = named if named in _BUSY else status
    fault = find_fault(status, reported, _read_facts(request))
    if fault is None or meant in _BUSY:
        _hide_account(candidate, failure, meant)
    message = failure.message
    if fault is not None:
        return _blame(fault, failure, status, metadata)
    if is_file_refused(status, failure):
        return UpstreamRefused(message, upstream_status=status, metadata=metadata)
    if not candidate.is_byok and status in _UNAUTHORIZED:
        scope = RefusedScope.MODEL if is_permission_refused(status, failure) else None
        return CredentialRefused(candidate, failure, status, scope)
    if meant == 413:
        return PayloadTooLarge(message, metadata=metadata)
    if (kind := _ERRORS.get(meant)) is not None:
        wait = None
        if kind is not UpstreamTimeout:
            wait = read_wait(response.headers, failure.retry_after, clock.time())
        return kind(message, upstream_status=status, retry_after=wait, metadata=metadata)
    if status in _RETRYABLE or status >= 500 or status < 400:
        return UpstreamError(message, upstream_status=status, metadata=metadata)
    return UpstreamRefused(message, upstream_status=status, metadata=metadata)


def _describe_reported(candidate: Candidate, kind: str, failure: ProviderFailure) -> dict[str, Any]:
    metadata = describe(candidate, kind)
    if failure.code is not None:
        metadata["provider_code"] = failure.code
    return metadata
