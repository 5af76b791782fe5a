"""Recognizes signed-in operators before the large body of their request is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, cast

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.handlers.asgi import ASGIRequest
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django_otp.middleware import OTPMiddleware

from config.api.errors import GatewayError, Unavailable
from config.console.sign_in.sessions import SessionStore
from config.database.outages import outages
from config.server.bodies import Scope
from config.server.bulkheads import BulkheadBudget

PREFIX: Final = "/admin/"
# Sessions that a worker looks up at a time, and those that may wait. Strangers can make up cookies.
_THREADS: Final = 2
_WAITING: Final = 100


def _answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=204 if admin.site.has_permission(request) else 403)


class _ReadSession(SessionStore):
    """A session that is only read: the browser does not receive the cookie of this answer.

    After a rotation of ``SECRET_KEY``, Django gives a session a new key when it is first used.
    """

    key_salt = SessionStore().key_salt

    def cycle_key(self) -> None:
        pass

    def flush(self) -> None:
        self._session_cache: dict[str, Any] = {}

    def save(self, must_create: bool = False) -> None:
        pass


_sessions = SessionMiddleware(AuthenticationMiddleware(OTPMiddleware(_answer)))
_sessions.SessionStore = _ReadSession
_ask = cast(Callable[[HttpRequest], HttpResponse], _sessions)


class OperatorSessions:
    """Looks up the sessions of operators, in few threads."""

    def __init__(self, refuse: Callable[[BulkheadBudget], GatewayError]) -> None:
        self._refuse = refuse
        self._threads = asyncio.Semaphore(_THREADS)
        self._waiting = 0

    async def is_signed_in(self, scope: Scope) -> bool:
        """Returns whether a request has the session of an operator who may use the console."""
        if all(name != b"cookie" for name, _ in scope["headers"]):
            return False
        if self._waiting >= _WAITING:
            raise self._refuse(BulkheadBudget.LOOKUPS)
        self._waiting += 1
        try:
            async with self._threads:
                return await sync_to_async(_is_signed_in, thread_sensitive=False)(scope)
        except (OperationalError, InterfaceError) as exc:
            outages.report(exc)
            raise Unavailable from None
        finally:
            self._waiting -= 1


def _is_signed_in(scope: Scope) -> bool:
    """Asks the console's own rules, through the middleware that identifies its operators."""
    request = ASGIRequest({**scope, "method": "GET"}, BytesIO())
    try:
        return _ask(request).status_code == 204
    finally:
        connection.close()
