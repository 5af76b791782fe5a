"""The signs of life by which each cell sees that its replication runs; a duty of ``work``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db import connection

from accounts.models import Cell, CellBeat, CellIdentity
from config.cells import HOME

_BEAT = """
INSERT INTO accounts_cellbeat (cell, beat_at) VALUES (%s, now())
ON CONFLICT (cell) DO UPDATE SET beat_at = excluded.beat_at
"""


def beat_cells() -> int:
    """Writes the row of this cell; returns the number of cells that are told, often none."""
    identity = CellIdentity.objects.first()
    told = Cell.objects.count() if identity is None else 1
    if told:
        with connection.cursor() as cursor:
            cursor.execute(_BEAT, [HOME if identity is None else identity.name])
    return 0


def read_beats() -> Iterator[tuple[str, datetime]]:
    """Yields the cells that feed this one, each with the time of the last beat that came here.

    For a cell of which none has come yet, that is the time at which it joined.
    """
    identity = CellIdentity.objects.first()
    beats = dict(CellBeat.objects.values_list("cell", "beat_at"))
    if identity is not None:
        yield HOME, beats.get(HOME, identity.joined_at)
        return
    for cell in Cell.objects.all():
        yield cell.name, beats.get(cell.name, cell.created_at)
