"""Whether this process should receive traffic, and the probes that say so."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from config.api.errors import MethodNotAllowed
from config.clock_report import clock_report
from config.server.bodies import Scope, Send

PROBES: Final = frozenset(("/healthz", "/readyz"))


class Readiness:
    """The state of a process: whether it stops, and whether its last statement reached PostgreSQL.

    The heartbeat of the data plane runs a statement every second.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.is_database_available = True

    def body(self) -> tuple[int, dict[str, Any]]:
        """Returns the status and the body of ``/readyz``."""
        status, answer = self._judge()
        if offset := clock_report.describe():
            answer["clock"] = offset
        return status, answer

    def _judge(self) -> tuple[int, dict[str, Any]]:
        if self.is_draining:
            return 503, {"status": "unavailable", "reason": "stopping"}
        if not self.is_database_available:
            return 503, {"status": "unavailable", "reason": "database"}
        return 200, {"status": "ok"}


readiness: Final = Readiness()


async def serve_probe(scope: Scope, send: Send) -> None:
    """Answers ``/healthz`` and ``/readyz`` for every host name, without a statement."""
    headers = []
    if scope["method"] not in ("GET", "HEAD"):
        error = MethodNotAllowed()
        status, answer = error.status, error.body()
        headers = [(b"allow", b"GET, HEAD")]
    elif scope["path"] == "/readyz":
        status, answer = readiness.body()
    else:
        status, answer = 200, {"status": "ok"}
    body = msgspec.json.encode(answer)
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
