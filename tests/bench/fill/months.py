"""Fills months of generations and their transfers, one partition each, from those that exist.

Each new generation is a copy of one that :func:`tests.bench.fill.filling.fill` made, with another
id and time, so that millions take minutes. The accounts have their sums after :func:`sum_up`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection

from accounts.models import Organization
from billing import ledger
from billing.models import Transfer
from catalog.pricing import NANO
from config.partitions.declarations import Partitioning
from config.partitions.spans import MONTH
from config.partitions.tables import list_partitions, make_ahead, read_now
from inference.ids import first_id, last_id
from inference.models import Generation, HourlyUsage, UsageDay
from inference.reports.hours import roll_up_hours
from inference.reports.rollups import roll_up_usage
from tests.bench.fill import statements

# The fill spreads its rows over 35 days, which begin in one of three months.
LEAST_PARTITIONS: Final = 3
_CREDITS: Final = 1_000_000 * NANO
_TABLES: Final = (Generation.partitioning, Transfer.partitioning)
_COPIED: Final = ", ".join(
    field.column
    for field in Generation._meta.concrete_fields
    if field.column not in ("id", "created_at")
)
_SAMPLE: Final = """
CREATE TEMPORARY TABLE sample AS
SELECT row_number() OVER () - 1 AS place, g.* FROM inference_generation AS g
"""
_PAIRS: Final = """
CREATE TEMPORARY TABLE pair AS
SELECT DISTINCT ON (organization_id) organization_id, debit_id, credit_id
FROM billing_transfer WHERE kind = 'usage'
"""
# In the order of time, as in production.
_GENERATIONS: Final = f"""
INSERT INTO inference_generation (id, created_at, {_COPIED})
SELECT 'gen-' || floor(extract(epoch FROM d.at))::bigint || '-'
           || substr(md5(random()::text || d.n), 1, 20),
       d.at, {_COPIED}
FROM (
    SELECT n, %(begin)s + (n - 0.5) / %(rows)s * (%(end)s - %(begin)s) AS at
    FROM generate_series(1, %(rows)s::bigint) AS n
) AS d
JOIN sample ON place = d.n * 7919 %% (SELECT count(*) FROM sample)
"""
_TRANSFERS: Final = """
INSERT INTO billing_transfer (
    organization_id, kind, debit_id, credit_id, amount_nano, posted_nano, status, reference,
    created_at, ended_at)
SELECT organization_id, 'usage', debit_id, credit_id, greatest(hold_nano, cost_nano),
       nullif(cost_nano, 0), CASE WHEN cost_nano > 0 THEN 'posted' ELSE 'voided' END, g.id,
       g.created_at, g.created_at + interval '1 second'
FROM inference_generation AS g JOIN pair USING (organization_id)
WHERE g.id >= %(first_id)s AND g.id < %(last_id)s
    AND g.created_at >= %(begin)s AND g.created_at < %(end)s AND greatest(hold_nano, cost_nano) > 0
ON CONFLICT DO NOTHING
"""


def fill_months(generations: int, partitions: int) -> None:
    """Adds generations until now: to the present partition alone, or over this number of months."""
    now = read_now()
    begins = [now - timedelta(days=30)]
    if partitions > 1:
        begins = _list_months(now, partitions)
        for partitioning in _TABLES:
            _divide(partitioning, begins)
    ends = [*begins[1:], now]
    # The present month is not over.
    copy_generations(
        (begin, end, round(generations * ((end - begin) / (now - begins[0]))))
        for begin, end in zip(begins, ends, strict=True)
    )
    roll_up()


def copy_generations(spans: Iterable[tuple[datetime, datetime, int]]) -> None:
    """Adds a number of generations, with their transfers, from one moment to another."""
    _run("SET synchronous_commit = off")
    _run(_SAMPLE)
    _run(_PAIRS)
    _run("ANALYZE sample")
    for begin, end, rows in spans:
        ids = {"first_id": first_id(begin), "last_id": last_id(end)}
        for statement in (_GENERATIONS, _TRANSFERS):
            _run(statement, begin=begin, end=end, rows=rows, **ids)
        print(f"{begin:%Y-%m}: {rows} generations", file=sys.stderr, flush=True)
    _run("VACUUM (ANALYZE) inference_generation, billing_transfer")


def sum_up() -> None:
    """Gives accounts and meters the sums of all generations and transfers, and credits for them."""
    organizations = list(Organization.objects.values_list("pk", flat=True))
    for organization in organizations:
        ledger.grant(organization, _CREDITS, actor="fill", note="For the months.")
    _run(statements.UPDATE_BALANCES, organizations=organizations)
    _run(statements.UPDATE_METERS, organizations=organizations, end=read_now())


def roll_up() -> None:
    """Sums days and hours anew."""
    UsageDay.objects.all().delete()
    HourlyUsage.objects.all().delete()
    roll_up_usage()
    roll_up_hours()
    _run("VACUUM (ANALYZE) inference_dailyusage, inference_hourlyusage, inference_endpointhour")


def _list_months(now: datetime, number: int) -> list[datetime]:
    """Returns the beginnings of the present month and of those before it."""
    begins = [MONTH.begin(now)]
    while len(begins) < number:
        begins.insert(0, MONTH.begin(begins[0] - timedelta(days=1)))
    return begins


def _divide(partitioning: Partitioning, begins: list[datetime]) -> None:
    """Puts a partition for each month in the place of the one with everything."""
    whole = list_partitions(partitioning)[0]
    _run(f"ALTER TABLE {partitioning.table} DETACH PARTITION {whole.name}")
    for begin in begins:
        make_ahead(partitioning, begin)
    _run(f"INSERT INTO {partitioning.table} SELECT * FROM {whole.name}")
    _run(f"DROP TABLE {whole.name}")


def _run(statement: str, **parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
