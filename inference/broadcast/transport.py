"""Sends one request to a receiver, through the egress policy, and reads its answer."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from django.conf import settings

from accounts.destinations.receivers import Receiver
from config.clocks.clock import clock
from config.egress.errors import EgressError
from config.egress.fetch import fetch
from config.egress.retry_after import read_retry_after
from config.egress.rules import OutboundRequest

logger = logging.getLogger("causeway.broadcast")

TIMEOUT_SECONDS: Final = 10.0
_MAX_ANSWER: Final = 64 * 1024
# The receiver refuses what it was sent, not who sends it.
_BODY_REFUSED: Final = frozenset([400, 413, 422])
_MAX_NUMBER: Final = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request. ``error`` is for the organization, ``detail`` for our log.

    ``retry_after`` has the seconds for which the receiver asks to be left alone, of any length.
    """

    error: str = ""
    detail: str = ""
    rejected: int = 0
    retry_after: float = 0.0
    is_body_refused: bool = False
    duration_ms: int = 0

    @property
    def is_taken(self) -> bool:
        return not self.error


def send(receiver: Receiver, body: bytes) -> Answer:
    """Sends a body and returns what became of it, and how long it took; never raises."""
    began = time.monotonic()
    answer = _exchange(receiver, body)
    return replace(answer, duration_ms=round((time.monotonic() - began) * 1000))


def _exchange(receiver: Receiver, body: bytes) -> Answer:
    headers = {**receiver.headers, "Content-Type": "application/json"}
    request = OutboundRequest(receiver.method, receiver.url, headers, body)
    policy = replace(settings.EGRESS_POLICY, max_response_bytes=_MAX_ANSWER)
    try:
        status, answered, text = fetch(request, policy, TIMEOUT_SECONDS)
    except EgressError as exc:
        return Answer(exc.public.replace("upstream", "receiver"), str(exc))
    except Exception as exc:
        # A bug here must not end the thread of a request without its result.
        logger.error("a request failed: %s", type(exc).__name__)
        return Answer("The request failed.", type(exc).__name__)
    if 200 <= status < 300:
        return Answer(rejected=_read_rejected(text))
    error = f"The receiver answered with HTTP {status}."
    return Answer(
        error,
        f"HTTP {status}",
        retry_after=read_retry_after(answered, clock.time()) or 0.0,
        is_body_refused=status in _BODY_REFUSED,
    )


def _read_rejected(text: bytes) -> int:
    """Returns the number of spans that an answer of OTLP rejects; they must not be sent again."""
    try:
        body: Any = json.loads(text)
        number = int(body["partialSuccess"]["rejectedSpans"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
    return number if 0 < number <= _MAX_NUMBER else 0
