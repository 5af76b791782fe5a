"""What our management commands share: exit codes, JSON on standard output, files and ``-``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, OperationalError, ProgrammingError

from config.health import pending_migrations


class Command(BaseCommand):
    """A command whose standard output is, with ``--json``, exactly one JSON object.

    Exit codes: 0 done, 1 refused input (nothing changed), 2 wrong usage.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print exactly one JSON object on standard output"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Runs the command; a database that is away or not migrated is said in one sentence."""
        try:
            return super().execute(*args, **options)
        except (OperationalError, ProgrammingError) as exc:
            refuse(
                f"The database cannot be used: {str(exc).splitlines()[0]}. "
                "Is it reachable, and migrated (python3 manage.py migrate)?"
            )

    def note(self, message: str) -> None:
        """Prints a message for a person, on standard error."""
        self.stderr.write(message, self.style.NOTICE if self.stderr.isatty() else None)

    def report(self, result: dict[str, Any], *, as_json: bool) -> None:
        """Prints the result: one JSON object, or a line for each member."""
        if as_json:
            self.stdout.write(json.dumps(result))
        else:
            for name, value in result.items():
                self.stdout.write(f"{name}: {value}")


def refuse(message: str) -> NoReturn:
    """Ends a command that was given input which it does not accept; nothing was changed."""
    raise CommandError(message, returncode=1)


def require_migrated() -> None:
    """Refuses to start on a database that lacks migrations, or that cannot be reached."""
    try:
        pending = pending_migrations()
    except DatabaseError as exc:
        refuse(f"The database cannot be reached: {str(exc).splitlines()[0]}")
    if pending:
        refuse(
            f"The database lacks {len(pending)} migrations ({pending[0]}, …); "
            "run: python3 manage.py migrate"
        )


def read_input(name: str) -> bytes:
    """Reads the file of that name, or standard input for ``-``."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as exc:
        refuse(f"{name}: {exc.strerror}")
