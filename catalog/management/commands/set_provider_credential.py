from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from catalog import dialects
from catalog.dialects.credentials import InvalidCredential
from catalog.models import Dialect, Provider
from config.commands import Command as BaseCommand
from config.commands import refuse
from config.secrets import Secret


class Command(BaseCommand):
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
        text = sys.stdin.read().strip()
        # A key file spreads over lines; a bare key goes into a header as it is.
        is_object = Dialect(provider.dialect).url_from_credential
        if not text or not (is_object or text.isprintable()):
            refuse("Standard input holds no secret: send one bare key or one JSON object.")
        try:
            dialects.check_credential(provider.dialect, Secret(text))
        except InvalidCredential as exc:
            refuse(str(exc))
        provider.set_credential(Secret(text))
        self.report(
            {"provider": provider.slug, "label": provider.credential_label},
            as_json=options["json"],
        )
