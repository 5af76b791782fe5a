"""A lost connection is freed at once: a busy worker collects cycles rarely."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from config.server.connections import cycle
from config.server.connections.cycle import Cycle
from config.server.connections.protocol import HttpProtocol, UnreadWatch
from tests.support.machine.collecting import find_objects, without_collector

_HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
_WHOLE = _HEAD + b"Content-Length: 5\r\n\r\nhello"
_LARGE = 4 << 20
_KINDS = (HttpProtocol, Cycle, UnreadWatch)
Application = Callable[[Any, Any, Any], Awaitable[None]]


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


async def _stream(scope: Any, receive: Any, send: Any) -> None:
    """Sends parts until the caller leaves."""
    await receive()
    await send({"type": "http.response.start", "status": 200})
    left = asyncio.ensure_future(receive())
    while not left.done():
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await asyncio.sleep(0.01)
    assert left.result() == {"type": "http.disconnect"}


async def _flood(scope: Any, receive: Any, send: Any) -> None:
    """Sends more than the caller reads, so that a watch over the connection begins."""
    headers = [(b"content-length", b"%d" % _LARGE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(_LARGE)})


async def _fail(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("the application is broken")


async def _count_left(application: Application, sent: bytes, expected: bytes) -> int:
    """Opens a connection, reads until `expected` has arrived, leaves, and counts what is kept."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(application, http=HttpProtocol, log_config=None)  # type: ignore[arg-type]
    config.load()
    state, shared = ServerState(), dict[str, Any]()
    server = await loop.create_server(
        lambda: HttpProtocol(config, server_state=state, app_state=shared), "127.0.0.1"
    )
    # Those of other tests are kept here, so that no new object gets the address of one of them.
    others = find_objects(*_KINDS)
    with without_collector():
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        if expected:
            await reader.readuntil(expected)
        else:
            await _until(lambda: bool(state.connections))
        writer.transport.abort()
        await _until(lambda: not (state.connections or state.tasks))
        await _until(lambda: not find_objects(*_KINDS, but=others))
        left = len(find_objects(*_KINDS, but=others))
    server.close()
    await server.wait_closed()
    return left


async def _until(condition: Callable[[], bool]) -> None:
    """Waits until it holds, for at most 10 s."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("application", "sent", "expected"),
    [
        pytest.param(_answer, _WHOLE, b"hello", id="a whole answer"),
        pytest.param(_answer, _WHOLE * 3, b"hello", id="three requests at once"),
        pytest.param(_stream, _WHOLE, b"part", id="a caller who leaves a stream"),
        pytest.param(_stream, _WHOLE * 3, b"part", id="requests that wait behind a stream"),
        pytest.param(_flood, _WHOLE, b"200 OK", id="an answer that is not read"),
        pytest.param(_answer, b"", b"", id="no request"),
        pytest.param(_answer, _HEAD, b"", id="half a head"),
        pytest.param(_answer, _HEAD + b"Content-Length: 5\r\n\r\nhe", b"", id="half a body"),
        pytest.param(
            _answer,
            _HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
            b"100 Continue",
            id="a body that waits for permission",
        ),
        pytest.param(_answer, b"nonsense\r\n\r\n", b"400 Bad Request", id="no HTTP"),
        pytest.param(_fail, _WHOLE, b"500", id="a broken application"),
    ],
)
def test_a_lost_connection_is_freed_without_the_collector(
    application: Application,
    sent: bytes,
    expected: bytes,
    run: Callable[[Awaitable[int]], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytest would keep the traceback of a failure, and with it the request.
    monkeypatch.setattr(cycle.logger, "disabled", True)
    assert run(_count_left(application, sent, expected)) == 0
