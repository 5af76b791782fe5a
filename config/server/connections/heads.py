"""Checks the head of a request."""

from __future__ import annotations

from typing import Any, Final

from config.api.errors import GatewayError, HeadersTooLarge, InvalidRequest
from config.server.connections.refusals import Reason

MAX_HEADER_BYTES: Final = 65_536
MAX_HEADERS: Final = 100

Headers = list[tuple[bytes, bytes]]


class Fault(Exception):
    """Stops the parser: the request is refused."""

    def __init__(self, reason: Reason, error: GatewayError) -> None:
        self.reason = reason
        self.error = error


def require_room(headers: Headers) -> None:
    """Refuses one more header than a request may have."""
    if len(headers) >= MAX_HEADERS:
        message = f"A request has at most {MAX_HEADERS} headers."
        raise Fault(Reason.HEAD_SIZE, HeadersTooLarge(message))


def check_head(parser: Any, url: bytes, headers: Headers, received: int) -> None:
    """Refuses a head that has just ended; ``received`` bytes or fewer belong to it."""
    if received > MAX_HEADER_BYTES:
        size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > MAX_HEADER_BYTES:
            raise Fault(Reason.HEAD_SIZE, HeadersTooLarge())
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or parser.get_http_version() != "1.0"):
        raise Fault(Reason.HOST, InvalidRequest("Send exactly one Host header."))
    if parser.should_upgrade() and _has_body(headers):
        # The parser takes the body for the other protocol, and it would become a request.
        message = "No other protocol is spoken here. Send the request without 'Upgrade'."
        raise Fault(Reason.UPGRADE, InvalidRequest(message))


def _has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )
