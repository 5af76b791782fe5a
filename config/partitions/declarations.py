"""How the rows of a table are divided by time; a model declares it as ``partitioning``.

A declared table has one partition for each span, and one more for rows of no span. The duty
``make_partitions`` of ``work`` makes the partitions of the next spans; ``migrate`` does it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from django.apps import apps

from config.partitions.spans import MONTH, Span

_PARTITION: Final = re.compile(r"_(p[0-9]{8}|until_[0-9]{8}|default)\Z")


def write_time(moment: datetime) -> str:
    """Returns a moment as a bound of a column of times."""
    return moment.astimezone(UTC).isoformat()


def read_time(bound: str) -> datetime:
    """Returns the moment of a bound of a column of times or days, as PostgreSQL prints it."""
    moment = datetime.fromisoformat(bound)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Partitioning:
    """The division of a table into ranges of one column.

    ``column`` is part of the primary key. ``write_bound`` returns the lowest value of the column at
    a moment, and ``read_bound`` the moment of such a value. ``storage`` has the storage parameters
    of each partition, which PostgreSQL does not inherit from the table.

    ``values`` are the lowest value that has a moment, and the lowest one above all that have. Rows
    with another value, or with none, have no time: they stay in the partition for odd rows. Such a
    table has a unique index in place of a primary key, which would demand a value.

    ``keeps`` is the SQL condition of rows that others need for ever: when their partition leaves,
    the partition for odd rows takes them over.
    """

    table: str
    column: str
    span: Span = MONTH
    write_bound: Callable[[datetime], str] = write_time
    read_bound: Callable[[str], datetime] = read_time
    storage: Mapping[str, int] = field(default_factory=dict)
    values: tuple[str, str] | None = None
    keeps: str = ""

    @property
    def default(self) -> str:
        """The name of the partition for rows of no other partition."""
        return f"{self.table}_default"

    def name_from(self, begin: datetime) -> str:
        """Returns the name of the partition that begins at a moment."""
        return f"{self.table}_p{begin:%Y%m%d}"

    def name_until(self, end: datetime) -> str:
        """Returns the name of the partition with everything before a moment."""
        return f"{self.table}_until_{end:%Y%m%d}"


def table_of(name: str) -> str:
    """Returns the table of a partition by its name; another name stays as it is."""
    return _PARTITION.sub("", name)


def partitionings() -> list[Partitioning]:
    """Returns the declarations of all models."""
    models = (model for model in apps.get_models() if not model._meta.proxy)
    found = (model.__dict__.get("partitioning") for model in models)
    return [each for each in found if isinstance(each, Partitioning)]
