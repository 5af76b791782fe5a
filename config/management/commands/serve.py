from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, connection
from django.utils.module_loading import import_string

from config.bulk.files import refuse
from config.database.sizes import warn_of_few_connections
from config.egress.rules import tls_context
from config.management.extras import log_missing_extras
from config.management.migrations import require_migrated
from config.server.connections.open_files import fitting_connections, needed_files, raise_open_files
from config.server.connections.protocol import HttpProtocol
from config.server.metrics import MetricsListener
from config.server.processes.supervisor import Run, Supervisor
from config.server.processes.worker import WorkerServer
from inference.admission.copies.organizations import load_organizations
from inference.admission.copies.whole import read_catalog_on_orm

logger = logging.getLogger("causeway.serve")

# After this time, workers that have not ended are killed.
_GRACE_SECONDS = settings.HOLD_TIMEOUT + settings.DRAIN_SECONDS + 20
# What every worker imports at its first use, and workers that are forked share.
_SHARED_MODULES: Final = (
    "catalog.dialects.openai", "cryptography.hazmat.primitives.ciphers.aead", "psycopg_pool",
    "uvloop",
)  # fmt: skip


class Command(BaseCommand):
    help = "Serves the API and the console; workers and hosts may share one PostgreSQL."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", metavar="H")
        parser.add_argument(
            "--port", type=port_number, default=8000, metavar="N", help="0 takes any free port"
        )
        parser.add_argument("--workers", type=_worker_count, default=1, metavar="N")

    def handle(self, *args: Any, **options: Any) -> None:
        host, port, workers = options["host"], options["port"], options["workers"]
        require_migrated()
        log_missing_extras()
        warn_of_few_connections(workers)
        if workers > 1:
            load_what_workers_share()
        connection.close()
        if port == settings.METRICS_PORT:
            refuse(f"METRICS_PORT is {port}, the port of the service; choose another one.")
        listener = listen(host, port)
        metrics = bind_metrics(settings.METRICS_HOST or host)
        raise_open_files()
        _warn_of_few_files()
        config = _load_application()

        def run(notify: Callable[[], None]) -> None:
            server = WorkerServer(config, drain_seconds=settings.DRAIN_SECONDS, notify=notify)
            server.run([listener])

        self.stderr.write(f"Serving on {address_of(listener)} with {workers} worker(s).")
        if workers == 1:
            # Nobody replaces the only worker, and its streams must not break.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if metrics is not None:
                metrics.start()
            run(lambda: None)
            return
        # A process of its own, because a process with threads must not be forked.
        companions: list[Run] = [] if metrics is None else [metrics.run]
        try:
            code = Supervisor(
                [run] * workers,
                listener,
                companions=companions,
                grace=_GRACE_SECONDS,
                start_timeout=settings.WORKER_START_TIMEOUT,
            ).supervise()
        finally:
            shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
        sys.exit(code)


def load_what_workers_share() -> None:
    """Loads the control plane, and does once what every worker does first.

    Workers that are forked afterwards share the memory that it writes: certificates, statements,
    and code that ran.
    """
    import_string("config.asgi.control_plane").load()
    for name in _SHARED_MODULES:
        import_module(name)
    # A file of the operator's may change, so each new worker reads it.
    if settings.EGRESS_POLICY.ca_bundle is None:
        tls_context(None)
    # Without the database the workers do it themselves, once it is there.
    with contextlib.suppress(DatabaseError):
        load_organizations([uuid.UUID(int=0)])
        read_catalog_on_orm()


def _load_application() -> uvicorn.Config:
    config = uvicorn.Config(
        import_string("config.asgi.pooled_application")(),
        lifespan="on",
        http=HttpProtocol,
        ws="none",
        access_log=False,
        server_header=False,
        log_config=None,
        timeout_keep_alive=75,
        # The application reads them, where it needs them.
        proxy_headers=False,
        # The longest time that a generation may take.
        timeout_graceful_shutdown=settings.HOLD_TIMEOUT,
    )
    config.load()
    return config


def _warn_of_few_files() -> None:
    """Says when the process may open too few files for ``MAX_CONNECTIONS``."""
    wanted = settings.MAX_CONNECTIONS
    possible = fitting_connections(wanted)
    if possible < wanted:
        logger.warning(
            "each worker accepts %d connections instead of MAX_CONNECTIONS=%d, because it may open "
            "too few files: raise the hard limit of open files (LimitNOFILE, ulimit -Hn) to %d",
            possible,
            wanted,
            needed_files(wanted),
        )


def listen(host: str, port: int) -> socket.socket:
    """Returns the socket that all workers accept connections from; refuses a taken port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        refuse(
            f"Cannot listen on {host}:{port}: {exc.strerror}. "
            "Choose another port with --port, or stop what uses this one."
        )
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Returns the URL of a socket: with the port that the system chose if ``--port`` was 0."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind_metrics(host: str) -> MetricsListener | None:
    """Returns the listener on ``METRICS_PORT``, if one is set; refuses a port that is taken."""
    port = settings.METRICS_PORT
    if port is None:
        return None
    try:
        return MetricsListener(host, port)
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
