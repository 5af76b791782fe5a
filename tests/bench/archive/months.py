"""Closed months with generations and transfers that may leave, in a database without customers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from billing.models import Transfer
from config.partitions.spans import MONTH
from config.partitions.tables import read_now
from inference.archive.ranges import id_bound
from inference.models import Generation
from tests.bench.fill.filling import fill
from tests.bench.fill.months import copy_generations, roll_up, sum_up
from tests.support.database import archive

# A thousand generations, which the months are copied from.
_SAMPLE: Decimal = Decimal("0.001")


@dataclass(frozen=True, slots=True)
class Month:
    """A month with the numbers of its rows."""

    begin: datetime
    end: datetime
    generations: int
    transfers: int

    @property
    def days_to_keep(self) -> int:
        """The days of retention by which this month leaves, and the next one stays."""
        return (read_now() - self.end).days


def fill_closed_months(sizes: Sequence[int]) -> list[Month]:
    """Fills at most three months, the oldest first, each with a number of generations."""
    for partitioning in archive.TABLES:
        archive.divide_since(partitioning, archive.old_month())
    fill(_SAMPLE)
    begins = [archive.old_month()]
    while len(begins) <= len(sizes):
        begins.append(MONTH.following(begins[-1]))
    second = timedelta(seconds=1)
    copy_generations(
        (begin + second, end - second, size)
        for begin, end, size in zip(begins, begins[1:], sizes, strict=False)
    )
    sum_up()
    roll_up()
    return [count_month(begin, end) for begin, end in pairwise(begins)]


def count_month(begin: datetime, end: datetime) -> Month:
    """Returns a month with the numbers of its rows that are there now."""
    bounds = (id_bound(begin), id_bound(end))
    return Month(
        begin,
        end,
        Generation.objects.filter(id__gte=bounds[0], id__lt=bounds[1]).count(),
        Transfer.objects.filter(reference__gte=bounds[0], reference__lt=bounds[1]).count(),
    )
