"""Ids of generations: they begin with their second, so their order is that of time."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from config.clocks.clock import clock

# A worker makes a generation's id, and the database stamps it a little later. Workers of an older
# release stamp by the clock of their host.
SLACK: Final = timedelta(hours=1)


def new_generation_id() -> str:
    """Returns an identifier that sorts by time: ``gen-``, Unix seconds, 80 random bits."""
    return f"gen-{int(clock.time())}-{os.urandom(10).hex()}"


def id_bound(moment: datetime) -> str:
    """Returns a lower bound of the ids that are made from a moment on, and of no earlier one."""
    return f"gen-{int(moment.timestamp())}"


def read_id_bound(bound: str) -> datetime:
    """Returns the moment of a bound."""
    return datetime.fromtimestamp(int(bound.removeprefix("gen-")), UTC)


def id_range(ids: Collection[str]) -> tuple[str, str]:
    """Returns the lowest and the highest id of a batch, by which PostgreSQL finds its partitions.

    It prunes by values that it knows before it executes a plan: by bounds that are parameters, but
    not by an array, and only late by bounds that it computes.
    """
    return (min(ids), max(ids)) if ids else ("", "")


def first_id(since: datetime) -> str:
    """Returns a lower bound of the ids of all generations that are stamped since a moment."""
    return id_bound(since - SLACK)


def last_id(until: datetime) -> str:
    """Returns an upper bound of the ids of all generations that are stamped before a moment."""
    return id_bound(until + SLACK)
