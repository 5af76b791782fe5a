"""The spans of a request and of its attempts, by the conventions for generative AI.

They have neither prompts, answers, keys nor end users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from catalog.dialects.base import Operation
from catalog.operations import name_span
from config.api.errors import GatewayError
from config.telemetry.tracing import Attributes, request_span, tracing
from inference.routing.routes import Candidate
from inference.settlement.settle import Settlement

_NANO: Final = 1e-9


def record_attempt(
    candidate: Candidate, operation: Operation, milliseconds: int, error: GatewayError | None
) -> None:
    """Makes the span of an attempt, which ends when its answer begins, if there is a tracer."""
    if tracing.tracer is None or (parent := request_span.get()) is None:
        return
    name = name_span(operation)
    attributes: Attributes = {
        "gen_ai.operation.name": name,
        "gen_ai.provider.name": candidate.route.facts.provider_slug,
        "gen_ai.request.model": candidate.route.model_slug,
        "server.address": candidate.route.host,
    }
    error_type = None if error is None else error.error_type
    tracing.tracer.record_attempt(
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
