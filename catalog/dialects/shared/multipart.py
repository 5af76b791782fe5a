"""The parts of a ``multipart/form-data`` body, and such a body in pieces (RFC 7578); pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from catalog.dialects.shared.raw import Piece

_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class FormPart(msgspec.Struct, frozen=True):
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


class MultipartContent(NamedTuple):
    """The headers and the body of a request; ``rest`` are the pieces after ``body``."""

    headers: Mapping[str, str]
    body: bytes
    rest: Sequence[Piece] = ()


def encode_form(parts: Iterable[FormPart]) -> tuple[str, list[Piece]]:
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


def write_form(fields: Mapping[str, Any], files: Iterable[FormPart]) -> MultipartContent:
    """Returns a form of raw JSON fields and files, as OpenAI's clients write it.

    A list becomes a part for each item; a null is left out.
    """
    parts: list[FormPart] = []
    for name, raw in fields.items():
        raw = bytes(raw)
        if raw[:1] == b"[":
            items = _decode_items(raw)
            parts += (FormPart(f"{name}[]", _write_text(bytes(item))) for item in items)
        elif raw != b"null":
            parts.append(FormPart(name, _write_text(raw)))
    content_type, [body, *rest] = encode_form([*parts, *files])
    return MultipartContent(
        {"Content-Type": content_type, "Accept": "application/json"}, bytes(body), rest
    )


def _write_text(raw: bytes) -> bytes:
    """Returns the text of a JSON string, and the JSON of any other value."""
    return _decode_text(raw).encode() if raw[:1] == b'"' else raw


def _quote(name: str) -> str:
    """Escapes a name as browsers do (the WHATWG's multipart/form-data encoding)."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
