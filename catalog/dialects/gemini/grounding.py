"""Reads the sources of Gemini's answers.

https://ai.google.dev/gemini-api/docs/google-search describes them: ``groundingChunks`` are pages,
and ``groundingSupports`` say which part of the text which pages support. ``webSearchQueries`` are
the searches by which Google bills. What a model recites has its sources in ``citationMetadata``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from catalog.dialects.shared.replies import build_citation

# Answers have few sources; more would cost the event loop too much.
_MOST_SUPPORTS: Final = 1_000
_MOST_BYTES: Final = 2**31
_CONTINUED: Final = bytes(range(0x80, 0xC0))


def read_grounding(metadata: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the sources of a text, whose pieces are ``texts``; wrong members are left out.

    Gemini counts places in bytes of UTF-8, and chat in characters. A page without a place supports
    the whole text.
    """
    pages = [_read_page(chunk) for chunk in _list(metadata, "groundingChunks")[:_MOST_SUPPORTS]]
    encoded = "".join(texts).encode()
    places: list[tuple[int, int, int]] = []
    for support in _list(metadata, "groundingSupports")[:_MOST_SUPPORTS]:
        segment = support.get("segment") if isinstance(support, dict) else None
        if not isinstance(segment, dict):
            continue
        start = _read_size(segment.get("startIndex", 0), len(encoded))
        end = _read_size(segment.get("endIndex"), len(encoded))
        places += [
            (start, max(start, end), number)
            for number in _list(support, "groundingChunkIndices")[:_MOST_SUPPORTS]
            if isinstance(number, int) and 0 <= number < len(pages)
        ]
    cited = {number for _, _, number in places}
    places += [(0, len(encoded), number) for number in range(len(pages)) if number not in cited]
    counts = _count_characters(encoded, {size for place in places for size in place[:2]})
    return [
        build_citation(*page, counts[start], counts[end], None)
        for start, end, number in places[:_MOST_SUPPORTS]
        if (page := pages[number]) is not None
    ]


class Recitations:
    """The sources of what a model recites; the events of a stream may repeat and extend them."""

    __slots__ = ("_sources", "_told")

    def __init__(self) -> None:
        # By their address and the start of their place.
        self._sources: dict[tuple[str, int], dict[str, Any]] = {}
        self._told: set[tuple[str, int]] = set()

    def add(self, metadata: Any) -> None:
        """Adds the sources of an event; one without an address is left out."""
        named = _list(metadata, "citationSources") or _list(metadata, "citations")
        for source in named[:_MOST_SUPPORTS]:
            url = source.get("uri") if isinstance(source, dict) else None
            if not isinstance(url, str) or not url:
                continue
            place = url, _read_size(source.get("startIndex") or 0, _MOST_BYTES)
            if place in self._sources or len(self._sources) < _MOST_SUPPORTS:
                self._sources[place] = source

    def read(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the sources of a text that were not read before, counted as grounding is."""
        new = {place: each for place, each in self._sources.items() if place not in self._told}
        if not new:
            return []
        self._told |= new.keys()
        encoded = "".join(texts).encode()
        most = len(encoded)
        ends = {place: _read_size(each.get("endIndex"), most) for place, each in new.items()}
        counts = _count_characters(encoded, {*ends.values(), *(min(at, most) for _, at in new)})
        found = []
        for (url, at), source in new.items():
            start, end = min(at, most), ends[url, at]
            title, terms = source.get("title"), source.get("license")
            made = build_citation(url, title, counts[start], counts[max(start, end)], None)
            if isinstance(terms, str) and terms:
                made["url_citation"]["license"] = terms
            found.append(made)
        return found


def find_queries(metadata: Any) -> frozenset[str]:
    """Returns the different searches that Google counts for an answer; empty ones are free.

    Pages without the query that found them stand for one search.
    """
    named = _list(metadata, "webSearchQueries")
    queries = frozenset(query for query in named if isinstance(query, str) and query)
    has_page = any(
        isinstance(chunk, dict) and isinstance(chunk.get("web"), dict)
        for chunk in _list(metadata, "groundingChunks")
    )
    return queries or frozenset(("",) if has_page else ())


def _list(owner: Any, name: str) -> list[Any]:
    value = owner.get(name) if isinstance(owner, dict) else None
    return value if isinstance(value, list) else []


def _read_page(chunk: Any) -> tuple[str, Any] | None:
    """Returns the address and title of a page of the web or of documents."""
    for kind in ("web", "retrievedContext", "maps"):
        page = chunk.get(kind) if isinstance(chunk, dict) else None
        if isinstance(page, dict) and isinstance(url := page.get("uri"), str) and url:
            return url, page.get("title")
    return None


def _read_size(size: Any, most: int) -> int:
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    return min(size, most) if is_size else most


def _count_characters(encoded: bytes, sizes: set[int]) -> dict[int, int]:
    """Returns the characters in the first bytes of a text, for each of these sizes, in one pass."""
    counts: dict[int, int] = {}
    position = count = 0
    for size in sorted(sizes):
        # Every byte begins a character but those that continue one.
        piece = encoded[position:size]
        count += len(piece.translate(None, _CONTINUED))
        counts[size], position = count, size
    return counts
