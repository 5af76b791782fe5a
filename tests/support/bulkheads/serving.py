"""Services that run in the process of the tests, in a thread of their own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished
from django.db import close_old_connections
from django.dispatch import receiver

from config.database import direct, pooled
from config.server.connections.protocol import HttpProtocol
from inference import store

# Longer than a busy machine needs for anything, and shorter than the callers of the tests wait.
PATIENT_SECONDS = 50


@receiver(request_finished)
def close_connections(sender: type | None, **_: Any) -> None:
    """Closes the connections of a request that a service in this process has answered.

    Django does so by itself. But whenever a test client of Django answers a request in this
    process, it takes Django's receiver away for a moment, from all threads. A request that a
    service ends at that moment would leave its connection open, in a thread that ends.
    """
    if sender is not None and issubclass(sender, ASGIHandler):
        close_old_connections()


@contextmanager
def serve_in_thread(application: Any) -> Iterator[str]:
    """Yields the address at which an ASGI application is served."""
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                application,
                lifespan="on",
                http=HttpProtocol,
                ws="none",
                log_config=None,
                proxy_headers=False,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(60)


def make_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the statements of services and stores that begin now wait long for a lock.

    With the limits of the product, a machine that is busy for a tenth of a second may end the wait
    that a test has just seen. Statements of several organizations keep their limit.
    """
    lock_ms = PATIENT_SECONDS * 1000
    limits = f"-c statement_timeout={lock_ms} -c lock_timeout={lock_ms}"
    monkeypatch.setattr(direct, "_OPTIONS", f"{direct._OPTIONS} {limits}")
    for module in (store, direct, pooled):
        monkeypatch.setattr(module, "LOCK_MS", lock_ms)
    for driver in (direct, pooled):
        monkeypatch.setattr(driver, "STATEMENT_SECONDS", float(PATIENT_SECONDS))
