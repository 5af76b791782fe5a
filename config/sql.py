"""Loads SQL statements from files, and executes them and querysets on connections of the ORM.

Each file ``<package>/sql/<name>.sql`` contains one statement with PostgreSQL's own placeholders
(``$1``), which asyncpg executes unchanged.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import BinaryField, Field, JSONField, Model, QuerySet

from config.clocks.clock import clock

_PLACEHOLDER: Final = re.compile(r"\$([0-9]+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """The text of a statement; ``name`` is that of its file, for the log and the metrics."""

    name: str
    text: str


def load_statement(package: str, name: str) -> Statement:
    """Returns a statement without its comments, which would be sent with every execution."""
    text = files(package).joinpath("sql", f"{name}.sql").read_text("utf-8")
    lines = text.splitlines()
    kept = (line for line in lines if line and not line.lstrip().startswith("--"))
    return Statement(name, "\n".join(kept))


def load_statements(package: str) -> list[Statement]:
    """Returns the statements of a package that change or read rows for requests.

    The checks of ``verify_ledger`` are none of them.
    """
    names = sorted(
        file.name.removesuffix(".sql")
        for file in files(package).joinpath("sql").iterdir()
        if file.name.endswith(".sql") and not file.name.startswith("verify_")
    )
    return [load_statement(package, name) for name in names]


def execute(cursor: CursorWrapper, statement: Statement, parameters: Sequence[Any] = ()) -> None:
    """Executes a loaded statement on a cursor of the ORM."""
    if parameters:
        named = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        cursor.execute(_convert_placeholders(statement.text), named)
    else:
        cursor.execute(statement.text)


def fetch_rows(
    statement: Any, values: Mapping[str, Any] | Sequence[Any] | None = None
) -> list[Sequence[Any]]:
    """Executes a text, or a statement composed by psycopg, on this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


@dataclass(frozen=True, slots=True)
class Reading:
    """One statement that reads the rows of several models.

    Making its text takes the ORM longer than reading takes PostgreSQL, so that who reads the same
    again keeps it, and gives the values that take the place of its own.
    """

    text: str
    parameters: tuple[Any, ...]
    models: tuple[type[Model], ...]

    def read(self, values: Mapping[Any, Any] | None = None) -> list[list[Any]]:
        """Returns the rows of each model on this thread's connection."""
        given = values or {}
        with connection.cursor() as cursor:
            cursor.execute(self.text, [given.get(each, each) for each in self.parameters])
            row = cursor.fetchone()
        return [
            _make_rows(model, json.loads(found, parse_float=Decimal))
            for model, found in zip(self.models, row, strict=True)
        ]


def prepare_reading(*querysets: QuerySet[Any]) -> Reading:
    """Returns the statement that reads the rows of each queryset, in its order.

    They are read in one snapshot and one round trip. Each queryset reads all columns of its own
    model, and none of others: without annotations, ``select_related`` or prefetched rows.
    """
    selected, parameters = [], list[Any]()
    for queryset in querysets:
        try:
            text, given = queryset.query.sql_with_params()
        except EmptyResultSet:
            selected.append("'[]'::jsonb")
        else:
            # The text is the ORM's own, with placeholders for all values.
            selected.append(f"to_jsonb(ARRAY(SELECT to_jsonb(r) FROM ({text}) AS r))")  # noqa: S608
            parameters.extend(given)
    text = f"SELECT {', '.join(selected)}"
    return Reading(text, tuple(parameters), tuple(queryset.model for queryset in querysets))


def _make_rows(model: type[Model], rows: list[dict[str, Any]]) -> list[Any]:
    """Returns the instances that a queryset would return for rows in JSON."""
    fields = model._meta.concrete_fields
    names = [field.attname for field in fields]
    loaders = [(str(field.column), _find_loader(field)) for field in fields]
    return [
        model.from_db(
            connection.alias,
            names,
            [None if (value := row[column]) is None else load(value) for column, load in loaders],
        )
        for row in rows
    ]


def _find_loader(field: Field[Any, Any]) -> Callable[[Any], Any]:
    """Returns the function that makes a value of a field from the JSON that PostgreSQL writes."""
    if isinstance(field, BinaryField):
        return _load_bytes
    if isinstance(field, JSONField):
        convert: Any = field.from_db_value
        return lambda value: convert(json.dumps(value, default=float), None, connection)
    if isinstance(field, ArrayField):
        load = _find_loader(field.base_field)
        return lambda value: [None if each is None else load(each) for each in value]
    return field.to_python


def _load_bytes(value: str) -> bytes:
    return bytes.fromhex(value.removeprefix("\\x"))


def measure_clock() -> None:
    """Learns the database's time on this thread's connection, inside a transaction or not."""
    with connection.cursor() as cursor:
        # Connecting takes longer than asking, and would make the answer less exact.
        sent = time.monotonic()
        cursor.execute("SELECT clock_timestamp()")
        [read_at] = cursor.fetchone()
    clock.observe(read_at, sent)


@lru_cache
def _convert_placeholders(statement: str) -> str:
    """Replaces the placeholders by those of psycopg."""
    return _PLACEHOLDER.sub(r"%(p\1)s", statement.replace("%", "%%"))
