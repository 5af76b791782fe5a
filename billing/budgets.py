"""Budgets: limits on spending in addition to the balance; pure, computed from meter readings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from accounts.models import LimitReset


class Scope(StrEnum):
    """The kinds of budgets, in the order in which they are enforced."""

    WORKSPACE_DEFAULT_MEMBER = "workspace_default_member"
    WORKSPACE_DEFAULT_KEY = "workspace_default_key"
    MEMBER = "member"
    API_KEY = "api_key"
    WORKSPACE = "workspace"
    KEY_LIMIT = "key_limit"


class MeterAmounts(Protocol):
    """The amounts of a :class:`billing.models.Meter` or of a reading that a budget needs."""

    @property
    def day(self) -> date: ...
    @property
    def cost(self) -> int: ...
    @property
    def byok(self) -> int: ...
    @property
    def held_cost(self) -> int: ...
    @property
    def held_byok(self) -> int: ...


class MeterReading(NamedTuple):
    """A meter as the data plane reads it: columns of :class:`billing.models.Meter`.

    :mod:`billing.rate_limits` reads the columns after ``held_byok``.
    """

    subject_id: UUID
    day: date
    cost_daily: int
    cost_weekly: int
    cost_monthly: int
    cost: int
    byok_daily: int
    byok_weekly: int
    byok_monthly: int
    byok: int
    held_cost: int
    held_byok: int
    requests: int
    minute: datetime | None
    requests_before: int
    requests_before_day: int | None
    running: int
    tokens: int
    tokens_before: int
    held_tokens: int


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit, in nano-USD, on the spending of a key, member or workspace between two resets."""

    scope: Scope
    subject_id: UUID
    limit_nano: int
    reset: LimitReset | None
    include_byok: bool
    budget_id: UUID | None = None
    guardrail_id: UUID | None = None

    def spent_nano(self, meter: MeterAmounts, today: date) -> int:
        """Returns the spending since the last reset, without the holds of running requests."""
        if self.reset is None:
            return meter.cost + meter.byok if self.include_byok else meter.cost
        return spent_nano(meter, self.reset, today, byok=self.include_byok)

    def held_nano(self, meter: MeterAmounts) -> int:
        """Returns the sum of the holds of running requests."""
        return meter.held_cost + (meter.held_byok if self.include_byok else 0)

    def resets_at(self, now: datetime) -> datetime | None:
        return None if self.reset is None else self.reset.ends_at(now)


def spent_nano(meter: MeterAmounts, reset: LimitReset, today: date, *, byok: bool) -> int:
    """Returns the spending of a period that has an end: credits, plus BYOK usage if ``byok``."""
    if meter.day < reset.began_at(datetime.combine(today, datetime.min.time(), UTC)).date():
        return 0
    cost: int = getattr(meter, f"cost_{reset.value}")
    return cost + getattr(meter, f"byok_{reset.value}") if byok else cost
