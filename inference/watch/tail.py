"""The tail of requests: what is new since a moment, for a page that asks every two seconds.

A question reads the ids of a minute at most, and few rows of them, whatever the filter is. Ids
begin with their second and are random behind it, and a row may be committed seconds after its id
was made. So each answer repeats the rows of the last seconds, which the page knows by their ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet

from config.clocks.clock import clock
from config.console.lists.pages import TookTooLong, limit_time
from inference.ids import id_range, second_bound
from inference.models import Generation

MOST_ROWS: Final = 100
"""Of one answer, new rows and settled ones each."""
FIRST_ROWS: Final = 50
OVERLAP_SECONDS: Final = 5
HORIZON_SECONDS: Final = 60
"""A page that asks later than this has missed requests."""
_FIRST_SECONDS: Final = 3_600
_LIMIT_MS: Final = 1_000
_CURSOR: Final = re.compile(r"gen-(\d{1,12})")
_ID: Final = re.compile(r"gen-\d{1,12}-[0-9a-zA-Z]{1,32}")


@dataclass(frozen=True, slots=True)
class Tail:
    """What a page shows next: its rows, the newest first, and where the next question begins.

    ``is_cut`` says that the time has more rows than the answer. ``has_gap`` says that rows since
    the last question may be missing. ``took_too_long`` says that the filter reads too much.
    """

    rows: Sequence[Generation]
    cursor: str
    is_cut: bool = False
    has_gap: bool = False
    took_too_long: bool = False

    @property
    def tag(self) -> str:
        """Text that differs when the answer does."""
        rows = ",".join(f"{row.pk}:{row.status}" for row in self.rows)
        return f"{rows};{self.is_cut};{self.has_gap};{self.took_too_long}"


def read_tail(rows: QuerySet[Generation], cursor: str, running: Collection[str]) -> Tail:
    """Returns what is new behind a cursor, and the rows of ``running`` that have ended.

    Without a cursor, these are the latest rows of the last hour.
    """
    now = int(clock.time())
    found = _CURSOR.match(cursor)
    asked = int(found[1]) if found else 0
    has_gap = bool(asked) and asked < now - HORIZON_SECONDS
    if asked:
        begin = max(min(asked, now) - OVERLAP_SECONDS, now - HORIZON_SECONDS)
        most = MOST_ROWS
    else:
        begin, most = now - _FIRST_SECONDS, FIRST_ROWS
    cursor = second_bound(now)
    new = rows.filter(pk__gte=second_bound(begin)).order_by("-pk")
    try:
        with limit_time(rows, _LIMIT_MS):
            shown = list(new[: most + 1])
            is_cut = bool(asked) and len(shown) > most
            del shown[most:]
            ended = _read_ended(rows.model, running, {row.pk for row in shown})
    except TookTooLong:
        return Tail([], cursor, has_gap=True, took_too_long=True)
    return Tail([*shown, *ended], cursor, is_cut, has_gap)


def _read_ended(model: Any, running: Collection[str], shown: Collection[str]) -> list[Generation]:
    """Returns the generations that a page shows as running, and that have ended since."""
    asked = [key for key in running if _ID.fullmatch(key) and key not in shown][:MOST_ROWS]
    if not asked:
        return []
    low, high = id_range(asked)
    rows = model._default_manager.filter(pk__gte=low, pk__lte=high, pk__in=asked)
    ended = rows.exclude(status=Generation.Status.PENDING).select_related("organization")
    return list(ended.defer("attempts", "trace", "units").order_by("-pk"))
