"""Files that the console streams; each chunk is produced off the event loop."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Generator, Iterable
from typing import Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

_CHUNK: Final = 500


def stream_file(
    request: HttpRequest,
    name: str,
    parts: Iterable[bytes],
    *,
    content_type: str = "application/octet-stream",
) -> StreamingHttpResponse:
    """Streams a file; under ASGI the parts are produced in a thread, off the event loop."""
    chunks = _join_parts(parts)
    return StreamingHttpResponse(
        _iterate_async(chunks) if isinstance(request, ASGIRequest) else chunks,
        content_type=content_type,
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        },
    )


def _join_parts(parts: Iterable[bytes]) -> Generator[bytes]:
    """Joins 500 parts at a time, because each chunk costs a thread hop."""
    rest = iter(parts)
    while chunk := b"".join(itertools.islice(rest, _CHUNK)):
        yield chunk


async def _iterate_async(chunks: Generator[bytes]) -> AsyncIterator[bytes]:
    """Yields the chunks, each produced in a thread."""

    def step() -> bytes | None:
        return next(chunks, None)

    try:
        while (chunk := await sync_to_async(step)()) is not None:
            yield chunk
    finally:
        # Closes the generator in the thread in which its transaction began.
        await sync_to_async(chunks.close)()
