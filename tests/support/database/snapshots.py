"""What the database holds, for the proof that a refusal changed nothing."""

from __future__ import annotations

from typing import Any

from django.apps import apps

_APPS = ("accounts", "catalog", "endpoints", "endusers", "billing", "inference")
# Every worker writes by itself, a second later, how upstreams did.
_MEASUREMENTS = ("inference.EndpointHealth",)


def everything() -> dict[str, list[dict[str, Any]]]:
    """Returns every row of every table of ours, but for what is only measured."""
    return {
        table._meta.label: [_plain(row) for row in table._base_manager.order_by("pk").values()]
        for table in apps.get_models()
        if table._meta.app_label in _APPS and table._meta.label not in _MEASUREMENTS
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in row.items()
    }
