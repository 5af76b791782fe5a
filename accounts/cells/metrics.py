"""Metrics of the replication between cells and of moves, read from the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError, connection
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accounts.cells.beats import read_beats

# A slot that PostgreSQL gave up, because it kept too much, has no `restart_lsn`.
_KEPT: Final = """
SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)
FROM pg_replication_slots
WHERE database = current_database() AND starts_with(slot_name, 'causeway_')
    AND restart_lsn IS NOT NULL AND NOT pg_is_in_recovery()
"""
# The first step of a move writes the time, and no later change is possible before the last one. The
# words stand here, not as parameters, because the index has them.
_OLDEST_MOVE: Final = """
SELECT coalesce(extract(epoch FROM now() - min(updated_at)), 0)
FROM accounts_organization WHERE residence IN ('leaving', 'arriving')
"""


class CellCollector(Collector):
    """Collects how long ago each other cell was heard of, the WAL that is kept for them, and moves.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        silent = GaugeMetricFamily(
            "causeway_cell_silent_seconds",
            "The age of the last row that came from another cell by replication.",
            labels=("cell",),
        )
        kept = GaugeMetricFamily(
            "causeway_cell_kept_wal_bytes",
            "The WAL that this database keeps for a slot of another cell.",
            labels=("slot",),
        )
        move = GaugeMetricFamily(
            "causeway_oldest_move_seconds",
            "For how long the oldest unfinished move to another cell has run; 0 for none.",
        )
        try:
            with connection.cursor() as cursor:
                beats = list(read_beats())
                cursor.execute("SELECT now()")
                [now] = cursor.fetchone()
                for cell, beat_at in beats:
                    # The clocks of two clusters may differ a little.
                    silent.add_metric((cell,), max(0.0, (now - beat_at).total_seconds()))
                cursor.execute(_KEPT)
                for slot, size in cursor.fetchall():
                    kept.add_metric((slot,), float(size))
                cursor.execute(_OLDEST_MOVE)
                # The clock of the cell that it comes from may be ahead.
                move.add_metric((), max(0.0, float(cursor.fetchone()[0])))
        except DatabaseError:
            return
        yield from (silent, kept, move)
