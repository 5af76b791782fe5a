from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from billing.models import Fold
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from inference.archive.plans import Place, parse_place
from inference.archive.restoring import CannotRestore, forget, list_files, restore
from inference.archive.stores import StoreFailed, open_store


class Command(JSONCommand):
    help = "Brings archived generations and transfers back as tables for reading, or lists them."
    is_audited = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "fold", type=int, nargs="?", help="the number of a fold; without one, all are listed"
        )
        parser.add_argument(
            "--archive", metavar="URL", help="where its files are, in place of ARCHIVE_URL"
        )
        parser.add_argument("--drop", action="store_true", help="drop the restored tables again")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["fold"] is None:
            self._list(as_json=options["json"])
            return
        fold = Fold.objects.filter(pk=options["fold"]).first()
        if fold is None:
            refuse(f"There is no fold {options['fold']}; without a number all are listed.")
        if options["drop"]:
            self.report({"dropped": forget(fold)}, as_json=options["json"])
            return
        place = _read_place(options["archive"])
        if place is None:
            refuse("There is no ARCHIVE_URL; say with --archive where the files are.")
        try:
            self.report({"restored": restore(fold, open_store(place))}, as_json=options["json"])
        except (CannotRestore, StoreFailed) as exc:
            refuse(str(exc))

    def _list(self, *, as_json: bool) -> None:
        found = [
            {
                "fold": fold.number,
                "begin": fold.begin,
                "end": fold.end,
                "folded_at": fold.folded_at.isoformat(),
                "files": {file.name: file.rows for file in list_files(fold)},
            }
            for fold in Fold.objects.all()
        ]
        if as_json:
            self.report({"folds": found}, as_json=True)
            return
        for row in found:
            self.stdout.write(", ".join(f"{name}: {value}" for name, value in row.items()))


def _read_place(text: str | None) -> Place | None:
    if text is None:
        place: Place | None = settings.ARCHIVE_PLACE
        return place
    try:
        return parse_place(text)
    except ValueError as exc:
        raise CommandError(f"--archive: {exc}.", returncode=2) from None
