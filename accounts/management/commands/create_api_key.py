from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser

from accounts.models import ApiKey, Organization, OrganizationLimitReached, workspace_for
from config.api.errors import InvalidRequest, NotFound
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse


class Command(JSONCommand):
    help = "Creates an API key for an organization and shows it once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization_id", type=UUID)
        parser.add_argument("--management", action="store_true", help="a management key")
        parser.add_argument("--name", default="Key", metavar="S")
        parser.add_argument("--workspace", type=UUID, metavar="ID")
        parser.add_argument(
            "--for-each", metavar="FILE", help="a key for each row of a file: see import_keys"
        )
        parser.add_argument("--output", metavar="FILE", help="with --for-each: the new secrets")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["for_each"] is not None:
            if options["management"] or options["workspace"] or options["name"] != "Key":
                raise CommandError("--for-each takes everything from its file.", returncode=2)
            call_command(
                "import_keys",
                str(options["organization_id"]),
                options["for_each"],
                output=options["output"],
                json=options["json"],
                stdout=self.stdout,
                stderr=self.stderr,
            )
            return
        if options["output"] is not None:
            raise CommandError("--output needs --for-each: a single key is printed.", returncode=2)
        name = options["name"].strip()
        if not 1 <= len(name) <= 255 or not name.isprintable():
            refuse("The name needs 1 to 255 printable characters.")
        if not Organization.objects.filter(pk=options["organization_id"]).exists():
            refuse("There is no such organization.")
        try:
            workspace = workspace_for(options["organization_id"], options["workspace"])
        except NotFound as exc:
            refuse(exc.message)
        except InvalidRequest:
            refuse("Name a --workspace: the organization has no default one.")
        try:
            key, secret = ApiKey.objects.create_key(
                workspace=workspace,
                name=name,
                is_management=options["management"],
                issued_by_operator=True,
            )
        except OrganizationLimitReached as exc:
            refuse(exc.message)
        self.report(
            {
                "key": secret.reveal(),
                "hash": key.digest,
                "name": key.name,
                "is_management": key.is_management,
            },
            as_json=options["json"],
        )
        self.note("The key cannot be shown again; keep it now.")
