"""Settlement updates its rows in place: no index is written, and the page has the room."""

from __future__ import annotations

from django.db import connection

from tests.support import factories

_COUNTS = """
SELECT coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_hot_upd), 0) FROM pg_stat_user_tables
WHERE relid IN (SELECT relid FROM pg_partition_tree(%s))
"""
TABLES = ("inference_generation", "billing_transfer")
NUMBER = 50


def read_counts(table: str) -> tuple[int, int]:
    """Returns the updates of a table and its partitions so far, and those that wrote no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(_COUNTS, [table])
        updates, hot = cursor.fetchone()
    return int(updates), int(hot)


def test_nine_of_ten_updates_write_no_index(transactional_db: None) -> None:
    tenant = factories.make_tenant()
    served = factories.make_endpoint(factories.make_model(), factories.make_provider())
    before = {table: read_counts(table) for table in TABLES}
    for number in range(NUMBER):
        factories.make_generation(
            tenant, cost_nano=1_000 + number, end_user=f"user {number}", model_endpoint=served
        )
    for table in TABLES:
        updates, hot = (
            now - then for now, then in zip(read_counts(table), before[table], strict=True)
        )
        assert updates >= NUMBER
        assert hot >= 0.9 * updates, (table, hot, updates)
