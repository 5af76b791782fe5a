"""Builds the call of a candidate and sends it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from catalog.dialects.base import Call, Dialect, Untranslatable
from config import egress
from config.egress.client import EgressClient, OutboundResponse
from config.egress.limits import tighten
from config.live_settings import settings
from inference.exchange import failures
from inference.requests.operations import ROWS
from inference.requests.operations.completions import BOUNDS, EFFORTS
from inference.requests.operations.server_tools import (
    OPERATOR_FIELDS,
    keep_searches,
    leave_out,
)
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Candidate


def build_request(dialect: Dialect, candidate: Candidate, call: Call) -> egress.OutboundRequest:
    """Returns the HTTP request of a call; raises :class:`failures.RequestUntranslatable`."""
    try:
        return dialect.build(call)
    except Untranslatable as exc:
        metadata = failures.describe(candidate, "untranslatable")
        raise failures.RequestUntranslatable(str(exc), metadata=metadata) from None


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
        raise failures.translate(exc, candidate) from None


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
        raise failures.translate(exc, candidate) from None
    if response.status != 200:
        raise await failures.read_refusal(response, candidate)


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
        kept = BOUNDS | request.server_tools.searches
        for name in request.parameters - known - kept:
            if name == "tools" and request.server_tools.searches:
                # A search is no function: its form says whether the endpoint has one.
                keep_searches(fields)
            else:
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
    dearer = candidate.find_dearer(request)
    if left_out := candidate.find_unpriced(request) | dearer:
        leave_out(fields, left_out)
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
        most_searches=request.server_tools.most_searches,
    )


def _bound_name(names: Sequence[str], supported: frozenset[str] | None) -> str:
    """Returns the first name of the bound, or another one if the endpoint lists only that."""
    return next((name for name in names if supported is None or name in supported), names[0])
