"""The ASGI application: the inference routes go to the data plane, all others to Django.

Django rejects the lifespan scope, so this application answers it. At start-up it creates the
worker's gateway, and at shutdown it closes it.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup(set_prefix=False)

# Models can be imported only once the applications are set up.
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished
from django.db import DEFAULT_DB_ALIAS, connections
from django.urls import get_resolver
from django.utils.module_loading import import_string
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from accounts.bearers import key_digests
from config.api.errors import GatewayError, PayloadTooLarge, Unavailable
from config.console.sign_in.gate import SignInGate
from config.console.sign_in.recognition import PREFIX, OperatorSessions
from config.database.patience import OPEN_SECONDS, PatientConnection
from config.database.replica.watch import ALIAS as REPLICA
from config.pages.failures import render_refusal
from config.server.bodies import UNRECOGNIZED_BYTES, guard_bodies, join_headers, mark_recognized
from config.server.collector import Collector
from config.server.load.loop_lag import LoopLag
from config.server.load.memory import return_large_blocks
from config.server.load.pools import show_pools
from config.server.readiness import PROBES, HistoryLost, readiness, serve_probe
from config.telemetry.access_log import ENTRY, LOG, AccessLog, AccessLogMiddleware
from config.telemetry.workers import close_tracer, open_tracer
from inference.asgi import Inference
from inference.exchange.gateway import Gateway
from inference.faces.routes import ROUTES
from inference.taps.figures import WorkerWatcher
from inference.taps.table import Options

if TYPE_CHECKING:
    from config.server.bodies import Message, Receive, Scope, Send
    from config.server.bulkheads import Occupancy
    from config.server.connections.cycle import Cycle
    from inference.admission.recognition import RecognizedKey


_RECOGNITION_SECONDS: Final = 1.0
_API: Final = "/api/v1/"
# The headers of answers that a browser's script may read.
_EXPOSED_HEADERS: Final = (
    "idempotency-replayed",
    "request-id",
    "retry-after",
    "x-generation-id",
    "x-left-out",
    *(f"x-openrouter-cache-{part}" for part in ("status", "age", "ttl")),
    "x-request-id",
    "x-should-retry",
    *(
        f"x-ratelimit-{part}-{kind}"
        for part in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)
_NO_LIFESPAN: Final = "the server must support the lifespan protocol"


class DjangoHandler(ASGIHandler):
    """Django's handler, which closes the connections to the database before it sends a response.

    Django closes them together with the response, which its caller may never read. It does not
    close a response that could not be sent to its end, such as an export that PostgreSQL stops, and
    the thread of the request ends: the pool of connections would miss one for ever.
    """

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        if (cycle := scope.get("causeway.cycle")) is not None:
            send = partial(_send_while_read, cycle, send)
        try:
            await super().handle(scope, receive, send)
        except BaseException:
            await request_finished.asend(sender=type(self))
            raise

    async def send_response(self, response: Any, send: Any) -> None:
        # Parts that are made on the way are read from the database.
        if not response.streaming:
            await sync_to_async(connections.close_all)()
        await super().send_response(response, send)


async def _send_while_read(cycle: Cycle, send: Send, message: Message) -> None:
    """Sends a part of a response; ends the connection of a caller who reads none of the others."""
    if cycle.is_read:
        await send(message)
    elif not await cycle.send_while_read(send(message)):
        cycle.end_stuck()


class ControlPlane:
    """Django with its middleware, routes and pages, loaded by the first request that it gets.

    They take 20 MB of memory and half a second of CPU, and many workers serve inference alone. The
    service loads them at its start if it forks workers, which then share them.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._loading = asyncio.Lock()

    def load(self) -> None:
        handler = DjangoHandler()
        _ = get_resolver().url_patterns
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._handler is None:
            async with self._loading:
                if self._handler is None:
                    # Streams go on meanwhile.
                    await asyncio.to_thread(self.load)
        await self._handler(scope, receive, send)


control_plane: Final = ControlPlane()


def canonical_path(path: str, raw_path: bytes) -> str:
    """Returns the path by which a route of the API is known; any other path stays as it is.

    Most tools are set up with a base that ends in ``/v1``, and join it with or without a slash. An
    escaped slash at the end belongs to the name of a resource.
    """
    rest = path.removeprefix("/api")
    if not rest.startswith("/v1/"):
        return path
    slashes = len(raw_path) - len(raw_path.rstrip(b"/"))
    return f"/api/v1/{rest[4 : len(rest) - slashes].lstrip('/')}"


class Application:
    """Serves one worker's requests; its gateway lives from lifespan start-up to shutdown."""

    def __init__(self) -> None:
        self._gateway: Gateway | None = None
        self._inference: Inference | None = None
        self._options: Options | None = None
        self._sessions: OperatorSessions | None = None
        self._collector: Collector | None = None
        self._loop_lag: LoopLag | None = None
        guarded: Any = guard_bodies(SignInGate(control_plane), self._find_caller, render_refusal)
        self._django: Any = ProxyHeadersMiddleware(guarded, settings.FORWARDED_ALLOW_IPS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in ROUTES:
            scope["path"] = canonical_path(scope["path"], scope["raw_path"])
        if scope["type"] == "http" and scope["path"] in ROUTES:
            assert self._inference is not None, _NO_LIFESPAN
            await self._inference(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in PROBES:
            await serve_probe(scope, send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            # Who has connected; the next line believes a proxy that names another address.
            scope["causeway.peer"] = (scope.get("client") or ("",))[0]
            await self._django(scope, receive, send)

    async def _find_caller(self, scope: Scope, is_large: bool) -> Occupancy | None:
        """Returns the occupancy of a request to Django, ``None`` if Django shall refuse it.

        Raises :class:`GatewayError` for a large body of an unknown caller.
        """
        assert self._gateway is not None, _NO_LIFESPAN
        assert self._sessions is not None, _NO_LIFESPAN
        path = scope["path"]
        bulkheads = self._gateway.bulkheads
        if path.startswith(_API):
            if readiness.is_history_lost and scope["method"] not in ("GET", "HEAD"):
                raise HistoryLost
            try:
                key = await self._recognize(scope, self._gateway)
            except Unavailable:
                raise
            except GatewayError:
                if is_large:
                    raise
                return None
            occupancy = bulkheads.enter(key.organization_id, key.key_id, is_management=True)
            if (entry := scope.get(ENTRY)) is not None:
                entry.name_caller(key.organization_id, key.digest)
        elif not is_large:
            return None
        elif path.startswith(PREFIX) and await self._sessions.is_signed_in(scope):
            occupancy = bulkheads.enter_operator()
        else:
            raise PayloadTooLarge(
                f"Only a signed-in operator may send more than {UNRECOGNIZED_BYTES} bytes here."
            )
        mark_recognized(scope)
        return occupancy

    async def _recognize(self, scope: Scope, gateway: Gateway) -> RecognizedKey:
        """Returns the key of a request to the management routes; raises :class:`GatewayError`."""
        authorization, api_key = (
            join_headers(scope, name).decode("latin-1") for name in (b"authorization", b"x-api-key")
        )
        digests = key_digests(authorization, api_key)
        try:
            # Django tells within two seconds that PostgreSQL does not answer.
            async with asyncio.timeout(_RECOGNITION_SECONDS):
                return await gateway.recognizer.recognize(digests)
        except TimeoutError:
            raise Unavailable from None

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                open_tracer()
                self._gateway = Gateway(WorkerWatcher)
                await self._gateway.open()
                self._options = Options(self._gateway.bulkheads)
                self._inference = Inference(self._gateway, self._options)
                self._sessions = OperatorSessions(self._gateway.bulkheads.refuse)
                self._collector = Collector(self._gateway.bulkheads)
                self._collector.start()
                figures = [self._gateway.show_figures, self._options.show_figures, show_pools]
                self._loop_lag = LoopLag(figures)
                self._loop_lag.start()
                return_large_blocks()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._gateway is not None and self._collector is not None:
                    self._collector.stop()
                    await self._gateway.close()
                if self._options is not None:
                    await self._options.close()
                if self._loop_lag is not None:
                    self._loop_lag.stop()
                await close_tracer()
                await send({"type": "lifespan.shutdown.complete"})
                return


def with_cors(application: Any) -> Any:
    """Returns the application with CORS for the configured browser origins, never with cookies.

    Any request header is allowed, because the SDKs send a dozen of their own. The middleware takes
    2 MB of memory, so it is imported only where origins are configured.
    """
    if not settings.CORS_ALLOWED_ORIGINS:
        return application
    middleware = import_string("starlette.middleware.cors.CORSMiddleware")
    return middleware(
        application,
        allow_origins=settings.CORS_ALLOWED_ORIGINS,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=_EXPOSED_HEADERS,
    )


def with_access_log(application: Any) -> Any:
    """Returns the application with a line for each request, if ``ACCESS_LOG`` asks for it."""
    if not settings.ACCESS_LOG:
        return application
    is_text = settings.ACCESS_LOG == LOG and settings.LOG_FORMAT == "text"
    return AccessLogMiddleware(application, AccessLog(settings.ACCESS_LOG, is_text=is_text))


application = with_access_log(with_cors(Application()))


def pooled_application() -> Any:
    """Returns the application for ``serve``, whose threads share a pool of database connections.

    Django gives each request a thread of its own under ASGI, and each thread its own connection.
    The replica has a pool of its own.
    """
    for alias in (DEFAULT_DB_ALIAS, REPLICA):
        if alias in connections.settings:
            options = connections.settings[alias]["OPTIONS"]
            options["pool"] = {
                "min_size": 0,
                "max_size": settings.DATABASE_POOL_SIZE,
                "timeout": OPEN_SECONDS,
                # It would try again after 1, 2, 4, 8, 16 seconds: a failover must not last longer.
                "reconnect_timeout": 2,
                "connection_class": PatientConnection,
            }
    return application
