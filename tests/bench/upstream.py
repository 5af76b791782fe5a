"""A provider with prepared answers: python -m tests.bench.upstream PORT [CERTIFICATE]

The provider of ``tests.support.simulator`` costs more CPU than some gateways do, and it would share
its core with PostgreSQL. This one does very little: it finds the end of a request and writes
bytes. The name of the model selects the answer:

* ``chunks``: a stream, one write call for each event, without a pause;
* ``packets``: the same stream, each event in its own packet;
* ``slow``: a whole answer after :data:`DELAY_SECONDS`;
* ``steps``: a stream with :data:`STEP_SECONDS` between two events;
* ``drip``: a stream with :data:`DRIP_SECONDS` between two events;
* any other: a whole answer at once.

With the file of a certificate and its key, it speaks TLS; ``chunks`` needs plain HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import Iterator
from typing import Final, cast

import uvloop

CHUNKS: Final = 50
DELAY_SECONDS: Final = 0.05
DRIP_SECONDS: Final = 0.5
STEP_SECONDS: Final = 0.02
_USAGE: Final = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_HEAD: Final = {"id": "chatcmpl-bench", "created": 1700000000, "model": "bench"}


def _make_whole() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "one two three four"},
        "finish_reason": "stop",
    }
    body = json.dumps(
        {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
    ).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def _make_events() -> list[bytes]:
    """Returns the head of a stream, then an HTTP chunk for each event."""
    head = {**_HEAD, "object": "chat.completion.chunk"}
    events = []
    for index in range(CHUNKS):
        is_last = index == CHUNKS - 1
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": f"word{index} "},
            "finish_reason": "stop" if is_last else None,
        }
        events.append(json.dumps({**head, "choices": [choice]}))
    events.append(json.dumps({**head, "choices": [], "usage": _USAGE}))
    events.append("[DONE]")
    chunks = [f"data: {event}\n\n".encode() for event in events]
    return [
        _STREAM_HEAD,
        *(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks),
        b"0\r\n\r\n",
    ]


_WHOLE: Final = _make_whole()
_EVENTS: Final = _make_events()


class Provider(asyncio.Protocol):
    """One connection, which answers requests with a ``Content-Length`` in order."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pending = b""

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (head := self._pending.find(b"\r\n\r\n")) >= 0:
            fields = self._pending[:head].lower()
            _, _, rest = fields.partition(b"\r\ncontent-length:")
            end = head + 4 + int(rest.partition(b"\r\n")[0] or 0)
            if len(self._pending) < end:
                return
            request, self._pending = self._pending[head:end], self._pending[end:]
            self._begin(request)

    def _begin(self, request: bytes) -> None:
        if b"drip" in request:
            self._answer(iter(_EVENTS), DRIP_SECONDS)
        elif b"steps" in request:
            self._answer(iter(_EVENTS), STEP_SECONDS)
        elif b"packets" in request:
            self._answer(iter(_EVENTS), 0)
        elif b"chunks" in request:
            # The transport would join the events; the empty socket buffer has room for all of them.
            descriptor = self._transport.get_extra_info("socket").fileno()
            for event in _EVENTS:
                os.write(descriptor, event)
        elif b"slow" in request:
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._answer, iter((_WHOLE,)), 0)
        else:
            self._transport.write(_WHOLE)

    def _answer(self, parts: Iterator[bytes], pause: float) -> None:
        """Writes each part in a separate turn of the event loop, so that it becomes one packet."""
        part = next(parts, None)
        if part is not None and not self._transport.is_closing():
            self._transport.write(part)
            loop = asyncio.get_running_loop()
            if pause:
                loop.call_later(pause, self._answer, parts, pause)
            else:
                loop.call_soon(self._answer, parts, pause)


async def main() -> None:
    loop = asyncio.get_running_loop()
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2])
    server = await loop.create_server(
        Provider, "127.0.0.1", int(sys.argv[1]), ssl=context, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
