"""Tells what a guardrail would have refused, by the metadata of generations alone.

Stored requests are judged with the code by which admission judges. Metadata tells neither the texts
of a request nor its preferences, so the shortest request of the same operation stands for each:
content filters are not part of this.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from accounts.models import ApiKey, Guardrail, KeyAssignment, LimitReset, MemberAssignment
from accounts.policy import Policy, RegionNotAllowed, require_ingress_region
from billing.budgets import Budget
from catalog.visibility import Exclusion
from config.api.errors import GatewayError
from config.clocks.clock import clock
from config.database.replica.reading import read
from config.server.regions import GLOBAL
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from inference.admission.decide import name_exclusion
from inference.admission.governance import (
    GuardrailRules,
    KeyRules,
    OrganizationRules,
    read_guardrail,
)
from inference.faces.explaining import BODIES, PATHS, read_request
from inference.ids import first_id, last_id
from inference.models import DailyUsage, Generation, UsageDay
from inference.reports.rollups import join_days, midnight
from inference.requests.parsing import InferenceRequest
from inference.routing.candidates import RoutingContext, Selection, select_candidates
from inference.routing.routes import CatalogSnapshot, OrganizationSnapshot
from inference.shadow_counts import GuardrailRefusal

REGION: Final = str(GuardrailRefusal.REGION)
BUDGET: Final = str(GuardrailRefusal.BUDGET)
REASONS: Final = {
    REGION: "Came through a host of another region",
    BUDGET: "The budget was spent",
    Exclusion.PROVIDER_NOT_ALLOWED: "Its providers are not allowed",
    Exclusion.PROVIDER_IGNORED: "Its providers are ignored",
    Exclusion.MODEL_NOT_ALLOWED: "Its model is not allowed",
    Exclusion.MODEL_IGNORED: "Its model is ignored",
    Exclusion.RETAINS_DATA: "No endpoint without data retention",
    Exclusion.TRAINS_ON_DATA: "No endpoint that does not train on prompts",
    Exclusion.REGION: "No endpoint in the region",
    GuardrailRefusal.OTHER: "No endpoint is left",
    GuardrailRefusal.CONTENT: "A content filter blocked it",
    GuardrailRefusal.UNREAD: "The content filters of a shadow had no time to read it",
}
DAYS: Final = 7
MOST_ROWS: Final = 50_000
_SECONDS: Final = 8.0
_CHUNK: Final = 5_000
_DAY: Final = timedelta(days=1)


class Outcome(StrEnum):
    """What would have happened: ``moved`` requests would have gone to another endpoint.

    ``unknown`` requests are refused by today's rules and catalogue without the guardrail.
    """

    SERVED = "served"
    MOVED = "moved"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    outcome: Outcome
    reason: str = ""


_SERVED: Final = Verdict(Outcome.SERVED)
_MOVED: Final = Verdict(Outcome.MOVED)
_UNKNOWN: Final = Verdict(Outcome.UNKNOWN)


class StoredRequest(NamedTuple):
    """The metadata of a generation by which it is judged."""

    api_key_id: UUID
    member_id: UUID | None
    workspace_id: UUID
    model: str
    operation: str
    region: str
    endpoint_id: UUID
    cost_nano: int
    byok_nano: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Assignments:
    """The guardrails of keys and members, and the digests of keys.

    ``is_of_every_key`` is set for a guardrail without assignments: it is judged as if it were
    assigned to each key.
    """

    keys: Mapping[UUID, UUID]
    members: Mapping[UUID, UUID]
    digests: Mapping[UUID, str]
    is_of_every_key: bool = False


class ReplayedMeter:
    """The spending of a key or a member, as its meter would have counted it."""

    held_cost = held_byok = 0

    def __init__(self) -> None:
        self.day = date.min
        self.cost = self.byok = 0
        self.cost_daily = self.cost_weekly = self.cost_monthly = 0
        self.byok_daily = self.byok_weekly = self.byok_monthly = 0

    def add(self, day: date, cost_nano: int, byok_nano: int) -> None:
        """Counts spending; the days must not fall."""
        if day > self.day:
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            for reset in LimitReset:
                if self.day < reset.began_at(midnight).date():
                    setattr(self, f"cost_{reset}", 0)
                    setattr(self, f"byok_{reset}", 0)
            self.day = day
        for suffix in ("", "_daily", "_weekly", "_monthly"):
            setattr(self, f"cost{suffix}", getattr(self, f"cost{suffix}") + cost_nano)
            setattr(self, f"byok{suffix}", getattr(self, f"byok{suffix}") + byok_nano)


class Replay:
    """Judges the requests of an organization in the order of their time.

    ``meters`` have the spending before the first request, by the subject of the budget.
    """

    def __init__(
        self,
        proposal: GuardrailRules,
        rules: OrganizationRules,
        assignments: Assignments,
        catalog: CatalogSnapshot,
        own: OrganizationSnapshot,
        meters: dict[UUID, ReplayedMeter] | None = None,
    ) -> None:
        self._id = proposal.guardrail_id
        self._proposed = rules.with_guardrail(proposal)
        self._present = rules
        if not assignments.is_of_every_key:
            self._present = rules.with_guardrail(GuardrailRules(self._id, Policy()))
        self._assignments = assignments
        self._catalog = catalog
        self._own = own
        self._meters = {} if meters is None else meters
        self._verdicts: dict[tuple[object, ...], Verdict] = {}

    def judge(self, request: StoredRequest) -> Verdict:
        """Returns the verdict about the next request; only what is served is spent."""
        verdict = self._verdicts.get(request[:7])
        if verdict is None:
            verdict = self._verdicts[request[:7]] = self._judge_route(request)
        budgets = self._find_budgets(request)
        if not budgets:
            return verdict
        today = request.created_at.date()
        if verdict.reason != REGION and verdict is not _UNKNOWN:
            # Admission asks for the budget before it looks for an endpoint.
            for budget in budgets:
                meter = self._meter_of(budget.subject_id)
                if budget.spent_nano(meter, today) >= budget.limit_nano:
                    return Verdict(Outcome.REFUSED, BUDGET)
        if verdict.outcome is not Outcome.REFUSED:
            for subject_id in {budget.subject_id for budget in budgets}:
                meter = self._meter_of(subject_id)
                meter.add(today, request.cost_nano, request.byok_nano)
        return verdict

    def _meter_of(self, subject_id: UUID) -> ReplayedMeter:
        return self._meters.setdefault(subject_id, ReplayedMeter())

    def _find_budgets(self, request: StoredRequest) -> list[Budget]:
        """Returns the budgets of the proposal for the key of a request and for its member."""
        made = (
            rule.make_budget(request.api_key_id, request.workspace_id, request.member_id)
            for rule in self._rules(self._proposed, request, is_proposed=True).budgets
            if rule.guardrail_id == self._id
        )
        return [budget for budget in made if budget is not None]

    def _rules(
        self, rules: OrganizationRules, request: StoredRequest, *, is_proposed: bool
    ) -> KeyRules:
        given = self._assignments
        of_key = given.keys.get(request.api_key_id)
        if is_proposed and given.is_of_every_key:
            of_key = self._id
        of_member = None if request.member_id is None else given.members.get(request.member_id)
        return rules.for_key(request.workspace_id, of_member, of_key)

    def _judge_route(self, request: StoredRequest) -> Verdict:
        """Returns the verdict without the budget."""
        policy = self._rules(self._present, request, is_proposed=False).policy
        before = self._select(request, policy)
        if before is None or not before.candidates or not _lets_in(policy, request):
            return _UNKNOWN
        policy = self._rules(self._proposed, request, is_proposed=True).policy
        if not _lets_in(policy, request):
            return Verdict(Outcome.REFUSED, REGION)
        after = self._select(request, policy)
        if after is None or not after.candidates:
            return Verdict(Outcome.REFUSED, name_exclusion(before, after))
        served = {candidate.route.endpoint_id for candidate in after.candidates}
        had = {candidate.route.endpoint_id for candidate in before.candidates}
        return _MOVED if request.endpoint_id in had - served else _SERVED

    def _select(self, request: StoredRequest, policy: Policy) -> Selection | None:
        """Returns the endpoints that the policy leaves; ``None`` for a refusal."""
        region = _region_of(request)
        context = RoutingContext(
            snapshot=self._catalog,
            own=self._own,
            workspace_id=request.workspace_id,
            key_digest=self._assignments.digests.get(request.api_key_id, ""),
            policy=policy if region is None else policy & Policy.of(served_in=region),
            member_id=request.member_id,
        )
        try:
            return select_candidates(_stand_in(request.operation, request.model), context)
        except (GatewayError, KeyError):
            return None


def _lets_in(policy: Policy, request: StoredRequest) -> bool:
    """Returns whether the policy admits requests to the host that received this one."""
    try:
        require_ingress_region(policy, _region_of(request))
    except RegionNotAllowed:
        return False
    return True


def _region_of(request: StoredRequest) -> str | None:
    return None if request.region == GLOBAL else request.region


@lru_cache(maxsize=1024)
def _stand_in(operation: str, model: str) -> InferenceRequest:
    """Returns the shortest request of an operation; raises ``KeyError`` for an unknown one."""
    path = PATHS[operation]
    return read_request(path, json.dumps({"model": model, **BODIES[path]}).encode())


@dataclass(slots=True)
class Backtest:
    """The verdicts about the requests between two times, counted.

    ``is_sample`` says that these are the newest requests alone: there are more than are read.
    """

    since: datetime
    until: datetime
    total: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    keys: Counter[UUID] = field(default_factory=Counter)
    is_sample: bool = False
    is_of_every_key: bool = False

    @property
    def refused(self) -> int:
        return self.outcomes[Outcome.REFUSED]


@read
def backtest(guardrail: Guardrail, now: datetime | None = None) -> Backtest:
    """Returns what a guardrail, stored or not, would have done to the requests of seven days."""
    until = now or clock.now()
    scope, assignments = _find_scope(guardrail)
    rows, is_whole = _read_rows(scope, until - timedelta(days=DAYS), until)
    result = Backtest(
        until - timedelta(days=DAYS),
        until,
        len(rows),
        is_sample=not is_whole,
        is_of_every_key=assignments.is_of_every_key,
    )
    if not rows:
        return result
    if not is_whole:
        result.since = rows[0].created_at
    proposal = read_guardrail(guardrail)
    catalog = read_catalog_on_orm()
    copy = load_organization(guardrail.organization_id)
    meters: dict[UUID, ReplayedMeter] = {}
    if proposal.limit_nano is not None and proposal.reset is not None:
        began = proposal.reset.began_at(rows[0].created_at)
        meters = _read_spending(scope, began, rows[0].created_at)
    keys = ApiKey.objects.filter(pk__in={row.api_key_id for row in rows})
    assignments.digests.update(keys.values_list("pk", "digest"))  # type: ignore[attr-defined]
    replay = Replay(proposal, copy.rules, assignments, catalog, copy.resolve(catalog), meters)
    for row in rows:
        outcome, reason = replay.judge(row)
        result.outcomes[outcome] += 1
        if outcome is Outcome.REFUSED:
            result.reasons[reason] += 1
            result.keys[row.api_key_id] += 1
    return result


def _find_scope(guardrail: Guardrail) -> tuple[Q, Assignments]:
    """Returns the condition of the generations that the guardrail concerns, and who has which.

    A guardrail of nobody concerns its workspace, as if it were assigned to each key.
    """
    organization_id = guardrail.organization_id
    of_keys = KeyAssignment.objects.filter(guardrail__organization_id=organization_id)
    of_members = MemberAssignment.objects.filter(guardrail__organization_id=organization_id)
    keys = dict(of_keys.values_list("api_key_id", "guardrail_id"))
    members = dict(of_members.values_list("member_id", "guardrail_id"))
    scope = Q(organization_id=organization_id)
    my_keys = [key for key, given in keys.items() if given == guardrail.pk]
    my_members = [member for member, given in members.items() if given == guardrail.pk]
    workspace = guardrail.workspace
    is_default = workspace is not None and workspace.default_guardrail_id == guardrail.pk
    is_of_nobody = not (is_default or my_keys or my_members)
    concerned = Q(api_key_id__in=my_keys) | Q(member_id__in=my_members)
    if is_default or is_of_nobody:
        concerned |= Q(workspace_id=guardrail.workspace_id)
    return scope & concerned, Assignments(keys, members, {}, is_of_nobody)


def _read_rows(scope: Q, since: datetime, until: datetime) -> tuple[list[StoredRequest], bool]:
    """Returns the newest generations of a time, oldest first, and whether these are all."""
    deadline = time.monotonic() + _SECONDS
    rows: list[StoredRequest] = []
    generations: QuerySet[Any, Any] = Generation.objects.filter(scope).created(since, until)
    generations = generations.order_by("-created_at", "-pk").annotate(
        served_by=Coalesce("private_endpoint_id", "model_endpoint_id")
    )
    last: tuple[datetime, str] | None = None
    while len(rows) < MOST_ROWS and time.monotonic() < deadline:
        part = generations
        if last is not None:
            part = part.filter(
                Q(created_at__lt=last[0]) | Q(created_at=last[0], pk__lt=last[1]),
                created_at__lte=last[0],
            )
        found: list[Any] = list(
            part.values_list(
                "api_key_id", "member_id", "workspace_id", "model", "operation", "region",
                "served_by", "cost_nano", "upstream_cost_nano", "created_at", "is_byok", "pk",
            )[: min(_CHUNK, MOST_ROWS - len(rows))]
        )  # fmt: skip
        rows += map(_read_row, found)
        if not found:
            return rows[::-1], True
        last = found[-1][9], found[-1][11]
    is_whole = last is None or not generations.filter(created_at__lt=last[0]).exists()
    return rows[::-1], is_whole


def _read_row(row: tuple[Any, ...]) -> StoredRequest:
    upstream_nano, created_at, is_byok, _ = row[8:]
    return StoredRequest._make((*row[:8], upstream_nano if is_byok else 0, created_at))


def _read_spending(scope: Q, began: datetime, until: datetime) -> dict[UUID, ReplayedMeter]:
    """Returns what keys and members spent from one time to another, from stored sums if any."""
    first, last = began.date(), until.date()
    days = {first + number * _DAY for number in range((last - first).days)}
    summed = set(UsageDay.objects.filter(day__in=days).values_list("day", flat=True))
    found: list[tuple[date, UUID, UUID | None, int, int]] = []
    sums = DailyUsage.objects.filter(scope, by_end_user=False, day__in=summed)
    found += sums.values_list("day", "api_key_id", "member_id").annotate(
        cost=Sum("cost_nano"), paid=Sum("byok_nano")
    )
    ranges: Sequence[tuple[datetime, datetime]] = [*join_days(days - summed)]
    for begin, end in (*ranges, (max(began, midnight(last)), until)):
        rows = Generation.objects.filter(
            scope, pk__gte=first_id(begin), pk__lt=last_id(end),
            created_at__gte=begin, created_at__lt=end,
        )  # fmt: skip
        found += rows.values_list("created_at__date", "api_key_id", "member_id").annotate(
            cost=Sum("cost_nano"),
            paid=Coalesce(Sum("upstream_cost_nano", filter=Q(is_byok=True)), 0),
        )
    meters: dict[UUID, ReplayedMeter] = {}
    for day, key_id, member_id, cost_nano, byok_nano in sorted(found, key=itemgetter(0)):
        for subject in filter(None, (key_id, member_id)):
            meter = meters.setdefault(subject, ReplayedMeter())
            meter.add(day, cost_nano, byok_nano)
    return meters
