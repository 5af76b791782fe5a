from __future__ import annotations

from typing import Any, Final

from billing.verification import find_differences, run_check
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from config.sql import load_statement

VERIFY_GENERATIONS: Final = load_statement("inference", "verify_generations")
VERIFY_EXCESSES: Final = load_statement("inference", "verify_excesses")
VERIFY_METERS: Final = load_statement("inference", "verify_meters")
VERIFY_REFERENCES: Final = load_statement("inference", "verify_references")


class Command(JSONCommand):
    help = "Recomputes every balance, hold and meter from the transfers; exit 1 if any differs."

    def handle(self, *args: Any, **options: Any) -> None:
        differences = [
            *find_differences(),
            *run_check(VERIFY_GENERATIONS),
            *run_check(VERIFY_EXCESSES),
            *run_check(VERIFY_METERS),
            *run_check(VERIFY_REFERENCES),
        ]
        if options["json"]:
            self.report({"differences": differences}, as_json=True)
        else:
            for text in differences:
                self.stdout.write(text)
        if differences:
            refuse(f"{len(differences)} differences.")
        self.note("The ledger is in order.")
