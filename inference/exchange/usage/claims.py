"""Reports what upstreams claimed beyond what was allowed: a counter, and a line in the log."""

from __future__ import annotations

import logging
import time
from typing import Final
from uuid import UUID

from inference import metrics
from inference.admission.estimate import Claim
from inference.routing.routes import Route

logger = logging.getLogger(__name__)

# An endpoint that lies about each of its answers must not fill the log.
_LINE_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 1024


class ClaimLog:
    """Counts the claims of a worker, and logs at most one a minute for each endpoint."""

    def __init__(self) -> None:
        self._logged_at: dict[UUID, float] = {}

    def report(self, generation_id: str, route: Route, claim: Claim) -> None:
        """Counts a claim, and logs it if its endpoint was not named within the last minute."""
        metrics.count_claim(claim.reason)
        now = time.monotonic()
        if now < self._logged_at.get(route.endpoint_id, -_LINE_SECONDS) + _LINE_SECONDS:
            return
        if len(self._logged_at) >= _MAX_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[route.endpoint_id] = now
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
