"""Opens the tracer of a worker when it starts, and closes it when it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from django.conf import settings
from django.utils.module_loading import import_string

from config.telemetry.tracing import tracing

# How long an ending worker waits for a receiver that does not take the last spans.
_CLOSE_SECONDS: Final = 5.0


def open_tracer() -> None:
    """Makes a tracer if the settings name a receiver; in each worker, because it has a thread."""
    if settings.TRACES_URL and tracing.tracer is None:
        make = import_string("config.telemetry.otlp.OtlpTracer")
        tracing.tracer = make(
            settings.TRACES_URL, trusts_callers=settings.TRACE_CALLERS, version=settings.VERSION
        )


async def close_tracer() -> None:
    """Exports the last spans, if that takes no longer than five seconds."""
    tracer, tracing.tracer = tracing.tracer, None
    if tracer is None:
        return
    # A thread that nobody waits for: the event loop would wait for one of its own for ever.
    thread = threading.Thread(target=tracer.close, name="close-tracer", daemon=True)
    thread.start()
    deadline = asyncio.get_running_loop().time() + _CLOSE_SECONDS
    while thread.is_alive() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
