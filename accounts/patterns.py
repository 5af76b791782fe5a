"""The regular expressions of content filters, in RE2 syntax and of limited size; pure.

RE2 does not backtrack: the time of a search is proportional to the text for every pattern.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import re2

MAX_PATTERN: Final = 512
MAX_FILTERS: Final = 100
# The limit of a compiled pattern and of the memory of a search.
_MAX_BYTES: Final = 512 * 1024

Pattern: TypeAlias = Any


class InvalidPattern(ValueError):
    """The text is not an accepted pattern; the message says why."""


def compile_pattern(text: str) -> Pattern:
    """Compiles a pattern for UTF-8 bytes; raises :class:`InvalidPattern`."""
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
    # RE2 also searches backwards, to find the start of a match.
    if pattern.reverseprogramsize < 0:
        raise InvalidPattern("Must be simpler: use fewer repetitions or smaller character classes.")
    if pattern.search(b"") is not None:
        raise InvalidPattern("Must not match the empty text.")
    return pattern


def _reason(exc: re2.error) -> str:
    reason = exc.args[0]
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if "too large" in text:
        return "Must be simpler: use fewer repetitions or smaller character classes."
    return f"Must be a pattern in the syntax of RE2: {text}."
