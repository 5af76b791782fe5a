"""Serves the counters of the workers and the collectors of the apps to Prometheus.

``METRICS_TOKEN`` asks every reader for a bearer token. With ``METRICS_PORT`` a listener of its own
serves the route, and the main port does not.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import msgspec
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, connections
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from config.api.errors import (
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
)
from config.apps import declaring_apps
from config.database.outages import outages
from config.server.health import error_response, read_only

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
# A reader of the port of its own may be silent for this long.
_READER_SECONDS: Final = 5.0
_READERS: Final = 8
# The size of the figures in a file stands in its first bytes.
_SMALLEST_FILE: Final = 8
_LIVE_GAUGE: Final = re.compile(r"gauge_live[a-z]*_([0-9]+)\.db")


def render_metrics() -> bytes:
    """Returns all metrics in Prometheus' text format.

    Counters are summed over all workers. The collectors of the apps read the database, so that
    every worker answers the same; while it is away there are the counters alone.
    """
    counters = REGISTRY
    if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        _forget_ended_workers(Path(folder))
        counters = CollectorRegistry()
        _FileCollector(counters)  # type: ignore[no-untyped-call]
    stored = CollectorRegistry()
    for app in declaring_apps():
        for path in app.collectors:
            stored.register(import_string(path)())
    try:
        # A host that is silent is waited for once, and not by each collector.
        connection.ensure_connection()
        figures = generate_latest(stored)
    except (OperationalError, InterfaceError) as exc:
        # The counters say why the database answers nothing.
        outages.report(exc)
        figures = b""
    return generate_latest(counters) + figures


class _FileCollector(MultiProcessCollector):
    """Adds up the files of all workers, without those that are empty: one was killed too early."""

    def collect(self) -> Iterable[Metric]:
        files = [str(file) for file in Path(self._path).glob("*.db") if _has_figures(file)]
        found: Iterable[Metric] = self.merge(files)  # type: ignore[no-untyped-call]
        return found


def _has_figures(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return file.stat().st_size >= _SMALLEST_FILE
    return False


def _forget_ended_workers(folder: Path) -> None:
    """Deletes the gauges of killed workers, which would be summed for ever."""
    for file in folder.glob("gauge_live*.db"):
        found = _LIVE_GAUGE.fullmatch(file.name)
        if found and not _is_alive(int(found[1])):
            mark_process_dead(int(found[1]), str(folder))  # type: ignore[no-untyped-call]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def require_reader(authorization: str | None) -> None:
    """Raises :class:`Unauthenticated` unless the header carries ``METRICS_TOKEN``.

    Only the embedded mode, which is for trying out, shows metrics to anybody.
    """
    if not settings.METRICS_TOKEN and not settings.EMBEDDED:
        raise Unauthenticated("The metrics need a token: set METRICS_TOKEN.")
    wanted = f"Bearer {settings.METRICS_TOKEN}".encode()
    offered = (authorization or "").encode("utf-8", "surrogateescape")
    if settings.METRICS_TOKEN and not hmac.compare_digest(wanted, offered):
        raise Unauthenticated("Send 'Authorization: Bearer <METRICS_TOKEN>'.")


@read_only
def metrics(request: HttpRequest) -> HttpResponse:
    """Returns the metrics; 404 when they have a port of their own."""
    if settings.METRICS_PORT:
        return error_response(NotFound())
    try:
        require_reader(request.headers.get("Authorization"))
    except Unauthenticated as error:
        return error_response(error)
    return HttpResponse(render_metrics(), content_type=CONTENT_TYPE_LATEST)


class MetricsListener(ThreadingHTTPServer):
    """The listener on ``METRICS_PORT``, in threads of a process."""

    def __init__(self, host: str, port: int) -> None:
        """Binds the port; raises ``OSError``."""
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._places = threading.BoundedSemaphore(_READERS)
        super().__init__((host, port), _Reader)

    def start(self) -> None:
        """Serves until the process ends."""
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def run(self, notify: Callable[[], None]) -> None:
        """Serves as a worker of the supervisor, which ends it with a signal."""
        notify()
        self.serve_forever()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            connections.close_all()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a reader that leaves is no error of ours."""


class _Reader(BaseHTTPRequestHandler):
    """Answers one reader of the metrics."""

    timeout = _READER_SECONDS

    def do_GET(self) -> None:
        try:
            if self.path.partition("?")[0] != PATH:
                raise NotFound
            require_reader(", ".join(self.headers.get_all("Authorization", [])))
            content = render_metrics()
        except GatewayError as error:
            self._respond_error(error)
        except Exception:
            logger.exception("the metrics could not be rendered")
            self._respond_error(GatewayError())
        else:
            self._respond(200, content, {"Content-Type": CONTENT_TYPE_LATEST})

    do_HEAD = do_GET  # noqa: N815 (the library names it)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses what the library cannot parse, in the error envelope."""
        if code == 501:
            self._respond_error(MethodNotAllowed(headers={"Allow": "GET, HEAD"}))
        else:
            self._respond_error(InvalidRequest())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs no access, as the main port does not either."""

    def version_string(self) -> str:
        return "causeway"

    def _respond_error(self, error: GatewayError) -> None:
        headers = {"Content-Type": "application/json", **error.headers}
        self._respond(error.status, msgspec.json.encode(error.body()), headers)

    def _respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
