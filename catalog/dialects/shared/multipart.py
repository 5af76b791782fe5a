"""The parts of a ``multipart/form-data`` body, and such a body in pieces (RFC 7578); pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import msgspec

from catalog.dialects.shared.raw import Piece


class Part(msgspec.Struct, frozen=True):
    """One part of a form: a text, or a file, which has a file name.

    ``data`` of a file is a view of the body that it came in, so that it is not copied.
    """

    name: str
    data: Piece
    filename: str | None = None
    content_type: str | None = None

    def __repr__(self) -> str:
        """Names the part without its content, which no traceback shall show."""
        return f"<{len(self.data)} bytes of {self.name}>"


def encode_form(parts: Iterable[Part]) -> tuple[str, list[Piece]]:
    """Returns the content type of a form and the pieces of its body; long data is not copied."""
    boundary = secrets.token_hex(16)
    pieces: list[Piece] = []
    head = bytearray()
    for part in parts:
        head += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{_quote(part.name)}"'.encode()
        )
        if part.filename is not None:
            head += f'; filename="{_quote(part.filename)}"'.encode()
        if part.content_type is not None:
            head += f"\r\nContent-Type: {part.content_type}".encode("ascii")
        head += b"\r\n\r\n"
        if part.filename is None:
            head += part.data
        else:
            pieces += (bytes(head), part.data)
            head.clear()
        head += b"\r\n"
    pieces.append(bytes(head) + f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", pieces


def _quote(name: str) -> str:
    """Escapes a name as browsers do (the WHATWG's multipart/form-data encoding)."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
