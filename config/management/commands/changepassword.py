"""Sets an operator's password with Django's command, and writes an audit entry."""

from __future__ import annotations

from django.contrib.auth.management.commands import changepassword

from config.bulk.commands import AuditedCommand


class Command(AuditedCommand, changepassword.Command):
    pass
