from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from billing.models import Fold
from config.bulk.commands import JSONCommand, describe
from config.bulk.files import refuse
from config.partitions.tables import TableLocked
from inference.archive.plans import Place, parse_place
from inference.archive.restoring import CannotRestore, attach, forget, list_files, restore
from inference.archive.stores import StoreFailed, open_store


class Command(JSONCommand):
    help = "Brings archived generations and transfers back as tables for reading, or lists them."
    is_audited = False
    model: ClassVar[Any] = Fold
    noun: ClassVar[str] = "fold"
    columns: ClassVar[tuple[str, ...]] = ("begin", "end", "folded_at")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "number", type=int, nargs="?", metavar=self.noun.upper(),
            help=f"the number of a {self.noun}; without one, all are listed",
        )  # fmt: skip
        parser.add_argument(
            "--archive", metavar="URL", help="where its files are, in place of ARCHIVE_URL"
        )
        action = parser.add_mutually_exclusive_group()
        action.add_argument("--drop", action="store_true", help="drop the restored tables again")
        action.add_argument(
            "--attach", action="store_true", help="put the rows back among the others"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["number"] is None:
            self._list(as_json=options["json"])
            return
        record = self.model.objects.filter(pk=options["number"]).first()
        if record is None:
            refuse(f"There is no {self.noun} {options['number']}; without a number all are listed.")
        if options["drop"]:
            self.report({"dropped": forget(record)}, as_json=options["json"])
            return
        place = _read_place(options["archive"])
        if place is None:
            refuse("There is no ARCHIVE_URL; say with --archive where the files are.")
        name, bring = ("attached", attach) if options["attach"] else ("restored", restore)
        try:
            found = bring(record, open_store(place))
        except (CannotRestore, StoreFailed, TableLocked) as exc:
            refuse(str(exc))
        shown = found if options["json"] else _count_rows(found)
        self.report({name: shown}, as_json=options["json"])

    def _list(self, *, as_json: bool) -> None:
        found = [
            {
                self.noun: record.pk,
                **{name: _write(getattr(record, name)) for name in self.columns},
                "files": {file.name: file.rows for file in list_files(record)},
            }
            for record in self.model.objects.all()
        ]
        if as_json:
            self.report({f"{self.noun}s": found}, as_json=True)
            return
        for row in found:
            row["files"] = _count_rows(row["files"])
            self.stdout.write(
                ", ".join(f"{name}: {describe(value)}" for name, value in row.items())
            )


def _count_rows(found: Mapping[str, int]) -> list[str]:
    """Returns the names of tables or files for people, each with its number of rows."""
    return [f"{name} ({rows} rows)" for name, rows in found.items()]


def _write(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def _read_place(text: str | None) -> Place | None:
    if text is None:
        return settings.ARCHIVE_PLACE
    try:
        return parse_place(text)
    except ValueError as exc:
        raise CommandError(f"--archive: {exc}.", returncode=2) from None
