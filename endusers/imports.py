"""Imports and exports end users: reads a file line by line and applies it in one transaction.

Two formats have the same members, ``user`` and, optionally, ``is_active``:

* CSV in UTF-8 with a header that names these columns in any order. A spreadsheet takes a cell that
  begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return for a formula. So an export
  puts an apostrophe before such a value, and before a value that has apostrophes and then such a
  character; an import removes one apostrophe from both. ``is_active`` is ``true`` or ``false``,
  or ``TRUE`` or ``FALSE`` as spreadsheets write them; an empty cell leaves the flag unchanged.
* JSON lines, one object each.

An import creates only what ``/end-users`` registers: 1 to 256 characters without control
characters. ``/external-users`` also registers longer strings and other characters (up to 512
characters, no NUL, no white space at either end); a row with such a string must name a stored end
user. So an import of any export changes nothing.
"""

from __future__ import annotations

import codecs
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from django.db import connection, transaction

from config.api.text import CONTROL_CHARACTERS, NOT_STORABLE
from config.bulk.cells import escape_formula, write_line
from config.bulk.problems import Problems
from config.bulk.report import ColumnChange, Report, RowListener, RowOutcome
from config.bulk.rows import decode_lines, parse_csv_rows, parse_json_rows
from config.clocks.clock import clock
from endusers.models import EndUser

KIND: Final = "end_users"
PLAIN_LENGTH: Final = 256
EXTERNAL_LENGTH: Final = 512
CSV_HEADER: Final = codecs.BOM_UTF8 + b"user,is_active\r\n"
_FLAGS: Final = {"": None, "true": True, "TRUE": True, "false": False, "FALSE": False}
_CHUNK: Final = 2000
_NOT_PLAIN: Final = (
    f"must not have control characters or more than {PLAIN_LENGTH} characters: an import creates "
    "no such end user; register it with POST /external-users first"
)

_CREATE_TABLE: Final = """
CREATE TEMPORARY TABLE end_user_import (
    line bigint NOT NULL, "user" text COLLATE "C" NOT NULL, is_active boolean, is_plain boolean
)
"""
_COPY: Final = 'COPY end_user_import (line, "user", is_active, is_plain) FROM STDIN'
_COUNT: Final = 'SELECT count(*), count(DISTINCT "user") FROM end_user_import'
_REPEATED: Final = """
SELECT line, first FROM (
    SELECT line, min(line) OVER (PARTITION BY "user") AS first FROM end_user_import
) AS numbered WHERE line <> first ORDER BY line LIMIT %s
"""
_UNKNOWN: Final = """
SELECT line, count(*) OVER () FROM end_user_import AS row
WHERE NOT row.is_plain AND NOT EXISTS (
    SELECT 1 FROM endusers_enduser AS stored
    WHERE stored.organization_id = %s AND stored."user" = row."user"
)
ORDER BY line LIMIT %s
"""
_TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_PLAN: Final = """
SELECT row."user", CASE
    WHEN stored.id IS NULL THEN 'create'
    WHEN row.is_active <> stored.is_active THEN 'update'
    ELSE 'unchanged'
END, row.is_active
FROM end_user_import AS row
LEFT JOIN endusers_enduser AS stored
    ON stored.organization_id = %s AND stored."user" = row."user"
ORDER BY row.line
"""
_INSERT: Final = """
INSERT INTO endusers_enduser (id, organization_id, "user", is_active, created_at, updated_at)
SELECT gen_random_uuid(), %s, "user", coalesce(is_active, true), %s, %s
FROM end_user_import WHERE is_plain ORDER BY "user"
ON CONFLICT (organization_id, "user") DO NOTHING
"""
_UPDATE: Final = """
UPDATE endusers_enduser AS stored SET is_active = row.is_active, updated_at = %s
FROM end_user_import AS row
WHERE stored.organization_id = %s AND stored."user" = row."user"
    AND stored.is_active <> row.is_active
"""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    is_active: bool | msgspec.UnsetType = msgspec.UNSET


class _CsvRow(msgspec.Struct):
    user: str = ""
    is_active: str = ""


def apply(
    organization_id: uuid.UUID,
    lines: Iterable[bytes],
    *,
    as_csv: bool,
    dry_run: bool = False,
    on_row: RowListener | None = None,
) -> Report:
    """Registers and marks the end users of a file, all or none.

    The rows wait in a temporary table, so that memory does not grow with the file. A row without
    ``is_active`` leaves a stored flag unchanged. ``dry_run`` takes the same path and rolls back.
    Raises :class:`ImportRefused`.
    """
    problems = Problems()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_CREATE_TABLE)
        with cursor.copy(_COPY) as copy:
            for row in _rows(lines, problems, as_csv=as_csv):
                copy.write_row(row)
        cursor.execute(_COUNT)
        total, distinct = cursor.fetchone()
        if total != distinct:
            cursor.execute(_REPEATED, [problems.room])
            problems.add_many(
                [f"line {line}: the same user as line {first}" for line, first in cursor],
                total - distinct,
            )
        cursor.execute(_UNKNOWN, [organization_id, max(problems.room, 1)])
        if unknown := cursor.fetchall():
            problems.add_many(
                [f"line {line}: user {_NOT_PLAIN}" for line, _ in unknown], unknown[0][1]
            )
        problems.raise_if_any()
        # Imports of one organization run one after another, because concurrent ones could deadlock.
        # They do not lock the organization's row, because requests would wait for a long import.
        cursor.execute(_TAKE_TURNS, [f"end_user_import|{organization_id}"])
        now = clock.now()
        if on_row is not None:
            with connection.chunked_cursor() as outcomes:
                outcomes.execute(_PLAN, [organization_id])
                for user, outcome, is_active in outcomes:
                    changes = [] if outcome != RowOutcome.UPDATE else [_change_to(is_active)]
                    on_row(KIND, user, RowOutcome(outcome), changes)
        # The update comes second, so that it also finds users who were registered meanwhile.
        cursor.execute(_INSERT, [organization_id, now, now])
        created = cursor.rowcount
        cursor.execute(_UPDATE, [now, organization_id])
        updated = cursor.rowcount
        # The table is dropped here, because the caller may import again in the same transaction.
        cursor.execute("DROP TABLE end_user_import")
        transaction.set_rollback(dry_run)
    rest = total - created - updated
    return Report({KIND: created}, {KIND: updated}, {KIND: rest}, dry_run)


def export(organization_id: uuid.UUID, *, as_csv: bool) -> Iterator[bytes]:
    """Yields the rows of a file, oldest user first; :func:`apply` changes nothing for them."""
    # A server-side cursor needs a transaction.
    with transaction.atomic():
        rows = EndUser.objects.for_organization(organization_id).order_by("created_at", "id")
        pairs = rows.values_list("user", "is_active").iterator(chunk_size=_CHUNK)
        for user, is_active in pairs:
            if as_csv:
                cells = [escape_formula(user), "true" if is_active else "false"]
                yield write_line(cells).encode()
            else:
                yield msgspec.json.encode(_Row(user, is_active)) + b"\n"


def _rows(
    lines: Iterable[bytes], problems: Problems, *, as_csv: bool
) -> Iterator[tuple[int, str, bool | None, bool]]:
    """Yields line number, user, ``is_active`` and whether ``/end-users`` registers the user."""
    texts = decode_lines(lines, problems)
    for line, user, is_active in (
        _csv_rows(texts, problems) if as_csv else _json_rows(texts, problems)
    ):
        if problem := _problem_of(user):
            problems.add(line, f"user {problem}")
        else:
            yield line, user, is_active, _is_plain(user)


def _json_rows(texts: Iterable[str], problems: Problems) -> Iterator[tuple[int, str, bool | None]]:
    for line, row in parse_json_rows(texts, _Row, problems):
        yield line, row.user, None if row.is_active is msgspec.UNSET else row.is_active


def _csv_rows(texts: Iterable[str], problems: Problems) -> Iterator[tuple[int, str, bool | None]]:
    for line, row in parse_csv_rows(texts, _CsvRow, problems):
        if row.is_active in _FLAGS:
            yield line, row.user, _FLAGS[row.is_active]
        else:
            problems.add(line, "is_active must be true, false or empty")


def _change_to(is_active: bool) -> ColumnChange:
    old, new = ("inactive", "active") if is_active else ("active", "inactive")
    return ColumnChange("state", old, new)


def _is_plain(user: str) -> bool:
    return len(user) <= PLAIN_LENGTH and not CONTROL_CHARACTERS.search(user)


def _problem_of(user: str) -> str:
    """Returns the reason why neither route registers a user; empty if one of them does."""
    if not user:
        return "must not be empty"
    if _is_plain(user):
        return ""
    if len(user) > EXTERNAL_LENGTH:
        return f"must not be longer than {PLAIN_LENGTH} characters"
    if NOT_STORABLE.search(user):
        return "must not contain NUL or lone surrogates"
    if user != user.strip():
        return _NOT_PLAIN
    return ""
