"""Runs management commands with Causeway's version, exit codes and one-sentence start errors.

Every command that touches a database first says which one, on standard error.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand

_VERSION_ARGUMENTS: Final = (["version"], ["--version"])
_HELP_ARGUMENTS: Final[tuple[list[str], ...]] = ([], ["help"], ["--help"], ["-h"])


# The other commands, Django's included, open a database.
_WITHOUT_DATABASE: Final = frozenset({
    "check", "collectstatic", "compilemessages", "diffsettings", "findstatic", "makemessages",
    "simulate_upstream", "spectacular", "startapp", "startproject", "test",
})  # fmt: skip


class CausewayUtility(ManagementUtility):
    """Django's command line; an unknown command is wrong usage and exits with 2."""

    def fetch_command(self, subcommand: str) -> BaseCommand:
        try:
            command = super().fetch_command(subcommand)
        except SystemExit:
            sys.exit(2)
        if subcommand not in _WITHOUT_DATABASE:
            _name_database_first(command)
        return command


def _name_database_first(command: BaseCommand) -> None:
    """Makes a command name its database once its arguments are parsed, before it does anything."""
    execute = command.execute

    def name_and_execute(*args: Any, **options: Any) -> str | None:
        stream = options.get("stderr") or sys.stderr
        stream.write(f"Database: {describe_database(settings.DATABASES['default'])}\n")
        result: str | None = execute(*args, **options)
        return result

    command.execute = name_and_execute  # type: ignore[method-assign]


def describe_database(database: Mapping[str, Any]) -> str:
    """Returns where a database is and what it is called; never its password."""
    if settings.EMBEDDED:
        return f"embedded, in {settings.DATA_DIR}"
    options = database.get("OPTIONS", {})
    if "service" in options:
        return f"service {options['service']}"
    # What the address leaves out comes from libpq's own variables, such as PGHOST.
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.val
    }
    host = database["HOST"] or options.get("host") or defaults.get("host", "the local socket")
    port = database["PORT"] or options.get("port") or defaults["port"]
    return f"{database['NAME']} on {host}, port {port}"


def main(argv: list[str]) -> None:
    """Runs the command in ``argv``; exits with 1 and one sentence if the settings are wrong."""
    arguments = argv[1:]
    if arguments in _VERSION_ARGUMENTS:
        sys.stdout.write(f"{importlib.metadata.version('causeway')}\n")
        return
    _share_metrics(arguments)
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


def _share_metrics(arguments: list[str]) -> None:
    """Lets the workers of ``serve`` count in files, which ``/metrics`` adds up.

    ``prometheus_client`` reads the variable when it is imported, so it is set before that. The
    option ``--workers`` may be abbreviated.
    """
    if arguments[:1] == ["serve"] and any(each.startswith("--w") for each in arguments):
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="causeway-metrics-")
