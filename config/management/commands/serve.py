from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from config.bulk.commands import require_migrated
from config.bulk.files import refuse
from config.server.http_protocol import HttpProtocol
from config.server.metrics import MetricsListener


class Command(BaseCommand):
    help = "Serves the API and the console; workers and hosts may share one PostgreSQL."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", metavar="H")
        parser.add_argument("--port", type=port_number, default=8000, metavar="N")
        parser.add_argument("--workers", type=_worker_count, default=1, metavar="N")

    def handle(self, *args: Any, **options: Any) -> None:
        host, port, workers = options["host"], options["port"], options["workers"]
        require_migrated()
        connection.close()
        require_free_port(host, port)
        # Uvicorn drains on SIGTERM and then raises it again: the command ends with 0.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with ExitStack() as stack:
            if workers > 1:
                # Each worker counts in files of its own; the metrics route adds them up.
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="causeway-metrics-")
                )
            start_metrics(settings.METRICS_HOST or host)
            self.stderr.write(f"Serving on http://{host}:{port} with {workers} worker(s).")
            uvicorn.run(
                "config.asgi:pooled_application",
                factory=True,
                host=host,
                port=port,
                workers=workers,
                lifespan="on",
                http=HttpProtocol,
                ws="none",
                access_log=False,
                server_header=False,
                log_config=None,
                timeout_keep_alive=75,
                # A worker may start slowly on a busy machine.
                timeout_worker_healthcheck=30,
                # The longest time that a generation may take.
                timeout_graceful_shutdown=settings.HOLD_TIMEOUT,
            )


def start_metrics(host: str) -> None:
    """Serves the metrics on ``METRICS_PORT``, if one is set; refuses a port that is taken."""
    port = settings.METRICS_PORT
    if port is None:
        return
    try:
        MetricsListener(host, port).start()
    except OSError as exc:
        refuse(
            f"Cannot listen on {host}:{port} (METRICS_PORT): {exc.strerror}. "
            "Each serve and each work on one machine needs a METRICS_PORT of its own."
        )


def port_number(text: str) -> int:
    """Parses a TCP port; argparse reports an invalid one as wrong usage."""
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError("a port is from 0 to 65535")
    return number


def _worker_count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError("from 1 to 1024 workers")
    return number


def require_free_port(host: str, port: int) -> None:
    """Refuses a port that is taken or may not be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            refuse(
                f"Cannot listen on {host}:{port}: {exc.strerror}. "
                "Choose another port with --port, or stop what uses this one."
            )
