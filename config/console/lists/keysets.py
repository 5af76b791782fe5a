"""Positions in an ordered list, by the values of the columns that order it.

A page begins after the last row of the page before it, so that the millionth page costs as much as
the second, and rows that arrive meanwhile move nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Field, Model, Q, QuerySet


class InvalidPosition(ValueError):
    """The text is no position in this list."""


@dataclass(frozen=True, slots=True)
class Keyset:
    """The columns that order a list, each with whether it descends; the last one is unique."""

    columns: tuple[tuple[Field[Any, Any], bool], ...]

    @classmethod
    def of(cls, model: type[Model], ordering: Sequence[Any]) -> Keyset | None:
        """Returns the keyset of an ordering by names, which ends with the primary key.

        Returns ``None`` if a column may be null or belongs to another table.
        """
        columns = []
        for name in ordering:
            if not isinstance(name, str):
                return None
            try:
                field = _field_of(model, name.lstrip("-"))
            except FieldDoesNotExist:
                return None
            if not isinstance(field, Field) or field.null or field.is_relation:
                return None
            columns.append((field, name.startswith("-")))
            if field.primary_key:
                return cls(tuple(columns))
        return None

    def position_of(self, row: Model) -> str:
        """Returns the position of a row, which :meth:`beyond` reads; it is safe in an address."""
        values = [field.value_to_string(row) for field, _ in self.columns]
        return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")

    def beyond(self, rows: QuerySet[Any], position: str, *, backwards: bool) -> QuerySet[Any]:
        """Narrows rows to those after a position, or before it; raises ``InvalidPosition``."""
        return self._narrow(rows, self._read(position), Q(), backwards=backwards)

    def until(self, rows: QuerySet[Any], position: str, *, backwards: bool) -> QuerySet[Any]:
        """Narrows rows to those up to a position, with it; raises ``InvalidPosition``."""
        values = self._read(position)
        names = [field.name for field, _ in self.columns]
        itself = Q(*zip(names, values, strict=True))
        return self._narrow(rows, values, itself, backwards=not backwards)

    def _narrow(
        self, rows: QuerySet[Any], values: list[Any], found: Q, *, backwards: bool
    ) -> QuerySet[Any]:
        """Narrows rows to those after the values, or before them, and those that ``found`` has."""
        same = Q()
        for (field, descends), value in zip(self.columns, values, strict=True):
            lookup = "lt" if descends != backwards else "gt"
            found |= same & Q((f"{field.name}__{lookup}", value))
            same &= Q((field.name, value))
        # An index finds the range of its first column; it cannot use the alternatives.
        (first, descends), value = self.columns[0], values[0]
        edge = "lte" if descends != backwards else "gte"
        return rows.filter(found, (f"{first.name}__{edge}", value))

    def order(self, rows: QuerySet[Any], *, backwards: bool) -> QuerySet[Any]:
        """Orders rows by the columns, or in the opposite order."""
        return rows.order_by(
            *(
                f"{'-' if descends != backwards else ''}{field.name}"
                for field, descends in self.columns
            )
        )

    def _read(self, position: str) -> list[Any]:
        try:
            padded = position + "=" * (-len(position) % 4)
            values = json.loads(base64.urlsafe_b64decode(padded.encode()))
            if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
                raise InvalidPosition
            pairs = list(zip(self.columns, values, strict=True))
            return [field.to_python(value) for (field, _), value in pairs]
        except (ValueError, ValidationError, RecursionError) as exc:
            raise InvalidPosition from exc


def _field_of(model: type[Model], name: str) -> Any:
    return model._meta.pk if name == "pk" else model._meta.get_field(name)
