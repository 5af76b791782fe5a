from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from accounts.models import ApiKey, Organization, workspace_for
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse


class Command(JSONCommand):
    help = "Creates an organization with a default workspace and two keys, which it shows once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--endpoint-limit",
            type=int,
            metavar="N",
            help="the limit of private endpoints",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        name, limit = options["name"].strip(), options["endpoint_limit"]
        if not 1 <= len(name) <= 255 or not name.isprintable():
            refuse("The name needs 1 to 255 printable characters.")
        if limit is not None and not 0 <= limit <= 1_000_000:
            refuse("The endpoint limit must be from 0 to 1000000.")
        with transaction.atomic():
            organization = Organization.objects.create_organization(name=name, endpoint_limit=limit)
            workspace = workspace_for(organization.pk, None)
            _, management = ApiKey.objects.create_key(
                workspace=workspace, name="Management", is_management=True
            )
            _, inference = ApiKey.objects.create_key(workspace=workspace, name="Inference")
        self.report(
            {
                "organization_id": str(organization.pk),
                "workspace_id": str(workspace.pk),
                "management_key": management.reveal(),
                "api_key": inference.reveal(),
            },
            as_json=options["json"],
        )
        self.note("The keys cannot be shown again; keep them now.")
