"""Reads generations for exports, page by page: one line each, without a text or a secret.

Each page is a statement of its own, on the replica if that is fresh. A cursor over millions of rows
would keep a transaction open, and while one is open PostgreSQL keeps every version of the accounts
and meters.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from config.bulk.tables import Column, ColumnKind, Row
from config.database.replica.reading import read, wait_for_replica
from config.sql import fetch_rows
from inference.ids import first_id, last_id
from inference.reports.rollups import end_of, midnight

PAGE_ROWS: Final = 2_000

# The columns of an export in their order.
_NAMES: Final = (
    "id", "created_at", "organization_id", "workspace_id", "api_key_id", "api_key_hash",
    "api_key_name", "member_id", "end_user", "session_id", "preset_id", "trace", "region",
    "http_referer", "app_title", "user_agent", "request_id", "operation", "streamed", "model",
    "provider_name", "private_endpoint_id", "model_endpoint_id", "price_id", "is_byok", "status",
    "finish_reason", "native_finish_reason", "error_type", "prompt_tokens", "completion_tokens",
    "cached_tokens", "cache_write_tokens", "reasoning_tokens", "units", "is_estimated", "cost_usd",
    "upstream_cost_usd", "reported_cost_usd", "upstream_id", "upstream_model", "latency_ms",
    "duration_ms", "cached_from", "retry_of",
)  # fmt: skip
# Those that are no column of the same name.
_EXPRESSIONS: Final = {
    "api_key_hash": "k.digest",
    "api_key_name": "k.name",
    "cost_usd": "g.cost_nano",
    "upstream_cost_usd": "g.upstream_cost_nano",
    "reported_cost_usd": "g.reported_cost_nano",
}
# Those that are no text.
_KINDS: Final = {
    "created_at": ColumnKind.TIME,
    **dict.fromkeys(("streamed", "is_byok", "is_estimated"), ColumnKind.BOOLEAN),
    **dict.fromkeys(("cost_usd", "upstream_cost_usd", "reported_cost_usd"), ColumnKind.NANO),
    **dict.fromkeys(
        (
            "price_id", "prompt_tokens", "completion_tokens", "cached_tokens",
            "cache_write_tokens", "reasoning_tokens", "latency_ms", "duration_ms",
        ),
        ColumnKind.INTEGER,
    ),
}  # fmt: skip
COLUMNS: Final = tuple(Column(name, _KINDS.get(name, ColumnKind.TEXT)) for name in _NAMES)

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


def _select(column: Column) -> str:
    expression = _EXPRESSIONS.get(column.name, f"g.{column.name}")
    return f"({expression})::text" if column.kind is ColumnKind.TEXT else expression


ALL: Final = ExportQuery(", ".join(map(_select, COLUMNS)))


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The generations to export: those of the UTC days, the last included, of one organization."""

    first: date | None = None
    last: date | None = None
    organization_id: uuid.UUID | None = None


def read_generations(selection: ExportSelection, query: ExportQuery = ALL) -> Iterator[Row]:
    """Yields the rows of an export in the order of their time, with constant memory."""
    begin, end = midnight(selection.first or date.min), end_of(selection.last or date.max)
    first = first_id(begin) if selection.first else ""
    values: dict[str, Any] = {
        "organization": selection.organization_id, "begin": begin, "end": end, "first": first,
        "last": last_id(end), "last_id": first, "last_moment": begin, "rows": PAGE_ROWS,
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
    return fetch_rows(statement, values)
