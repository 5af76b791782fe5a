"""The ASGI application: inference paths to the data plane, everything else to Django.

Django rejects the lifespan scope, so it is answered here; it owns what a worker keeps between
requests.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.core.asgi import get_asgi_application

_application: Any = get_asgi_application()

# Models can be imported only once the applications are set up.
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from starlette.middleware.cors import CORSMiddleware

from config.server.limits import bounded
from inference.asgi import ROUTES, Inference
from inference.exchange.gateway import Gateway

if TYPE_CHECKING:
    from config.server.limits import Receive, Scope, Send


_django = bounded(_application)

# New objects between two walks of the collector through the young ones; Python's own is 700.
_COLLECTED: Final = 20_000


class Application:
    """One worker's application; its data plane lives from lifespan start-up to shutdown."""

    def __init__(self) -> None:
        self._gateway: Gateway | None = None
        self._inference: Inference | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in ROUTES:
            assert self._inference is not None, "the server must support the lifespan protocol"
            await self._inference(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await _django(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._gateway = Gateway()
                await self._gateway.open()
                self._inference = Inference(self._gateway)
                # What was loaded until now lives as long as the worker: the collector need not
                # walk it again and again, in the middle of everybody's streams. Requests leave
                # few cycles, and those may wait for some more of them.
                gc.collect()
                gc.freeze()
                gc.set_threshold(_COLLECTED)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._gateway is not None:
                    await self._gateway.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def with_cors(application: Any) -> Any:
    """Lets the configured browser origins call the REST routes, never with cookies.

    With any header: the SDKs send a dozen of their own, and whoever is trusted to call may.
    """
    if not settings.CORS_ALLOWED_ORIGINS:
        return application
    return CORSMiddleware(
        application,
        allow_origins=settings.CORS_ALLOWED_ORIGINS,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=["retry-after", "x-generation-id", "x-request-id"],
    )


application = with_cors(Application())


def pooled_application() -> Any:
    """Returns the application for ``serve``, whose threads share a pool of database connections.

    Django gives each request a thread of its own under ASGI, and each thread its own connection.
    """
    options = connections.settings[DEFAULT_DB_ALIAS]["OPTIONS"]
    options["pool"] = {"min_size": 0, "max_size": 16, "timeout": 2}
    return application
