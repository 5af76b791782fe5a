from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate

from config.management.migrations import require_known_migrations


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> str | None:
        require_known_migrations()
        return super().handle(*args, **options)
