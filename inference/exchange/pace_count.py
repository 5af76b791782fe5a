"""Counts what one request sends to providers with the operator's credential."""

from __future__ import annotations

from config.clocks.clock import clock
from inference.admission.estimate import estimate_tokens
from inference.requests.parsing import InferenceRequest
from inference.routing.pacing import Pacer
from inference.routing.routes import Candidate


class PaceCount:
    """Counts the attempts of a request; admission has counted the first one.

    The estimate of the prompt counts when it is sent, the usage of the answer afterwards.
    """

    __slots__ = ("_counted", "_is_first", "_pacer")

    def __init__(self, pacer: Pacer, request: InferenceRequest, first: Candidate) -> None:
        self._pacer = pacer
        self._is_first = True
        self._counted = 0 if first.pace is None else estimate_tokens(request.prompt_bytes)

    def count_attempt(self, candidate: Candidate, request: InferenceRequest) -> None:
        """Counts an attempt before it is sent."""
        is_counted, self._is_first = self._is_first, False
        if candidate.pace is not None and not is_counted:
            self._counted = estimate_tokens(request.prompt_bytes)
            self._pacer.count(candidate.pace.provider_id, 1, self._counted, clock.time())

    def count_usage(self, candidate: Candidate, tokens: int) -> None:
        """Counts the tokens of the last attempt in place of their estimate."""
        if candidate.pace is not None:
            self._pacer.count(candidate.pace.provider_id, 0, tokens - self._counted, clock.time())
