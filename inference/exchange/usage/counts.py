"""The metrics of generations: how many ended, how, how fast, and what they used and cost."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from config.live_settings import settings
from config.server.load.figures import figures
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Route
from inference.settlement.settle import Settlement

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_MODEL: Final = ("provider", "model", "operation")
_GENERATIONS: Final = figures.counter(
    "causeway_generations_total",
    "Generations settled. The tenants' own endpoints are the provider and the model 'private'.",
    (*_MODEL, "status"),
)
_ERRORS: Final = figures.counter(
    "causeway_generation_errors_total",
    "Generations that failed after their admission, by the type of the error.",
    (*_MODEL, "type"),
)
_DURATION: Final = figures.histogram(
    "causeway_generation_seconds", "Admission to settlement.", _MODEL, _SECONDS
)
_FIRST_TOKEN: Final = figures.histogram(
    "causeway_time_to_first_token_seconds",
    "Admission to the first event of the upstream, of streams.",
    _MODEL,
    _SECONDS,
)
_TOKENS: Final = figures.counter(
    "causeway_tokens_total", "Tokens used.", ("provider", "model", "kind")
)
_COST: Final = figures.counter(
    "causeway_cost_usd_total",
    "What generations cost in USD: 'credits' is what they were charged, 'upstream' their price at "
    "the provider.",
    ("provider", "model", "kind"),
)
_ATTEMPTS: Final = figures.counter(
    "causeway_attempts_total",
    "Attempts at providers whose answer began, or that failed.",
    ("provider",),
)
_FAILED_ATTEMPTS: Final = figures.counter(
    "causeway_failed_attempts_total",
    "Attempts at providers that failed, by the kind of failure.",
    ("provider", "kind"),
)
_FALLBACKS: Final = figures.counter(
    "causeway_fallbacks_total",
    "Requests that moved on to another candidate, by the provider that failed.",
    ("provider",),
)
_OF_ORGANIZATION: Final = figures.counter(
    "causeway_organization_generations_total",
    "Generations of the organizations that METRICS_ORGANIZATIONS lists, and of all 'other' ones.",
    ("organization", "status"),
)
_TOKENS_OF_ORGANIZATION: Final = figures.counter(
    "causeway_organization_tokens_total", "Tokens of these organizations.", ("organization", "kind")
)
_COST_OF_ORGANIZATION: Final = figures.counter(
    "causeway_organization_cost_usd_total",
    "What generations of these organizations cost in USD.",
    ("organization", "kind"),
)

# Names of a tenant's endpoints would tell the readers of the metrics what it does.
_PRIVATE: Final = ("private", "private")
# A worker counts at most this many models of providers by name; each has some fifty series.
MOST_MODELS: Final = 1_000
_OTHER: Final = ("other", "other")
_NANO: Final = 1e-9


class ModelNames:
    """The models of the catalogue that have figures of their own, those used first."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()

    def name(self, route: Route) -> tuple[str, str]:
        """Returns the provider and the model of a route as labels."""
        if route.is_private:
            return _PRIVATE
        named = route.facts.provider_slug, route.model_slug
        if named not in self._named:
            if len(self._named) >= MOST_MODELS:
                return _OTHER
            self._named.add(named)
        return named


names: Final = ModelNames()


def count_settled(
    organization_id: UUID, route: Route, request: InferenceRequest, outcome: Settlement
) -> None:
    """Counts a generation that has ended."""
    provider, model = names.name(route)
    labels = provider, model, request.operation
    _GENERATIONS.add((*labels, outcome.status))
    if outcome.duration_ms is not None:
        _DURATION.observe(labels, outcome.duration_ms / 1000)
    if outcome.latency_ms is not None:
        _ATTEMPTS.add((provider,))
        if request.stream:
            _FIRST_TOKEN.observe(labels, outcome.latency_ms / 1000)
    if outcome.error_type is not None:
        _ERRORS.add((*labels, outcome.error_type))
    if (usage := outcome.usage) is not None:
        _TOKENS.add((provider, model, "prompt"), usage.prompt)
        _TOKENS.add((provider, model, "completion"), usage.completion)
        _COST.add((provider, model, "credits"), outcome.cost_nano * _NANO)
        _COST.add((provider, model, "upstream"), outcome.upstream_cost_nano * _NANO)
    if settings.METRICS_ORGANIZATIONS:
        _count_organization(organization_id, outcome)


def count_failed_attempt(route: Route, kind: str) -> None:
    """Counts an attempt that failed."""
    provider, _ = names.name(route)
    _ATTEMPTS.add((provider,))
    _FAILED_ATTEMPTS.add((provider, kind))


def count_fallback(route: Route) -> None:
    """Counts a request that moves on to its next candidate, because this one failed."""
    _FALLBACKS.add((names.name(route)[0],))


def _count_organization(organization_id: UUID, outcome: Settlement) -> None:
    is_listed = organization_id in settings.METRICS_ORGANIZATIONS
    name = str(organization_id) if is_listed else "other"
    _OF_ORGANIZATION.add((name, outcome.status))
    if (usage := outcome.usage) is not None:
        _TOKENS_OF_ORGANIZATION.add((name, "prompt"), usage.prompt)
        _TOKENS_OF_ORGANIZATION.add((name, "completion"), usage.completion)
        _COST_OF_ORGANIZATION.add((name, "credits"), outcome.cost_nano * _NANO)
        _COST_OF_ORGANIZATION.add((name, "upstream"), outcome.upstream_cost_nano * _NANO)
