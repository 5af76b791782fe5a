"""A provider whose answers attack a gateway: python -m tests.bench.hostile PORT

The name of the model selects the answer:

* ``paced``: a stream with :data:`PACE_SECONDS` between two events, for half a minute;
* ``hanging``: a whole answer of :data:`HUGE_BYTES` that stops before its last byte;
* ``choices``: one answer with :data:`CHOICES` choices;
* ``events``: a stream of the shortest events, as fast as the gateway reads them;
* ``large``: an answer of :data:`LARGE_BYTES`, whole or as a stream, which can be kept;
* ``slow``: takes three seconds for a short answer; a form is left unread for as long;
* any other: a short whole answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import cache
from typing import Final

import uvloop

PACE_SECONDS: Final = 0.02
HUGE_BYTES: Final = 47_000_000
CHOICES: Final = 500_000
LARGE_BYTES: Final = 7_500_000
_SLOW_SECONDS: Final = 3.0
_PACED_EVENTS: Final = 1_500
_TINY_EVENTS: Final = 2_000_000
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
)
_USAGE: Final = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
_EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


def _make_reply(choices: list[dict[str, object]]) -> bytes:
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "hostile",
            "choices": choices,
            "usage": _USAGE,
        }
    ).encode()


def _make_choice(index: int, content: str) -> dict[str, object]:
    message = {"role": "assistant", "content": content}
    return {"index": index, "message": message, "finish_reason": "stop"}


@cache
def _make_huge() -> bytes:
    return _make_reply([_make_choice(0, "x" * HUGE_BYTES)])


@cache
def _make_choices() -> bytes:
    return _make_reply([_make_choice(0, "a")] * CHOICES)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if b"multipart/form-data" in head:
            # The body is left unread for a while.
            await asyncio.sleep(_SLOW_SECONDS)
            await reader.readexactly(length)
            await _answer(writer, b'{"text":"one two"}')
            return
        body = json.loads(await reader.readexactly(length)) if length else {}
        match body.get("model"):
            case "large" if body.get("stream"):
                event = _EVENT.replace(b'"a"', b'"%s"' % (b"x" * 7_400))
                await _stream(writer, 1, LARGE_BYTES // len(event), 0, event)
            case "large":
                await _answer(writer, _make_reply([_make_choice(0, "x" * LARGE_BYTES)]))
            case "slow":
                await asyncio.sleep(_SLOW_SECONDS)
                await _answer(writer, _make_reply([_make_choice(0, "one two")]))
            case "paced":
                await _stream(writer, 1, _PACED_EVENTS, PACE_SECONDS)
            case "events":
                await _stream(writer, 1_000, _TINY_EVENTS // 1_000, 0)
            case "hanging":
                await _answer(writer, _make_huge(), -1)
                await reader.read()
            case "choices":
                await _answer(writer, _make_choices())
            case _:
                await _answer(writer, _make_reply([_make_choice(0, "one two")]))
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _stream(
    writer: asyncio.StreamWriter, together: int, writes: int, pause: float, event: bytes = _EVENT
) -> None:
    writer.write(_STREAM_HEAD)
    for _ in range(writes):
        writer.write(event * together)
        await writer.drain()
        if pause:
            await asyncio.sleep(pause)
    end = json.dumps({"choices": [], "usage": _USAGE})
    writer.write(f"data: {end}\n\ndata: [DONE]\n\n".encode())
    await writer.drain()


async def _answer(writer: asyncio.StreamWriter, body: bytes, sent: int | None = None) -> None:
    """Writes a whole answer, or only its body up to ``sent``."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    writer.write(body[:sent])
    await writer.drain()


async def main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
