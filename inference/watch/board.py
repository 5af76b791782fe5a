"""The health of providers and endpoints: what failed in the last hour, and what routing avoids.

Everything is read from what exists: the latest requests, the health that workers exchange, and the
state of private endpoints. The whole board is remembered for some seconds, for all operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from django.core.cache import cache
from django.db import connection
from django.db.models import Q

from accounts.models import ByokCredential
from catalog.models import CredentialRefusal, ModelEndpoint, Provider
from config import sql
from config.clocks.clock import clock
from config.database.replica.reading import answer
from endpoints.models import PrivateEndpoint, Validation
from inference.admission.explain import READ_HEALTH
from inference.ids import first_id
from inference.reports.endpoint_hours import ELSEWHERE
from inference.routing.health import Health, HealthState, HealthTable, oldest_bucket, subject_of
from inference.watch.attempts import IS_FAILURE, MOST_ROWS, TRIED

SPAN: Final = timedelta(hours=1)
MOST_ENDPOINTS: Final = 200
_CACHED_SECONDS: Final = 10
# A share of failures says something from this number of attempts on.
_LEAST_ATTEMPTS: Final = 5
_BAD_PERCENT, _POOR_PERCENT = 20, 5
_CREDENTIALS: Final = 2_000

_QUERY: Final = """
WITH recent AS MATERIALIZED (
    SELECT created_at, status, error_type, attempts, provider_name, latency_ms, is_byok,
        coalesce(private_endpoint_id, model_endpoint_id) AS endpoint_id
    FROM inference_generation
    WHERE id >= %(first_id)s AND created_at >= %(begin)s AND status <> 'pending'
    ORDER BY id DESC
    LIMIT %(most)s
),
tried AS ({tried}),
counted AS (
    SELECT provider_name, endpoint_id, count(*) AS attempts,
        count(*) FILTER (WHERE {is_failure}) AS failed,
        count(*) FILTER (WHERE error_type = 'rate_limit_exceeded') AS limited,
        (array_agg(error_type ORDER BY created_at DESC) FILTER (WHERE {is_failure}))[1] AS last,
        max(created_at) FILTER (WHERE {is_failure}) AS failed_at,
        coalesce(bool_or(is_unknown), false) AS is_unknown,
        array_agg(DISTINCT lacks) FILTER (WHERE lacks IS NOT NULL) AS lacks
    FROM tried
    WHERE (is_byok AND endpoint_id IN ({elsewhere})) IS NOT TRUE
    GROUP BY GROUPING SETS ((provider_name), (provider_name, endpoint_id))
),
timed AS (
    SELECT provider_name, endpoint_id,
        percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY latency_ms) AS latencies
    FROM recent
    WHERE latency_ms IS NOT NULL AND NOT (is_byok AND endpoint_id IN ({elsewhere}))
    GROUP BY GROUPING SETS ((provider_name), (provider_name, endpoint_id))
)
SELECT c.provider_name, c.endpoint_id, c.attempts, c.failed, c.limited, c.last, c.failed_at,
    t.latencies, c.is_unknown, c.lacks,
    (SELECT count(*) FROM recent), (SELECT min(created_at) FROM recent)
FROM counted c
LEFT JOIN timed t ON t.provider_name = c.provider_name
    AND t.endpoint_id IS NOT DISTINCT FROM c.endpoint_id
"""
_READ: Final = (
    _QUERY.replace("{tried}", TRIED)
    .replace("{is_failure}", IS_FAILURE)
    .replace("{elsewhere}", ELSEWHERE)
)


class Level(IntEnum):
    """How bad a row is; the worst rows come first."""

    BAD = 0
    POOR = 1
    GOOD = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """The attempts of a provider or an endpoint, and the times to the first event in ms."""

    attempts: int = 0
    failed: int = 0
    limited: int = 0
    last_error: str = ""
    failed_at: datetime | None = None
    p50: int | None = None
    p95: int | None = None
    is_unknown: bool = False
    lacks: tuple[str, ...] = ()

    @property
    def faults(self) -> list[tuple[Level, str]]:
        """What the provider said of an endpoint, each with how bad it is."""
        found: list[tuple[Level, str]] = []
        if self.is_unknown:
            found.append((Level.BAD, "its provider does not know its model"))
        if self.lacks:
            found.append((Level.POOR, f"does not do what it lists: {', '.join(self.lacks)}"))
        return found

    @property
    def failed_percent(self) -> float:
        return 100 * self.failed / self.attempts if self.attempts else 0.0

    @property
    def level(self) -> Level:
        if self.attempts < _LEAST_ATTEMPTS or self.failed_percent < _POOR_PERCENT:
            return Level.GOOD
        return Level.BAD if self.failed_percent >= _BAD_PERCENT else Level.POOR


@dataclass(slots=True)
class Row:
    """A provider or an endpoint. ``states`` are what is wrong with it, each with how bad it is."""

    name: str
    traffic: Traffic
    states: list[tuple[Level, str]] = field(default_factory=list)
    provider: str = ""
    owner: str = ""
    subject: Any = None

    @property
    def level(self) -> Level:
        return min([self.traffic.level, *(level for level, _ in self.states)])

    @property
    def order(self) -> tuple[Any, ...]:
        return self.level, -self.traffic.failed, -self.traffic.attempts, self.name, self.owner


@dataclass(frozen=True, slots=True)
class Board:
    """The rows, the worst first; ``begin`` is since when requests are counted.

    ``is_cut`` says that the hour has more requests than are read. ``hidden`` is the number of
    endpoints that are not shown.
    """

    providers: Sequence[Row]
    endpoints: Sequence[Row]
    hidden: int
    read_at: datetime
    begin: datetime
    is_cut: bool


def read_board() -> Board:
    """Returns the board, which is at most ten seconds old."""
    found: Board | None = cache.get("console:board")
    if found is None:
        found = answer(build_board)
        cache.set("console:board", found, _CACHED_SECONDS)
    return found


def build_board() -> Board:
    """Reads the board: five queries, and one more if private endpoints are shown."""
    now = clock.now()
    begin = now - SPAN
    by_provider: dict[str, Traffic] = {}
    by_endpoint: dict[UUID, Traffic] = {}
    is_cut = False
    values: dict[str, Any] = {"first_id": first_id(begin), "begin": begin, "most": MOST_ROWS}
    for provider, endpoint_id, *numbers, rows, first in sql.fetch_rows(_READ, values):
        traffic = _make_traffic(numbers)
        if endpoint_id is None:
            by_provider[provider] = traffic
        else:
            by_endpoint[endpoint_id] = traffic
        if rows == MOST_ROWS:
            is_cut, begin = True, first
    health = _read_health()
    endpoints = [*_list_private(by_endpoint, health), *_list_public(by_endpoint, health)]
    endpoints.sort(key=lambda row: row.order)
    providers = sorted(_list_providers(by_provider), key=lambda row: row.order)
    hidden = len(endpoints[MOST_ENDPOINTS:])
    return Board(providers, endpoints[:MOST_ENDPOINTS], hidden, now, begin, is_cut)


def _make_traffic(numbers: Sequence[Any]) -> Traffic:
    attempts, failed, limited, last, failed_at, latencies, is_unknown, lacks = numbers
    p50, p95 = latencies or (None, None)
    counts = attempts, failed, limited
    return Traffic(*counts, last or "", failed_at, p50, p95, is_unknown, tuple(lacks or ()))


def _read_health() -> HealthTable:
    """Returns the health that all workers share, in a table of its own: no probe is reserved."""
    table, now = HealthTable(), clock.time()
    with connection.cursor() as cursor:
        sql.execute(cursor, READ_HEALTH, [oldest_bucket(now)])
        table.merge(cursor.fetchall(), now)
    return table


def _list_providers(traffic: Mapping[str, Traffic]) -> Iterator[Row]:
    """Yields the providers with traffic, and those that refuse the operator's credential."""
    refusals = {found.provider_id: found for found in CredentialRefusal.objects.all()}
    rows = Provider.objects.filter(Q(name__in=traffic) | Q(pk__in=refusals)).order_by("pk")
    others = dict(traffic)
    for provider in rows[:MOST_ENDPOINTS]:
        others.pop(provider.name, None)
        row = Row(provider.name, traffic.get(provider.name, Traffic()), subject=provider)
        if (refusal := refusals.get(provider.pk)) is not None:
            since = f"{refusal.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            row.states.append((Level.BAD, f"refuses the operator's credential since {since}"))
        yield row
    # A provider that has another name since.
    for name, counted in others.items():
        yield Row(name, counted)


def _list_public(traffic: Mapping[UUID, Traffic], health: HealthTable) -> Iterator[Row]:
    """Yields the endpoints of the catalogue that had traffic."""
    rows = ModelEndpoint.objects.filter(pk__in=traffic).select_related("model", "provider")
    for endpoint in rows:
        yield Row(
            endpoint.model.slug,
            traffic[endpoint.pk],
            [*_list_pauses([endpoint.pk], health), *traffic[endpoint.pk].faults],
            provider=endpoint.provider.name,
            subject=endpoint,
        )


def _list_private(traffic: Mapping[UUID, Traffic], health: HealthTable) -> Iterator[Row]:
    """Yields the private endpoints with traffic, and those that their watch finds changed."""
    rows = (
        PrivateEndpoint.objects.filter(deleted_at=None)
        .filter(Q(pk__in=traffic) | Q(drifted_at__isnull=False))
        .select_related("model", "organization", "provider", "private_provider", "validation")
        .order_by("drifted_at", "pk")[: MOST_ENDPOINTS + len(traffic)]
    )
    endpoints = list(rows)
    subjects = _find_subjects(endpoints)
    for endpoint in endpoints:
        counted = traffic.get(endpoint.pk, Traffic())
        row = Row(
            endpoint.model.slug,
            counted,
            [*_list_pauses(subjects[endpoint.pk], health), *counted.faults],
            provider=endpoint.provider_name,
            owner=endpoint.organization.name,
            subject=endpoint,
        )
        if endpoint.drifted_at is not None:
            since = f"{endpoint.drifted_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            row.states.append((Level.BAD, f"drifted since {since}"))
        validation = endpoint.validation
        if validation is not None and validation.outcome != Validation.Outcome.PASSED:
            row.states.append((Level.POOR, "last validation failed"))
        if endpoint.status != PrivateEndpoint.Status.ACTIVE:
            row.states.append((Level.GOOD, str(endpoint.status)))
        yield row


def _find_subjects(endpoints: Iterable[PrivateEndpoint]) -> dict[UUID, list[UUID]]:
    """Returns the subjects of each endpoint's health: itself, and itself with each credential."""
    found = {endpoint.pk: [endpoint.pk] for endpoint in endpoints}
    owned: dict[tuple[UUID, str], list[UUID]] = {}
    owners = {endpoint.organization_id for endpoint in endpoints}
    if owners:
        rows = ByokCredential.objects.filter(organization__in=owners, disabled=False)
        keys = rows.order_by("pk").values_list("organization_id", "provider_slug", "pk")
        for owner, slug, key in keys[:_CREDENTIALS]:
            owned.setdefault((owner, slug), []).append(key)
    for endpoint in endpoints:
        found[endpoint.pk] += [
            subject_of(endpoint.pk, key)
            for key in owned.get((endpoint.organization_id, endpoint.upstream_provider.slug), ())
        ]
    return found


_PAUSES: Final = {
    HealthState.OPEN: (Level.BAD, "not called: it fails too often"),
    HealthState.HALF_OPEN: (Level.BAD, "probed: it failed too often"),
    HealthState.RATE_LIMITED: (Level.POOR, "paused: its rate limit is reached"),
    HealthState.DEGRADED: (Level.POOR, "called after others: it fails often"),
}


def _list_pauses(subjects: Iterable[UUID], health: HealthTable) -> list[tuple[Level, str]]:
    """Returns why routing avoids an endpoint at this moment."""
    now = clock.time()
    found: list[Health] = [health.health(subject, now) for subject in subjects]
    return sorted({_PAUSES[each.state] for each in found if each.state in _PAUSES})
