"""Writes times as people read them: in UTC, and always with their zone."""

from __future__ import annotations

from datetime import UTC, datetime


def write_time(moment: datetime) -> str:
    """Returns a time with its seconds: ``2026-11-23 16:04:05 UTC``."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def write_minute(moment: datetime) -> str:
    """Returns a time without its seconds: ``2026-11-23 16:04 UTC``."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
