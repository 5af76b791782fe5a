"""Patterns that organizations write for their content filters: RE2 alone, bounded; pure.

RE2 has no backtracking: a search takes time in proportion to the text, whatever the pattern is.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import re2

MAX_PATTERN: Final = 512
MAX_FILTERS: Final = 100
# What a pattern is compiled to, and what a search with it may remember.
_MAX_BYTES: Final = 512 * 1024

Pattern: TypeAlias = Any


class InvalidPattern(ValueError):
    """The text is no pattern that is run here; says why."""


def compiled(text: str) -> Pattern:
    """Returns a pattern to search bytes of UTF-8 with; raises :class:`InvalidPattern`."""
    options = re2.Options()
    options.max_mem = _MAX_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        pattern = re2.compile(text, options)
    except re2.error as exc:
        raise InvalidPattern(_reason(exc)) from None
    except UnicodeEncodeError:
        raise InvalidPattern("Must be Unicode text.") from None
    # It is searched for backwards too, from where a match ends to where it begins.
    if pattern.reverseprogramsize < 0:
        raise InvalidPattern("Must compile to less: repeat less, or smaller classes.")
    if pattern.search(b"") is not None:
        raise InvalidPattern("Must not match the empty text.")
    return pattern


def _reason(exc: re2.error) -> str:
    reason = exc.args[0]
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if "too large" in text:
        return "Must compile to less: repeat less, or smaller classes."
    return f"Must be a pattern in the syntax of RE2: {text}."
