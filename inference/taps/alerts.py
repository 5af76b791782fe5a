"""Tells the operator that a provider refuses the operator's own credential."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from config.api.errors import GatewayError
from config.clocks.clock import clock
from inference import metrics
from inference.exchange.failures import CredentialRefused, RefusedScope
from inference.routing.health import WINDOW_SECONDS, HealthTable
from inference.routing.routes import Candidate, CatalogSnapshot

logger = logging.getLogger(__name__)

# A provider that refuses each request must not fill the log.
_LINE_SECONDS: Final = 60.0
# The endpoints are paused again before their pause has ended.
_PAUSE_SECONDS: Final = WINDOW_SECONDS / 2


class CredentialAlerts:
    """Counts and logs refusals of the operator's credentials, and marks their providers.

    The log has at most one line a minute for each provider. The endpoints of the provider are tried
    last for a minute, in all workers, and the console shows the mark until the credential works
    again or is replaced.
    """

    def __init__(self, health: HealthTable, catalog: Callable[[], CatalogSnapshot]) -> None:
        self._health = health
        self._catalog = catalog
        self._logged_at: dict[str, float] = {}
        self._paused_at: dict[str, float] = {}

    def report(self, candidate: Candidate, error: GatewayError) -> None:
        """Notes a failed attempt: a refusal of the operator's credential raises the alarm."""
        if isinstance(error, CredentialRefused) and error.scope is not None:
            self._alert(candidate, error)

    def _alert(self, candidate: Candidate, error: CredentialRefused) -> None:
        """Tells the operator of a refusal that concerns the account or its permission."""
        assert error.scope is not None
        provider, now = candidate.route.facts.provider_slug, time.monotonic()
        metrics.count_refused_credential(provider)
        self._health.refused.mark(provider, candidate.secret.label, error.reason)
        if error.scope is RefusedScope.MODEL:
            self._health.pause(candidate.subject, WINDOW_SECONDS, now=clock.time())
        elif _is_due(self._paused_at, provider, now, _PAUSE_SECONDS):
            self._pause_all(provider)
        if _is_due(self._logged_at, provider, now, _LINE_SECONDS):
            logger.error(
                "the provider %s refuses %s to the operator's credential %s (status %s, %s): "
                "replace the credential on the provider's page, or settle its account",
                provider,
                error.scope.value,
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


def _is_due(last: dict[str, float], provider: str, now: float, seconds: float) -> bool:
    """Returns whether something last happened so long ago, and notes that it happens now."""
    if now < last.get(provider, -seconds) + seconds:
        return False
    last[provider] = now
    return True
