"""The minimal work of a gateway in Python: python -m tests.bench.floor PORT UPSTREAM

A raw ASGI application relays bytes with aiohttp. It has no keys, policy or ledger and parses
nothing. It runs under the same server as the gateway, so the ratio shows what the gateway adds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import uvicorn

if TYPE_CHECKING:
    from config.server.bodies import Receive, Scope, Send


class Relay:
    """Forwards every POST to the upstream and returns its answer."""

    def __init__(self, upstream: str) -> None:
        self._url = f"{upstream}/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        async with self._session.post(
            self._url,
            data=(await receive())["body"],
            headers={"Authorization": "Bearer bench-key-0000", "Content-Type": "application/json"},
        ) as answer:
            start: dict[str, Any] = {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(b"content-type", answer.headers["Content-Type"].encode())],
            }
            await send(start)
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(
        Relay(sys.argv[2]),
        port=int(sys.argv[1]),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
    )
