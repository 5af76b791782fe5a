"""Finds the items of one kind in a text: a pattern, and a check of what it matches; pure.

RE2 has no lookaround, so the check also reads the bytes beside a match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from accounts.patterns import Pattern

Span = tuple[int, int]
Check = Callable[[bytes, int, int], Sequence[Span]]

DIGITS: Final = frozenset(b"0123456789")
_LETTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ALPHANUMERIC: Final = DIGITS | _LETTERS
NOTHING: Final[Sequence[Span]] = ()
# A check of these takes less than a millisecond.
_SILENT_MATCHES: Final = 16


class Recogniser(NamedTuple):
    """A pattern, and a check that returns the items in a match of it.

    A pattern with a check matches a whole run, such as all groups of digits in a row: the search
    goes on behind it, so no text is read twice.
    """

    pattern: Pattern
    check: Check | None = None

    def find_spans(self, text: bytes) -> Iterator[Span | None]:
        """Yields the start and end of each item, and ``None`` after some matches without one.

        The ``None`` lets the caller stop a search that takes too long.
        """
        position = checks = 0
        check = self.check
        matches = self.pattern.finditer(text)
        while match := next(matches, None):
            start, end = match.span()
            if start < position:
                # An item has ended in this match, or it is the empty text once more.
                if position >= len(text):
                    return
                matches = self.pattern.finditer(text, position)
                continue
            position = end if end > start else start + 1
            if check is not None:
                for span in check(text, start, end):
                    yield span
                    if span[1] > position:
                        position = span[1]
                checks += 1
                if not checks % _SILENT_MATCHES:
                    yield None
            else:
                yield (start, end) if end > start else None


def is_alphanumeric(text: bytes, at: int) -> bool:
    """Returns whether an ASCII letter or digit stands at a position, inside the text or not."""
    return 0 <= at < len(text) and text[at] in _ALPHANUMERIC


def is_letter(text: bytes, at: int) -> bool:
    return 0 <= at < len(text) and text[at] in _LETTERS


def is_digit(text: bytes, at: int) -> bool:
    return 0 <= at < len(text) and text[at] in DIGITS
