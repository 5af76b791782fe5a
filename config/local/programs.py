"""Shows whether this installation can run an embedded PostgreSQL."""

from __future__ import annotations

from config.local.postgres import system_programs, wheel_site


def has_programs() -> bool:
    """Returns whether this machine has PostgreSQL's programs; an image has none."""
    return wheel_site() is not None or bool(system_programs())
