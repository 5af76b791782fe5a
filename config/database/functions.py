"""Statements of the data plane as functions of the database, for connections through a pooler.

A pooler that shares its connections by transaction keeps no prepared statement. A function of
PL/pgSQL keeps the plan of its statement in each of those connections: a call costs some 20 % more
than a prepared statement, where planning costs ten times as much. ``manage.py migrate`` makes them.

The name of a function contains a digest of its statement, so workers of two releases that run
beside each other each call their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.db import connection, transaction
from psycopg.pq import ExecStatus

from config.database.driver import PLANNING
from config.sql import Statement

PREFIX: Final = "causeway_run_"
# A function that no `migrate` has named for 30 days is dropped: no worker runs that long.
_DAYS: Final = 30
_PARAMETER: Final = re.compile(r"\$([0-9]+)")
_FIND: Final = """
SELECT p.proname, p.oid::regprocedure::text, pg_get_function_identity_arguments(p.oid),
    pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc')
FROM pg_proc AS p
WHERE p.pronamespace = current_schema()::regnamespace AND starts_with(p.proname, %s)
"""
_FIND_TYPES: Final = """
SELECT format_type(t.oid, NULL), t.typtype
FROM unnest(%s::oid[]) WITH ORDINALITY AS k (oid, place)
INNER JOIN pg_type AS t USING (oid)
ORDER BY k.place
"""
# Two processes that migrate take turns.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('causeway_run', 0))"
_CREATE: Final = """
CREATE FUNCTION {name}({parameters}) RETURNS {result}
LANGUAGE plpgsql {settings} AS $causeway$
#variable_conflict use_column
BEGIN
    PERFORM set_config('lock_timeout', ${limit}::text, true);
    {query}{statement};
END
$causeway$
"""


class Signature(NamedTuple):
    """The types of a statement's parameters and columns."""

    parameters: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def arguments(self) -> str:
        """The types of the function's arguments; the last one is the limit of waits for locks."""
        return ", ".join((*self.parameters, "integer"))

    @property
    def result(self) -> str:
        columns = ", ".join(f"r{number} {name}" for number, name in enumerate(self.columns))
        return f"TABLE({columns})" if columns else "void"


@lru_cache
def name_function(statement: Statement) -> str:
    """Returns the name of a statement's function."""
    digest = hashlib.sha256(statement.text.encode()).hexdigest()[:10]
    return f"{PREFIX}{statement.name}_{digest}"


@lru_cache
def find_call(statement: Statement) -> bytes:
    """Returns the query that calls a statement's function.

    Its parameters are those of the statement, and then the limit of waits for locks.
    """
    count = max((int(number) for number in _PARAMETER.findall(statement.text)), default=0)
    places = ", ".join(f"${number}" for number in range(1, count + 2))
    return f"SELECT * FROM {name_function(statement)}({places})".encode()  # noqa: S608


def make_functions(statements: Iterable[Statement]) -> None:
    """Makes the functions that the database lacks, and drops those that no release uses any more.

    A statement that has no signature, because it returns nothing that a column can have, gets none.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK)
        cursor.execute(_FIND, [PREFIX])
        found = {row[0]: row[1:] for row in cursor.fetchall()}
        for statement in statements:
            name = name_function(statement)
            signature = _describe(statement)
            old = found.pop(name, None)
            if signature is None or _is_same(old, signature):
                _unmark(cursor, old)
                continue
            if old is not None:
                cursor.execute(f"DROP FUNCTION {old[0]}")
            cursor.execute(_write(name, statement, signature))
        _drop_unused(cursor, found.values())


def _is_same(old: tuple[str, str, str, str | None] | None, signature: Signature) -> bool:
    return old is not None and old[1:3] == (signature.arguments, signature.result)


def _unmark(cursor: Any, old: tuple[str, str, str, str | None] | None) -> None:
    if old is not None and old[3] is not None:
        cursor.execute(f"COMMENT ON FUNCTION {old[0]} IS NULL")


def _write(name: str, statement: Statement, signature: Signature) -> str:
    return _CREATE.format(
        name=name,
        parameters=signature.arguments,
        result=signature.result,
        settings=" ".join(f"SET {setting} = {value}" for setting, value in PLANNING.items()),
        limit=len(signature.parameters) + 1,
        query="RETURN QUERY " if signature.columns else "",
        statement=statement.text,
    )


def _drop_unused(cursor: Any, unused: Iterable[tuple[str, str, str, str | None]]) -> None:
    """Notes in the comments of functions since when no release uses them; drops old ones."""
    for function, _, _, unused_since in unused:
        if unused_since is None:
            cursor.execute("SELECT now()::date::text")
            [today] = cursor.fetchone()
            cursor.execute(f"COMMENT ON FUNCTION {function} IS %s", [f"unused since {today}"])
            continue
        cursor.execute(
            "SELECT %s::date < now() - make_interval(days => %s)",
            [unused_since.rpartition(" ")[2], _DAYS],
        )
        if cursor.fetchone() == (True,):
            cursor.execute(f"DROP FUNCTION {function}")


def _describe(statement: Statement) -> Signature | None:
    """Asks PostgreSQL for the types of a statement; ``None`` if it cannot be prepared."""
    # Without a transaction a pooler may describe on another connection than it has prepared on.
    with transaction.atomic():
        connection.ensure_connection()
        pgconn = connection.connection.pgconn
        if pgconn.prepare(b"", statement.text.encode()).status != ExecStatus.COMMAND_OK:
            transaction.set_rollback(True)
            return None
        described = pgconn.describe_prepared(b"")
        kinds = [described.param_type(number) for number in range(described.nparams)]
        columns = [described.ftype(number) for number in range(described.nfields)]
        with connection.cursor() as cursor:
            cursor.execute(_FIND_TYPES, [[*kinds, *columns]])
            types = cursor.fetchall()
    if any(kind == "p" for _, kind in types):
        return None
    names = [name for name, _ in types]
    return Signature(tuple(names[: len(kinds)]), tuple(names[len(kinds) :]))
