"""Callers who leave while their request is served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from config.server.connections.protocol import HttpProtocol

_SECONDS = 20
_LENGTH = 200_000
_HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % _LENGTH
_NEXT = b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _leave_after_body(rest: bytes) -> tuple[list[int], list[str]]:
    """Sends a head, its whole body with ``rest`` in one read, and leaves.

    Returns the lengths of the bodies whose requests were cancelled, and all paths that were served.
    """
    cancelled: list[int] = []
    paths: list[str] = []
    is_asked, has_body, is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        is_asked.set()
        size, has_more = 0, True
        while has_more:
            message = await receive()
            size += len(message["body"])
            has_more = message["more_body"]
        scope["causeway.cycle"].watch()
        has_body.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(size)
            scope["causeway.cycle"].unwatch()
        finally:
            is_over.set()

    config = uvicorn.Config(serve, http=HttpProtocol, log_config=None)
    config.load()
    state, shared = ServerState(), dict[str, Any]()
    made: list[HttpProtocol] = []

    def make() -> HttpProtocol:
        made.append(HttpProtocol(config, server_state=state, app_state=shared))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1")
    async with asyncio.timeout(_SECONDS):
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(_HEAD)
        await is_asked.wait()
        # The kernel splits what is sent as it likes; the transport may give it in one piece.
        made[0].data_received(bytes(_LENGTH) + rest)
        await has_body.wait()
        writer.transport.abort()
        await is_over.wait()
    server.close()
    return cancelled, paths


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("rest", [b"", _NEXT, _NEXT * 2], ids=["alone", "another", "others"])
def test_a_caller_who_leaves_after_a_large_body_is_noticed(
    run: Callable[[Awaitable[Any]], Any], rest: bytes
) -> None:
    assert run(_leave_after_body(rest)) == ([_LENGTH], ["/"])
