"""Ids of generations: they begin with their second, so their order is that of time.

A search by time takes its bounds from the functions of this module, which have one for each moment
of the calendar. No other module writes a bound.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from config.clocks.clock import clock
from config.clocks.seconds import write_seconds

# A worker makes a generation's id, and the database stamps it a little later. Workers of an older
# release stamp by the clock of their host.
SLACK: Final = timedelta(hours=1)


def new_generation_id() -> str:
    """Returns an identifier that sorts by time: ``gen-``, Unix seconds, 80 random bits."""
    return f"gen-{int(clock.time()):010}-{os.urandom(10).hex()}"


def second_bound(seconds: float) -> str:
    """Returns a lower bound of the ids that are made from a Unix second on, and of no earlier one.

    No id is made before 1970 or after 2286: what lies there has the bound of the nearest second.
    """
    return f"gen-{write_seconds(seconds)}"


def id_bound(moment: datetime) -> str:
    """Returns a lower bound of the ids that are made from a moment on, and of no earlier one."""
    return second_bound(moment.timestamp())


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
    return second_bound(since.timestamp() - SLACK.total_seconds())


def last_id(until: datetime) -> str:
    """Returns an upper bound of the ids of all generations that are stamped before a moment."""
    return second_bound(until.timestamp() + SLACK.total_seconds())
