"""The spans of a request and of its attempts, by the conventions for generative AI.

They have neither prompts, answers, keys nor end users.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from catalog.dialects.base import Operation
from catalog.operations import name_span
from config.api.errors import GatewayError
from config.telemetry.tracing import Attributes, Tracer, request_span
from inference.exchange.gateway import Exchange
from inference.exchange.tap import Tap
from inference.faces.connection import Connection
from inference.routing.routes import Candidate
from inference.settlement.settle import Settlement

_NANO: Final = 1e-9


Serve = Callable[[Connection], Awaitable[None]]


class RequestSpan:
    """Serves requests within a span each."""

    def __init__(self, tracer: Tracer, serve: Serve) -> None:
        self._tracer = tracer
        self._serve = serve

    async def __call__(self, connection: Connection) -> None:
        attributes: Attributes = {
            "http.request.method": connection.method,
            "url.path": connection.path,
            "causeway.request.id": connection.request_id,
        }
        traceparent = connection.header(b"traceparent")
        span = self._tracer.start_request(f"POST {connection.path}", traceparent, attributes)
        token = request_span.set(span)
        try:
            await self._serve(connection)
        finally:
            request_span.reset(token)
            self._tracer.end_request(span, connection.span_attributes, connection.error_type)


class SpanTap(Tap):
    """Notes for the span of a request what its generation was."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ended(self, exchange: Exchange) -> None:
        assert exchange.outcome is not None
        self._connection.error_type = exchange.outcome.error_type
        self._connection.span_attributes = describe_outcome(
            exchange.attempts.candidate,
            self._connection.operation,
            exchange.organization_id,
            exchange.outcome,
        )


def record_attempt(
    tracer: Tracer,
    candidate: Candidate,
    operation: Operation,
    milliseconds: int,
    error: GatewayError | None,
) -> None:
    """Makes the span of an attempt, which ends when its answer begins, within that of a request."""
    if (parent := request_span.get()) is None:
        return
    name = name_span(operation)
    attributes: Attributes = {
        "gen_ai.operation.name": name,
        "gen_ai.provider.name": candidate.route.facts.provider_slug,
        "gen_ai.request.model": candidate.route.model_slug,
        "server.address": candidate.route.host,
    }
    error_type = None if error is None else error.error_type
    tracer.record_attempt(
        parent, f"{name} {candidate.route.model_slug}", milliseconds / 1000, attributes, error_type
    )


def describe_outcome(
    candidate: Candidate, operation: Operation, organization_id: UUID, outcome: Settlement
) -> Attributes:
    """Returns the attributes of a request's span, once its generation has ended."""
    found: dict[str, str | int | float | Sequence[str]] = {
        "gen_ai.operation.name": name_span(operation),
        "gen_ai.provider.name": candidate.route.facts.provider_slug,
        "gen_ai.request.model": candidate.route.model_slug,
        "gen_ai.response.id": outcome.generation_id,
        "causeway.organization.id": str(organization_id),
        "causeway.generation.status": str(outcome.status),
    }
    if outcome.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = [outcome.finish_reason]
    if (usage := outcome.usage) is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt
        found["gen_ai.usage.output_tokens"] = usage.completion
        found["causeway.cost_usd"] = outcome.cost_nano * _NANO
    return found
