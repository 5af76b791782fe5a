"""Reads the rows of several models with one statement."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import BinaryField, Field, JSONField, Model, QuerySet

Loader = Callable[[Any], Any]


def read_together(*querysets: QuerySet[Any]) -> list[list[Any]]:
    """Returns the rows of each queryset, in its order, on this thread's connection.

    They are read with one statement, so in one snapshot and one round trip. Each queryset reads all
    columns of its own model, and none of others: without annotations, ``select_related`` or
    prefetched rows.
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
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(selected)}", parameters)
        row = cursor.fetchone()
    return [
        _make_rows(queryset.model, json.loads(found, parse_float=Decimal))
        for queryset, found in zip(querysets, row, strict=True)
    ]


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


def _find_loader(field: Field[Any, Any]) -> Loader:
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
