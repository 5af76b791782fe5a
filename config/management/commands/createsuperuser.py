"""Creates an operator with Django's command, and writes an audit entry."""

from __future__ import annotations

from django.contrib.auth.management.commands import createsuperuser

from config.bulk.commands import AuditedCommand


class Command(AuditedCommand, createsuperuser.Command):
    pass
