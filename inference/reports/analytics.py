"""Queries over the generations of an organization: metrics by dimensions, over time.

The ORM builds every query from the expressions of this module. A caller's values select among them
or become parameters; they never become SQL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Literal
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import (
    Aggregate,
    Case,
    Count,
    DecimalField,
    ExpressionWrapper,
    F,
    FloatField,
    OrderBy,
    Q,
    Sum,
    UUIDField,
    Value,
    When,
    Window,
)
from django.db.models.functions import Cast, Coalesce, NullIf, RowNumber, Trunc
from psycopg.errors import QueryCanceled

from accounts.models import ApiKey
from catalog.models import LanguageModel
from catalog.operations import OPERATIONS
from catalog.pricing import usd
from config.api.errors import RequestTimeout
from config.database.replica.reading import read
from inference.models import Generation
from inference.reports.rollups import archived_days

TIMEOUT_MS: Final = 10_000
DEFAULT_LIMIT: Final = 1000
_MONEY: Final = Decimal(10**9)


class Granularity(StrEnum):
    """The length of a time bucket, in UTC; weeks begin on Monday."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class _Percentile(Aggregate):
    """A percentile of the values that are not null, interpolated between two values."""

    function = "percentile_cont"
    template = "%(function)s(%(share)s) WITHIN GROUP (ORDER BY %(expressions)s)"
    output_field = FloatField()

    def __init__(self, column: str, *, share: Decimal) -> None:
        super().__init__(F(column), share=share)


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of a group of generations.

    ``display_format`` is the contract's: a ``percent`` is a share from 0 to 1, a ``latency`` is in
    milliseconds, a ``throughput`` in tokens per second, a ``currency`` in USD. A rate is an
    average, not a sum, and is null for a group without data.
    """

    label: str
    display_format: Literal["number", "currency", "percent", "latency", "throughput"]
    expression: Any
    is_rate: bool = False

    def render(self, value: Any) -> int | float | None:
        if value is None:
            return None
        if self.display_format == "currency":
            return usd(int(value))
        return round(float(value), 6) if self.is_rate else int(value)

    def bound(self, value: Decimal) -> Decimal:
        """Converts a number of a filter to the unit in which the metric is stored."""
        return value * _MONEY if self.display_format == "currency" else value


@dataclass(frozen=True, slots=True)
class Dimension:
    """An attribute that groups generations; filters compare with its values."""

    label: str
    expression: Any
    is_uuid: bool = False


def _total(*columns: str) -> Any:
    return sum((Coalesce(Sum(column), 0) for column in columns[1:]), Coalesce(Sum(columns[0]), 0))


def _share(part: Any, whole: Any) -> Any:
    return Cast(part, FloatField()) / NullIf(whole, 0)


def _time(label: str, column: str, share: str) -> Metric:
    """Returns a percentile of a time."""
    return Metric(label, "latency", _Percentile(column, share=Decimal(share)), is_rate=True)


_COMPLETED: Final = Q(status=Generation.Status.COMPLETED, duration_ms__gt=0)

METRICS: Final[Mapping[str, Metric]] = {
    "request_count": Metric("Requests", "number", Count("pk")),
    "tokens_total": Metric("Tokens", "number", _total("prompt_tokens", "completion_tokens")),
    "tokens_prompt": Metric("Prompt tokens", "number", _total("prompt_tokens")),
    "tokens_completion": Metric("Completion tokens", "number", _total("completion_tokens")),
    "tokens_cached": Metric("Cached prompt tokens", "number", _total("cached_tokens")),
    "tokens_reasoning": Metric("Reasoning tokens", "number", _total("reasoning_tokens")),
    "usage": Metric("Credits spent", "currency", _total("cost_nano")),
    "byok_usage": Metric(
        "Spent by own credentials",
        "currency",
        Coalesce(Sum("upstream_cost_nano", filter=Q(is_byok=True)), 0),
    ),
    "latency_p50": _time("Time to the first event, median", "latency_ms", "0.5"),
    "latency_p95": _time("Time to the first event, 95th percentile", "latency_ms", "0.95"),
    "generation_time_p50": _time("Time of the whole call, median", "duration_ms", "0.5"),
    "generation_time_p95": _time("Time of the whole call, 95th percentile", "duration_ms", "0.95"),
    "throughput": Metric(
        "Completion tokens per second",
        "throughput",
        _share(
            Sum("completion_tokens", filter=_COMPLETED) * 1000,
            Sum("duration_ms", filter=_COMPLETED),
        ),
        is_rate=True,
    ),
    "error_rate": Metric(
        "Share that failed",
        "percent",
        _share(Count("pk", filter=Q(status=Generation.Status.FAILED)), Count("pk")),
        is_rate=True,
    ),
    "cache_hit_rate": Metric(
        "Share of prompt tokens read from a cache",
        "percent",
        _share(_total("cached_tokens"), _total("prompt_tokens")),
        is_rate=True,
    ),
}

DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "model": Dimension("Model", F("model")),
    "provider": Dimension("Provider", F("provider_name")),
    "endpoint": Dimension(
        "Endpoint",
        Coalesce("private_endpoint_id", "model_endpoint_id", output_field=UUIDField()),
        is_uuid=True,
    ),
    "api_key_id": Dimension("API key", F("api_key__digest")),
    "workspace": Dimension("Workspace", F("workspace_id"), is_uuid=True),
    "user": Dimension("Member", F("member_id"), is_uuid=True),
    "external_user": Dimension("End user", F("end_user")),
    "data_region": Dimension("Region", F("region")),
    "api_type": Dimension(
        "API",
        Case(
            *(
                When(operation=operation, then=Value(row.api_type))
                for operation, row in OPERATIONS.items()
            ),
            default=Value("completions"),
        ),
    ),
    "status": Dimension("Status", F("status")),
    "finish_reason": Dimension("Finish reason", F("finish_reason")),
    "error_type": Dimension("Error", F("error_type")),
}

# The kind of value of each operator. Only metrics are ordered, because dimensions are names.
OPERATORS: Final[Mapping[str, Literal["scalar", "array"]]] = {
    "eq": "scalar",
    "neq": "scalar",
    "in": "array",
    "not_in": "array",
    "gt": "scalar",
    "gte": "scalar",
    "lt": "scalar",
    "lte": "scalar",
}
DIMENSION_OPERATORS: Final = ("eq", "neq", "in", "not_in")
METRIC_OPERATORS: Final = ("eq", "neq", "gt", "gte", "lt", "lte")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a dimension, with one value or a list, or on a metric, with one number.

    ``include_unset`` also keeps rows whose dimension has no value; other filters drop them.
    """

    field: str
    operator: str
    value: Any
    include_unset: bool = False


@contextmanager
def limit_statements() -> Iterator[None]:
    """Stops each statement after ten seconds; raises :class:`RequestTimeout`."""
    is_inside = connection.in_atomic_block
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(TIMEOUT_MS)])
            yield
            if is_inside:
                cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError as exc:
        if isinstance(exc.__cause__, QueryCanceled):
            raise RequestTimeout from None
        raise


@dataclass(frozen=True, slots=True)
class Query:
    """A query; its names are keys of this module's metrics and dimensions."""

    organization_id: UUID
    start: datetime
    end: datetime
    metrics: Sequence[str]
    dimensions: Sequence[str] = ()
    granularity: Granularity | None = None
    filters: Sequence[Condition] = ()
    order_by: str | None = None
    is_descending: bool = False
    limit: int = DEFAULT_LIMIT
    group_limit: int | None = None

    @read
    def run(self) -> AnalyticsAnswer:
        """Runs the query; raises :class:`RequestTimeout` after ten seconds."""
        started = time.monotonic()
        with limit_statements():
            found = list(self._rows()[: self.limit + 1])
        return AnalyticsAnswer(
            rows=[self._render_row(row) for row in found[: self.limit]],
            is_truncated=len(found) > self.limit,
            query_time_ms=round((time.monotonic() - started) * 1000, 3),
            warnings=self._find_gap(),
        )

    def _find_gap(self) -> list[str]:
        """Says that generations of the range have left, and so count nowhere in the answer."""
        last = (self.end - timedelta(microseconds=1)).astimezone(UTC).date()
        gone = archived_days(self.start.astimezone(UTC).date(), last, self.organization_id)
        if not gone:
            return []
        return [f"Requests of the days up to {gone[-1]} are archived and not counted here."]

    def _rows(self) -> Any:
        """Returns the query set: filters, groups, measures, filters by metrics, then sorts."""
        rows: Any = (
            Generation.objects.for_organization(self.organization_id)
            .exclude(status=Generation.Status.PENDING)
            .created(self.start, self.end)
        )
        # The prefix avoids a conflict with a column of the same name.
        asked = {*self.dimensions, *(item.field for item in self.filters)}
        rows = rows.annotate(
            **{f"by_{name}": DIMENSIONS[name].expression for name in asked & DIMENSIONS.keys()}
        )
        for item in self.filters:
            if item.field in DIMENSIONS:
                rows = rows.filter(_condition(item))
        group = [f"by_{name}" for name in self.dimensions]
        if self.granularity is not None:
            rows = rows.annotate(by_date=Trunc("created_at", self.granularity.value))
            group.insert(0, "by_date")
        if not group:
            # Without a dimension or granularity, all rows form one group.
            rows = rows.annotate(by_nothing=Value(1))
        rows = rows.order_by().values(*(group or ["by_nothing"]))
        measured = {*self.metrics, *(item.field for item in self.filters), self.order_by}
        rows = rows.annotate(
            **{
                f"of_{name}": ExpressionWrapper(
                    METRICS[name].expression, output_field=DecimalField()
                )
                for name in sorted(METRICS.keys() & measured)
            }
        )
        for item in self.filters:
            if item.field in METRICS:
                rows = rows.filter(_having(item))
        order = self._order(group)
        if self.group_limit is not None and self.dimensions:
            place = Window(
                RowNumber(),
                partition_by=[F(f"by_{name}") for name in self.dimensions],
                order_by=order,
            )
            rows = rows.annotate(place=place).filter(place__lte=self.group_limit)
        return rows.order_by(*order)

    def _order(self, group: Sequence[str]) -> list[OrderBy]:
        order = [F(name).asc(nulls_last=True) for name in group]
        if self.order_by is not None:
            prefix = "of" if self.order_by in METRICS else "by"
            first = F(f"{prefix}_{self.order_by}")
            order.insert(
                0,
                first.desc(nulls_last=True) if self.is_descending else first.asc(nulls_last=True),
            )
        return order

    def _render_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        if self.granularity is not None:
            shown["date"] = row["by_date"].strftime("%Y-%m-%dT%H:%M:%SZ")
        for name in self.dimensions:
            value = row[f"by_{name}"]
            shown[name] = str(value) if isinstance(value, UUID) else value
        for name in self.metrics:
            shown[name] = METRICS[name].render(row[f"of_{name}"])
        return shown


@dataclass(frozen=True, slots=True)
class AnalyticsAnswer:
    """The rows of a query, up to its limit, and what they lack."""

    rows: list[dict[str, Any]]
    is_truncated: bool
    query_time_ms: float
    warnings: list[str]


def _condition(item: Condition) -> Q:
    """Returns the condition of a filter on a dimension; rows without a value do not match."""
    name = f"by_{item.field}"
    values = item.value if isinstance(item.value, list) else [item.value]
    if item.field == "model":
        values = _slugs(values)
    elif item.field == "api_key_id":
        values = _current_digests(values)
    matching = Q(**{f"{name}__in": values})
    unset = Q(**{f"{name}__isnull": True})
    if item.operator in ("neq", "not_in"):
        matching = ~(matching | unset)
    return matching | unset if item.include_unset else matching


def _slugs(names: Sequence[str]) -> list[str]:
    """Returns the public slugs of models that are named by public or canonical slugs."""
    renamed = dict(
        LanguageModel.objects.filter(canonical_slug__in=names).values_list("canonical_slug", "slug")
    )
    return [renamed.get(name, name) for name in names]


def _current_digests(digests: Sequence[str]) -> list[str]:
    """Returns the digests of keys that are named by the hashes of present or former secrets."""
    renamed = dict(
        ApiKey.objects.filter(digest__in=digests)
        .exclude(successor=None)
        .values_list("digest", "successor__digest")
    )
    return [renamed.get(digest, digest) for digest in digests]


def _having(item: Condition) -> Q:
    """Returns the condition of a filter on a metric."""
    value = METRICS[item.field].bound(item.value)
    if item.operator in ("eq", "neq"):
        equal = Q(**{f"of_{item.field}": value})
        return equal if item.operator == "eq" else ~equal
    return Q(**{f"of_{item.field}__{item.operator}": value})
