"""Reads the generations over which a proposed guardrail is judged, within bounds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from accounts.models import ApiKey, Guardrail, KeyAssignment, MemberAssignment
from config.clocks.clock import clock
from config.database.replica.reading import read
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from inference.admission.governance import read_guardrail
from inference.ids import first_id, last_id
from inference.models import DailyUsage, Generation, UsageDay
from inference.reports.backtest.replay import (
    Assignments,
    Outcome,
    Replay,
    ReplayedMeter,
    StoredRequest,
)
from inference.reports.rollups import join_days, midnight

DAYS: Final = 7
MOST_ROWS: Final = 50_000
_SECONDS: Final = 8.0
_CHUNK: Final = 5_000
_DAY: Final = timedelta(days=1)


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
