"""Runs management commands with Causeway's version, exit codes and one-sentence start errors.

Every command that touches a database first says which one, on standard error.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand
from django.db import Error

from config.local.bootstrap import DISTRIBUTION
from config.server import shared_counters

_VERSION_ARGUMENTS: Final = (["version"], ["--version"])
_HELP_ARGUMENTS: Final[tuple[list[str], ...]] = ([], ["help"], ["--help"], ["-h"])


# The other commands, Django's included, open a database.
_WITHOUT_DATABASE: Final = frozenset({
    "check", "collectstatic", "compilemessages", "diffsettings", "findstatic", "makemessages",
    "simulate_upstream", "spectacular", "startapp", "startproject", "test",
})  # fmt: skip


class CausewayUtility(ManagementUtility):
    """Django's command line; an unknown command is wrong usage and exits with 2.

    Django's system checks run in ``manage.py check`` alone: they load every page and every route,
    which most commands do not need, and find mistakes in the code, not in an installation.
    """

    def fetch_command(self, subcommand: str) -> BaseCommand:
        try:
            command = super().fetch_command(subcommand)
        except SystemExit:
            sys.exit(2)
        _prepare(command, names_database=subcommand not in _WITHOUT_DATABASE)
        return command


def _prepare(command: BaseCommand, *, names_database: bool) -> None:
    """Makes a command name its database before it does anything, and skip the system checks."""
    execute = command.execute

    def prepare_and_execute(*args: Any, **options: Any) -> str | None:
        # The modules are loaded: the collector may work again, but never has to look at them.
        gc.freeze()
        gc.enable()
        if names_database:
            stream = options.get("stderr") or sys.stderr
            stream.write(f"Database: {describe_database(settings.DATABASES['default'])}\n")
        return execute(*args, **{**options, "skip_checks": True})

    command.execute = prepare_and_execute  # type: ignore[method-assign]


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
    """Runs the command in ``argv``.

    Exits with 1 and a sentence if the settings are wrong, or the database cannot be used.
    """
    arguments = argv[1:]
    if arguments in _VERSION_ARGUMENTS:
        sys.stdout.write(f"{importlib.metadata.version(DISTRIBUTION)}\n")
        return
    try:
        _share_metrics(arguments)
        if arguments not in _HELP_ARGUMENTS:
            _ = settings.DEBUG  # the first access reads all settings
    except (ImproperlyConfigured, OSError, ValueError) as exc:
        sys.exit(f"Causeway cannot start: {exc}")
    try:
        CausewayUtility(argv).execute()
    except ImproperlyConfigured as exc:
        # The embedded PostgreSQL starts with the first connection, and may fail then.
        sys.exit(f"Causeway cannot start: {exc}")
    except Error as exc:
        # It makes a metric, so it is imported after `_share_metrics`.
        outages = importlib.import_module("config.database.outages")
        if "--traceback" in arguments or not outages.is_away(exc):
            raise
        sys.exit(outages.explain(exc))


def _share_metrics(arguments: list[str]) -> None:
    """Lets the workers of ``serve`` count in files, which ``/metrics`` adds up.

    ``prometheus_client`` reads the variable when it is imported, so it is set before that. The
    option ``--workers`` may be abbreviated. Raises ``OSError`` if there is no room for the files.
    """
    if arguments[:1] == ["serve"] and any(each.startswith("--w") for each in arguments):
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared_counters.make_folder()
        importlib.import_module("config.server.counter_files")
