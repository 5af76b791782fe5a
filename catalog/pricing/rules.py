"""The rules of a price: what is billed, in which unit, at which price, under which conditions.

A *kind* is a billable and its variant: one rate applies to it. ``KINDS`` lists all kinds except the
sizes and qualities of images, for which each provider has its own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_MINUTES: Final = 24 * 60
_ALL_MINUTES: Final = (1 << _DAY_MINUTES) - 1
# The first of January 1970 was a Thursday.
_EPOCH_DAY: Final = 3


class Billable(StrEnum):
    """A thing that a provider bills; a rate has one of them."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    REASONING = "reasoning"
    CACHED = "cached"
    IMAGE = "image"
    SEARCH = "search"
    SECOND = "second"
    CHARACTER = "character"
    REQUEST = "request"


class RateKind(NamedTuple):
    """A billable and its variant, to which one rate applies.

    ``unit`` is the unit of the rate. ``key`` is its name in the contract's pricing object, and
    ``column`` that of its column; both are empty where there is none. ``otherwise`` names the kinds
    whose rate applies where this one has none, in order. ``is_overridable`` says that the
    contract's overrides may change it.
    """

    billable: Billable
    variant: str
    unit: str
    key: str = ""
    column: str = ""
    otherwise: tuple[tuple[Billable, str], ...] = ()
    is_overridable: bool = False

    @property
    def name(self) -> tuple[Billable, str]:
        return self.billable, self.variant


_PROMPT: Final = (Billable.PROMPT, "")
_COMPLETION: Final = (Billable.COMPLETION, "")
_READ: Final = (Billable.CACHED, "")
_WRITE: Final = (Billable.CACHED, "write")
_AUDIO: Final = (Billable.PROMPT, "audio")
_AUDIO_READ: Final = (Billable.CACHED, "audio")
# What a model does by itself, whatever it is asked: searches, reading, and reasoning about pages.
# No request bounds it, so that a rule for it does.
UNASKED: Final = (Billable.SEARCH, "unasked")
CITATION: Final = (Billable.PROMPT, "citation")
RESEARCH: Final = (Billable.REASONING, "research")
BOUNDED: Final = frozenset((UNASKED, CITATION, RESEARCH))
_MOST: Final = 10**9
# A request in which the provider searched, however often.
SEARCHED: Final = (Billable.SEARCH, "request")

KINDS: Final[tuple[RateKind, ...]] = (
    RateKind(*_PROMPT, "token", "prompt", "prompt", (), True),
    RateKind(*_COMPLETION, "token", "completion", "completion", (), True),
    RateKind(*_READ, "token", "input_cache_read", "cache_read", (_PROMPT,), True),
    RateKind(*_WRITE, "token", "input_cache_write", "cache_write", (_PROMPT,), True),
    RateKind(
        Billable.CACHED, "write_1h", "token", "input_cache_write_1h", "", (_WRITE, _PROMPT), True
    ),
    RateKind(*_AUDIO, "token", "audio", "", (_PROMPT,), True),
    RateKind(*_AUDIO_READ, "token", "input_audio_cache", "", (_AUDIO, _READ, _PROMPT), True),
    RateKind(Billable.PROMPT, "image", "token", "", "", (_PROMPT,)),
    RateKind(*CITATION, "token"),
    RateKind(Billable.REASONING, "", "token", "internal_reasoning", "", (_COMPLETION,)),
    RateKind(*RESEARCH, "token"),
    RateKind(Billable.COMPLETION, "audio", "token", "audio_output", "", (_COMPLETION,)),
    RateKind(Billable.COMPLETION, "image", "token", "image_token", "image_output", (_COMPLETION,)),
    RateKind(Billable.IMAGE, "input", "image", "image", "image"),
    RateKind(Billable.IMAGE, "", "image", "image_output"),
    RateKind(Billable.SEARCH, "", "search", "web_search"),
    RateKind(*SEARCHED, "request"),
    RateKind(*UNASKED, "search"),
    RateKind(Billable.SECOND, "", "second"),
    RateKind(Billable.CHARACTER, "", "character"),
    RateKind(Billable.REQUEST, "", "request", "request", "request"),
)
KIND_OF: Final[Mapping[tuple[Billable, str], RateKind]] = {kind.name: kind for kind in KINDS}
KIND_OF_KEY: Final[Mapping[str, RateKind]] = {kind.key: kind for kind in KINDS if kind.key}
COLUMNS: Final[Mapping[str, RateKind]] = {kind.column: kind for kind in KINDS if kind.column}


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The conditions of a rule; all of them must hold.

    ``min_prompt_tokens`` must be exceeded. The window from ``utc_start`` to ``utc_end`` is given as
    hours and minutes, 400 for 04:00; it excludes its end and may include midnight. ``utc_days`` are
    the days in UTC of the request's instant; ``None`` means every day.
    """

    min_prompt_tokens: int | None = None
    utc_start: int | None = None
    utc_end: int | None = None
    utc_days: tuple[str, ...] | None = None

    @property
    def has_time(self) -> bool:
        """Returns whether the conditions depend on the time of the request."""
        return self.utc_start is not None or self.utc_days is not None

    def hold(self, prompt_tokens: int, at: int) -> bool:
        """Returns whether the conditions hold for a prompt at an instant, in Unix seconds."""
        if self.min_prompt_tokens is not None and prompt_tokens <= self.min_prompt_tokens:
            return False
        days, seconds = divmod(at, 86_400)
        if self.utc_days is not None and DAYS[(days + _EPOCH_DAY) % 7] not in self.utc_days:
            return False
        if self.utc_start is None or self.utc_end is None:
            return True
        start, end, now = _minutes(self.utc_start), _minutes(self.utc_end), seconds // 60
        return start <= now < end if start < end else now >= start or now < end

    @property
    def _window(self) -> int:
        """The minutes of a day in which the conditions may hold, as bits."""
        if self.utc_start is None or self.utc_end is None:
            return _ALL_MINUTES
        start, end = _minutes(self.utc_start), _minutes(self.utc_end)
        before = (1 << end) - 1
        after = _ALL_MINUTES & ~((1 << start) - 1)
        return before & after if start < end else before | after

    def includes(self, other: Conditions) -> bool:
        """Returns whether these conditions hold whenever ``other`` do."""
        if self.min_prompt_tokens is not None and (
            other.min_prompt_tokens is None or other.min_prompt_tokens < self.min_prompt_tokens
        ):
            return False
        return set(self.utc_days or DAYS) >= set(other.utc_days or DAYS) and not (
            other._window & ~self._window
        )


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The price of one unit of a billable, in USD, perhaps under conditions.

    ``most`` bounds the units of one answer that no request bounds; 0 for all other kinds.
    """

    billable: Billable
    unit: str
    price: Decimal
    variant: str = ""
    conditions: Conditions | None = None
    most: int = 0

    @property
    def name(self) -> tuple[Billable, str]:
        return self.billable, self.variant

    @property
    def kind(self) -> RateKind:
        """The kind of the rule; an image's size and quality has that of any other image."""
        return KIND_OF.get(self.name) or KIND_OF[Billable.IMAGE, ""]


def _minutes(time: int) -> int:
    return time // 100 * 60 + time % 100


def find_condition_problems(conditions: Conditions) -> list[tuple[str, str]]:
    """Returns the members of conditions that are wrong, each with the reason."""
    found: list[tuple[str, str]] = []
    start, end, days = conditions.utc_start, conditions.utc_end, conditions.utc_days
    least = conditions.min_prompt_tokens
    if least is not None and not 1 <= least <= 10**12:
        found.append(("min_prompt_tokens", "must be an integer from 1 to 1000000000000"))
    if (start is None) != (end is None):
        missing = "utc_start" if start is None else "utc_end"
        found.append((missing, "is missing: a window needs both ends"))
    for name, time, latest in (("utc_start", start, 2359), ("utc_end", end, 2400)):
        if time is not None and not (0 <= time <= latest and time % 100 < 60):
            found.append((name, "must be a time such as 400 for 04:00"))
    if not found and start is not None and end is not None and start % 2400 == end % 2400:
        found.append(("utc_end", "must differ from utc_start; leave both out for the whole day"))
    if days is not None:
        if not days:
            found.append(("utc_days", "must name a day; leave it out for every day"))
        elif unknown := [day for day in days if day not in DAYS]:
            found.append(("utc_days", f"{unknown[0]!r} is none of {', '.join(DAYS)}"))
        elif len(set(days)) < len(days):
            found.append(("utc_days", "names a day twice"))
    if least is None and start is None and end is None and days is None:
        found.append(("", "has no condition; a price without conditions is a price of its own"))
    return found


def find_rule_problem(rule: Rule) -> tuple[str, str] | None:
    """Returns the member of a rule that is wrong, with the reason."""
    named = [kind for kind in KINDS if kind.billable is rule.billable]
    if rule.name in KIND_OF:
        unit = KIND_OF[rule.name].unit
    elif rule.billable is Billable.IMAGE:
        unit = "image"
    else:
        variants = ", ".join(repr(kind.variant) for kind in named if kind.variant)
        return "variant", f"must be one of {variants}" if variants else "must be left out"
    if rule.unit != unit:
        return "unit", f"must be {unit!r}"
    if rule.name not in BOUNDED:
        return ("most", "must be left out: the request bounds these units") if rule.most else None
    if not 1 <= rule.most <= _MOST:
        return "most", f"must be the most units of one answer, an integer from 1 to {_MOST}"
    return None


def find_conflicts(rules: Sequence[Rule]) -> Iterable[tuple[int, int, str]]:
    """Yields a rule that makes no sense beside another: both indexes, and the reason.

    A later rule with conditions wins over an earlier one of the same kind, so an earlier one never
    applies if the later one always does when it would.
    """
    for index, rule in enumerate(rules):
        for later, other in enumerate(rules[index + 1 :], index + 1):
            if rule.name != other.name:
                continue
            if rule.conditions is None and other.conditions is None:
                yield later, index, "gives the same price as"
            elif (
                rule.conditions is not None
                and other.conditions is not None
                and other.conditions.includes(rule.conditions)
            ):
                yield index, later, "never applies because of"
