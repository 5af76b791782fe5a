from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandParser

from billing import ledger
from billing.models import Account
from catalog.pricing import usd
from config.api.errors import NotFound
from config.api.text import CONTROL_CHARACTERS
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse

_AMOUNT: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MAX_NOTE: Final = 1_000


class Command(JSONCommand):
    help = "Grants credits to an organization, in USD."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization_id", type=UUID)
        parser.add_argument("amount", metavar="AMOUNT", help="USD with at most 9 decimals")
        parser.add_argument("--note", default="", metavar="S")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not _AMOUNT.fullmatch(options["amount"]):
            refuse("The amount must be USD in plain digits, with at most 9 decimals.")
        amount_nano = int(Decimal(options["amount"]).scaleb(9))
        if not amount_nano:
            refuse("The amount must be greater than 0.")
        note = options["note"].strip()
        if len(note) > _MAX_NOTE or CONTROL_CHARACTERS.search(note):
            refuse(f"The note must have at most {_MAX_NOTE} characters and no control characters.")
        try:
            transfer = ledger.grant(
                options["organization_id"], amount_nano, actor="operator at a shell", note=note
            )
        except NotFound:
            refuse("There is no such organization.")
        account = Account.objects.get(pk=transfer.credit_id)
        self.report(
            {"transfer_id": transfer.pk, "balance": usd(account.balance)}, as_json=options["json"]
        )
