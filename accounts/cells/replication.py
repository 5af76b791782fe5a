"""The logical replication of shared rows from the home cell, and of the directory towards it.

The rows of models that are declared as shared are written in the home cell alone. A trigger in
every other cell refuses other writes, because one row that differs would stop the replication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from django.apps import apps
from psycopg import sql

from accounts.cells.databases import dsn_of
from accounts.models import CellBeat, DirectoryEntry
from accounts.models.cells import IDS_OF_A_CELL, number_of_shard
from config.apps import ModelDeclaration, declarations
from config.cells import HOME
from config.sql import KEPT_ELSEWHERE

CATALOGUE: Final = "causeway_home"
DIRECTORY: Final = "causeway_directory"
# What the console of any cell may write to its own copy of an operator: the times of sign-ins.
_LOCAL_COLUMNS: Final = {
    "auth_user": ("last_login",),
    "otp_totp_totpdevice": (
        "drift",
        "last_t",
        "last_used_at",
        "throttling_failure_count",
        "throttling_failure_timestamp",
    ),
}
_GUARD: Final = f"""
CREATE OR REPLACE FUNCTION causeway_kept_at_home() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - TG_ARGV = to_jsonb(OLD) - TG_ARGV THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'rows of % are kept in the home cell: change them there', TG_TABLE_NAME
        USING ERRCODE = '{KEPT_ELSEWHERE}';
END
$$
"""


def shared_tables() -> Iterator[tuple[str, ModelDeclaration]]:
    """Yields the tables whose rows the home cell keeps, in a fixed order."""
    for label, declaration in sorted(declarations().items()):
        if declaration.is_shared:
            yield apps.get_model(label)._meta.db_table, declaration


def publish_catalogue(home: psycopg.Connection[Any]) -> None:
    """Publishes the shared rows; a repetition adds the tables of a newer release."""
    tables = sql.SQL(", ").join(
        sql.SQL("{} WHERE ({})").format(sql.Identifier(table), sql.SQL(each.shared_rows))
        if each.shared_rows
        else sql.Identifier(table)
        for table, each in shared_tables()
    )
    for table, each in shared_tables():
        if each.shared_rows:
            # PostgreSQL refuses to delete a row whose condition it cannot judge from the log.
            home.execute(
                sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(table))
            )
    _publish(home, CATALOGUE, tables)


def publish_directory(cell: psycopg.Connection[Any]) -> None:
    """Publishes the directory's rows of a cell's own organizations, and its signs of life."""
    tables = sql.SQL("{}, {} WHERE (cell <> {})").format(
        sql.Identifier(DirectoryEntry._meta.db_table),
        sql.Identifier(CellBeat._meta.db_table),
        sql.Literal(HOME),
    )
    _publish(cell, DIRECTORY, tables)


def _publish(cell: psycopg.Connection[Any], name: str, tables: sql.Composable) -> None:
    exists = cell.execute("SELECT FROM pg_publication WHERE pubname = %s", [name]).fetchone()
    verb = (
        "CREATE PUBLICATION {} FOR TABLE {}"
        if exists is None
        else "ALTER PUBLICATION {} SET TABLE {}"
    )
    cell.execute(sql.SQL(verb).format(sql.Identifier(name), tables))


@dataclass(frozen=True, slots=True)
class Subscription:
    """The tables that one cell receives from another: by name, each with an SQL condition or none.

    ``name`` is also that of the slot at the publisher. ``url`` is where it is reached from there.
    """

    name: str
    publication: str
    url: str
    tables: tuple[tuple[str, str], ...]


def catalogue_for(cell: str, url: str) -> Subscription:
    """Returns the subscription of a cell to the shared rows of the home cell."""
    tables = tuple((table, each.shared_rows) for table, each in shared_tables())
    return Subscription(f"causeway_{_identifier(cell)}", CATALOGUE, url, tables)


def directory_from(cell: str, url: str) -> Subscription:
    """Returns the subscription of the home cell to the directory of another one."""
    rows = f"cell = '{cell}'"
    tables = (DirectoryEntry._meta.db_table, rows), (CellBeat._meta.db_table, rows)
    return Subscription(f"causeway_from_{_identifier(cell)}", DIRECTORY, url, tables)


def subscribe(
    publisher: psycopg.Connection[Any],
    subscriber: psycopg.Connection[Any],
    subscription: Subscription,
    *,
    begins_again: bool,
) -> None:
    """Begins a replication, or lets it go on; begins again one whose slot was lost.

    A repetition subscribes to new tables of the publication too. A restored subscriber goes on
    where its slot is, without the changes before: ``begins_again`` copies all rows once more.
    """
    name = sql.Identifier(subscription.name)
    url = sql.Literal(subscription.url)
    if not begins_again and _is_running(publisher, subscriber, subscription.name):
        subscriber.execute(sql.SQL("ALTER SUBSCRIPTION {} CONNECTION {}").format(name, url))
        subscriber.execute(sql.SQL("ALTER SUBSCRIPTION {} REFRESH PUBLICATION").format(name))
        return
    _drop(publisher, subscriber, subscription.name)
    with publisher.transaction():
        # Nobody writes the rows between the beginning of the slot and their copy.
        tables = sql.SQL(", ").join(sql.Identifier(table) for table, _ in subscription.tables)
        publisher.execute("SET LOCAL lock_timeout = '10s'")
        publisher.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(tables))
        _make_slot(publisher, subscription.name)
        with subscriber.transaction():
            subscriber.execute("SET LOCAL session_replication_role = replica")
            for table, condition in subscription.tables:
                _copy(publisher, subscriber, table, condition or "true")
        subscriber.execute(
            sql.SQL(
                "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} "
                "WITH (create_slot = false, copy_data = false)"
            ).format(name, url, sql.Identifier(subscription.publication))
        )


def _is_running(
    publisher: psycopg.Connection[Any], subscriber: psycopg.Connection[Any], name: str
) -> bool:
    """Returns whether there is a subscription that has its slot."""
    slot = publisher.execute(
        "SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = %s", [name]
    ).fetchone()
    return _exists(subscriber, name) and slot is not None and slot[0] != "lost"


def _exists(subscriber: psycopg.Connection[Any], name: str) -> bool:
    found = subscriber.execute(
        "SELECT FROM pg_subscription AS s JOIN pg_database AS d ON s.subdbid = d.oid "
        "WHERE s.subname = %s AND d.datname = current_database()",
        [name],
    ).fetchone()
    return found is not None


def _drop(
    publisher: psycopg.Connection[Any], subscriber: psycopg.Connection[Any], name: str
) -> None:
    """Drops what there is of a subscription, and its slot."""
    if _exists(subscriber, name):
        for change in ("ALTER {} DISABLE", "ALTER {} SET (slot_name = NONE)", "DROP {}"):
            verb, _, rest = change.partition(" {}")
            subscriber.execute(
                sql.SQL(verb + " SUBSCRIPTION {}" + rest).format(sql.Identifier(name))
            )
    # The process that read the slot for it may need a moment to end.
    publisher.execute(
        "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
        "WHERE slot_name = %s AND active_pid IS NOT NULL",
        [name],
    )
    publisher.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        [name],
    )


def _make_slot(publisher: psycopg.Connection[Any], name: str) -> None:
    """Makes a slot on a connection of its own: PostgreSQL refuses it within a transaction."""
    with psycopg.connect(dsn_of(publisher), autocommit=True) as second:
        # It waits for the transactions that write at this moment.
        second.execute("SET statement_timeout = '60s'")
        second.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


def _copy(
    publisher: psycopg.Connection[Any],
    subscriber: psycopg.Connection[Any],
    table: str,
    condition: str,
) -> None:
    """Replaces the rows of a table by the publisher's; readers see the old or the new ones."""
    names = [
        name
        for (name,) in publisher.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            [table],
        )
    ]
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    parts = {"table": sql.Identifier(table), "columns": columns, "rows": sql.SQL(condition)}
    subscriber.execute(sql.SQL("DELETE FROM {table} WHERE {rows}").format(**parts))
    read = sql.SQL("COPY (SELECT {columns} FROM {table} WHERE {rows}) TO STDOUT").format(**parts)
    store = sql.SQL("COPY {table} ({columns}) FROM STDIN").format(**parts)
    with publisher.cursor().copy(read) as rows, subscriber.cursor().copy(store) as stored:
        for block in rows:
            stored.write(block)


def _identifier(cell: str) -> str:
    return cell.replace("-", "_")


def adopt(cell: psycopg.Connection[Any], *, name: str, shard: str, fingerprint: str) -> None:
    """Makes an empty database a cell: its identity, its ranges of ids, and its guards.

    A repetition renews the fingerprint and the guards.
    """
    with cell.transaction():
        cell.execute(
            "INSERT INTO accounts_cellidentity (id, name, shard, fingerprint) "
            "VALUES (1, %(name)s, %(shard)s, %(fingerprint)s) "
            "ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint",
            {"name": name, "shard": shard, "fingerprint": fingerprint},
        )
        _begin_ids(cell, number_of_shard(shard) * IDS_OF_A_CELL + 1)
        _guard(cell)


def _begin_ids(cell: psycopg.Connection[Any], first: int) -> None:
    """Lets every table number its rows from the cell's own range, so that no two cells collide."""
    sequences = cell.execute(
        "SELECT DISTINCT s.oid::regclass::text, coalesce(pg_sequence_last_value(s.oid), 0) "
        "FROM pg_class AS s "
        "JOIN pg_sequence AS q ON q.seqrelid = s.oid AND q.seqtypid = 'bigint'::regtype "
        "WHERE s.relnamespace = 'public'::regnamespace"
    ).fetchall()
    for sequence, last in sequences:
        if last < first:
            cell.execute("SELECT setval(%s, %s, false)", [sequence, first])


def _guard(cell: psycopg.Connection[Any]) -> None:
    cell.execute(_GUARD)
    for table, declaration in shared_tables():
        condition = declaration.shared_rows
        columns = sql.SQL(", ").join(map(sql.Literal, _LOCAL_COLUMNS.get(table, ())))
        for operation, row in (("INSERT OR UPDATE", "NEW"), ("DELETE", "OLD")):
            when = f"WHEN ({row}.{condition})" if condition else ""
            statement = (
                "CREATE OR REPLACE TRIGGER {} BEFORE " + operation + " ON {} FOR EACH ROW "
                f"{when} EXECUTE FUNCTION causeway_kept_at_home({{}})"
            )
            name = "causeway_kept_at_home" + ("" if row == "NEW" else "_delete")
            cell.execute(
                sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(table), columns)
            )
