"""Carries an organization from this cell to another one, in steps that can be repeated.

=============  =============  ==================================================================
here           there          what a repetition does
=============  =============  ==================================================================
``here``       nothing        drains: new requests get 503, running ones end
``leaving``    nothing        copies in one transaction there, and compares every table
``leaving``    ``arriving``   copies again: somebody may have changed a row here since
``left``       ``arriving``   admits: the organization is served there
``left``       ``here``       nothing; the rows here may be deleted
=============  =============  ==================================================================

At no moment is it ``here`` in both cells, and only ``here`` is served. Until ``left`` it can be
given up, and a refusal does so. Its rows here stay as they were, and are refused, until they are
deleted.

The change to ``leaving`` is exact. It waits for the admissions that are being stored, which lock
the organization, and moves its version, which every later admission compares: no worker, however
old its copy, admits anything afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg

from accounts.cells.rows import (
    Digest,
    OwnedTable,
    copy_rows,
    delete_rows,
    find_digest,
    owned_tables,
)
from accounts.models import Residence
from accounts.models.cells import IDS_OF_A_CELL
from config.bulk.files import refuse

_ROUNDS: Final = 3
_PAUSE_SECONDS: Final = 0.5
_SECONDS_FOR_PRICES: Final = 60
_PRICES: Final = (
    "SELECT price_id FROM inference_generation WHERE organization_id = %(id)s "
    "UNION SELECT price_id FROM endpoints_privateendpoint WHERE organization_id = %(id)s"
)


@dataclass(frozen=True, slots=True)
class Cells:
    """The databases of a move, and the names of their cells."""

    here: psycopg.Connection[Any]
    there: psycopg.Connection[Any]
    name_here: str
    name_there: str


Narrowed: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
Narrow: TypeAlias = Callable[[Cells, UUID], Narrowed]
"""Prepares the other cell within the transaction of the copy.

Returns conditions for the tables of which only some rows are to be copied.
"""


def read_residence(cell: psycopg.Connection[Any], organization_id: UUID) -> tuple[str, str] | None:
    """Returns an organization's residence in a cell, and the other cell of its move."""
    row = cell.execute(
        "SELECT residence, other_cell FROM accounts_organization WHERE id = %s", [organization_id]
    ).fetchone()
    return None if row is None else (row[0], row[1])


@contextmanager
def hold_move(here: psycopg.Connection[Any], organization_id: UUID) -> Iterator[None]:
    """Lets one command at a time move an organization."""
    key = organization_id.int & (2**63 - 1)
    row = here.execute("SELECT pg_try_advisory_lock(%s)", [key]).fetchone()
    if row != (True,):
        refuse("Another command is moving this organization.")
    yield
    here.execute("SELECT pg_advisory_unlock(%s)", [key])


def drain(
    cells: Cells, organization_id: UUID, find_unfinished: Callable[[], Sequence[str]], wait: float
) -> None:
    """HERE → LEAVING. Refuses new requests, and waits until the running ones have ended.

    Gives up, LEAVING → HERE, when they take longer than ``wait`` seconds.
    """
    _set(cells.here, organization_id, Residence.HERE, Residence.LEAVING, cells.name_there)
    until = time.monotonic() + wait
    while unfinished := find_unfinished():
        if time.monotonic() > until:
            _set(cells.here, organization_id, Residence.LEAVING, Residence.HERE, "")
            refuse(
                f"It did not become quiet within {wait:g} s ({'; '.join(unfinished)}), so it stays "
                "here and is served again. Try again with a longer --wait."
            )
        time.sleep(_PAUSE_SECONDS)


def carry(
    cells: Cells, organization_id: UUID, narrow: Narrow, require_fit: Callable[[], None]
) -> dict[str, int]:
    """LEAVING → LEFT here, (none) → ARRIVING there. Copies the rows, and proves that none differs.

    Returns the number of rows of each table. A change that happens meanwhile is found by the second
    comparison, which holds the organization's lock, and everything is copied again. ``require_fit``
    refuses, in the last moment too, what must not leave or must not arrive.
    """
    for _ in range(_ROUNDS):
        copied, narrowed = _copy(cells, organization_id, narrow)
        require_fit()
        with cells.here.transaction():
            cells.here.execute(
                "SELECT FROM accounts_organization WHERE id = %s FOR UPDATE", [organization_id]
            )
            is_unchanged = copied == _digests(cells.here, list(copied), organization_id, narrowed)
            if is_unchanged:
                _set(
                    cells.here, organization_id, Residence.LEAVING, Residence.LEFT, cells.name_there
                )
        if is_unchanged:
            break
    else:
        refuse("Its rows change while they are copied: nobody may edit it in the console now.")
    return {table.name: digest.rows for table, digest in copied.items()}


def admit(cells: Cells, organization_id: UUID) -> None:
    """ARRIVING → HERE, in the other cell."""
    _set(cells.there, organization_id, Residence.ARRIVING, Residence.HERE, "")


def give_up(cells: Cells, organization_id: UUID) -> None:
    """LEAVING or LEFT → HERE. Deletes what was copied first; the other cell never serves it then.

    Refused once the other cell has it as ``HERE``.
    """
    with cells.there.transaction():
        switch_triggers_off(cells.there)
        delete_arrived(cells.there, organization_id)
    before = Residence.LEFT
    if read_residence(cells.here, organization_id) != (before, cells.name_there):
        before = Residence.LEAVING
    _set(cells.here, organization_id, before, Residence.HERE, "")


def stay(here: psycopg.Connection[Any], organization_id: UUID) -> None:
    """LEAVING → HERE. A copy in the other cell stays ARRIVING, which is never served.

    Nobody admits it there: for that the organization must have LEFT here, which it cannot any more.
    """
    _set(here, organization_id, Residence.LEAVING, Residence.HERE, "")


def declare_left(cells: Cells, organization_id: UUID) -> None:
    """HERE → LEFT. For an organization that the other cell has as ``HERE`` too, after a restore."""
    _set(cells.here, organization_id, Residence.HERE, Residence.LEFT, cells.name_there)


def purge(cells: Cells, organization_id: UUID) -> None:
    """LEFT → (none). Deletes the rows here of an organization that lives in the other cell."""
    with cells.here.transaction():
        switch_triggers_off(cells.here)
        delete_rows(cells.here, organization_id)
        _unlist(cells.here, organization_id)


def switch_triggers_off(cell: psycopg.Connection[Any]) -> None:
    """Lets a transaction store rows as they are, and delete rows of append-only tables."""
    try:
        cell.execute("SET LOCAL session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        refuse(
            "The role of the database may not copy rows as they are. A superuser grants it with: "
            f"GRANT SET ON PARAMETER session_replication_role TO {cell.info.user}"
        )


def delete_arrived(cell: psycopg.Connection[Any], organization_id: UUID) -> None:
    """Deletes the rows of an earlier stay or try, unless the organization is served there."""
    # A command that was killed may have left a statement that would change it now.
    cell.execute("SELECT FROM accounts_organization WHERE id = %s FOR UPDATE", [organization_id])
    found = read_residence(cell, organization_id)
    if found is None:
        return
    if found[0] not in (Residence.ARRIVING, Residence.LEFT):
        refuse(f"The other cell has the organization too ({found[0]}). Nothing was changed.")
    delete_rows(cell, organization_id)
    _unlist(cell, organization_id)


def _copy(
    cells: Cells, organization_id: UUID, narrow: Narrow
) -> tuple[dict[OwnedTable, Digest], Narrowed]:
    """Copies the rows from one snapshot in one transaction, and compares them before its commit."""
    here, there = cells.here, cells.there
    _await_prices(cells, organization_id)
    with here.transaction(), there.transaction():
        here.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        switch_triggers_off(there)
        delete_arrived(there, organization_id)
        narrowed = narrow(cells, organization_id)
        values = {
            "residence": Residence.ARRIVING.value,
            "other_cell": cells.name_here,
            "slug": _free_slug(cells, organization_id),
        }
        tables = owned_tables()
        for table in tables:
            condition, parameters = narrowed.get(table.name, ("true", {}))
            try:
                copy_rows(
                    here,
                    there,
                    table.narrow(condition),
                    {"id": organization_id, **parameters},
                    values if table.is_root else {},
                )
            except psycopg.errors.IntegrityError as exc:
                # For instance, a month for which the other cell has no partition any more.
                refuse(f"The other cell refuses rows of {table.name}: {exc.diag.message_primary}.")
        _copy_own_prices(cells, organization_id)
        mine = _digests(here, tables, organization_id, narrowed)
        other = _digests(there, tables, organization_id, narrowed)
        for table in tables:
            if mine[table] != other[table]:
                refuse(f"The rows of {table.name} differ after the copy. Nothing was changed.")
    return mine, narrowed


def _digests(
    cell: psycopg.Connection[Any],
    tables: Sequence[OwnedTable],
    organization_id: UUID,
    narrowed: Narrowed,
) -> dict[OwnedTable, Digest]:
    found = {}
    for table in tables:
        condition, parameters = narrowed.get(table.name, ("true", {}))
        found[table] = find_digest(
            cell, table.narrow(condition), {"id": organization_id, **parameters}
        )
    return found


def _set(
    cell: psycopg.Connection[Any], organization_id: UUID, before: str, after: str, other: str
) -> None:
    """Writes a residence; does nothing where it is written already."""
    done = cell.execute(
        "UPDATE accounts_organization SET residence = %s, other_cell = %s, updated_at = now() "
        "WHERE id = %s AND residence = %s",
        [after, other, organization_id, before],
    )
    found = read_residence(cell, organization_id)
    if done.rowcount != 1 and (found is None or found[0] != after):
        refuse(f"The organization is not {before} any more. Nothing was changed by this step.")


def _unlist(cell: psycopg.Connection[Any], organization_id: UUID) -> None:
    cell.execute(
        "DELETE FROM accounts_directoryentry WHERE organization_id = %s "
        "AND cell = coalesce((SELECT name FROM accounts_cellidentity), 'home')",
        [organization_id],
    )


def _free_slug(cells: Cells, organization_id: UUID) -> str:
    """Returns its slug, or one with its routing code if another organization there has that."""
    row = cells.here.execute(
        "SELECT slug, code FROM accounts_organization WHERE id = %s", [organization_id]
    ).fetchone()
    assert row is not None
    slug, code = row
    taken = cells.there.execute(
        "SELECT 1 FROM accounts_organization WHERE slug = %s", [slug]
    ).fetchone()
    return str(slug) if taken is None else f"{slug[:50]}-{code}"


def _await_prices(cells: Cells, organization_id: UUID) -> None:
    """Waits until the replication has brought the prices of the home cell that its rows name."""
    parameters = {"id": organization_id, "own": IDS_OF_A_CELL}
    rows = cells.here.execute(
        f"SELECT price_id FROM ({_PRICES}) AS p WHERE price_id < %(own)s",  # noqa: S608
        parameters,
    )
    wanted = [row[0] for row in rows]
    until = time.monotonic() + _SECONDS_FOR_PRICES
    while True:
        found = cells.there.execute(
            "SELECT count(*) FROM catalog_priceversion WHERE id = ANY(%s)", [wanted]
        ).fetchone()
        if found == (len(wanted),):
            return
        if time.monotonic() > until:
            refuse("The other cell lacks prices of the home cell: is the replication running?")
        time.sleep(_PAUSE_SECONDS)


def _copy_own_prices(cells: Cells, organization_id: UUID) -> None:
    """Copies the prices that a cell besides the home cell gave its private endpoints."""
    condition = f"id >= {IDS_OF_A_CELL} AND id IN ({_PRICES})"
    with psycopg.ClientCursor(cells.here) as cursor:
        rows = cursor.execute(
            f"SELECT to_jsonb(p)::text FROM catalog_priceversion AS p WHERE {condition}",  # noqa: S608
            {"id": organization_id},
        ).fetchall()
    for row in rows:
        cells.there.execute(
            "INSERT INTO catalog_priceversion "
            "SELECT * FROM jsonb_populate_record(NULL::catalog_priceversion, %s::jsonb) "
            "ON CONFLICT (id) DO NOTHING",
            row,
        )
