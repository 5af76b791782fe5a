"""Reports how the attempts of a generation went to the health table."""

from __future__ import annotations

import logging
import uuid

from config.api.errors import GatewayError, UpstreamError
from config.clocks.clock import clock
from inference import metrics
from inference.exchange.upstream.alerts import CredentialAlerts
from inference.routing.health import HealthTable, classify_attempt
from inference.routing.routes import Candidate

logger = logging.getLogger(__name__)


class AttemptReports:
    """The reports of one generation; ``probe`` is the subject that its first attempt probes."""

    __slots__ = ("_alerts", "_health", "_is_stream", "_probe")

    def __init__(
        self,
        health: HealthTable,
        alerts: CredentialAlerts,
        probe: uuid.UUID | None,
        *,
        is_stream: bool,
    ) -> None:
        self._health = health
        self._alerts = alerts
        self._probe = probe
        self._is_stream = is_stream

    def report(
        self, candidate: Candidate, error: GatewayError | None, latency_ms: int | None = None
    ) -> None:
        """Records that an attempt failed, or that its answer has begun."""
        now = clock.time()
        self._alerts.report(candidate, error)
        outcome = classify_attempt(error, has_own_credential=candidate.is_byok)
        if outcome is None:
            self.release_probe()
        else:
            self._health.record(
                candidate.subject,
                outcome,
                now=now,
                retry_after=error.retry_after if isinstance(error, UpstreamError) else None,
                has_own_credential=candidate.is_byok,
            )
            self._probe = None
        if latency_ms is not None and self._is_stream:
            self._health.measure(candidate.measured_subject, latency_ms, now=now)

    def report_pause(self, candidate: Candidate, seconds: float) -> None:
        """Records that the upstream takes no further request for a while."""
        self._health.pause(candidate.subject, seconds, now=clock.time())

    def report_speed(self, candidate: Candidate, completion_tokens: int, milliseconds: int) -> None:
        """Records the throughput of a stream, which took this time after its first event."""
        if not completion_tokens:
            return
        self._health.measure(
            candidate.measured_subject,
            tokens_per_second=completion_tokens / (max(milliseconds, 1) / 1000),
            now=clock.time(),
        )

    def report_missing_mark(self, candidate: Candidate) -> None:
        """Notes that a whole stream ended without its end mark, which is no failure."""
        route = candidate.route
        metrics.count_missing_mark(route.facts.provider_slug)
        if self._health.note_missing_mark(route.endpoint_id):
            logger.warning(
                "the endpoint %s ends its streams without an end mark; finish reason and usage "
                "came, so they are delivered as complete",
                route.endpoint_id,
            )

    def release_probe(self) -> None:
        """Gives back the probe of the first candidate, if it has had no outcome."""
        if self._probe is not None:
            self._health.release(self._probe)
            self._probe = None
