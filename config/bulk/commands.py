"""What our management commands share: exit codes, JSON on standard output, files and ``-``."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError, OperationalError, ProgrammingError, transaction

from config.audit import context as audit
from config.bulk.rows import Fate, ImportRefused, Plan, Report, read_lines
from config.server.health import pending_migrations

_PROGRESS_INTERVAL: Final = 0.5
_SPOOLED: Final = 1024 * 1024
_CLEAR: Final = "\r\x1b[K"


class AuditedCommand(BaseCommand):
    """A command of which each row that it changes gets an entry in the audit log.

    ``is_audited`` may say that its changes are no operator's.
    """

    is_audited: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def execute(self, *args: Any, **options: Any) -> str | None:
        if not self.is_audited:
            return super().execute(*args, **options)
        with audit.acting_as(audit.command_actor(self.name), f"command {self.name}"):
            return super().execute(*args, **options)


class Command(AuditedCommand):
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


class ImportCommand(Command):
    """A command that applies a file, all or none, and reports what became of its rows.

    It is one entry in the audit log, with its counts, stored with the rows or not at all. A plan is
    printed after the transaction, so that no reader of it holds locks up; until then its lines wait
    in memory, and beyond 1 MiB in a temporary file. With ``--json`` it is in memory whole.
    """

    is_audited = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="report, and change nothing")
        parser.add_argument(
            "--plan", action="store_true", help="like --dry-run, and list what becomes of each row"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        planned: list[dict[str, str]] = []
        is_plan = options["plan"]
        with tempfile.SpooledTemporaryFile(_SPOOLED, "w+", encoding="utf-8") as lines:

            def plan(kind: str, row: str, fate: Fate) -> None:
                if options["json"]:
                    planned.append({"kind": kind, "row": row, "fate": fate})
                else:
                    lines.write(f"{fate}: {kind} {row!r}\n")

            try:
                with transaction.atomic():
                    report = self.load(
                        options,
                        dry_run=options["dry_run"] or is_plan,
                        plan=plan if is_plan else None,
                    )
                    result = asdict(report)
                    if not report.dry_run:
                        audit.record_import(
                            audit.command_actor(self.name),
                            f"command {self.name}",
                            organization_id=options.get("organization_id"),
                            counts=result,
                        )
            except ImportRefused as exc:
                refuse(str(exc))
            lines.seek(0)
            for line in lines:
                self.note(line.rstrip("\n"))
        if is_plan and options["json"]:
            result["plan"] = planned
        self.report(result, as_json=options["json"])

    def load(self, options: dict[str, Any], *, dry_run: bool, plan: Plan | None) -> Report:
        """Applies the file, inside a transaction; raises :class:`ImportRefused`."""
        raise NotImplementedError


class ExportCommand(Command):
    """A command that writes a file which the import of the same name finds unchanged."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="where to write; - for standard output")
        super().add_arguments(parser)

    def write(
        self, kind: str, rows: Iterable[bytes], options: dict[str, Any], *, header: bytes = b""
    ) -> None:
        """Writes a file of rows of a kind, and reports how many they are."""
        self.require_place(options)
        count = write_output(options["file"], with_progress(rows, self.stderr), header=header)
        self.finish({kind: count}, options)

    def require_place(self, options: dict[str, Any]) -> None:
        """Refuses to send rows and report to the same place."""
        if options["file"] == "-" and options["json"]:
            raise CommandError("--json needs a FILE: standard output has the rows.", returncode=2)

    def finish(self, counts: dict[str, int], options: dict[str, Any]) -> None:
        """Reports how many rows of each kind were written."""
        if options["file"] == "-":
            self.note(", ".join(f"{count} {kind}" for kind, count in counts.items()))
        else:
            self.report({"exported": counts}, as_json=options["json"])


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


@contextlib.contextmanager
def open_lines(name: str, terminal: OutputWrapper) -> Iterator[Iterator[bytes]]:
    """Opens the file of that name, or standard input for ``-``, to be read line by line."""
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = sys.stdin.buffer
        if name != "-":
            try:
                file = stack.enter_context(Path(name).open("rb"))
            except OSError as exc:
                refuse(f"{name}: {exc.strerror}")
        yield with_progress(read_lines(file), terminal, size=_size_of(file))


def write_output(name: str, rows: Iterable[bytes], *, header: bytes = b"") -> int:
    """Writes rows to the file of that name, or to standard output for ``-``; returns how many.

    A new file is its owner's alone, for it holds what customers keep to themselves.
    """
    count = 0
    try:
        with contextlib.ExitStack() as stack:
            if name == "-":
                file: IO[bytes] = sys.stdout.buffer
            else:
                file = stack.enter_context(open(name, "wb", opener=_open_private))
            file.write(header)
            for row in rows:
                file.write(row)
                count += 1
            file.flush()
    except OSError as exc:
        refuse(f"{name}: {exc.strerror}")
    return count


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def with_progress(
    lines: Iterable[bytes], terminal: OutputWrapper, *, size: int | None = None
) -> Iterator[bytes]:
    """Yields the lines, and says on a terminal how many went by, how fast, and how long it takes.

    Anything but a terminal is told nothing. The time left is known with the ``size`` in bytes.
    """
    if not terminal.isatty():
        yield from lines
        return
    start = shown = time.monotonic()
    count = done = 0
    for line in lines:
        yield line
        count += 1
        done += len(line)
        now = time.monotonic()
        if now - shown >= _PROGRESS_INTERVAL:
            shown = now
            text = f"{count} lines, {count / (now - start):.0f}/s"
            if size:
                text += f", {(now - start) * max(size - done, 0) / done:.0f} s left"
            terminal.write(_CLEAR + text, str, ending="")
            terminal.flush()
    terminal.write(f"{_CLEAR}{count} lines in {time.monotonic() - start:.1f} s", str)


def _size_of(file: IO[bytes]) -> int | None:
    """Returns the length of a regular file in bytes; of a pipe nobody knows it."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
