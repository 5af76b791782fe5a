"""Captures the input and the output of requests whose workspace logs them."""

from __future__ import annotations

from catalog.dialects.shared.raw import Piece
from inference.exchange.gateway import Exchange
from inference.exchange.tap import Tap, Ways
from inference.texts.buffers import Loss
from inference.texts.capture import TextSubject
from inference.texts.writer import TextWriter


class CaptureTap(Tap):
    """Copies the texts of one exchange, and queues the copies when it has ended."""

    def __init__(self, texts: TextWriter, exchange: Exchange) -> None:
        admission = exchange.admission
        authority = admission.authority
        subject = TextSubject(
            exchange.generation_id,
            authority.organization_id,
            authority.workspace_id,
            authority.key_id,
            admission.at,
        )
        self._texts = texts
        self._exchange = exchange
        self._capture = texts.begin(subject, admission.request)

    def deliver(self, ways: Ways) -> Ways:
        deliver, relay = self._capture.tap(ways.deliver, ways.relay)
        return Ways(deliver, relay, self._capture.tap_rewrite(ways.rewrite))

    async def reply(self, pieces: list[Piece] | None) -> None:
        outcome = self._exchange.outcome
        if pieces is not None and (outcome is None or outcome.cached_from is None):
            self._capture.note_reply(pieces)

    def ended(self, exchange: Exchange) -> None:
        """Queues the copies; those of a repeated answer are freed."""
        capture, admission, outcome = self._capture, exchange.admission, exchange.outcome
        if outcome is not None and outcome.cached_from is not None:
            capture.release()
        elif not admission.is_logged or admission.request is not capture.request:
            capture.drop(Loss.RULES_CHANGED)
        else:
            capture.failure, capture.earlier = exchange.failure, exchange.attempts.failures
            if exchange.attempts.latency_ms is None and capture.failure in capture.earlier[-1:]:
                # No answer began, so the last attempt's error is the one that ended it.
                capture.earlier = capture.earlier[:-1]
            self._texts.submit(capture)
