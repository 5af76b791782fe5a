"""Django's command, which sets an operator's password, with an entry in the audit log."""

from __future__ import annotations

from django.contrib.auth.management.commands import changepassword

from config.bulk.commands import AuditedCommand


class Command(AuditedCommand, changepassword.Command):
    pass
