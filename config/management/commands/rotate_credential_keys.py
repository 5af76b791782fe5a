from __future__ import annotations

from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandParser
from django.db import transaction

from accounts.models import BroadcastDestination, ByokCredential, Creation, Subscription
from catalog.models import Provider
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from config.changes.models import ChangeSet
from config.console.sign_in.models import SecondFactor
from config.secrets import DecryptionFailed
from inference.models import TextKey


class Command(JSONCommand):
    # The command changes the encryption only, so it needs no audit entries.
    is_audited = False
    help = (
        "Re-encrypts every stored secret with the first of CREDENTIAL_KEYS, one row at a time: "
        "run it again after an interruption. Afterwards the other keys can be removed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="report without changing anything"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        counts = {"rotated": 0, "unchanged": 0, "failed": 0}
        rewraps = [
            *(row.rewrap for row in ByokCredential.objects.filter(deleted_at=None)),
            *(row.rewrap for row in Creation.objects.exclude(sealed=None)),
            *(row.rewrap for row in BroadcastDestination.objects.all()),
            *(row.rewrap for row in TextKey.objects.all()),
            *(row.rewrap_arguments for row in ChangeSet.objects.exclude(sealed_arguments=None)),
            *(row.rewrap for row in Subscription.objects.all()),
            *(row.rewrap_credential for row in Provider.objects.exclude(sealed_credential=None)),
            *(row.rewrap for row in SecondFactor.objects.all()),
        ]
        for rewrap in rewraps:
            with transaction.atomic():
                try:
                    counts["rotated" if rewrap() else "unchanged"] += 1
                except ObjectDoesNotExist:
                    # The row was deleted meanwhile.
                    counts["unchanged"] += 1
                except DecryptionFailed:
                    counts["failed"] += 1
                transaction.set_rollback(options["dry_run"])
        self.report({**counts, "dry_run": options["dry_run"]}, as_json=options["json"])
        if counts["failed"]:
            refuse(
                f"None of CREDENTIAL_KEYS decrypts {counts['failed']} secrets; "
                "add the key that encrypted them, or store the secrets again."
            )
