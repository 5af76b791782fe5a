"""Finds the JSON in a text: all of it, in a fence, behind a word, or on each of its lines; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# Sources are full of brackets: most of them show in the next character that they begin no JSON.
_BEGIN: Final = re.compile(
    r'\{[ \t\r\n]*+["}]|\[[ \t\r\n]*+(?:["\[\]{0-9-]|true|false|null|NaN|Infinity)'
)
# Tried first, because an error counts the lines of all that is given; and where an error may come
# from the end of what was tried.
_WINDOWS: Final = (1 << 10, 1 << 14, 1 << 18)
_END: Final = 16
# A text with more broken values is no message with JSON in it.
_MAX_BROKEN: Final = 50_000
_TOKEN: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"(?P<colon>[ \t\r\n]*+:)?|(?P<number>-?[0-9][0-9.eE+-]*+)'
)
_NAME_OR_MARK: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"(?P<colon>[ \t\r\n]*+:)?|[{}\[\]]')
# Numbers stay texts, because their values are not needed and the longest are costly to convert.
_decode = json.JSONDecoder(parse_float=str, parse_int=str).raw_decode


class JsonToken(NamedTuple):
    """A string with its quotation marks, or a number."""

    start: int
    end: int
    is_name: bool
    is_number: bool


def find_json(text: str, require_time: Callable[[], None]) -> list[tuple[int, int]]:
    """Returns where objects and lists stand in a text, in bytes; asks for time at each of them.

    The text goes on behind the place where one is broken, so what is whole inside of a broken one
    and before that place does not count. Nor does what nests as deep as only an attack does.
    """
    spans = []
    position = at = offset = broken = 0
    if text.lstrip()[:1] == '"' and _is_string(text.strip()):
        # JSON that is encoded once more, as the arguments of some clients are.
        return [(0, len(text.encode()))]
    while broken < _MAX_BROKEN and (begin := _BEGIN.search(text, position)):
        start = begin.start()
        require_time()
        try:
            position = _find_end(text, start)
        except json.JSONDecodeError as exc:
            position = start + max(exc.pos, 1)
            broken += 1
            continue
        except RecursionError:
            break
        offset += len(text[at:start].encode())
        at = position
        spans.append((offset, offset + len(text[start:position].encode())))
        offset = spans[-1][1]
    return spans


def _find_end(text: str, start: int) -> int:
    """Returns where JSON ends; raises ``JSONDecodeError`` with the place after its start."""
    for size in _WINDOWS:
        try:
            return start + _decode(text[start : start + size])[1]
        except json.JSONDecodeError as exc:
            is_whole = start + size >= len(text)
            is_cut = exc.pos >= size - _END or exc.msg.startswith("Unterminated")
            if is_whole or not is_cut:
                raise
    return start + _decode(text[start:])[1]


def _is_string(text: str) -> bool:
    try:
        return _decode(text)[1] == len(text)
    except json.JSONDecodeError:
        return False


def find_tokens(text: bytes, span: tuple[int, int]) -> Iterator[JsonToken]:
    """Yields the strings and numbers of JSON at a place that :func:`find_json` returned."""
    for match in _TOKEN.finditer(text, *span):
        is_number = match["number"] is not None
        colon = match.start("colon")
        yield JsonToken(match.start(), match.end() if colon < 0 else colon, colon >= 0, is_number)


def group_names(text: bytes, span: tuple[int, int]) -> list[list[tuple[int, int]]]:
    """Returns where the names of each object stand."""
    objects: list[list[tuple[int, int]]] = []
    stack: list[list[tuple[int, int]]] = []
    for match in _NAME_OR_MARK.finditer(text, *span):
        mark = match[0][:1]
        if mark in (b"{", b"["):
            objects.append([])
            stack.append(objects[-1])
        elif mark in (b"}", b"]"):
            stack.pop()
        elif match["colon"] is not None:
            stack[-1].append((match.start(), match.start("colon")))
    return objects
