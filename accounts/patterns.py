"""The regular expressions of content filters, in RE2 syntax and of limited size; pure.

RE2 does not backtrack: the time of a search is proportional to the text for every pattern.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import re2

MAX_PATTERN: Final = 512
MAX_FILTERS: Final = 100
# A redaction puts the label in the place of each match.
MAX_LABEL: Final = 64
# The limit of a compiled pattern and of the memory of a search.
_MAX_BYTES: Final = 512 * 1024
_MAX_UNION_BYTES: Final = 2 * 1024 * 1024

Pattern: TypeAlias = Any


class InvalidPattern(ValueError):
    """The text is not an accepted pattern; the message says why."""


def compile_pattern(text: str) -> Pattern:
    """Compiles a pattern for UTF-8 bytes; raises :class:`InvalidPattern`."""
    try:
        pattern = re2.compile(text, _options(_MAX_BYTES))
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


def compile_union(patterns: Iterable[Pattern]) -> Pattern | None:
    """Returns a pattern that matches wherever one of these does; ``None`` if there is none.

    One search for it takes about as long as one for a single pattern. There is none when it would
    be too large, and for a pattern that quotes text, because it might quote the next pattern too.
    """
    texts = [pattern.pattern for pattern in patterns]
    if any(r"\Q" in text for text in texts):
        return None
    try:
        return re2.compile("|".join(f"(?:{text})" for text in texts), _options(_MAX_UNION_BYTES))
    except re2.error:
        return None


def _options(max_bytes: int) -> Any:
    options = re2.Options()
    options.max_mem = max_bytes
    options.never_capture = True
    options.log_errors = False
    return options


def _reason(exc: re2.error) -> str:
    reason = exc.args[0]
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if "too large" in text:
        return "Must be simpler: use fewer repetitions or smaller character classes."
    return f"Must be a pattern in the syntax of RE2: {text}."
