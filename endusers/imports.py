"""End users in bulk: the file is read line by line, judged whole, and applied in one transaction.

Two formats have the same members, ``user`` and, optionally, ``is_active``:

* CSV in UTF-8 with the header ``user`` or ``user,is_active``. A spreadsheet would take a cell that
  begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return for a formula. So an export
  puts an apostrophe before such a value, and before one that has apostrophes and then such a
  character; an import takes one apostrophe away from either. ``is_active`` is ``true`` or
  ``false``, in capitals too, as spreadsheets write them; an empty cell says nothing.
* JSON lines, one object each.

A value may be what either route registers: up to 256 characters without control characters, as
``/end-users`` has it, or up to 512 without NUL and without white space at its ends, as
``/external-users`` has it. So whatever was registered survives an export and an import.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from django.db import connection, transaction
from django.utils import timezone

from config.api.text import CONTROL_CHARACTERS, NOT_STORABLE
from config.bulk.rows import Fate, Plan, Problems, Report, decoded, json_rows
from endusers.models import EndUser

KIND: Final = "end_users"
PLAIN_LENGTH: Final = 256
EXTERNAL_LENGTH: Final = 512
CSV_HEADER: Final = b"user,is_active\r\n"
_HEADERS: Final = (["user"], ["user", "is_active"])
_FLAGS: Final = {"": None, "true": True, "TRUE": True, "false": False, "FALSE": False}
_FORMULA: Final = re.compile(r"'*[=+\-@\t\r]")
_CHUNK: Final = 2000

_CREATE_TABLE: Final = """
CREATE TEMPORARY TABLE end_user_import (
    line bigint NOT NULL, "user" text COLLATE "C" NOT NULL, is_active boolean
)
"""
_COPY: Final = 'COPY end_user_import (line, "user", is_active) FROM STDIN'
_COUNT: Final = 'SELECT count(*), count(DISTINCT "user") FROM end_user_import'
_REPEATED: Final = """
SELECT line, first FROM (
    SELECT line, min(line) OVER (PARTITION BY "user") AS first FROM end_user_import
) AS numbered WHERE line <> first ORDER BY line LIMIT %s
"""
_TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_PLAN: Final = """
SELECT row."user", CASE
    WHEN stored.id IS NULL THEN 'create'
    WHEN row.is_active <> stored.is_active THEN 'update'
    ELSE 'unchanged'
END
FROM end_user_import AS row
LEFT JOIN endusers_enduser AS stored
    ON stored.organization_id = %s AND stored."user" = row."user"
ORDER BY row.line
"""
_INSERT: Final = """
INSERT INTO endusers_enduser (id, organization_id, "user", is_active, created_at, updated_at)
SELECT gen_random_uuid(), %s, "user", coalesce(is_active, true), %s, %s
FROM end_user_import ORDER BY "user"
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


def apply(
    organization_id: uuid.UUID,
    lines: Iterable[bytes],
    *,
    as_csv: bool,
    dry_run: bool = False,
    plan: Plan | None = None,
) -> Report:
    """Registers and marks the end users of a file, all or none.

    The rows wait in a temporary table of the database, so that memory does not grow with them. A
    row without ``is_active`` leaves a stored flag alone. ``dry_run`` is the same path, rolled back.
    Raises :class:`config.bulk.rows.ImportRefused`.
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
        problems.refuse_any()
        # Imports of one organization take turns, for two that insert and mark could deadlock. Not
        # by its row: requests wait for that, and an import may have any number of rows.
        cursor.execute(_TAKE_TURNS, [f"end_user_import|{organization_id}"])
        now = timezone.now()
        if plan is not None:
            with connection.chunked_cursor() as fates:
                fates.execute(_PLAN, [organization_id])
                for user, fate in fates:
                    plan(KIND, user, Fate(fate))
        # In this order a user who is registered meanwhile is marked like one who was before.
        cursor.execute(_INSERT, [organization_id, now, now])
        created = cursor.rowcount
        cursor.execute(_UPDATE, [now, organization_id])
        updated = cursor.rowcount
        # Whoever called us within a transaction of theirs may import once more in it.
        cursor.execute("DROP TABLE end_user_import")
        transaction.set_rollback(dry_run)
    rest = total - created - updated
    return Report({KIND: created}, {KIND: updated}, {KIND: rest}, dry_run)


def detect(name: str, lines: Iterable[bytes]) -> tuple[bool, Iterator[bytes]]:
    """Tells whether a file is CSV, by its extension or its first byte that is not blank.

    Returns the lines too, for the one that was looked at must not be lost.
    """
    ending = name.rpartition(".")[2].lower()
    if ending in ("csv", "json", "jsonl", "ndjson"):
        return ending == "csv", iter(lines)
    rest = iter(lines)
    seen = []
    for line in rest:
        seen.append(line)
        if text := line.removeprefix(codecs.BOM_UTF8).strip():
            return not text.startswith(b"{"), itertools.chain(seen, rest)
    return False, iter(seen)


def export(organization_id: uuid.UUID, *, as_csv: bool) -> Iterator[bytes]:
    """Yields the rows of a file that :func:`apply` finds unchanged, oldest registration first."""
    # A cursor of the server lives no longer than a transaction.
    with transaction.atomic():
        rows = EndUser.objects.for_organization(organization_id).order_by("created_at", "id")
        pairs = rows.values_list("user", "is_active").iterator(chunk_size=_CHUNK)
        for user, is_active in pairs:
            if as_csv:
                yield _csv_line([guarded(user), "true" if is_active else "false"])
            else:
                yield msgspec.json.encode(_Row(user, is_active)) + b"\n"


def guarded(value: str) -> str:
    """Returns the cell for a value: one that a spreadsheet takes for text, not for a formula."""
    return f"'{value}" if _FORMULA.match(value) else value


def unguarded(cell: str) -> str:
    """Returns the value of a cell that :func:`guarded` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _rows(
    lines: Iterable[bytes], problems: Problems, *, as_csv: bool
) -> Iterator[tuple[int, str, bool | None]]:
    texts = decoded(lines, problems)
    for line, user, is_active in (
        _csv_rows(texts, problems) if as_csv else _json_rows(texts, problems)
    ):
        if fault := _fault_of(user):
            problems.add(line, f"user {fault}")
        else:
            yield line, user, is_active


def _json_rows(texts: Iterable[str], problems: Problems) -> Iterator[tuple[int, str, bool | None]]:
    for line, row in json_rows(texts, _Row, problems):
        yield line, row.user, None if row.is_active is msgspec.UNSET else row.is_active


def _csv_rows(texts: Iterable[str], problems: Problems) -> Iterator[tuple[int, str, bool | None]]:
    reader = csv.reader(texts, strict=True)
    width = line = 0
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error:
            problems.stop(line, "not CSV: a quotation mark or a line end is out of place")
        if width == 0:
            if cells not in _HEADERS:
                problems.stop(line, "the header must be user or user,is_active")
            width = len(cells)
        elif cells is None:
            return
        elif not cells:
            continue
        elif len(cells) != width:
            problems.add(line, f"{len(cells)} cells, where the header has {width}")
        elif width == 2 and cells[1] not in _FLAGS:
            problems.add(line, "is_active must be true, false or empty")
        else:
            yield line, unguarded(cells[0]), _FLAGS[cells[1]] if width == 2 else None


def _fault_of(user: str) -> str:
    """Tells what neither route would register; empty when one of them would."""
    if not user:
        return "must not be empty"
    if len(user) <= PLAIN_LENGTH and not CONTROL_CHARACTERS.search(user):
        return ""
    if len(user) > EXTERNAL_LENGTH:
        return f"must not be longer than {EXTERNAL_LENGTH} characters"
    if NOT_STORABLE.search(user):
        return "must not contain NUL or lone surrogates"
    if user != user.strip():
        return (
            "must not begin or end with white space when it has control characters "
            f"or more than {PLAIN_LENGTH} characters"
        )
    return ""


def _csv_line(cells: list[str]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()
