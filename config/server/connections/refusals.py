"""What is refused before the application sees it: rendered in the envelope, counted and logged."""

from __future__ import annotations

import logging
import time
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec
from prometheus_client import Counter

from config.api.errors import GatewayError

logger = logging.getLogger(__name__)

_REFUSED: Final = Counter(
    "causeway_refused_connections_total",
    "Connections and requests refused by the server itself, or closed before their end.",
    ("reason",),
)
# One log line a reason in this time, so that no caller can fill the log.
_LOG_SECONDS: Final = 1.0


class ClosingReason(StrEnum):
    """Why a connection was refused or closed: the label ``reason`` of the metric."""

    CONNECTION_LIMIT = "connection_limit"
    ADDRESS_LIMIT = "address_limit"
    MAKES_ROOM = "makes_room"
    STRANGER_BYTES = "stranger_bytes"
    IDLE = "idle"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    HEAD_SIZE = "head_size"
    FRAMING_SIZE = "framing_size"
    MALFORMED = "malformed"
    HOST = "host"
    UPGRADE = "upgrade"
    PIPELINE = "pipeline"
    STUCK = "stuck"


class Refusals:
    """Counts and logs the refusals of one worker."""

    def __init__(self) -> None:
        self._logged_at: dict[ClosingReason, float] = {}
        self._unlogged: dict[ClosingReason, int] = {}

    def count(self, reason: ClosingReason, host: str) -> None:
        """Counts a refusal; logs one line a second and reason, with the number since the last."""
        _REFUSED.labels(reason).inc()
        number = self._unlogged.get(reason, 0) + 1
        now = time.monotonic()
        if now - self._logged_at.get(reason, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[reason] = now
            number, said = 0, number
            logger.warning("refused connections: %s, %d times, last %s", reason, said, host)
        self._unlogged[reason] = number


def render_refusal(error: GatewayError) -> bytes:
    """Returns a whole response with the error in the envelope, after which we close."""
    body = msgspec.json.encode(error.body())
    headers = {
        "content-type": "application/json",
        "content-length": len(body),
        "connection": "close",
        **{name.lower(): value for name, value in error.headers.items()},
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
