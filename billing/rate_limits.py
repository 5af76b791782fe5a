"""Rate limits: their rules, what the meters say about them, and their refusals; pure.

Minutes and days are those of the database's clock, in UTC. A window begins at its full minute or at
midnight, and nothing is carried over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final
from uuid import UUID

from billing.budgets import MeterReading
from config.api.errors import LONGEST_RETRY_AFTER, TooManyRequests


class LimitScope(StrEnum):
    """The owners of rate limits, in the order in which the limits are enforced."""

    API_KEY = "api_key"
    WORKSPACE = "workspace"
    ORGANIZATION = "organization"
    END_USER = "end_user"


class Rate(StrEnum):
    """The kinds of rate limits; each value is the name of a field of the interface."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    REQUESTS_PER_DAY = "requests_per_day"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    CONCURRENT_REQUESTS = "concurrent_requests"


_TOKENS: Final = Rate.TOKENS_PER_MINUTE
_CONCURRENT: Final = Rate.CONCURRENT_REQUESTS
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_WINDOWS: Final = {
    Rate.REQUESTS_PER_MINUTE: ("minute", _MINUTE),
    Rate.TOKENS_PER_MINUTE: ("minute", _MINUTE),
    Rate.REQUESTS_PER_DAY: ("day", _DAY),
}
_OWNERS: Final = {
    LimitScope.API_KEY: "This key",
    LimitScope.WORKSPACE: "This workspace",
    LimitScope.ORGANIZATION: "This organization",
    LimitScope.END_USER: "This end user",
}
_PERMISSIONS: Final = {
    Rate.REQUESTS_PER_MINUTE: "may make {:,} request{} a minute",
    Rate.REQUESTS_PER_DAY: "may make {:,} request{} a day",
    Rate.TOKENS_PER_MINUTE: "may use {:,} token{} a minute",
    Rate.CONCURRENT_REQUESTS: "may run {:,} request{} at once",
}


@dataclass(frozen=True, slots=True)
class RateRule:
    """The limits that one meter is compared with: those of an owner, for one model or for all."""

    scope: LimitScope
    subject_id: UUID
    limits: Mapping[Rate, int]
    model: str | None = None

    @property
    def counts_tokens(self) -> bool:
        return Rate.TOKENS_PER_MINUTE in self.limits


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """The rules of one organization, workspace, key or end user."""

    own: RateRule | None = None
    models: Mapping[str, RateRule] = field(default_factory=dict)

    def for_model(self, *names: str) -> list[RateRule]:
        """Returns the rules for a model, which a limit may name by any of its slugs."""
        return [self.models[name] for name in dict.fromkeys(names) if name in self.models]


@dataclass(frozen=True, slots=True)
class RateRules:
    """All rate limits of an organization."""

    organization: OwnerRules | None = None
    workspaces: Mapping[UUID, OwnerRules] = field(default_factory=dict)
    keys: Mapping[UUID, OwnerRules] = field(default_factory=dict)
    end_users: Mapping[str, OwnerRules] = field(default_factory=dict)

    def owners_of(self, key_id: UUID, workspace_id: UUID, end_user: str | None) -> list[OwnerRules]:
        """Returns the rules of a key's request, in the order in which they are enforced."""
        found = (
            self.keys.get(key_id),
            self.workspaces.get(workspace_id),
            self.organization,
            None if end_user is None else self.end_users.get(end_user),
        )
        return [owner for owner in found if owner is not None]


NO_RULES: Final = RateRules()


class RateLimited(TooManyRequests):
    """A rate limit is used up, or the request alone is larger than a limit on tokens.

    ``rate`` and ``scope`` name the limit. A request that is too large, and one whose window ends
    after more than a minute, say in ``x-should-retry``, which OpenAI's and Anthropic's clients
    obey, that no repetition helps.
    """

    def __init__(
        self,
        rule: RateRule,
        rate: Rate,
        *,
        used: int,
        need: int,
        now: datetime,
        headers: Mapping[str, str],
    ) -> None:
        self.scope, self.rate = rule.scope, rate
        limit = rule.limits[rate]
        window, _ = _WINDOWS.get(rate, (None, None))
        ends_at = window_end(rate, now)
        permission = _PERMISSIONS[rate].format(limit, "" if limit == 1 else "s")
        text = f"{_OWNERS[rule.scope]} {permission}"
        text += f" with {rule.model}." if rule.model else "."
        described = {
            "scope": rule.scope.value,
            "name": rate.value,
            "limit": limit,
            "used": used,
            "window": window,
            "resets_at": None if ends_at is None else ends_at.isoformat().replace("+00:00", "Z"),
        }
        if rule.model is not None:
            described["model"] = rule.model
        own_headers: dict[str, str] = {}
        if rate is Rate.TOKENS_PER_MINUTE:
            described["requested"] = need
            text += f" This request may use {need:,}: its prompt and its max_tokens."
        if need > limit:
            text += " Send a shorter prompt or a lower max_tokens."
            own_headers["x-should-retry"] = "false"
        else:
            seconds = _seconds_until(ends_at, now)
            own_headers["Retry-After"] = str(min(seconds, LONGEST_RETRY_AFTER))
            if seconds > LONGEST_RETRY_AFTER:
                own_headers["x-should-retry"] = "false"
        super().__init__(
            text, metadata={"rate_limit": described}, headers={**headers, **own_headers}
        )


@lru_cache(maxsize=8)
def window_start(rate: Rate, now: datetime) -> datetime:
    """Returns the beginning of the minute or of the day in UTC; cached for the next of a batch."""
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    return minute.replace(hour=0, minute=0) if rate is Rate.REQUESTS_PER_DAY else minute


def window_end(rate: Rate, now: datetime) -> datetime | None:
    """Returns the time at which a limit is fresh again; ``None`` for one without a window."""
    if rate not in _WINDOWS:
        return None
    return window_start(rate, now) + _WINDOWS[rate][1]


def base_of(rate: Rate, meter: MeterReading, now: datetime) -> int:
    """Returns the value of the meter at the beginning of the window.

    A reading may be newer than ``now``; then it counts its own window.
    """
    if rate is _CONCURRENT:
        return 0
    is_counted = meter.minute is not None and meter.minute >= window_start(rate, now)
    if rate is _TOKENS:
        return meter.tokens_before if is_counted else meter.tokens
    if rate is Rate.REQUESTS_PER_MINUTE:
        return meter.requests_before if is_counted else meter.requests
    before = meter.requests_before_day
    return before if is_counted and before is not None else meter.requests


def value_of(rate: Rate, meter: MeterReading) -> int:
    """Returns the value of the meter; for tokens, with those held for running requests."""
    if rate is _TOKENS:
        return meter.tokens + meter.held_tokens
    return meter.running if rate is _CONCURRENT else meter.requests


def used_of(rate: Rate, meter: MeterReading, now: datetime) -> int:
    """Returns how much of a limit is used: in its window, or at the moment."""
    return value_of(rate, meter) - base_of(rate, meter, now)


def render_headers(
    rules: Iterable[RateRule],
    meters: Mapping[UUID, MeterReading],
    now: datetime,
    taken: Callable[[Rate, UUID], int] = lambda rate, subject_id: 0,
) -> dict[str, str]:
    """Returns the ``x-ratelimit-…`` headers of the limits that have the least left.

    Without a limit on requests or on tokens, the headers of that kind are missing. ``taken``
    returns what was used since the meters were read.
    """
    tightest: dict[str, tuple[int, int, Rate]] = {}
    for rule in rules:
        meter = meters.get(rule.subject_id)
        if meter is None:
            continue
        for rate, limit in rule.limits.items():
            if rate is Rate.CONCURRENT_REQUESTS:
                continue
            kind = "tokens" if rate is Rate.TOKENS_PER_MINUTE else "requests"
            used = used_of(rate, meter, now) + taken(rate, rule.subject_id)
            left = max(limit - used, 0)
            tightest[kind] = min(tightest.get(kind, (left, limit, rate)), (left, limit, rate))
    headers = {}
    for kind, (left, limit, rate) in tightest.items():
        ends_at = window_end(rate, now)
        assert ends_at is not None
        headers[f"x-ratelimit-limit-{kind}"] = str(limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(left)
        headers[f"x-ratelimit-reset-{kind}"] = format_duration(ends_at - now)
    return headers


def format_duration(span: timedelta) -> str:
    """Returns a duration as OpenAI writes it: ``12ms``, ``1s``, ``6m0s`` or ``7h12m0s``."""
    milliseconds = max(-(-span // timedelta(milliseconds=1)), 0)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(-(-milliseconds // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def describe_use(rate: Rate, limit: int, meter: MeterReading, now: datetime) -> str:
    """Returns a sentence for operators, such as ``7 of 10 requests this minute``."""
    used = used_of(rate, meter, now)
    match rate:
        case Rate.CONCURRENT_REQUESTS:
            return f"{used:,} of {limit:,} requests running"
        case Rate.TOKENS_PER_MINUTE:
            return f"{used:,} of {limit:,} tokens this minute"
        case Rate.REQUESTS_PER_DAY:
            return f"{used:,} of {limit:,} requests today"
        case Rate.REQUESTS_PER_MINUTE:
            return f"{used:,} of {limit:,} requests this minute"


def _seconds_until(moment: datetime | None, now: datetime) -> int:
    return 1 if moment is None else max(-((now - moment) // timedelta(seconds=1)), 1)
