"""Connections to the databases of cells, and what two cells must have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.recorder import MigrationRecorder

from config.audit import context as audit
from config.bulk.files import refuse
from config.cells import HOME
from config.database.aliases import DIRECT
from config.peppers import list_peppers
from config.secrets import current_key_id

# Rows are compared as text, which depends on these.
_SESSION = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET search_path = public"


@contextmanager
def refuse_in_words() -> Iterator[None]:
    """Turns an error of PostgreSQL into a refusal by one sentence."""
    try:
        yield
    except psycopg.Error as exc:
        text = exc.diag.message_primary or str(exc).partition("\n")[0] or type(exc).__name__
        refuse(f"PostgreSQL refuses it: {text}. The command can be run again.")


def open_cell(name: str, command: str) -> psycopg.Connection[Any]:
    """Connects to the database of a cell; refuses with a sentence that names the setting.

    The audit log attributes what is written to the command.
    """
    opened = _connect(_find_url(name), name)
    if _is_pooled(opened):
        opened.close()
        refuse(
            f"The URL of the cell {name} in CELL_DATABASE_URLS leads to a pooler, which shares its "
            f"sessions: {command} needs PostgreSQL itself there."
        )
    return _prepare(opened, command)


def is_away(name: str) -> bool:
    """Returns whether the database of a cell takes no connection now."""
    url = _find_url(name)
    try:
        _connect(url, name).close()
    except CommandError:
        return True
    return False


def open_here(command: str) -> psycopg.Connection[Any]:
    """Opens a second connection to this installation's own database, past a pooler."""
    alias = DIRECT if DIRECT in connections.settings else DEFAULT_DB_ALIAS
    parameters = connections[alias].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(name, None)
    opened: psycopg.Connection[Any] = psycopg.connect(**parameters)
    if _is_pooled(opened):
        opened.close()
        refuse(
            f"The database is reached through a pooler, which shares its sessions: {command} needs "
            "PostgreSQL itself. Set DATABASE_DIRECT_URL for it."
        )
    return _prepare(opened, command)


def _is_pooled(opened: psycopg.Connection[Any]) -> bool:
    """Returns whether another process answers than the one that was connected to.

    Nothing was set yet: the names of the audit log and a move's lock would stay in a session that
    others get next.
    """
    with opened.transaction():
        row = opened.execute("SELECT pg_backend_pid()").fetchone()
    return row != (opened.info.backend_pid,)


def _find_url(name: str) -> str:
    url: str | None = settings.CELL_DATABASE_URLS.get(name)
    if url is None:
        refuse(f"CELL_DATABASE_URLS has no URL for the cell {name}.")
    return url


def _connect(url: str, name: str) -> psycopg.Connection[Any]:
    try:
        opened: psycopg.Connection[Any] = psycopg.connect(url, connect_timeout=10)
    except psycopg.OperationalError as exc:
        refuse(f"The database of the cell {name} cannot be used: {str(exc).splitlines()[0]}.")
    return opened


def _prepare(opened: psycopg.Connection[Any], command: str) -> psycopg.Connection[Any]:
    opened.autocommit = True
    for statement in _SESSION.split(";"):
        opened.execute(statement.strip())
    opened.execute(
        "SELECT set_config('causeway.actor', %s, false), "
        "set_config('causeway.action', %s, false), set_config('causeway.request_id', '', false)",
        [audit.command_actor(command), f"command {command}"],
    )
    return opened


def dsn_of(cell: psycopg.Connection[Any]) -> str:
    """Returns the parameters of a connection, its password included."""
    return psycopg.conninfo.make_conninfo(
        host=cell.info.host,
        port=cell.info.port,
        user=cell.info.user,
        dbname=cell.info.dbname,
        **({"password": cell.info.password} if cell.info.password else {}),
    )


def read_identity(cell: psycopg.Connection[Any]) -> str:
    """Returns the name of the cell that a database belongs to."""
    row = cell.execute("SELECT name FROM accounts_cellidentity").fetchone()
    return HOME if row is None else str(row[0])


def require_same_schema(here: psycopg.Connection[Any], there: psycopg.Connection[Any]) -> None:
    """Refuses to go on unless both databases have the same migrations."""
    table = MigrationRecorder.Migration._meta.db_table
    query = f"SELECT app, name FROM {table}"  # noqa: S608 - the name of a table
    mine, other = ({*cell.execute(query)} for cell in (here, there))
    if mine != other:
        missing = ", ".join(sorted(".".join(each) for each in mine ^ other)[:5])
        refuse(f"The cells have different migrations ({missing}): upgrade both, then try again.")


def fingerprint() -> str:
    """Returns the ids of the pepper and of the credential key that write in this cell.

    They are digests, which tell nothing about the secrets.
    """
    return f"{list_peppers()[0].id}:{current_key_id()}"


def find_missing_secrets(wanted: str) -> list[str]:
    """Returns the settings that lack a secret of the cell with this fingerprint."""
    pepper, _, key = wanted.partition(":")
    missing = []
    if pepper not in {each.id for each in list_peppers()}:
        missing.append("KEY_PEPPERS")
    if key not in {current_key_id(number) for number in range(len(settings.CREDENTIAL_KEYS))}:
        missing.append("CREDENTIAL_KEYS")
    return missing
