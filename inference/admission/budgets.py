"""Decides whether balance and budgets of a key can pay the worst case of a request; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from billing.budgets import Budget, MeterReading, Scope
from billing.rate_limits import Rate, RateLimited, RateRule, base_of, render_headers, used_of
from catalog.pricing import usd
from config.api.errors import Forbidden, PaymentRequired
from config.bulk.tables import format_usd
from config.clocks.clock import clock
from inference.admission.estimate import affordable_tokens, fee_nano, worst_case_nano
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Candidate

# Some providers refuse a lower bound, and a shorter answer is of no use.
LEAST_TOKENS: Final = 16
# The highest value of a meter, which it keeps once it is full.
UNLIMITED: Final = 2**63 - 1
_HUNDRED: Final = Decimal(100)
_NAMES: Final = {
    Scope.WORKSPACE_DEFAULT_MEMBER: "The member's budget in this workspace",
    Scope.WORKSPACE_DEFAULT_KEY: "The key's budget in this workspace",
    Scope.MEMBER: "The member's budget",
    Scope.API_KEY: "The key's budget",
    Scope.WORKSPACE: "The workspace's budget",
    Scope.KEY_LIMIT: "The key",
}


class LimitSpent(Forbidden):
    """A budget is spent, until it is reset or raised."""

    is_final = True


class StaleReading(Exception):
    """A remembered reading would bound a request, so the balance and meters must be read again."""


class UnreadMeters(Exception):
    """The meters of some rate limits must be read before a request can be decided."""

    def __init__(self, subjects: frozenset[UUID]) -> None:
        self.subjects = subjects
        super().__init__(f"{len(subjects)} meters")


class AffordableCandidate(msgspec.Struct, frozen=True):
    """A candidate that can be paid, with its worst-case cost in nano-USD.

    ``max_tokens`` is a bound on the answer that the caller did not ask for; ``None`` adds none.
    """

    candidate: Candidate
    credits_nano: int
    upstream_nano: int
    max_tokens: int | None = None


class Ceiling(msgspec.Struct):
    """The highest values of a meter with which a decision is valid: a parameter of ``admit.sql``.

    ``cost`` counts credits, ``total`` credits and own credentials; both include the holds of
    running requests. ``spent`` and ``spent_total`` count the same without the holds. ``tokens``
    includes those held for running requests, and ``running`` counts these requests.
    """

    subject_id: UUID
    cost: int = UNLIMITED
    total: int = UNLIMITED
    requests: int = UNLIMITED
    spent: int = UNLIMITED
    spent_total: int = UNLIMITED
    tokens: int = UNLIMITED
    running: int = UNLIMITED


@dataclass(slots=True)
class Readings:
    """The balances and meters that were read for a batch, and the ceilings of its decisions.

    ``is_current`` is false for remembered readings, which must not refuse or bound a request.
    ``now`` is the database's time. ``requests`` and ``tokens`` count what the batch takes of rate
    limits, by the subject of the meter. ``read_at`` has the times of the readings that were added.
    """

    balances: dict[UUID, int]
    readings: dict[UUID, MeterReading]
    now: datetime = field(default_factory=clock.now)
    is_current: bool = True
    requests: Counter[UUID] = field(default_factory=Counter)
    tokens: Counter[UUID] = field(default_factory=Counter)
    ceilings: dict[UUID, Ceiling] = field(default_factory=dict)
    read_at: dict[UUID, datetime] = field(default_factory=dict)

    def add(self, meter: MeterReading, read_at: datetime) -> None:
        """Adds a reading, which replaces an older one of the same meter."""
        self.readings[meter.subject_id] = meter
        self.read_at[meter.subject_id] = read_at
        self.now = max(self.now, read_at)

    def require_rates(
        self, rules: Sequence[RateRule], need: int, *, others: Sequence[RateRule] = ()
    ) -> None:
        """Raises :class:`RateLimited` if a request that may use ``need`` tokens exceeds a limit.

        The headers of the refusal tell of ``others`` too. Raises :class:`UnreadMeters` when meters
        of the rules have not been read.
        """
        if unread := {rule.subject_id for rule in rules} - self.readings.keys():
            raise UnreadMeters(frozenset(unread))
        for rule in rules:
            meter = self.readings[rule.subject_id]
            for rate, limit in rule.limits.items():
                used = used_of(rate, meter, self.now) + self._taken(rate, rule.subject_id)
                more = need if rate is Rate.TOKENS_PER_MINUTE else 1
                if used + more > limit:
                    told = (*others, *rules)
                    headers = render_headers(told, self.readings, self.now, self._taken)
                    raise RateLimited(
                        rule, rate, used=used, need=more, now=self.now, headers=headers
                    )

    def _taken(self, rate: Rate, subject_id: UUID) -> int:
        """Returns how much of a limit the requests of the batch take."""
        taken = self.tokens if rate is Rate.TOKENS_PER_MINUTE else self.requests
        return taken[subject_id]

    def _set_rate_ceilings(self, rule: RateRule, held_tokens: int) -> None:
        """Lowers the ceilings of a meter to the values at which one more request still fits.

        They are counted from the beginning of the window, which only moves up, so an older reading
        gives the same ceilings or lower ones.
        """
        meter, ceiling = self.readings[rule.subject_id], self._ceiling_of(rule.subject_id)
        for rate, limit in rule.limits.items():
            more = held_tokens if rate is Rate.TOKENS_PER_MINUTE else 1
            most = (
                base_of(rate, meter, self.now) + limit - self._taken(rate, rule.subject_id) - more
            )
            match rate:
                case Rate.TOKENS_PER_MINUTE:
                    ceiling.tokens = min(ceiling.tokens, most)
                case Rate.CONCURRENT_REQUESTS:
                    ceiling.running = min(ceiling.running, most)
                case _:
                    ceiling.requests = min(ceiling.requests, most)

    def _ceiling_of(self, subject_id: UUID) -> Ceiling:
        return self.ceilings.setdefault(subject_id, Ceiling(subject_id))


class BudgetLeft(NamedTuple):
    """A budget, and the nano-USD that it has left after the holds of the batch."""

    budget: Budget
    nano: int


class Funds(NamedTuple):
    """The balance that pays a request, and the rest of each budget, in nano-USD.

    ``room`` is the highest price that all of them can pay from credits.
    """

    balance: int
    left: Sequence[BudgetLeft]
    fee_percent: Decimal
    room: int

    def find_room(self, candidate: Candidate) -> int:
        """Returns the highest price, in nano-USD, that the balance and the budgets can pay."""
        if not candidate.is_byok:
            return self.room
        return min(
            (
                price_for_fee(self.balance, self.fee_percent),
                *(self.find_byok_room(budget, left) for budget, left in self.left),
            )
        )

    def find_byok_room(self, budget: Budget, left: int) -> int:
        """Returns the highest price of an own credential with which a budget has this much left.

        The credential pays the price itself, so the budget pays the fee, or the fee and the price
        if it includes own credentials.
        """
        own = _HUNDRED if budget.include_byok else 0
        return price_for_fee(left, self.fee_percent + own)


@dataclass(slots=True)
class Budgets(Readings):
    """The balances and meters of a batch, from which every admission takes its hold.

    ``admit.sql`` compares the meters with the ceilings, and so finds what other workers have spent
    since the reading. A ceiling is the value of a meter at which a budget is used up, so an older
    reading gives the same ceiling or a lower one.

    ``taken`` is the nano-USD that the holds of the batch take from credits and from own
    credentials, by the subject of the meter.
    """

    taken: dict[UUID, tuple[int, int]] = field(default_factory=dict)

    def find_left(self, budgets: Iterable[Budget]) -> Sequence[BudgetLeft]:
        """Returns what each budget has left; raises :class:`LimitSpent` for one that is spent.

        The holds of running requests and of the batch count as used, but do not make it spent.
        """
        today = self.now.date()
        found = []
        for budget in budgets:
            meter = self.readings[budget.subject_id]
            left = budget.limit_nano - budget.spent_nano(meter, today)
            if left <= 0:
                raise LimitSpent(
                    _describe_spent(budget, self.now), metadata={"budget": self.describe(budget)}
                )
            cost, byok = self.taken.get(budget.subject_id, (0, 0))
            taken = cost + byok if budget.include_byok else cost
            found.append(BudgetLeft(budget, left - budget.held_nano(meter) - taken))
        return found

    def find_affordable(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        organization_id: UUID,
        left: Sequence[BudgetLeft],
        fee_percent: Decimal,
    ) -> list[AffordableCandidate]:
        """Returns the candidates that the balance and every budget can pay, in order.

        ``left`` is the result of :meth:`find_left`. If the caller set no bound on the answer, sets
        one that can be paid. Raises :class:`PaymentRequired` when no candidate is left, and
        :class:`StaleReading` when a remembered reading would bound the answer or exclude a
        candidate.
        """
        balance = self.balances[organization_id]
        funds = Funds(balance, left, fee_percent, min((balance, *(each.nano for each in left))))
        affordable = [
            item
            for candidate in candidates
            if (item := self._afford(request, candidate, funds)) is not None
        ]
        if not affordable:
            raise self._make_refusal(request, candidates[0], funds)
        return affordable

    def take(
        self,
        organization_id: UUID,
        subjects: Iterable[UUID],
        left: Iterable[BudgetLeft],
        *,
        credits_nano: int,
        upstream_nano: int,
        rules: Iterable[RateRule] = (),
        held_tokens: int = 0,
    ) -> None:
        """Counts a hold against the balance, budgets and limits for the rest of the batch.

        ``subjects`` are those of all meters that count the request, and ``left`` is what
        :meth:`find_left` has found for it.
        """
        for budget, nano in left:
            counted = credits_nano + upstream_nano if budget.include_byok else credits_nano
            if counted:
                self._set_ceiling(budget, nano - counted)
            else:
                self._set_spent_ceiling(budget)
        for rule in rules:
            self._set_rate_ceilings(rule, held_tokens)
        self.balances[organization_id] -= credits_nano
        for subject in subjects:
            self.requests[subject] += 1
            if held_tokens:
                self.tokens[subject] += held_tokens
            cost, byok = self.taken.get(subject, (0, 0))
            self.taken[subject] = (cost + credits_nano, byok + upstream_nano)

    def describe(self, budget: Budget) -> dict[str, Any]:
        """Describes a budget for an error: amounts in USD."""
        meter = self.readings[budget.subject_id]
        resets_at = budget.resets_at(self.now)
        return {
            "scope": budget.scope.value,
            "limit_usd": usd(budget.limit_nano),
            "spend_usd": usd(budget.spent_nano(meter, self.now.date())),
            "held_usd": usd(budget.held_nano(meter)),
            "resets_at": None if resets_at is None else _format_stamp(resets_at),
        }

    def _afford(
        self, request: InferenceRequest, candidate: Candidate, funds: Funds
    ) -> AffordableCandidate | None:
        """Returns a candidate with its worst case; ``None`` if that cannot be paid."""
        is_byok, fee_percent = candidate.is_byok, funds.fee_percent
        if is_byok and not fee_percent and not any(each.include_byok for each, _ in funds.left):
            return AffordableCandidate(candidate, 0, 0)
        worst = worst_case_nano(request, candidate)
        room = funds.find_room(candidate)
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

    def _set_ceiling(self, budget: Budget, left: int) -> None:
        """Lowers the ceiling of a budget's meter to the value at which a hold still fits.

        ``left`` is what the budget has left after the hold. Each hold is compared by itself, after
        the holds taken before it: one meter may have budgets of different keys, and a hold that
        exceeds one of them may fit another.
        """
        meter = self.readings[budget.subject_id]
        ceiling = self._ceiling_of(budget.subject_id)
        used = meter.cost + meter.held_cost
        if budget.include_byok:
            ceiling.total = min(ceiling.total, used + meter.byok + meter.held_byok + left)
        else:
            ceiling.cost = min(ceiling.cost, used + left)

    def _set_spent_ceiling(self, budget: Budget) -> None:
        """Lowers the ceiling of a budget that does not count the hold, so that it stays unspent."""
        meter = self.readings[budget.subject_id]
        left = budget.limit_nano - budget.spent_nano(meter, self.now.date()) - 1
        ceiling = self._ceiling_of(budget.subject_id)
        if budget.include_byok:
            ceiling.spent_total = min(ceiling.spent_total, meter.cost + meter.byok + left)
        else:
            ceiling.spent = min(ceiling.spent, meter.cost + left)

    def _make_refusal(
        self, request: InferenceRequest, candidate: Candidate, funds: Funds
    ) -> PaymentRequired:
        """Returns the error that names the balance, the estimate and the affordable tokens."""
        room = funds.find_room(candidate)
        price = worst_case_nano(request, candidate)
        affordable = 0
        if request.may_choose_bound:
            affordable = max(affordable_tokens(request, candidate, room), 0)
        balance, fee_percent = funds.balance, funds.fee_percent
        tightest, remaining = next(
            (
                (budget, left)
                for budget, left in sorted(funds.left, key=itemgetter(1))
                if (funds.find_byok_room(budget, left) if candidate.is_byok else left) <= room
            ),
            (None, 0),
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
        text = f"The balance is ${format_usd(balance)}"
        if tightest is not None:
            metadata |= {"limit": tightest.scope.value, "budget": self.describe(tightest)}
            text = f"{_NAMES[tightest.scope]} has ${format_usd(max(remaining, 0))} left"
        text += f", and this request may cost ${format_usd(worst)}."
        if affordable >= LEAST_TOKENS:
            text += f" It can be paid with max_tokens of at most {affordable}."
        return PaymentRequired(text, metadata=metadata)


def price_for_fee(nano: int, percent: Decimal) -> int:
    """Returns the highest price of which ``percent`` is at most ``nano``."""
    return UNLIMITED if not percent else int(Decimal(max(nano, 0)) * _HUNDRED / percent)


def _describe_spent(budget: Budget, now: datetime) -> str:
    text = f"{_NAMES[budget.scope]} has spent its limit of ${format_usd(budget.limit_nano)}"
    resets_at = budget.resets_at(now)
    return (
        f"{text}." if resets_at is None else f"{text}; it is reset at {_format_stamp(resets_at)}."
    )


def _format_stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
