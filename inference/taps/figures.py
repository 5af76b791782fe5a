"""What a worker counts and reports of its generations: their ends, their cost, their claims."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final
from uuid import UUID

from prometheus_client import Counter

from billing.rate_limits import RateLimited
from catalog.dialects.base import Operation
from catalog.operations import name_span
from config.api.errors import GatewayError, UpstreamError, UpstreamRateLimited, UpstreamRefused
from config.clocks.clock import clock
from config.egress import OutboundRequest
from config.live_settings import settings
from config.server.load.figures import figures
from config.telemetry.tracing import request_span, tracing
from inference import conventions
from inference.admission.estimate import Claim
from inference.exchange.failures import CredentialRefused, RefusedScope
from inference.filters.definitions import Finding
from inference.models import Generation
from inference.requests.parsing import InferenceRequest
from inference.routing.health import (
    WINDOW_SECONDS,
    HealthTable,
    classify_attempt,
    refuses_credential,
)
from inference.routing.routes import Candidate, CatalogSnapshot, Route
from inference.settlement.settle import Settlement
from inference.taps.spans import record_attempt

logger = logging.getLogger(__name__)

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_MODEL: Final = ("provider", "model", "operation")
_GENERATIONS: Final = figures.counter(
    "causeway_generations_total",
    "Generations settled. The tenants' own endpoints are the provider and the model 'private'.",
    (*_MODEL, "status"),
)
_ERRORS: Final = figures.counter(
    "causeway_generation_errors_total",
    "Generations that failed after their admission, by the type of the error; 'own_credential' is "
    "one of the caller's organization that was refused or limited.",
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
# The same by the names and bounds of OpenTelemetry's registry.
_SPAN_NAMES: Final = {operation: name_span(operation) for operation in Operation}
_GEN_AI: Final = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_CLIENT_DURATION: Final = figures.histogram(
    conventions.DURATION_METRIC,
    "Duration of GenAI client operation.",
    (*_GEN_AI, "error_type"),
    conventions.SECONDS,
)
_CLIENT_FIRST_CHUNK: Final = figures.histogram(
    conventions.FIRST_CHUNK_METRIC,
    "Time to receive the first chunk, of streams.",
    _GEN_AI,
    conventions.SECONDS,
)
_CLIENT_TOKENS: Final = figures.histogram(
    conventions.TOKENS_METRIC,
    "Number of input and output tokens used.",
    (*_GEN_AI, "gen_ai_token_type"),
    conventions.TOKENS,
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
    "Attempts that failed, but not by their callers, by the kind of failure.",
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
_CANCELLED: Final = Counter(
    "causeway_cancelled_generations_total",
    "Generations whose caller left, by the usage that they pay for.",
    ("usage",),
)
_CLAIMS: Final = Counter(
    "causeway_usage_claims_total",
    "Usages beyond what their requests allowed, by the count that was too high.",
    ("reason",),
)
_UNMARKED: Final = Counter(
    "causeway_unmarked_streams_total",
    "Whole streams that ended without their end mark, by provider.",
    ("provider",),
)
_REFUSED_CREDENTIALS: Final = Counter(
    "causeway_refused_credentials_total",
    "Refusals of the operator's own credential or account.",
    ("provider",),
)
_REFUSALS: Final = Counter(
    "causeway_refusals_total",
    "Inference requests refused before admission, by status and type of the error.",
    ("status", "type"),
)
_LIMITED: Final = Counter(
    "causeway_rate_limited_total",
    "Requests refused by a rate limit, by the limit and by its owner.",
    ("scope", "limit"),
)
# ``kind`` is the slug of a builtin filter, or ``custom``: organizations name their own filters, and
# metrics must not reveal those names.
_FILTERED: Final = Counter(
    "causeway_filtered_texts_total", "Texts in which a content filter matched.", ("action", "kind")
)
_refusals: Final = lru_cache(_REFUSALS.labels)

# Names of a tenant's endpoints would tell the readers of the metrics what it does.
_PRIVATE: Final = ("private", "private", "private")
# A worker counts at most this many models of providers by name; each has some 120 series.
MOST_MODELS: Final = 1_000
_OTHER: Final = ("other", "other", "other")
_NANO: Final = 1e-9
# An endpoint that lies about each of its answers must not fill the log.
_LINE_SECONDS: Final = 60.0
# The endpoints are paused again before their pause has ended.
_PAUSE_SECONDS: Final = WINDOW_SECONDS / 2
_MAX_REMEMBERED: Final = 1024
_OWN: Final = "own_credential"
_REFUSED_LOGINS: Final = (401, 402, 403)


class ModelLabels:
    """The models of the catalogue that have figures of their own, those used first."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], tuple[str, str, str]] = {}

    def name(self, route: Route) -> tuple[str, str, str]:
        """Returns the provider, the model and the registry's name of the provider as labels."""
        if route.is_private:
            return _PRIVATE
        slugs = route.facts.provider_slug, route.model_slug
        if (named := self._named.get(slugs)) is None:
            if len(self._named) >= MOST_MODELS:
                return _OTHER
            named = *slugs, conventions.name_provider(slugs[0], route.dialect)
            self._named[slugs] = named
        return named


names: Final = ModelLabels()


def _count_organization(organization_id: UUID, outcome: Settlement) -> None:
    is_listed = organization_id in settings.METRICS_ORGANIZATIONS
    name = str(organization_id) if is_listed else "other"
    _OF_ORGANIZATION.amounts[name, outcome.status] += 1
    if (usage := outcome.usage) is not None:
        _TOKENS_OF_ORGANIZATION.amounts[name, "prompt"] += usage.prompt
        _TOKENS_OF_ORGANIZATION.amounts[name, "completion"] += usage.completion
        _COST_OF_ORGANIZATION.amounts[name, "credits"] += outcome.cost_nano * _NANO
        _COST_OF_ORGANIZATION.amounts[name, "upstream"] += outcome.upstream_cost_nano * _NANO


def _concerns_owner(candidate: Candidate, error: BaseException | None) -> bool:
    """Returns whether an organization's own credential was refused, or is at its rate limit."""
    if not candidate.is_byok or not isinstance(error, UpstreamError):
        return False
    return isinstance(error, UpstreamRateLimited) or refuses_credential(error)


class LineLog:
    """Lets a line into the log once a minute for each of its subjects."""

    def __init__(self) -> None:
        self._logged_at: dict[Hashable, float] = {}

    def is_due(self, subject: Hashable, seconds: float = _LINE_SECONDS) -> bool:
        """Returns whether the subject had no line for so long, and notes that it has one now."""
        now = time.monotonic()
        if now < self._logged_at.get(subject, -seconds) + seconds:
            return False
        if len(self._logged_at) >= _MAX_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[subject] = now
        return True


class WorkerWatcher:
    """The watcher of a worker: counts, logs, alarms, and makes the spans of attempts."""

    def __init__(self, health: HealthTable, catalog: Callable[[], CatalogSnapshot]) -> None:
        self._refused = health.refused
        self._alerts = CredentialAlerts(health, catalog)
        self._lines = LineLog()

    def note_refusal(self, error: GatewayError) -> None:
        _refusals(str(error.status), error.error_type).inc()

    def note_limit(self, error: RateLimited) -> None:
        _LIMITED.labels(error.scope, error.rate).inc()

    def note_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            _FILTERED.labels(finding.action, finding.kind).inc(finding.count)

    def trace_request(self, outbound: OutboundRequest) -> OutboundRequest:
        if tracing.tracer is None:
            return outbound
        header = tracing.tracer.traceparent_of(request_span.get())
        return replace(outbound, headers={**outbound.headers, **header})

    def note_attempt(
        self,
        candidate: Candidate,
        operation: Operation,
        milliseconds: int,
        error: GatewayError | None,
    ) -> None:
        if tracing.tracer is not None:
            record_attempt(tracing.tracer, candidate, operation, milliseconds, error)
        if error is not None:
            # One whose answer has begun counts at the end of its generation.
            _ATTEMPTS.amounts[names.name(candidate.route)[0],] += 1
            self.note_failure(candidate, error)
        elif self._refused.providers and not candidate.is_byok:
            self._refused.clear(candidate.route.facts.provider_slug)

    def note_failure(self, candidate: Candidate, error: GatewayError) -> None:
        # What its caller caused says nothing of a provider.
        outcome = classify_attempt(error, has_own_credential=candidate.is_byok)
        if outcome is not None and not _concerns_owner(candidate, error):
            kind = getattr(error, "kind", None) or "other"
            _FAILED_ATTEMPTS.amounts[names.name(candidate.route)[0], kind] += 1
        if isinstance(error, CredentialRefused) and error.scope is not None:
            self._alerts.report(candidate, error, error.scope)
        elif isinstance(error, UpstreamError) and not isinstance(error, UpstreamRefused):
            self._log_failure(candidate, error)

    def note_fallback(self, candidate: Candidate) -> None:
        _FALLBACKS.amounts[names.name(candidate.route)[0],] += 1

    def note_missing_mark(self, candidate: Candidate) -> None:
        _UNMARKED.labels(names.name(candidate.route)[0]).inc()

    def note_end(
        self,
        organization_id: UUID,
        candidate: Candidate,
        request: InferenceRequest,
        outcome: Settlement,
        error: BaseException | None,
    ) -> None:
        provider, model, registered = names.name(candidate.route)
        labels = provider, model, request.operation
        client = _SPAN_NAMES[request.operation], registered, model
        _GENERATIONS.amounts[*labels, outcome.status] += 1
        if outcome.duration_ms is not None:
            _DURATION.observe(labels, outcome.duration_ms / 1000)
            _CLIENT_DURATION.observe(
                (*client, outcome.error_type or ""), outcome.duration_ms / 1000
            )
        if outcome.latency_ms is not None:
            _ATTEMPTS.amounts[provider,] += 1
            if request.stream:
                _FIRST_TOKEN.observe(labels, outcome.latency_ms / 1000)
                _CLIENT_FIRST_CHUNK.observe(client, outcome.latency_ms / 1000)
        if (kind := outcome.error_type) is not None:
            _ERRORS.amounts[*labels, _OWN if _concerns_owner(candidate, error) else kind] += 1
        if (usage := outcome.usage) is not None:
            _TOKENS.amounts[provider, model, "prompt"] += usage.prompt
            _TOKENS.amounts[provider, model, "completion"] += usage.completion
            _CLIENT_TOKENS.observe((*client, conventions.INPUT), usage.prompt)
            _CLIENT_TOKENS.observe((*client, conventions.OUTPUT), usage.completion)
            _COST.amounts[provider, model, "credits"] += outcome.cost_nano * _NANO
            _COST.amounts[provider, model, "upstream"] += outcome.upstream_cost_nano * _NANO
        if settings.METRICS_ORGANIZATIONS:
            _count_organization(organization_id, outcome)
        if outcome.claim is not None:
            self._report_claim(outcome.generation_id, candidate.route, outcome.claim)
        if outcome.status == Generation.Status.CANCELLED:
            paid = "estimated" if outcome.is_estimated else "reported"
            _CANCELLED.labels("none" if usage is None else paid).inc()

    def _log_failure(self, candidate: Candidate, error: UpstreamError) -> None:
        """Logs the failure of an attempt, once a minute for each endpoint and kind of failure.

        The line has the host and the reason, which callers do not learn, and no text of an
        upstream: that may repeat a prompt. Refusals of an organization's own credential concern its
        owner alone, and those of the operator's account are alarms: see :class:`CredentialAlerts`.
        """
        route, status = candidate.route, error.upstream_status
        if candidate.is_byok and status in _REFUSED_LOGINS:
            return
        kind = error.kind if status is None else f"{error.kind} {status}"
        if not self._lines.is_due((route.endpoint_id, kind or "")):
            return
        logger.warning(
            "the endpoint %s (%s at %s, host %s) fails: %s%s",
            route.endpoint_id,
            *route.names,
            route.host or "named by the credential",
            kind,
            f", {error.reason}" if error.reason else "",
        )

    def _report_claim(self, generation_id: str, route: Route, claim: Claim) -> None:
        """Counts a claim, and logs it once a minute for each endpoint."""
        _CLAIMS.labels(claim.reason).inc()
        if not self._lines.is_due(route.endpoint_id):
            return
        logger.warning(
            "the endpoint %s claimed %d prompt and %d completion tokens for the generation %s, "
            "which allowed %d and %d; the excess is under review",
            route.endpoint_id,
            claim.prompt,
            claim.completion,
            generation_id,
            claim.allowed_prompt,
            claim.allowed_completion,
        )


class CredentialAlerts:
    """Counts and logs refusals of the operator's credentials, and marks their providers.

    The log has at most one line a minute for each provider. The endpoints of the provider are tried
    last for a minute, in all workers, and the console shows the mark until the credential works
    again or is replaced.
    """

    def __init__(self, health: HealthTable, catalog: Callable[[], CatalogSnapshot]) -> None:
        self._health = health
        self._catalog = catalog
        self._lines, self._pauses = LineLog(), LineLog()

    def report(self, candidate: Candidate, error: CredentialRefused, scope: RefusedScope) -> None:
        """Tells the operator of a refusal that concerns the account or its permission."""
        provider = candidate.route.facts.provider_slug
        _REFUSED_CREDENTIALS.labels(provider).inc()
        self._health.refused.mark(provider, candidate.secret.label, error.reason)
        if scope is RefusedScope.MODEL:
            self._health.pause(candidate.subject, WINDOW_SECONDS, now=clock.time())
        elif self._pauses.is_due(provider, _PAUSE_SECONDS):
            self._pause_all(provider)
        if self._lines.is_due(provider):
            logger.error(
                "the provider %s refuses %s to the operator's credential %s (status %s, %s): "
                "replace the credential on the provider's page, or settle its account",
                provider,
                scope.value,
                candidate.secret.label,
                error.upstream_status or 200,
                error.reason,
            )

    def _pause_all(self, provider: str) -> None:
        now = clock.time()
        for routes in self._catalog().routes.values():
            for route in routes:
                if route.facts.provider_slug == provider:
                    self._health.pause(route.endpoint_id, WINDOW_SECONDS, now=now)
