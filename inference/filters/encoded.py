"""Recognises Base64 that nobody can read as text: media, signatures and encrypted content; pure."""

from __future__ import annotations

import binascii
import re
from typing import Final

from accounts.patterns import compile_pattern

# Shorter Base64 is read as text too, because names and numbers look like it.
_MIN_LENGTH: Final = 64
# The patterns are RE2's, because it releases the interpreter while it searches a long text.
_ALPHABET: Final = compile_pattern(r"\A[A-Za-z0-9+/_-]+=*\z")
# Thirteen digits in a row occur in one of 3,000 files of 10 MB.
_NUMBER: Final = compile_pattern(r"[0-9]{13}")
_UPPER: Final = compile_pattern(r"[A-Z]")
_LOWER: Final = compile_pattern(r"[a-z]")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
# Decoded at a time: a multiple of four characters, which take less than a millisecond.
_STEP: Final = 256 * 1024


class Unreadable(Exception):
    """The text is Base64 of something that is not text."""


def decode_readable(text: str, *, is_declared_text: bool = False) -> str | None:
    """Returns the text of which another text is the Base64; ``None`` if it is not Base64.

    ``is_declared_text`` is true when the sender says that it is text, in whatever encoding. Raises
    :class:`Unreadable` for the Base64 of anything else.
    """
    raw = text.encode()
    if not _ALPHABET.search(raw):
        return None
    body = raw.rstrip(b"=").translate(_URL_SAFE)
    if len(body) % 4 == 1:
        return None
    body += b"=" * (-len(body) % 4)
    pieces = []
    for start in range(0, len(body), _STEP):
        try:
            pieces.append(binascii.a2b_base64(body[start : start + _STEP]))
        except binascii.Error:
            return None
        if not start and not is_declared_text and _decode_text(pieces[0], is_whole=False) is None:
            # Media show in their first bytes that they are not text.
            break
    decoded = b"".join(pieces)
    if is_declared_text:
        return decoded.decode("utf-8", "replace")
    content = _decode_text(decoded, is_whole=True)
    if content is not None:
        return content
    is_encoding = (
        len(raw) >= _MIN_LENGTH
        and _UPPER.search(raw)
        and _LOWER.search(raw)
        and not _NUMBER.search(raw)
    )
    if is_encoding:
        raise Unreadable
    return None


def is_long(text: str) -> bool:
    """Returns whether Base64 is too long to be a name or a number."""
    return len(text) >= _MIN_LENGTH


def _decode_text(raw: bytes, *, is_whole: bool) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError as exc:
        # The first piece may end inside a character.
        if is_whole or exc.start < len(raw) - 3:
            return None
        text = raw[: exc.start].decode()
    return None if _CONTROLS.search(text) else text
