"""Runs management commands with Causeway's version, exit codes and one-sentence start errors."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand

_VERSION_ARGUMENTS: Final = (["version"], ["--version"])
_HELP_ARGUMENTS: Final[tuple[list[str], ...]] = ([], ["help"], ["--help"], ["-h"])


class CausewayUtility(ManagementUtility):
    """Django's command line; an unknown command is wrong usage and exits with 2."""

    def fetch_command(self, subcommand: str) -> BaseCommand:
        try:
            return super().fetch_command(subcommand)
        except SystemExit:
            sys.exit(2)


def main(argv: list[str]) -> None:
    """Runs the command in ``argv``; exits with 1 and one sentence if the settings are wrong."""
    arguments = argv[1:]
    if arguments in _VERSION_ARGUMENTS:
        sys.stdout.write(f"{importlib.metadata.version('causeway')}\n")
        return
    try:
        if arguments not in _HELP_ARGUMENTS:
            _ = settings.DEBUG  # the first access reads all settings
    except (ImproperlyConfigured, OSError, ValueError) as exc:
        sys.exit(f"Causeway cannot start: {exc}")
    try:
        CausewayUtility(argv).execute()
    except ImproperlyConfigured as exc:
        # The embedded PostgreSQL starts with the first connection, and may fail then.
        sys.exit(f"Causeway cannot start: {exc}")
