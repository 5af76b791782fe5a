"""The map from routing codes to cells, by which a proxy finds the cell of a request.

A code begins with the shard of the cell in which its organization began. So a line for each shard
is enough for all organizations that never moved, and the map does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection

from accounts.models import Cell
from accounts.models.cells import HOME_SHARD
from config.cells import HOME

# An organization that has left one cell and not been admitted by the next waits for the latter.
_MOVED = """
SELECT code, cell FROM (
    SELECT DISTINCT ON (d.code) d.code, d.cell
    FROM accounts_directoryentry AS d
    WHERE d.code IS NOT NULL AND d.residence <> 'left'
    ORDER BY d.code, d.residence = 'arriving', d.cell
) AS present
WHERE cell <> coalesce(
    (SELECT c.name FROM accounts_cell AS c WHERE c.shard = left(present.code, 2)), %s
)
ORDER BY code
"""
# After one of two databases was restored from before a move.
_TWICE = """
SELECT min(name), string_agg(cell, ' and ' ORDER BY cell) FROM accounts_directoryentry
WHERE residence = 'here' GROUP BY organization_id HAVING count(*) > 1
ORDER BY organization_id LIMIT 10
"""
_ROWS_AT_ONCE = 10_000


def find_doubled() -> list[str]:
    """Returns a sentence for each of up to ten organizations that several cells have as theirs.

    For the moment between two cells' replications that may be one which moves right now.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TWICE)
        return [f"{name} lives in {cells}." for name, cells in cursor.fetchall()]


def read_map() -> Iterator[tuple[str, str]]:
    """Yields shards with their cells, then the codes of moved organizations with theirs.

    Must run in a transaction; its memory does not grow with the number of organizations.
    """
    yield HOME_SHARD, HOME
    for cell in Cell.objects.order_by("shard"):
        yield cell.shard, cell.name
    with connection.chunked_cursor() as cursor:
        cursor.execute(_MOVED, [HOME])
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield from rows
