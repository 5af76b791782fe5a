"""Old generations in partitions of their own, and what must hold after they have left."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection
from psycopg import sql

from billing import ledger, reviews
from billing.models import Account, Excess, Transfer
from config.partitions.declarations import Partitioning
from config.partitions.spans import MONTH
from config.partitions.tables import Partition, create_like, list_partitions, make_ahead, read_now
from inference.models import Generation
from inference.reports.hours import roll_up_hours
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.factories import Tenant

HOUR: Final = timedelta(hours=1)
TABLES: Final = (Generation.partitioning, Transfer.partitioning)


def old_month() -> datetime:
    """The beginning of the oldest month that gets a partition; the two after it have one too."""
    return MONTH.begin(read_now() - timedelta(days=130))


def detach(partitioning: Partitioning, partition: Partition) -> None:
    """Makes a partition a table of its own with the same name."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {partitioning.table} DETACH PARTITION {partition.name}")


def divide_past() -> None:
    """Puts partitions of three past months in the place of the one with everything."""
    for partitioning in TABLES:
        with connection.cursor() as cursor:
            # PostgreSQL alters no table while deferred checks are pending.
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            whole = list_partitions(partitioning)[0]
            detach(partitioning, whole)
            make_ahead(partitioning, old_month())
            make_ahead(partitioning)
            cursor.execute(f"INSERT INTO {partitioning.table} SELECT * FROM {whole.name}")
            cursor.execute(f"DROP TABLE {whole.name}")
            _wait_as_before(cursor)


def seal_oldest(model: type[Transfer | Generation]) -> None:
    """Seals the oldest partition of a model as an archiving process does."""
    name = list_partitions(model.partitioning)[0].name
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"ALTER TABLE {name} ADD CONSTRAINT leaves CHECK (FALSE) NOT VALID")


def divide_since(partitioning: Partitioning, since: datetime) -> None:
    """Puts partitions of all spans since a moment in the place of the one with everything."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        whole = list_partitions(partitioning)[0]
        detach(partitioning, whole)
        while since <= read_now():
            make_ahead(partitioning, since)
            since = partitioning.span.following(partitioning.span.begin(since))
        cursor.execute(f"INSERT INTO {partitioning.table} SELECT * FROM {whole.name}")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"DROP TABLE {whole.name}")
        _wait_as_before(cursor)


def _wait_as_before(cursor: Any) -> None:
    """Ends the short patience of ``make_ahead``, which lasts as long as the test's transaction."""
    cursor.execute("SET LOCAL lock_timeout TO DEFAULT")


def days_to_keep() -> int:
    """The days of retention by which two of the old months leave, and the third stays."""
    third = list_partitions(Generation.partitioning)[2].end
    assert third is not None
    return (read_now() - third).days + 1


def let_leave(settings: LazySettings, place: Any = None) -> None:
    """Divides the past, and lets two of its months leave for a place or for nowhere."""
    divide_past()
    settings.RETENTION_DAYS = {"generations": days_to_keep()}
    settings.ARCHIVE_PLACE = place


def months() -> list[datetime]:
    """The beginnings of the three old months."""
    return [each.begin for each in list_partitions(Generation.partitioning)[:3] if each.begin]


def dump(table: str) -> list[str]:
    """Returns the rows of a table as texts."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT to_jsonb(t)::text FROM {table} AS t ORDER BY 1")
        return [text for (text,) in cursor.fetchall()]


def run(command: str, *arguments: str) -> dict[str, Any]:
    """Returns the report of a command."""
    output = io.StringIO()
    call_command(command, *arguments, "--json", stdout=output)
    report: dict[str, Any] = json.loads(output.getvalue())
    return report


def unite_past() -> None:
    """Undoes :func:`divide_past`, without its rows."""
    for partitioning in TABLES:
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {partitioning.table} CASCADE")
            later = [each for each in list_partitions(partitioning) if is_later(each)]
            for each in list_partitions(partitioning):
                if each not in later and not each.is_default:
                    detach(partitioning, each)
                    cursor.execute(f"DROP TABLE {each.name}")
            _attach_whole(cursor, partitioning, later[0].begin)


def is_later(partition: Any) -> bool:
    return partition.begin is not None and partition.begin > read_now()


def _attach_whole(cursor: Any, partitioning: Partitioning, end: datetime) -> None:
    name = partitioning.name_until(end)
    create_like(cursor, partitioning, name)
    cursor.execute(
        sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM (MINVALUE) TO ({})").format(
            sql.Identifier(partitioning.table),
            sql.Identifier(name),
            sql.Literal(partitioning.write_bound(end)),
        )
    )


def make_old(tenant: Tenant, moment: datetime, **fields: Any) -> Generation:
    """A generation with a true id, which is in the partition of its month."""
    return factories.make_generation(tenant, created_at=moment, **fields)


def fill(tenant: Tenant, month: datetime) -> list[Generation]:
    """Everything that may have happened in a month: charges, a void, a refund, two reviews."""
    paid = [
        make_old(tenant, month + number * HOUR, cost_nano=1_000 + number, prompt_tokens=number)
        for number in range(4)
    ]
    byok = make_old(tenant, month + 5 * HOUR, is_byok=True, upstream_cost_nano=77, cost_nano=3)
    free = make_old(
        tenant, month + 6 * HOUR, cost_nano=0, status="failed", error_type="=cmd", end_user="é\t"
    )
    ledger.refund(paid[0].pk, actor="test")
    for generation, decide in ((paid[1], reviews.charge), (paid[2], reviews.write_off)):
        excess = factories.make_excess(tenant, 50, generation.pk)
        decide(excess, by="test")
    return [*paid, byok, free]


def sum_all() -> None:
    """What the duties of ``work`` do before a range may leave."""
    roll_up_usage()
    roll_up_hours()


def verify() -> list[str]:
    """Returns the differences that the command ``verify_ledger`` prints."""
    output = io.StringIO()
    with suppress(CommandError):
        call_command("verify_ledger", "--json", stdout=output, stderr=io.StringIO())
    found: list[str] = json.loads(output.getvalue())["differences"]
    return found


def balances() -> list[tuple[Any, ...]]:
    return list(
        Account.objects.order_by("pk").values_list(
            "pk", "posted_debits", "posted_credits", "pending_debits"
        )
    )


def partition_names() -> set[str]:
    return {each.name for table in TABLES for each in list_partitions(table)}


def open_excess(tenant: Tenant, generation: Generation) -> Excess:
    return factories.make_excess(tenant, 5, generation.pk)
