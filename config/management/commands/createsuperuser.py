"""Django's command, which makes the first operator, with an entry in the audit log."""

from __future__ import annotations

from django.contrib.auth.management.commands import createsuperuser

from config.bulk.commands import AuditedCommand


class Command(AuditedCommand, createsuperuser.Command):
    pass
