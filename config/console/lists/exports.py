"""A list as CSV: the rows and the columns that it shows, with its filters and its search."""

from __future__ import annotations

import html
import itertools
import logging
import re
from collections.abc import Iterator
from datetime import date, datetime
from functools import partial
from typing import Any, Final

from django.contrib.admin.utils import label_for_field, lookup_field
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from config.bulk.tables import Column, ColumnKind, format_time, write_csv
from config.clocks.clock import clock
from config.console.lists.downloads import stream_file
from config.console.lists.pages import ConsoleChangeList, limit_time
from config.database.replica.pages import read_position
from config.database.replica.reading import answer

# A page of rows is one statement: a cursor over all of them would keep old versions of every row.
_CHUNK: Final = 1_000
_CHUNK_MS: Final = 30_000
_MONEY: Final = re.compile(r"-?\$[\d,]+(?:\.\d+)?")

logger = logging.getLogger("causeway.console")


def export_list(request: HttpRequest, changes: ConsoleChangeList) -> StreamingHttpResponse:
    """Streams all rows of a list. An export that PostgreSQL stops ends without its last line."""
    admin = changes.model_admin
    names = [name for name in changes.list_display if name != "action_checkbox"]
    pk = changes.opts.pk.name
    if pk not in names:
        names.insert(0, pk)
    columns = [
        Column(str(label_for_field(name, changes.model, admin)).lower(), ColumnKind.TEXT)
        for name in names
    ]

    def lines() -> Iterator[list[str]]:
        count = 0
        for chunk in _read_chunks(changes, read_position(request)):
            admin.read_columns(request, chunk)
            yield from ([_text_of(name, row, admin) for name in names] for row in chunk)
            count += len(chunk)
        logger.info(
            "exported %d rows of %s (operator %s)",
            count, changes.opts.label_lower, ascii(request.user.get_username()),
        )  # fmt: skip

    name = f"{changes.opts.model_name}-{clock.now():%Y-%m-%d-%H%M%S}.csv"
    return stream_file(request, name, write_csv(columns, lines()), content_type="text/csv")


def _read_chunks(changes: ConsoleChangeList, position: int) -> Iterator[list[Any]]:
    """Yields the rows of all pages, at most a thousand at a time.

    A replica that answers has replayed the primary's ``position``, the operator's last write.
    """
    keyset, rows = changes.keyset, changes.queryset
    if keyset is None:
        # Such a list is sorted by a column of a small table.
        found = rows.iterator(_CHUNK)
        while chunk := list(itertools.islice(found, _CHUNK)):
            yield chunk
        return
    ordered = keyset.order(rows, backwards=False)
    last = ""
    while True:
        rest = keyset.beyond(ordered, last, backwards=False) if last else ordered
        chunk = answer(partial(_read_chunk, rest), after=position)
        yield chunk
        if len(chunk) < _CHUNK:
            return
        last = keyset.position_of(chunk[-1])


def _read_chunk(rows: QuerySet[Any]) -> list[Any]:
    with limit_time(rows, _CHUNK_MS):
        return list(rows[:_CHUNK])


def _text_of(name: Any, row: Any, admin: Any) -> str:
    """Returns the text that the list shows, without HTML, and an amount without its ``$``."""
    try:
        field, _, value = lookup_field(name, row, admin)
    except ObjectDoesNotExist:
        return ""
    if field is not None and field.is_relation:
        value = getattr(row, field.name)
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return " ".join(_plain(each) for each in value)
    text = str(value)
    if isinstance(value, SafeString):
        text = " ".join(html.unescape(strip_tags(text)).split())
    return text.replace("$", "").replace(",", "") if _MONEY.fullmatch(text) else text
