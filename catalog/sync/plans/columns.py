"""Compares stored rows with what an import gives them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Final

import msgspec
from django.db.models import Model

from catalog.pricing import Price
from catalog.rows import pricing_members
from catalog.sync.plans.comparing import Change, find_changes

_LIMITS: Final = ("context_length", "max_completion_tokens")


def find_column_changes(row: Model, values: Mapping[str, Any]) -> list[Change]:
    """Returns the columns of a stored row that would get another value."""
    return [
        Change(name, _write_text(old), _write_text(new), values=(old, new))
        for name, new in values.items()
        if (old := getattr(row, name)) != new
    ]


def find_price_changes(old: Price, new: Price) -> list[Change]:
    """Returns the rates of two prices that differ."""
    return [] if old == new else find_changes(_members_of(old), _members_of(new))


def list_terms(price: Price, values: Mapping[str, Any]) -> list[Change]:
    """Returns what a new endpoint costs and what it can take, as changes from nothing."""
    stated = {name: values.get(name) for name in _LIMITS}
    found = find_changes({}, {**_members_of(price), **stated})
    shown = [change for change in found if change.is_rate or change.new is not None]
    # Rates of 0 are no changes from nothing.
    return [Change("price", None, "free"), *shown] if price.is_free else shown


def list_columns(values: Mapping[str, Any], names: Iterable[str]) -> list[Change]:
    """Returns columns of a new row that have a value, as changes from nothing."""
    texts = {name: _write_text(values.get(name)) for name in names}
    return [Change(name, None, text) for name, text in texts.items() if text is not None]


def _members_of(price: Price) -> dict[str, Any]:
    return msgspec.to_builtins(
        {
            name: value
            for name, value in pricing_members(price).items()
            if value is not msgspec.UNSET
        }
    )


def _write_text(value: Any) -> str | None:
    match value:
        case None | "":
            return None
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or None
        case dict():
            return json.dumps(value, ensure_ascii=False)
        case date():
            return value.isoformat()
        case _:
            return str(value)
