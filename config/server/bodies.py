"""Bounds on the bodies of requests, and the types of ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from django.conf import settings

from config.api.errors import GatewayError, PayloadTooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientGone(Exception):
    """The caller disconnected, so no response is possible."""


async def read_body(receive: Receive) -> bytes:
    """Reads a whole request body; raises :class:`PayloadTooLarge` and :class:`ClientGone`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > settings.MAX_REQUEST_BYTES:
            raise PayloadTooLarge
        if not message.get("more_body"):
            return b"".join(parts)


def limit_bodies(application: AsgiApplication) -> AsgiApplication:
    """Returns an application that refuses request bodies over ``MAX_REQUEST_BYTES``.

    It refuses them before Django writes any of the body to disk. A body of unknown length is read
    first and then gets a ``Content-Length``, because Django REST Framework treats a body without
    one as empty.
    """

    async def serve_limited(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length")
        if length is not None:
            if int(length) > settings.MAX_REQUEST_BYTES:
                await _respond(send, PayloadTooLarge())
            else:
                await application(scope, receive, send)
            return
        if b"transfer-encoding" not in headers:
            await application(scope, receive, send)
            return
        try:
            body = await read_body(receive)
        except ClientGone:
            return
        except PayloadTooLarge as error:
            await _respond(send, error)
            return
        known = [(name, value) for name, value in scope["headers"] if name != b"transfer-encoding"]
        known.append((b"content-length", str(len(body)).encode()))
        await application({**scope, "headers": known}, _replay_body(body, receive), send)

    return serve_limited


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns a receiver that gives the body once, and then the messages of ``receive``."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return pending.pop() if pending else await receive()

    return receive_next


async def _respond(send: Send, error: GatewayError) -> None:
    body = msgspec.json.encode(error.body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
