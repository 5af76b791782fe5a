"""Cuts JSON that is too long to be stored whole, and makes it valid again; pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

# A string, perhaps without its end; a bracket, a comma or a colon; a number or a word.
_TOKEN: Final = re.compile(
    rb'"(?:[^"\\]|\\.)*+(?P<end>")?+|(?P<mark>[\[\]{},:])|[^\s"\[\]{},:]+', re.DOTALL
)
# What a cut may leave of an escape at the end of a string: ``\``, ``\u12``, the first of a pair.
_HALF_ESCAPE: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HALF_PAIR: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_CLOSING: Final = {b"[": b"]", b"{": b"}"}


def close_json(cut: bytes) -> bytes:
    """Returns valid JSON for the beginning of a JSON value.

    Keeps every value that is whole, and the beginning of a text that is not.
    """
    open_brackets: list[bytes] = []
    # Up to here, closing the brackets that were open makes valid JSON.
    safe, safe_brackets = 0, ()  # type: int, tuple[bytes, ...]
    is_name = False
    for found in _TOKEN.finditer(cut):
        mark, is_last = found["mark"], found.end() == len(cut)
        if mark is None:
            if is_name:
                continue
            if found[0][:1] == b'"' and found["end"] is None:
                text = _close_text(found[0])
                return cut[: found.start()] + text + _close(open_brackets)
            # A number or a word at the very end may go on behind the cut.
            if not is_last or found["end"] is not None:
                safe, safe_brackets = found.end(), tuple(open_brackets)
        elif mark in _CLOSING:
            open_brackets.append(mark)
            is_name = mark == b"{"
            safe, safe_brackets = found.end(), tuple(open_brackets)
        elif mark == b":":
            is_name = False
        elif mark == b",":
            is_name = open_brackets[-1:] == [b"{"]
        elif open_brackets:
            open_brackets.pop()
            is_name = False
            safe, safe_brackets = found.end(), tuple(open_brackets)
    return cut[:safe] + _close(safe_brackets) if safe else b"null"


def _close(brackets: tuple[bytes, ...] | list[bytes]) -> bytes:
    return b"".join(_CLOSING[each] for each in reversed(brackets))


def _close_text(text: bytes) -> bytes:
    """Ends a string that was cut, without a part of an escape or of a character."""
    text = _HALF_ESCAPE.sub(rb"\1", text)
    text = _HALF_PAIR.sub(rb"\1", text)
    return text.decode("utf-8", "ignore").encode() + b'"'


def decode_cut(data: bytes, *, is_cut: bool) -> object:
    """Decodes a JSON value, or what is left of one; ``None`` if nothing can be read of it."""
    try:
        return msgspec.json.decode(close_json(data) if is_cut else data)
    except (msgspec.DecodeError, RecursionError):
        return None


def cut_text(text: str, most: int) -> str:
    """Returns the beginning of a text that takes at most this number of bytes."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return text
    return data[:most].decode("utf-8", "ignore")
