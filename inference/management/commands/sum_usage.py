from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from config.bulk.commands import JSONCommand
from config.bulk.days import parse_day
from config.bulk.files import refuse
from inference.reports.hours import sum_hours_again
from inference.reports.rollups import RowsArchived, end_of, midnight, sum_days_again


class Command(JSONCommand):
    help = "Sums the usage of past days and their hours again, from their generations."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--from", dest="first", type=parse_day, required=True, metavar="DAY",
            help="the first UTC day, as 2026-03-31",
        )  # fmt: skip
        parser.add_argument(
            "--to", dest="last", type=parse_day, required=True, metavar="DAY", help="the last day"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        first, last = options["first"], options["last"]
        if last < first:
            refuse(f"--to is {last}, which is before --from ({first}); nothing was summed.")
        try:
            # The hours may be refused after the days were summed.
            with transaction.atomic():
                days = sum_days_again(first, last)
                hours = sum_hours_again(midnight(first), end_of(last))
        except RowsArchived as exc:
            refuse(str(exc))
        self.report({"days": len(days), "hours": hours}, as_json=options["json"])
