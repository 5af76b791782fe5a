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


class Recogniser(NamedTuple):
    """A pattern, and a check that returns the items in a match of it.

    A pattern with a check matches a whole run, such as all groups of digits in a row: the search
    goes on behind it, so no text is read twice.
    """

    pattern: Pattern
    check: Check | None = None

    def find_spans(self, text: bytes) -> Iterator[Span | None]:
        """Yields the start and end of each item, and ``None`` for each match without one.

        The ``None`` lets the caller stop a search that takes too long.
        """
        position = 0
        # At the end of the text a search would match the empty text forever.
        while position < len(text) and (match := self.pattern.search(text, position)):
            start, end = match.span()
            position = max(end, start + 1)
            if self.check is not None:
                spans = self.check(text, start, end)
                yield from spans or (None,)
                position = max(position, *(stop for _, stop in spans)) if spans else position
            else:
                yield (start, end) if end > start else None


def is_alphanumeric(text: bytes, at: int) -> bool:
    """Returns whether an ASCII letter or digit stands at a position, inside the text or not."""
    return 0 <= at < len(text) and text[at] in _ALPHANUMERIC


def is_letter(text: bytes, at: int) -> bool:
    return 0 <= at < len(text) and text[at] in _LETTERS


def is_digit(text: bytes, at: int) -> bool:
    return 0 <= at < len(text) and text[at] in DIGITS
