"""The console's first page: traffic, open tasks of operators, and who spends most.

Traffic is read from the sums of past hours and days, and from the generations that are not summed
yet. It is cached for a minute. Open tasks are read from the database every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.core.cache import cache
from django.db.models import BigIntegerField, ExpressionWrapper, F
from django.http import HttpRequest
from django.urls import reverse

from billing.models import Account, Deposit, Excess
from config.clocks.clock import clock
from config.console.charts import Axis, Card, Chart, RankRow, Top
from config.console.formatting import nano_dollars, short_count, short_dollars
from config.console.lists.waiting import read_inbox
from config.console.navigation import group_by_entry
from config.sql import fetch_rows
from endpoints.models import Validation
from inference.ids import first_id
from inference.models import HourlyUsage, UsageDay
from inference.reports.hours import HOUR, SUMS, hour_of, summed_until
from inference.reports.rollups import midnight
from inference.reports.usage.panel import plot_traffic
from inference.reports.usage.sums import Sums
from inference.watch.anomalies import read_anomalies

_SECONDS: Final = 60
_ALERTS: Final = 10
_MAX_WAITING: Final = 2_000
_REVIEWED: Final = ("deposit", "excess")
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A choice of the range picker: its length, and the length of a bar, in hours."""

    name: str
    hours: int
    step: int
    pattern: str

    def began_at(self, now: datetime) -> datetime:
        """Returns the beginning of the first bar; the last bar ends in the future."""
        end = hour_of(now) + HOUR
        if self.step == 24:
            end = midnight(now.date()) + _DAY
        return end - self.hours * HOUR


RANGES: Final = {
    choice.name: choice
    for choice in (
        TimeRange("24h", 24, 1, "%H:%M UTC"),
        TimeRange("7d", 168, 6, "%b %d %H:%M UTC"),
        TimeRange("30d", 720, 24, "%b %d UTC"),
    )
}


_HOURS_LEFT: Final = (
    f"SELECT hour, {', '.join(Sums._fields)} FROM ("  # noqa: S608
    f"SELECT date_trunc('hour', created_at, 'UTC') AS hour, {SUMS} "
    "FROM inference_generation WHERE id >= %s AND created_at >= %s GROUP BY 1) AS recent"
)
# What the rankings can be ordered by, and its column.
MEASURES: Final = {"spend": "cost_nano", "requests": "requests", "errors": "failed"}
# The kinds are what GROUPING returns for each set, and 0 for end users.
_MODEL, _ORGANIZATION, _KEY, _MEMBER, _END_USER = 0b0111, 0b1110, 0b1010, 0b1100, 0
# Adds the sums of whole days to the generations that are not summed yet; returns five of each kind.
# End users are many: an index alone ranks them, and the sums of five are looked up.
_TOPS: Final = """
WITH recent AS MATERIALIZED (
    SELECT organization_id, api_key_id, member_id, model, end_user::text, 1 AS requests,
           (status = 'failed')::int AS failed, cost_nano
    FROM inference_generation WHERE id >= %(first_id)s AND created_at >= %(left)s
),
days AS NOT MATERIALIZED (
    SELECT * FROM inference_dailyusage WHERE day >= %(first)s AND day < %(until)s
),
used AS (
    SELECT organization_id, api_key_id, member_id, model, requests, failed, cost_nano FROM recent
    UNION ALL
    SELECT organization_id, api_key_id, member_id, model, requests, failed, cost_nano FROM days
    WHERE NOT by_end_user
),
parts AS (
    SELECT GROUPING(model, api_key_id, member_id, organization_id) AS kind, organization_id,
           coalesce(model, api_key_id::text, member_id::text) AS name, sum(requests) AS requests,
           coalesce(sum(failed), 0) AS failed, sum(cost_nano) AS cost_nano
    FROM used
    GROUP BY GROUPING SETS (
        (model), (organization_id), (organization_id, api_key_id), (organization_id, member_id)
    )
),
ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY kind
        ORDER BY {measure} DESC, requests DESC, cost_nano DESC, name, organization_id
    ) AS place
    FROM parts WHERE kind <> {member} OR name IS NOT NULL
),
busiest AS MATERIALIZED (
    SELECT organization_id, end_user, row_number() OVER (
        ORDER BY sum(measured) DESC NULLS LAST, sum(requests) DESC, end_user, organization_id
    ) AS place
    FROM (SELECT organization_id, end_user, {measure} AS measured, requests FROM recent
          WHERE end_user IS NOT NULL
          UNION ALL
          SELECT organization_id, end_user::text, {measure}, requests FROM days
          WHERE by_end_user AND end_user IS NOT NULL
         ) asked
    GROUP BY 1, 2 ORDER BY 3 LIMIT 5
),
found AS (
SELECT kind, organization_id, name, requests, failed, cost_nano, place
FROM ranked WHERE place <= 5
UNION ALL
SELECT {end_user}, b.organization_id, b.end_user, sum(requests), coalesce(sum(failed), 0),
       sum(cost_nano), place
FROM busiest b, LATERAL (
    SELECT requests, failed, cost_nano FROM recent r
    WHERE r.organization_id = b.organization_id AND r.end_user = b.end_user
    UNION ALL
    SELECT requests, failed, cost_nano FROM days d
    WHERE by_end_user AND d.organization_id = b.organization_id AND d.end_user = b.end_user
) looked_up
GROUP BY 2, 3, place
)
SELECT kind, f.organization_id, coalesce(f.name, ''), coalesce(k.name, m.email, f.name, ''),
       coalesce(o.name, ''), m.deleted_at IS NOT NULL, requests, failed, cost_nano
FROM found f LEFT JOIN accounts_organization o ON o.id = f.organization_id
LEFT JOIN accounts_apikey k ON k.id = CASE kind WHEN {key} THEN f.name::uuid END
LEFT JOIN accounts_member m ON m.id = CASE kind WHEN {member} THEN f.name::uuid END
ORDER BY kind, place
"""

# A lying upstream may cause an excess with each answer, so only the first ones are counted.
_STATES: Final = """
SELECT
    count(*) FILTER (WHERE status = 'active'), count(*) FILTER (WHERE status = 'draft'),
    count(*) FILTER (WHERE drifted_at IS NOT NULL),
    (SELECT count(*) FROM endpoints_validation
     WHERE created_at >= %(since)s AND outcome = ANY(%(wrong)s)),
    (SELECT count(*) FROM billing_deposit WHERE status = ANY(%(deposits)s)),
    (SELECT count(*) FROM (
        SELECT FROM billing_excess WHERE status = 'under_review' AND amount_nano > 0
        LIMIT %(most)s
    ) AS e),
    (SELECT count(*) FROM catalog_credentialrefusal)
FROM endpoints_privateendpoint WHERE deleted_at IS NULL
"""


class Used(NamedTuple):
    """The use by a part: an organization, a model, or a key, member or end user of one.

    ``name`` is the id of a key and of a member, and ``title`` the text for it.
    """

    owner: UUID | None
    name: str
    title: str
    organization: str
    is_deleted: bool
    requests: int
    failed: int
    cost_nano: int


def build_dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Adds to the first page's context the numbers of those rows that the operator may view."""
    context = group_by_entry(request, context)
    chosen = RANGES.get(request.GET.get("range", ""), RANGES["24h"])
    by = request.GET.get("by", "")
    by = by if by in MEASURES else "spend"
    also = "" if by == "spend" else f"&by={by}"
    dashboard: dict[str, Any] = {
        "ranges": [
            (name, f"?range={name}{also}", choice is chosen) for name, choice in RANGES.items()
        ],
        "measures": [
            (name, f"?range={chosen.name}&by={name}#most", name == by) for name in MEASURES
        ],
        "cards": [],
    }
    if request.user.has_perm("inference.view_generation"):
        traffic = _read_traffic(chosen, by)
        dashboard["cards"] += traffic["cards"]
        dashboard["charts"] = traffic["charts"]
        dashboard["tops"] = traffic["tops"]
    dashboard["cards"] += _state_cards(request, clock.now() - chosen.hours * HOUR)
    if request.user.has_perm("billing.view_account"):
        dashboard["alerts"] = _find_low_balances()
        dashboard["cards"].append(_alert_card(dashboard["alerts"]))
    shown: dict[str, Any] = {"dashboard": dashboard, "inbox": read_inbox(request)}
    if request.user.has_perm("inference.view_generation"):
        shown["anomalies"] = _list_anomalies()
    return context | shown


def _list_anomalies() -> list[dict[str, str]]:
    found = read_anomalies()[:_ALERTS]
    return [
        {
            "name": one.name,
            "text": one.text,
            "url": reverse("admin:accounts_organization_change", args=[one.organization_id]),
        }
        for one in found
    ]


def _url(name: str, **query: str) -> str:
    url = reverse(f"admin:{name}_changelist")
    return f"{url}?{urlencode(query)}" if query else url


def _state_cards(request: HttpRequest, since: datetime) -> Iterable[Card]:
    """Returns the numbers of endpoints and of what is in review, read with one query."""
    may_view = {name: request.user.has_perm(f"billing.view_{name}") for name in _REVIEWED}
    may_view["provider"] = request.user.has_perm("catalog.view_provider")
    may_view["endpoint"] = request.user.has_perm("endpoints.view_privateendpoint")
    if not any(may_view.values()):
        return
    wrong = [str(one) for one in Validation.Outcome if one is not Validation.Outcome.PASSED]
    statuses = list(map(str, Deposit.REVIEWED))
    values: dict[str, Any] = {
        "since": since, "wrong": wrong, "deposits": statuses, "most": _MAX_WAITING + 1,
    }  # fmt: skip
    [counts] = fetch_rows(_STATES, values)
    active, drafts, drifted, failed, deposits, excesses, refused = counts
    if may_view["endpoint"]:
        yield from _endpoint_cards(active, drafts, drifted)
        yield _validation_card(failed, wrong, since)
    if may_view["provider"]:
        yield Card(
            "Refused credentials",
            f"{refused:,}",
            _url("catalog_provider", credential="refused"),
            "key_off",
            "of the operator, at providers",
            is_alarming=refused > 0,
        )
    if may_view["deposit"]:
        yield Card(
            "Deposits under review",
            f"{deposits:,}",
            _url("billing_deposit", status__in=",".join(statuses)),
            "savings",
            is_alarming=deposits > 0,
        )
    if may_view["excess"]:
        yield Card(
            "Excesses under review",
            f"{excesses:,}" if excesses <= _MAX_WAITING else f"more than {_MAX_WAITING:,}",
            _url("billing_excess", status__exact=Excess.Status.UNDER_REVIEW, amount="some"),
            "gavel",
            is_alarming=excesses > 0,
        )


def _endpoint_cards(active: int, drafts: int, drifted: int) -> Iterable[Card]:
    name = "endpoints_privateendpoint"
    yield Card("Active endpoints", f"{active:,}", _url(name, status__exact="active"), "dns")
    yield Card("Drafts", f"{drafts:,}", _url(name, status__exact="draft"), "edit_note")
    yield Card(
        "Drifted endpoints",
        f"{drifted:,}",
        _url(name, drifted_at__isnull="False"),
        "troubleshoot",
        is_alarming=drifted > 0,
    )


def _validation_card(failed: int, wrong: Sequence[str], since: datetime) -> Card:
    return Card(
        "Failed validations",
        f"{failed:,}",
        _url("endpoints_validation", outcome__in=",".join(wrong), created_at__gte=_iso(since)),
        "fact_check",
        is_alarming=failed > 0,
    )


def _find_low_balances() -> list[tuple[str, str, str]]:
    """Returns the organizations with low credits: name, available credits and account page."""
    # Without an output field Django assumes 32 bits and drops the comparison as always true.
    left = ExpressionWrapper(
        F("posted_credits") - F("posted_debits") - F("pending_debits"),
        output_field=BigIntegerField(),
    )
    rows = (
        Account.objects.filter(kind=Account.Kind.CREDITS, posted_credits__gt=0)
        .annotate(left=left)
        .filter(left__lt=settings.BALANCE_ALERT_NANO)
        .order_by("left", "pk")
        .values_list("organization__name", "left", "pk")[: _ALERTS + 1]
    )
    return [
        (name, nano_dollars(left), reverse("admin:billing_account_change", args=[pk]))
        for name, left, pk in rows
    ]


def _alert_card(alerts: Sequence[Any]) -> Card:
    count = f"{len(alerts)}" if len(alerts) <= _ALERTS else f"{_ALERTS}+"
    return Card(
        "Low balances",
        count,
        "#alerts" if alerts else _url("billing_account", kind__exact="credits"),
        "account_balance_wallet",
        f"below {nano_dollars(settings.BALANCE_ALERT_NANO)}",
        is_alarming=bool(alerts),
    )


def _read_traffic(chosen: TimeRange, by: str) -> dict[str, Any]:
    key = f"console:traffic:{chosen.name}:{by}"
    found: dict[str, Any] | None = cache.get(key)
    if found is None:
        now = clock.now()
        begin = chosen.began_at(now)
        rows = _read_hours(begin)
        found = {
            "cards": _traffic_cards(sum(rows.values(), Sums()), begin),
            "charts": _build_charts(chosen, begin, rows),
            "tops": _build_tops(begin, by),
        }
        cache.set(key, found, _SECONDS)
    return found


def _read_hours(begin: datetime) -> dict[datetime, Sums]:
    """Returns the sums of each hour since ``begin`` that has generations."""
    left = max(summed_until() or begin, begin)
    stored = HourlyUsage.objects.filter(hour__gte=begin).values_list("hour", *Sums._fields)
    rows = [*stored, *fetch_rows(_HOURS_LEFT, [first_id(left), left])]
    return {hour: Sums(*map(int, sums)) for hour, *sums in rows}


def _traffic_cards(sums: Sums, begin: datetime) -> list[Card]:
    since = {"created_at__gte": _iso(begin)}
    everything = _url("inference_generation", **since)
    share = 100 * sums.failed / sums.requests if sums.requests else 0
    upstream = nano_dollars(sums.upstream_nano)
    return [
        Card("Requests", f"{sums.requests:,}", everything, "bolt"),
        Card(
            "Tokens",
            short_count(sums.tokens),
            everything,
            "token",
            exact=f"{sums.tokens:,}",
        ),
        Card(
            "Revenue",
            short_dollars(sums.cost_nano),
            _url("billing_transfer", kind__exact="usage", created_at__gte=_iso(begin)),
            "payments",
            f"{short_dollars(sums.upstream_nano)} upstream cost",
            exact=f"{nano_dollars(sums.cost_nano)}, {upstream} upstream cost",
        ),
        Card(
            "Error rate",
            f"{share:.1f}%",
            _url("inference_generation", status__exact="failed", **since),
            "error",
            f"{sums.failed:,} failed",
            is_alarming=share >= 5,
        ),
    ]


def _build_charts(chosen: TimeRange, begin: datetime, rows: Mapping[datetime, Sums]) -> list[Chart]:
    step = chosen.step * HOUR
    slots = [begin + number * step for number in range(chosen.hours // chosen.step)]
    bars = [Sums()] * len(slots)
    for hour, sums in rows.items():
        bars[min(int((hour - begin) / step), len(bars) - 1)] += sums
    total = sum(bars, Sums())
    return plot_traffic(Axis([slot.strftime(chosen.pattern) for slot in slots]), total, bars)


def _link_organization(one: Used) -> str:
    return reverse("admin:accounts_organization_change", args=[one.owner])


def _link_key(one: Used) -> str:
    return reverse("admin:accounts_apikey_change", args=[one.name])


def _link_member(one: Used) -> str:
    """Returns the page of a member, or of its organization once it is deleted."""
    if one.is_deleted:
        return _link_organization(one)
    return reverse("admin:accounts_member_change", args=[one.name])


def _link_model(one: Used) -> str:
    return _url("inference_generation", model__exact=one.name)


def _link_end_user(one: Used) -> str:
    query = {"organization__id__exact": str(one.owner), "end_user__exact": one.name}
    return _url("inference_generation", **query)


def _build_tops(begin: datetime, by: str) -> list[Top]:
    used = _find_most_used(begin, by)

    kinds: tuple[tuple[str, int, Callable[[Used], str], str], ...] = (
        ("organizations", _ORGANIZATION, _link_organization,
         "No organization has sent a request yet. Create one and add an API key for it."),
        ("keys", _KEY, _link_key, "No key was used yet."),
        ("members", _MEMBER, _link_member, "No key with a member as its creator was used yet."),
        ("models", _MODEL, _link_model,
         "No model was used yet. Send a request to /api/v1/chat/completions."),
        ("end users", _END_USER, _link_end_user,
         'No request has named an end user yet. Callers name it in the field "user".'),
    )  # fmt: skip
    return [
        Top(
            f"Top {title}",
            _rank_rows(used[kind], by, link),
            "No errors in this range." if used[kind] else empty,
        )
        for title, kind, link, empty in kinds
    ]


def _find_most_used(begin: datetime, by: str) -> dict[int, list[Used]]:
    """Returns what ranks first of each kind since ``begin``, by one of ``MEASURES``.

    A range of more than a day includes its whole first day, because the sums are of whole days.
    """
    first = begin.date()
    left = begin
    if begin < clock.now() - _DAY:
        days = set(UsageDay.objects.filter(day__gte=first).values_list("day", flat=True))
        left = midnight(first)
        # The generations of days that are summed without a gap are not read again.
        while left.date() in days:
            left += _DAY
    used: dict[int, list[Used]] = {
        kind: [] for kind in (_MODEL, _ORGANIZATION, _KEY, _MEMBER, _END_USER)
    }
    # When no day is summed, the span is empty and reads no sums.
    span = {"first": first, "until": left.date() if left > begin else first}
    statement = _TOPS.format(measure=MEASURES[by], key=_KEY, member=_MEMBER, end_user=_END_USER)
    values = {"first_id": first_id(left), "left": left, **span}
    for kind, *texts, requests, failed, cost in fetch_rows(statement, values):
        used[kind].append(Used._make([*texts, int(requests), int(failed), int(cost)]))
    return used


def _rank_rows(rows: Sequence[Used], by: str, link: Callable[[Used], str]) -> list[RankRow]:
    """Returns the rows of a ranking; its bars are by requests while nothing was spent."""
    column = MEASURES[by]
    if by == "spend" and not (rows and rows[0].cost_nano):
        column = "requests"
    highest = max((getattr(one, column) for one in rows), default=0)
    return [
        RankRow(
            _write_title(one),
            link(one),
            f"{one.failed:,} of {one.requests:,} failed"
            if by == "errors"
            else f"{one.requests:,} · {short_dollars(one.cost_nano)}",
            max(100 * getattr(one, column) // highest, 1),
            nano_dollars(one.cost_nano),
        )
        for one in rows
        if by != "errors" or one.failed
    ]


def _write_title(one: Used) -> str:
    if not one.title:
        return one.organization
    return f"{one.title} ({one.organization})" if one.organization else one.title


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S+00:00")
