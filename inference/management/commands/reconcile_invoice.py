from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.core.management.base import CommandError, CommandParser

from accounts.management.arguments import find_organization
from catalog.models import Provider
from catalog.sync.documents import InvalidRow, rate_text
from config.api.text import plain_digits
from config.bulk.commands import JSONCommand
from config.bulk.files import read_input, refuse
from config.bulk.problems import ImportRefused
from inference.reports.invoices import read_invoice
from inference.reports.reconciliation import describe_rows, reconcile
from inference.reports.rollups import RowsArchived


class Command(JSONCommand):
    help = "Compares a provider's usage export with our generations; exits 1 if they differ."
    is_audited = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("provider", help="the slug of the provider")
        parser.add_argument("file", help="the export, CSV or JSON; - for standard input")
        parser.add_argument(
            "--organization", metavar="ID", help="an organization's own account at the provider"
        )
        parser.add_argument(
            "--tolerance", metavar="USD", default="0", help="the difference of costs to accept"
        )
        parser.add_argument(
            "--rows", action="store_true", help="with --json, name what does not agree, up to 100"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        provider = Provider.objects.filter(slug=options["provider"]).first()
        if provider is None:
            refuse(f"There is no provider {options['provider']!r} in the catalogue.")
        organization_id = find_organization(options["organization"])
        tolerance = _read_tolerance(options["tolerance"])
        try:
            lines = read_invoice(read_input(options["file"]))
            found = reconcile(provider, lines, organization_id=organization_id, tolerance=tolerance)
        except (ImportRefused, RowsArchived) as exc:
            refuse(str(exc))
        result: dict[str, Any] = {
            "matched": found.matched,
            "missing_here": found.missing_here,
            "missing_there": found.missing_there,
            "differing": found.differing,
            "total_here": plain_digits(found.total_here),
            "total_there": None if found.total_there is None else plain_digits(found.total_there),
        }
        for text in describe_rows(found):
            self.note(text)
        if options["rows"] and options["json"]:
            result["rows"] = found.rows
        self.report(result, as_json=options["json"])
        if not found.agrees:
            refuse("The export and our generations differ.")


def _read_tolerance(text: str) -> Decimal:
    try:
        return Decimal(rate_text(text))
    except InvalidRow as exc:
        raise CommandError(f"--tolerance {exc}.", returncode=2) from None
