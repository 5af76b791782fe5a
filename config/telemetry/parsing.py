"""Parses the settings of metrics and of the access log; raises ``ValueError`` with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

_MOST_ORGANIZATIONS: Final = 100


def parse_access_log(text: str) -> str:
    """Returns where the access log goes: nothing for off, a path, or ``-``."""
    target = text.strip()
    if target.lower() in ("", "off"):
        return ""
    if target != "-" and not Path(target).absolute().parent.is_dir():
        raise ValueError(f"there is no folder {Path(target).absolute().parent}")
    return target


def parse_organizations(items: Iterable[str]) -> frozenset[UUID]:
    """Returns the ids of at most 100 organizations."""
    try:
        found = frozenset(UUID(text.strip()) for text in items)
    except ValueError:
        raise ValueError("it is a comma list of ids of organizations") from None
    if len(found) > _MOST_ORGANIZATIONS:
        raise ValueError(f"it may list {_MOST_ORGANIZATIONS} organizations at most")
    return found
