"""The regular expressions of filters, in RE2 syntax and of limited size; pure.

RE2 does not backtrack: the time of a search is proportional to the text for every pattern, and to
the size of the pattern at worst. A process keeps what it has compiled, up to a number of bytes, and
texts that are equal share it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypeAlias

import re2

from config.api.errors import TooManyRequests

MAX_PATTERN: Final = 512
MAX_FILTERS: Final = 100
# A redaction puts the label in the place of each match.
MAX_LABEL: Final = 64
# The limit of a compiled pattern and of the memory of a search.
_MAX_BYTES: Final = 512 * 1024
_MAX_UNION_BYTES: Final = 2 * 1024 * 1024
# What an instruction takes in memory, with its part of the states of a search.
_INSTRUCTION_BYTES: Final = 16
# All patterns of one request or destination together. Their compilation takes 0.2 s.
MOST_BYTES: Final = 4 * 1024 * 1024
_KEPT_BYTES: Final = 64 * 1024 * 1024
_LEAST_BYTES: Final = 1024
# The seconds of each minute that a process spends on compiling the patterns of an organization.
_SECONDS: Final = 3.0
_WINDOW: Final = 60.0

Pattern: TypeAlias = Any


class InvalidPattern(ValueError):
    """The text is not an accepted pattern; the message says why."""


class Compiled:
    """Keeps compiled patterns up to a number of bytes, and drops the least recently used first."""

    def __init__(self, most: int = _KEPT_BYTES) -> None:
        self._most = most
        self._lock = Lock()
        self._found: OrderedDict[Hashable, tuple[Pattern | InvalidPattern, int]] = OrderedDict()
        self.size = 0

    def find(self, text: Hashable) -> Pattern | InvalidPattern | None:
        """Returns what a text was compiled to, or why it was refused; ``None`` if it was not."""
        with self._lock:
            if (found := self._found.get(text)) is None:
                return None
            self._found.move_to_end(text)
            return found[0]

    def keep(self, text: Hashable, pattern: Pattern | InvalidPattern) -> None:
        size = _LEAST_BYTES
        if not isinstance(pattern, InvalidPattern):
            size += measure(pattern)
        with self._lock:
            if text not in self._found:
                self._found[text] = pattern, size
                self.size += size
            while self.size > self._most and len(self._found) > 1:
                self.size -= self._found.popitem(last=False)[1][1]


compiled: Final = Compiled()


def measure(pattern: Pattern) -> int:
    """Returns the bytes that a compiled pattern takes."""
    size: int = pattern.programsize + pattern.reverseprogramsize
    return _INSTRUCTION_BYTES * size


def compile_pattern(text: str) -> Pattern:
    """Compiles a pattern for UTF-8 bytes; raises :class:`InvalidPattern`."""
    found = compiled.find(text)
    if found is None:
        try:
            found = _compile(text)
        except InvalidPattern as exc:
            found = exc
        compiled.keep(text, found)
    if isinstance(found, InvalidPattern):
        raise InvalidPattern(str(found))
    return found


def _compile(text: str) -> Pattern:
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


def compile_union(patterns: Sequence[Pattern]) -> Pattern | None:
    """Returns a pattern that matches wherever one of these does; ``None`` if there is none.

    One search for it takes about as long as one for a single pattern. There is none when it would
    be too large, and for a pattern that quotes text, because it might quote the next pattern too.
    """
    texts = tuple(pattern.pattern for pattern in patterns)
    if any(r"\Q" in text for text in texts):
        return None
    found = compiled.find(texts)
    if found is None:
        try:
            text = "|".join(f"(?:{text})" for text in texts)
            found = re2.compile(text, _options(_MAX_UNION_BYTES))
        except re2.error as exc:
            found = InvalidPattern(_reason(exc))
        compiled.keep(texts, found)
    return None if isinstance(found, InvalidPattern) else found


class CompileBudgets:
    """The seconds that each organization has compiled patterns for in its present minute."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._spent: dict[Hashable, tuple[float, float]] = {}

    def compile(self, owner: Hashable, texts: Iterable[str]) -> list[Pattern]:
        """Compiles patterns in turn until they are too many bytes together.

        Raises :class:`InvalidPattern` with the index of the pattern as its second argument, and
        :class:`TooManyRequests` if the owner has used up its time. ``None`` owns no budget.
        """
        found: list[Pattern] = []
        size = 0
        with self._charge(owner):
            for index, text in enumerate(texts):
                try:
                    found.append(compile_pattern(text))
                except InvalidPattern as exc:
                    raise InvalidPattern(str(exc), index) from None
                size += measure(found[-1])
                if size > MOST_BYTES:
                    raise InvalidPattern(
                        f"The patterns must take {MOST_BYTES:,} bytes together, when they are "
                        "compiled: use fewer repetitions or smaller character classes.",
                        index,
                    )
        return found

    def measure(self, owner: Hashable, texts: Iterable[str], most: int) -> int:
        """Returns the bytes of compiled patterns; stops once they are more than ``most``.

        A pattern that this release of RE2 refuses takes none. Raises :class:`TooManyRequests` as
        :meth:`compile` does.
        """
        size = 0
        with self._charge(owner):
            for text in texts:
                try:
                    size += measure(compile_pattern(text))
                except InvalidPattern:
                    continue
                if size > most:
                    break
        return size

    @contextmanager
    def _charge(self, owner: Hashable) -> Iterator[None]:
        """Adds the time of a block to what the owner has used up; refuses it if that is all."""
        until, spent = self._spent.get(owner, (0.0, 0.0))
        if until <= time.monotonic():
            until, spent = time.monotonic() + _WINDOW, 0.0
        elif spent > self._seconds and owner is not None:
            raise TooManyRequests(
                f"In a minute, {self._seconds:g} seconds compile the patterns of an organization. "
                "Send fewer or simpler patterns.",
                headers={"Retry-After": str(max(int(until - time.monotonic()), 1))},
            )
        began = time.thread_time()
        try:
            yield
        finally:
            self._spent = {
                each: window for each, window in self._spent.items() if window[0] > until - _WINDOW
            }
            self._spent[owner] = until, spent + time.thread_time() - began


compile_budgets: Final = CompileBudgets()


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
