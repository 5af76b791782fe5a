"""Reads generations for exports, page by page: one line each, without a text or a secret.

Each page is a statement of its own, on the replica if that is fresh. A cursor over millions of rows
would keep a transaction open, and while one is open PostgreSQL keeps every version of the accounts
and meters.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

from django.db import connection

from config.bulk.tables import Column, ColumnKind, Row
from config.database.replica.reading import read, wait_for_replica
from inference.reports.rollups import midnight

PAGE_ROWS: Final = 2_000
_DAY: Final = timedelta(days=1)
# An id has the second of a worker's clock; the database stamps the row. Both agree within an hour.
_SLACK: Final = timedelta(hours=1)

_TEXT, _INTEGER, _BOOLEAN, _TIME, _NANO = (
    ColumnKind.TEXT, ColumnKind.INTEGER, ColumnKind.BOOLEAN, ColumnKind.TIME, ColumnKind.NANO
)  # fmt: skip

# The columns of an export, with the expression where it is no column of the same name.
_COLUMNS: Final[tuple[tuple[str, ColumnKind, str], ...]] = (
    ("id", _TEXT, ""),
    ("created_at", _TIME, ""),
    ("organization_id", _TEXT, ""),
    ("workspace_id", _TEXT, ""),
    ("api_key_id", _TEXT, ""),
    ("api_key_hash", _TEXT, "k.digest"),
    ("api_key_name", _TEXT, "k.name"),
    ("member_id", _TEXT, ""),
    ("end_user", _TEXT, ""),
    ("session_id", _TEXT, ""),
    ("preset_id", _TEXT, ""),
    ("trace", _TEXT, ""),
    ("region", _TEXT, ""),
    ("http_referer", _TEXT, ""),
    ("app_title", _TEXT, ""),
    ("user_agent", _TEXT, ""),
    ("request_id", _TEXT, ""),
    ("operation", _TEXT, ""),
    ("streamed", _BOOLEAN, ""),
    ("model", _TEXT, ""),
    ("provider_name", _TEXT, ""),
    ("private_endpoint_id", _TEXT, ""),
    ("model_endpoint_id", _TEXT, ""),
    ("price_id", _INTEGER, ""),
    ("is_byok", _BOOLEAN, ""),
    ("status", _TEXT, ""),
    ("finish_reason", _TEXT, ""),
    ("native_finish_reason", _TEXT, ""),
    ("error_type", _TEXT, ""),
    ("prompt_tokens", _INTEGER, ""),
    ("completion_tokens", _INTEGER, ""),
    ("cached_tokens", _INTEGER, ""),
    ("cache_write_tokens", _INTEGER, ""),
    ("reasoning_tokens", _INTEGER, ""),
    ("units", _TEXT, ""),
    ("is_estimated", _BOOLEAN, ""),
    ("cost_usd", _NANO, "g.cost_nano"),
    ("upstream_cost_usd", _NANO, "g.upstream_cost_nano"),
    ("reported_cost_usd", _NANO, "g.reported_cost_nano"),
    ("upstream_id", _TEXT, ""),
    ("upstream_model", _TEXT, ""),
    ("latency_ms", _INTEGER, ""),
    ("duration_ms", _INTEGER, ""),
    ("cached_from", _TEXT, ""),
    ("retry_of", _TEXT, ""),
)
COLUMNS: Final = tuple(Column(name, kind) for name, kind, _ in _COLUMNS)

# By id: only the primary key is in the order of time, and its bounds name the partitions.
_PAGE: Final = """
SELECT {select}
FROM inference_generation AS g
LEFT JOIN accounts_apikey AS k ON k.id = g.api_key_id
{joins}
WHERE g.id > %(last_id)s AND g.id < %(last)s
    AND g.created_at >= %(begin)s AND g.created_at < %(end)s AND {condition}
ORDER BY g.id
LIMIT %(rows)s
"""
# The index of an organization is in the order of its stamps.
_PAGE_OF_ORGANIZATION: Final = """
SELECT {select}
FROM inference_generation AS g
LEFT JOIN accounts_apikey AS k ON k.id = g.api_key_id
{joins}
WHERE g.organization_id = %(organization)s
    AND g.created_at >= %(last_moment)s AND g.created_at < %(end)s
    AND (g.created_at > %(last_moment)s OR g.id > %(last_id)s)
    AND g.id > %(first)s AND g.id < %(last)s AND {condition}
ORDER BY g.created_at, g.id
LIMIT %(rows)s
"""


@dataclass(frozen=True, slots=True)
class ExportQuery:
    """What is selected of each generation: first its id, then the time of its row.

    ``joins`` are further tables beside the generation ``g`` and its key ``k``.
    """

    select: str
    joins: str = ""
    condition: str = "TRUE"


ALL: Final = ExportQuery(
    ", ".join(
        f"({expression or f'g.{name}'})::text"
        if kind is ColumnKind.TEXT
        else expression or f"g.{name}"
        for name, kind, expression in _COLUMNS
    )
)


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The generations to export: those of the UTC days, the last included, of one organization."""

    first: date | None = None
    last: date | None = None
    organization_id: uuid.UUID | None = None


def read_generations(selection: ExportSelection, query: ExportQuery = ALL) -> Iterator[Row]:
    """Yields the rows of an export in the order of their time, with constant memory."""
    begin = midnight(selection.first or date(1971, 1, 1))
    end = midnight(selection.last or date(2286, 1, 1)) + _DAY
    first = f"gen-{int((begin - _SLACK).timestamp())}" if selection.first else ""
    values: dict[str, Any] = {
        "organization": selection.organization_id, "begin": begin, "end": end, "first": first,
        "last": f"gen-{int((end + _SLACK).timestamp())}" if selection.last else "gen-9999999999",
        "last_id": first, "last_moment": begin, "rows": PAGE_ROWS,
    }  # fmt: skip
    page_of = _PAGE if selection.organization_id is None else _PAGE_OF_ORGANIZATION
    statement = page_of.format(select=query.select, joins=query.joins, condition=query.condition)
    wait_for_replica()
    while page := _read_page(statement, values):
        yield from page
        if len(page) < PAGE_ROWS:
            return
        values["last_id"], values["last_moment"] = page[-1][0], page[-1][1]


@read
def _read_page(statement: str, values: dict[str, Any]) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())
