from __future__ import annotations

from typing import Any

from config.bulk.commands import JSONCommand
from inference.models import HistoryLoss


class Command(JSONCommand):
    help = (
        "Acknowledges that the database lost rows that workers had stored; they admit nothing until"
        " then. Prints what was lost."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        losses = HistoryLoss.objects.accept()
        lost = [
            {"worker": one.worker, "since": one.since.isoformat(), "until": one.until.isoformat()}
            for one in losses
        ]
        self.report({"lost": lost}, as_json=options["json"])
        self.note("Workers store again what they remember. Compare the rest: reconcile_invoice.")
