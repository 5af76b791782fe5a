"""The content filters of guardrails: their patterns and their actions; pure.

Every filter reads the request as the caller sent it. A text that one filter replaces is not hidden
from the next, so adding a guardrail never loosens another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from accounts.patterns import InvalidPattern, Pattern, compile_pattern, compile_union, compiled
from inference.filters.pii_patterns import recognisers_of
from inference.filters.recogniser import Recogniser

_CUSTOM: Final = "custom"


@dataclass(frozen=True, slots=True)
class Finding:
    """The match of one filter: ``count`` texts of the request, and the filter's action."""

    guardrail_id: UUID
    action: str
    label: str
    kind: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a guardrail; ``kind`` is the slug of a builtin filter, or ``custom``.

    ``blocks_unreadable`` makes a blocking filter refuse media, signatures and encrypted content,
    which nobody can read. A filter without recognisers blocks every request: this release cannot
    compile its pattern.
    """

    guardrail_id: UUID
    action: str
    label: str
    kind: str
    pattern: str | None = None
    is_of_users_only: bool = False
    blocks_unreadable: bool = False
    regions: tuple[str, ...] | None = None

    @property
    def is_own(self) -> bool:
        """Returns whether somebody wrote its pattern, whose searches may be slow."""
        return self.pattern is not None

    @property
    def recognisers(self) -> tuple[Recogniser, ...]:
        """The patterns of the filter; its own one is compiled when it is first used."""
        if self.pattern is None:
            return recognisers_of(self.kind, self.regions)
        return _compile_recognisers(self.pattern)

    def find_spans(self, text: bytes) -> Iterator[tuple[int, int] | None]:
        """Yields the matches of every recogniser, as :meth:`Recogniser.find_spans` does."""
        for recogniser in self.recognisers:
            yield from recogniser.find_spans(text)

    def report(self, count: int = 1) -> Finding:
        return Finding(self.guardrail_id, self.action, self.label, self.kind, count)


Filters = tuple[Filter, ...]


def union_of(filters: Filters) -> Pattern | None:
    """Returns a pattern without whose match no filter matches; ``None`` if there is none."""
    return compile_union(
        [recogniser.pattern for each in filters for recogniser in each.recognisers]
    )


def are_compiled(filters: Filters) -> bool:
    """Returns whether the filters can read a text at once, without compiling a pattern."""
    own = [each.pattern for each in filters if each.is_own]
    if not all(map(compiled.find, own)):
        return False
    if not own or len(filters) == 1:
        return True
    texts = tuple(each.pattern.pattern for one in filters for each in one.recognisers)
    return any(r"\Q" in text for text in texts) or compiled.find(texts) is not None


@lru_cache(maxsize=256)
def work_of(filters: Filters) -> int:
    """Returns the instructions of all custom patterns, each of which may run for every byte.

    The builtin patterns are known to need few of theirs.
    """
    return sum(
        recogniser.pattern.programsize
        for each in filters
        if each.is_own
        for recogniser in each.recognisers
    )


def build_filters(
    guardrail_id: UUID,
    builtins: Iterable[Mapping[str, Any]] | None,
    custom: Iterable[Mapping[str, Any]] | None,
) -> Filters:
    """Returns the filters of a guardrail from its row, the builtin filters first."""
    return (
        *(
            Filter(
                guardrail_id,
                entry["action"],
                entry["label"],
                entry["slug"],
                is_of_users_only=entry.get("scan_scope") == "user_only",
                blocks_unreadable=entry.get("block_unreadable") is True,
                regions=None if (given := entry.get("regions")) is None else tuple(given),
            )
            for entry in builtins or ()
        ),
        *(
            Filter(
                guardrail_id,
                entry["action"],
                entry["label"] or "REDACTED",
                _CUSTOM,
                entry["pattern"],
                blocks_unreadable=entry.get("block_unreadable") is True,
            )
            for entry in custom or ()
        ),
    )


def _compile_recognisers(pattern: str) -> tuple[Recogniser, ...]:
    # The pattern compiled when it was stored, but another release of RE2 may refuse it.
    try:
        return (Recogniser(compile_pattern(pattern)),)
    except InvalidPattern:
        return ()
