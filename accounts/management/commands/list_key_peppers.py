from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from accounts.models import KeyDigest
from config.bulk.commands import JSONCommand
from config.peppers import list_peppers


class Command(JSONCommand):
    # The command changes no key, so it needs no audit entries.
    is_audited = False
    help = (
        "Lists the peppers with the number of API keys that each finds and no newer one does. "
        "The older peppers can be removed when no key waits."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--clear",
            action="store_true",
            help="delete digests by peppers that are not listed, of keys that a listed one finds",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        result: dict[str, Any] = {}
        if options["clear"]:
            result["cleared"] = KeyDigest.objects.clear()
        counts = KeyDigest.objects.count_keys()
        first, *older = [pepper.name for pepper in list_peppers()]
        names = [first, *older, *sorted(counts.keys() - {first, *older})]
        result["peppers"] = {name: counts.get(name, 0) for name in names}
        result["waiting"] = sum(counts.values()) - counts.get(first, 0)
        if options["json"]:
            self.report(result, as_json=True)
            return
        for name, count in result.pop("peppers").items():
            self.stdout.write(f"{name}: {count}")
        self.report(result, as_json=False)
