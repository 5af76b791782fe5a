from __future__ import annotations

from typing import Any

from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from inference.settlement.verification import find_all_differences


class Command(JSONCommand):
    help = "Recomputes every balance, hold and meter from the transfers; exit 1 if any differs."

    def handle(self, *args: Any, **options: Any) -> None:
        differences = find_all_differences()
        if options["json"]:
            self.report({"differences": differences}, as_json=True)
        else:
            for text in differences:
                self.stdout.write(text)
        if differences:
            refuse(f"{len(differences)} differences.")
        self.note(
            "The ledger is in order. Rows that are gone, after a restore or a failover, differ "
            "from nothing: compare the providers' usage with reconcile_invoice."
        )
