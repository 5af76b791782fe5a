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
from inference import conventions
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
            is_stream=exchange.is_stream,
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
    slug = candidate.route.facts.provider_slug
    attributes: Attributes = {
        conventions.OPERATION: name,
        conventions.PROVIDER: conventions.name_provider(slug, candidate.route.dialect),
        conventions.OWN_PROVIDER: slug,
        conventions.REQUEST_MODEL: candidate.route.model_slug,
        "server.address": candidate.route.host,
    }
    error_type = None if error is None else error.error_type
    tracer.record_attempt(
        parent, f"{name} {candidate.route.model_slug}", milliseconds / 1000, attributes, error_type
    )


def describe_outcome(
    candidate: Candidate,
    operation: Operation,
    organization_id: UUID,
    outcome: Settlement,
    *,
    is_stream: bool,
) -> Attributes:
    """Returns the attributes of a request's span, once its generation has ended."""
    slug = candidate.route.facts.provider_slug
    found: dict[str, str | int | float | Sequence[str]] = {
        conventions.OPERATION: name_span(operation),
        conventions.PROVIDER: conventions.name_provider(slug, candidate.route.dialect),
        conventions.OWN_PROVIDER: slug,
        conventions.REQUEST_MODEL: candidate.route.model_slug,
        conventions.RESPONSE_ID: outcome.generation_id,
        conventions.STREAM: is_stream,
        "causeway.organization.id": str(organization_id),
        "causeway.generation.status": str(outcome.status),
    }
    if outcome.finish_reason is not None:
        found[conventions.FINISH_REASONS] = [outcome.finish_reason]
    if outcome.upstream_model is not None:
        found[conventions.RESPONSE_MODEL] = outcome.upstream_model
    if is_stream and outcome.latency_ms is not None:
        found[conventions.FIRST_CHUNK] = outcome.latency_ms / 1000
    if (usage := outcome.usage) is not None:
        found |= {
            conventions.INPUT_TOKENS: usage.prompt,
            conventions.OUTPUT_TOKENS: usage.completion,
            conventions.CACHE_READ_TOKENS: usage.cached,
            conventions.CACHE_WRITE_TOKENS: usage.cache_write + usage.cache_write_1h,
            conventions.REASONING_TOKENS: usage.reasoning,
            **conventions.describe_units(usage.units),
            conventions.OWN_COST: outcome.cost_nano * _NANO,
        }
    return found
