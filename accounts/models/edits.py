"""Helpers for edits of rows that the caller has locked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from config.api.errors import InvalidRequest
from config.models import BaseModel


def refusal(field: str, why: str) -> InvalidRequest:
    """Returns the error that a serializer would raise for a field."""
    return InvalidRequest(f"{field}: {why}", metadata={"fields": {field: why}})


def set_fields(row: BaseModel, changes: Mapping[str, Any]) -> list[str]:
    """Sets the fields that differ and returns their names."""
    changed = [name for name, value in changes.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, changes[name])
    return changed


def write_fields(row: BaseModel, changes: Mapping[str, Any]) -> bool:
    """Writes the fields of a locked row that differ and returns whether any did."""
    changed = set_fields(row, changes)
    if changed:
        row.save_fields(*changed)
    return bool(changed)
