from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from catalog import dialects
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import Provider
from config.bulk.commands import JSONCommand
from config.bulk.files import read_text, refuse
from config.credentials import NotACredential, parse_credential


class Command(JSONCommand):
    help = "Stores the operator's own secret for a provider, read from standard input."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("provider_slug")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        provider = Provider.objects.filter(slug=options["provider_slug"]).first()
        if provider is None:
            refuse(f"There is no provider {options['provider_slug']!r}; import a catalogue first.")
        if sys.stdin.isatty():
            self.note("Paste the secret, then press Ctrl-D:")
        text = read_text("-").strip()
        try:
            secret = parse_credential(text)
            dialects.check_credential(provider.dialect, secret)
        except (NotACredential, InvalidCredential) as exc:
            refuse(str(exc))
        provider.set_credential(secret)
        self.report(
            {"provider": provider.slug, "label": provider.credential_label},
            as_json=options["json"],
        )
