"""Decodes the bodies of requests that their clients have compressed (RFC 9110, section 8.4)."""

from __future__ import annotations

import asyncio
import gzip
import io
import sys
import zlib
from importlib import import_module
from typing import Any, Final

from config.api.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from config.server.bulkheads import Occupancy

_KNOWN: Final = "gzip, zstd"
# A part takes a thread less than a millisecond.
_PART_BYTES: Final = 262_144
# The largest window of the content coding (RFC 9659), as a power of two. Others take up to 2 GiB.
_WINDOW: Final = 23
_ZSTD: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


async def decode_body(encoding: bytes, body: bytes, occupancy: Occupancy, limit: int) -> bytes:
    """Returns a body without its encodings, whose bytes are counted as they come.

    ``encoding`` is the value of ``Content-Encoding``. Raises :class:`UnsupportedMediaType`,
    :class:`InvalidRequest` for bytes that are not of this encoding, :class:`PayloadTooLarge` above
    ``limit``, and the refusals of :meth:`Occupancy.reserve`.
    """
    names = [name.strip() for name in encoding.decode("latin-1").lower().split(",")]
    match [name for name in names if name not in ("", "identity")]:
        case []:
            return body
        case [name]:
            pass
        case _:
            name = ""
    if not body:
        return body
    file, problems = _open(name, body)
    parts: list[bytes] = []
    size = 0
    try:
        while part := await asyncio.to_thread(file.read, _PART_BYTES):
            size += len(part)
            if size > limit:
                raise PayloadTooLarge
            occupancy.reserve(len(part))
            parts.append(part)
    except problems:
        raise InvalidRequest(f"Content-Encoding: the body is not whole, or no {name}.") from None
    return b"".join(parts)


def _open(name: str, body: bytes) -> tuple[Any, tuple[type[Exception], ...]]:
    """Returns a file of the decoded bytes, and the errors of one that is broken."""
    if name in ("gzip", "x-gzip"):
        return gzip.GzipFile(fileobj=io.BytesIO(body)), (EOFError, OSError, zlib.error)
    if name == "zstd":
        # Its import takes 2 MB of memory, and few clients send it.
        zstd: Any = import_module(_ZSTD)
        options = {zstd.DecompressionParameter.window_log_max: _WINDOW}
        return zstd.ZstdFile(io.BytesIO(body), options=options), (EOFError, zstd.ZstdError)
    raise UnsupportedMediaType(
        f"Content-Encoding: send the body without it, or with one of: {_KNOWN}.",
        headers={"Accept-Encoding": _KNOWN},
    )
