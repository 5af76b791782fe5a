"""Server-sent events as they leave the service."""

from __future__ import annotations

from typing import Any, Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
KEEPALIVE: Final = b": CAUSEWAY PROCESSING\n\n"

_encode = msgspec.json.Encoder().encode


def event(fields: dict[str, Any]) -> bytes:
    """Encodes one JSON object as one event.

    Raw members may have line ends between their parts, as JSON allows: one would end the event.
    """
    return b"data: " + _encode(fields).replace(b"\n", b" ") + b"\n\n"
