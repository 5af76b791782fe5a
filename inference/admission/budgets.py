"""What a request may cost at most, and whether everyone who pays for it can bear that; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from billing.budgets import Budget, Reading, Scope
from catalog.pricing import decimal_text, usd
from config.api.errors import Forbidden, GatewayError, PaymentRequired
from inference.admission.estimate import affordable_tokens, fee_nano, worst_case_nano
from inference.requests.schemas import InferenceRequest
from inference.routing.routes import Candidate

# Some providers refuse fewer; an answer cut shorter is of no use to anyone.
LEAST_TOKENS: Final = 16
_UNLIMITED: Final = 2**62
_HUNDRED: Final = Decimal(100)
_NAMES: Final = {
    Scope.WORKSPACE_DEFAULT_MEMBER: "The member's budget in this workspace",
    Scope.WORKSPACE_DEFAULT_KEY: "The key's budget in this workspace",
    Scope.MEMBER: "The member's budget",
    Scope.API_KEY: "The key's budget",
    Scope.WORKSPACE: "The workspace's budget",
    Scope.KEY_LIMIT: "The key",
}


class TooManyRequests(GatewayError):
    """The key has made as many requests this minute as the operator allows a key."""

    status = 429
    error_type = "rate_limit_exceeded"


class LimitSpent(Forbidden):
    """What may be spent is spent: until its budget is reset, or raised."""


class StaleReading(Exception):
    """What was read some time ago would bound a request: it must be read again."""


class AffordableCandidate(msgspec.Struct, frozen=True):
    """A candidate that can be paid: what it costs at most, in nano-USD, and with which bound.

    ``max_tokens`` is a bound on the answer that the caller did not ask for; ``None`` adds none.
    """

    candidate: Candidate
    credits_nano: int
    upstream_nano: int
    max_tokens: int | None = None


class Ceiling(msgspec.Struct):
    """How far a meter may have come, in all, before what was decided about it holds no more.

    ``cost`` and ``total`` are with what is held for requests under way, ``spent`` and
    ``spent_total`` without.
    """

    subject_id: UUID
    cost: int = _UNLIMITED
    total: int = _UNLIMITED
    requests: int = _UNLIMITED
    spent: int = _UNLIMITED
    spent_total: int = _UNLIMITED


@dataclass(slots=True)
class Budgets:
    """The balances and budgets of a batch, which every admission makes smaller.

    What others took since they were read is found when the batch is stored: a ceiling is where a
    budget ends, so it is the same, or lower, by an older reading. Budgets that are not current may
    refuse nothing and bound nothing. The time is the database's.
    """

    balances: dict[UUID, int]
    readings: Mapping[UUID, Reading]
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_current: bool = True
    taken: dict[UUID, tuple[int, int]] = field(default_factory=dict)
    requests: Counter[UUID] = field(default_factory=Counter)
    ceilings: dict[UUID, Ceiling] = field(default_factory=dict)

    def require_pace(self, key_id: UUID, limit: int) -> None:
        """Raises :class:`TooManyRequests` for a key that had its requests of this minute."""
        meter = self.readings[key_id]
        minute = self.now.replace(second=0, microsecond=0)
        made = meter.requests_since(minute)
        if made + self.requests[key_id] >= limit:
            raise TooManyRequests(
                f"This key may make {limit} requests a minute.",
                headers={"Retry-After": str(60 - self.now.second)},
            )
        ceiling = self._ceiling(key_id)
        # This one is not counted yet.
        left = limit - made - self.requests[key_id] - 1
        ceiling.requests = min(ceiling.requests, meter.requests + left)

    def require_unspent(self, budgets: Iterable[Budget]) -> None:
        """Raises :class:`LimitSpent` for the first budget that has nothing left."""
        today = self.now.date()
        for budget in budgets:
            spent = budget.spent(self.readings[budget.subject_id], today)
            if spent >= budget.limit_nano:
                raise LimitSpent(
                    _spent_text(budget, self.now), metadata={"budget": self.describe(budget)}
                )

    def find_affordable(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        organization_id: UUID,
        budgets: Sequence[Budget],
        fee_percent: Decimal,
    ) -> list[AffordableCandidate]:
        """Returns the candidates that the balance and every budget bear, in order.

        Where the caller set no bound on the answer, one is set that can be paid. Raises
        :class:`PaymentRequired` when none is left, and :class:`StaleReading`.
        """
        found = [
            affordable
            for candidate in candidates
            if (
                affordable := self._find_bound(
                    request, candidate, organization_id, budgets, fee_percent
                )
            )
        ]
        if not found:
            raise self._refusal(request, candidates[0], organization_id, budgets, fee_percent)
        return found

    def take(
        self,
        organization_id: UUID,
        subjects: Iterable[UUID],
        budgets: Iterable[Budget],
        *,
        credits_nano: int,
        upstream_nano: int,
    ) -> None:
        """Counts a hold against the balance and the budgets for the rest of the batch."""
        for budget in budgets:
            counted = credits_nano + upstream_nano if budget.include_byok else credits_nano
            if counted:
                self._set_ceiling(budget, counted)
            else:
                self._set_unspent(budget)
        self.balances[organization_id] -= credits_nano
        for subject in subjects:
            self.requests[subject] += 1
            cost, byok = self.taken.get(subject, (0, 0))
            self.taken[subject] = (cost + credits_nano, byok + upstream_nano)

    def describe(self, budget: Budget) -> dict[str, Any]:
        """Describes a budget for an error: amounts in USD."""
        meter = self.readings[budget.subject_id]
        resets_at = budget.resets_at(self.now)
        return {
            "scope": budget.scope.value,
            "limit_usd": usd(budget.limit_nano),
            "spend_usd": usd(budget.spent(meter, self.now.date())),
            "held_usd": usd(budget.held(meter)),
            "resets_at": None if resets_at is None else _stamp(resets_at),
        }

    def _find_bound(
        self,
        request: InferenceRequest,
        candidate: Candidate,
        organization_id: UUID,
        budgets: Sequence[Budget],
        fee_percent: Decimal,
    ) -> AffordableCandidate | None:
        is_byok = candidate.is_byok
        if is_byok and not fee_percent and not any(budget.include_byok for budget in budgets):
            return AffordableCandidate(candidate, 0, 0)
        worst = worst_case_nano(request, candidate)
        room = self._room(candidate, organization_id, budgets, fee_percent)
        max_tokens = None
        if worst > max(room, 0):
            if not self.is_current:
                raise StaleReading
            if request.max_tokens is not None:
                return None
            max_tokens = affordable_tokens(request, candidate, room)
            if max_tokens < LEAST_TOKENS:
                return None
            worst = worst_case_nano(request, candidate, max_tokens=max_tokens)
        if is_byok:
            fee = fee_nano(worst, fee_percent, round_up=True)
            return AffordableCandidate(candidate, fee, worst, max_tokens)
        return AffordableCandidate(candidate, worst, 0, max_tokens)

    def _room(
        self,
        candidate: Candidate,
        organization_id: UUID,
        budgets: Iterable[Budget],
        fee_percent: Decimal,
    ) -> int:
        """Returns the highest price, in nano-USD, that the balance and the budgets bear."""
        room = self._price_within(self.balances[organization_id], candidate, fee_percent)
        for budget in budgets:
            room = min(room, self._price_within(self._left(budget), candidate, fee_percent, budget))
        return room

    @staticmethod
    def _price_within(
        nano: int, candidate: Candidate, fee_percent: Decimal, budget: Budget | None = None
    ) -> int:
        """Returns the highest price that comes to an amount, by what counts against the budget."""
        if not candidate.is_byok:
            return nano
        if budget is not None and budget.include_byok:
            # Price and fee both.
            return _before_fee(nano, fee_percent + _HUNDRED)
        return _before_fee(nano, fee_percent)

    def _left(self, budget: Budget) -> int:
        meter = self.readings[budget.subject_id]
        cost, byok = self.taken.get(budget.subject_id, (0, 0))
        left = budget.limit_nano - budget.spent(meter, self.now.date()) - budget.held(meter) - cost
        return left - byok if budget.include_byok else left

    def _set_ceiling(self, budget: Budget, hold_nano: int) -> None:
        """Notes how far the meter may have come when a hold that it bears is stored.

        Of each hold apart, and after those taken before it: one meter may have budgets of different
        keys, and what one of them no longer bears another still does.
        """
        meter = self.readings[budget.subject_id]
        left = self._left(budget) - hold_nano
        ceiling = self._ceiling(budget.subject_id)
        used = meter.cost + meter.held_cost
        if budget.include_byok:
            ceiling.total = min(ceiling.total, used + meter.byok + meter.held_byok + left)
        else:
            ceiling.cost = min(ceiling.cost, used + left)

    def _set_unspent(self, budget: Budget) -> None:
        """Notes how far the meter may have come before a budget ends of which nothing is taken."""
        meter = self.readings[budget.subject_id]
        left = budget.limit_nano - budget.spent(meter, self.now.date()) - 1
        ceiling = self._ceiling(budget.subject_id)
        if budget.include_byok:
            ceiling.spent_total = min(ceiling.spent_total, meter.cost + meter.byok + left)
        else:
            ceiling.spent = min(ceiling.spent, meter.cost + left)

    def _ceiling(self, subject_id: UUID) -> Ceiling:
        return self.ceilings.setdefault(subject_id, Ceiling(subject_id))

    def _refusal(
        self,
        request: InferenceRequest,
        candidate: Candidate,
        organization_id: UUID,
        budgets: Sequence[Budget],
        fee_percent: Decimal,
    ) -> PaymentRequired:
        """Says what is missing where: the balance, the estimate, and what could be paid."""
        room = self._room(candidate, organization_id, budgets, fee_percent)
        price = worst_case_nano(request, candidate)
        affordable = max(affordable_tokens(request, candidate, room), 0)
        balance = self.balances[organization_id]
        tightest = next(
            (
                budget
                for budget in sorted(budgets, key=self._left)
                if self._price_within(self._left(budget), candidate, fee_percent, budget) <= room
            ),
            None,
        )
        worst = price
        if candidate.is_byok:
            worst = fee_nano(price, fee_percent, round_up=True)
            if tightest is not None and tightest.include_byok:
                worst += price
        metadata: dict[str, Any] = {
            "balance_usd": usd(balance),
            "estimate_usd": usd(worst),
            "affordable_max_tokens": affordable if affordable >= LEAST_TOKENS else 0,
            "limit": "balance",
        }
        text = f"The balance is ${_text(balance)}"
        if tightest is not None:
            metadata |= {"limit": tightest.scope.value, "budget": self.describe(tightest)}
            text = f"{_NAMES[tightest.scope]} has ${_text(max(self._left(tightest), 0))} left"
        text += f", and this request may cost ${_text(worst)}."
        if affordable >= LEAST_TOKENS:
            text += f" It can be paid with max_tokens of at most {affordable}."
        return PaymentRequired(text, metadata=metadata)


def _before_fee(nano: int, percent: Decimal) -> int:
    """Returns the highest price of which a percentage can be paid with an amount."""
    return _UNLIMITED if not percent else int(Decimal(max(nano, 0)) * _HUNDRED / percent)


def _spent_text(budget: Budget, now: datetime) -> str:
    text = f"{_NAMES[budget.scope]} has spent its limit of ${_text(budget.limit_nano)}"
    resets_at = budget.resets_at(now)
    return f"{text}." if resets_at is None else f"{text}; it is reset at {_stamp(resets_at)}."


def _stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _text(nano: int) -> str:
    return decimal_text(Decimal(nano).scaleb(-9))
