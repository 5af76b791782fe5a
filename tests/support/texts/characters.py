"""Writes tables of characters as the families of tokenizers in ``catalog.tokens`` have them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Container, Mapping
from zlib import compress

from catalog.tokens import _BEYOND_PAGES, _JOINS


def write_characters(tokens: Mapping[str, int], joined: Container[str]) -> str:
    """Returns the table of the tokens of each character, and of those that join others."""
    data = bytearray(_BEYOND_PAGES)
    for char, count in tokens.items():
        data[ord(char)] = count | (_JOINS if char in joined else 0)
    return b64encode(compress(bytes(data), 9)).decode()
