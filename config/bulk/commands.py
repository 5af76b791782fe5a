"""Bases of the management commands: exit codes, ``--json``, imports and exports."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Final, TypeAlias

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, ProgrammingError, transaction

from config.api.errors import GatewayError
from config.audit import context as audit
from config.bulk.files import refuse, with_progress, write_output
from config.bulk.problems import ImportRefused
from config.bulk.report import ImportPlan, PlanRow, Report, RowChange, RowListener, RowOutcome
from config.database.outages import explain, is_away
from config.local.entry import PROGRAM
from config.sql import measure_clock

_SPOOLED_BYTES: Final = 1024 * 1024
# The rows that ``--dry-run`` lists.
_LISTED: Final = 50


class AuditedCommand(BaseCommand):
    """A command whose changes are written to the audit log, one entry for each row.

    A subclass sets ``is_audited`` to ``False`` when its changes are not an operator's.
    """

    is_audited: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def execute(self, *args: Any, **options: Any) -> str | None:
        # A command may run on a host whose clock is wrong.
        measure_clock()
        if not self.is_audited:
            return super().execute(*args, **options)
        with audit.acting_as(audit.command_actor(self.name), f"command {self.name}"):
            return super().execute(*args, **options)


class JSONCommand(AuditedCommand):
    """A command that prints exactly one JSON object on standard output with ``--json``.

    Exit codes: 0 done, 1 refused input (nothing changed), 2 wrong usage.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print exactly one JSON object on standard output"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Runs the command; reports a refusal, and a database that is away, in one sentence."""
        try:
            return super().execute(*args, **options)
        except GatewayError as exc:
            refuse(exc.message)
        except ProgrammingError as exc:
            refuse(
                f"The database cannot be used: {str(exc).splitlines()[0]}. "
                f"Is it migrated ({PROGRAM} migrate)?"
            )
        except Error as exc:
            if not is_away(exc):
                raise
            refuse(explain(exc))

    def note(self, message: str) -> None:
        """Prints a message for a person, on standard error."""
        self.stderr.write(message, self.style.NOTICE if self.stderr.isatty() else None)

    def report(self, result: dict[str, Any], *, as_json: bool) -> None:
        """Prints the result: one JSON object, or one line for each member."""
        if as_json:
            self.stdout.write(json.dumps(result))
        else:
            for name, value in result.items():
                self.stdout.write(f"{name}: {describe(value)}")


def describe(value: Any) -> str:
    """Returns a value of a report in plain words, not as Python writes it."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            named = [f"{describe(each)} {name.replace('_', ' ')}" for name, each in value.items()]
            return ", ".join(named) or "none"
        case list() | tuple():
            return ", ".join(map(describe, value)) or "none"
        case _:
            return str(value)


class _Members:
    """The plan of ``--plan --json``: each row that changes, in the order of the file."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, kind: str, row: str, outcome: RowOutcome, changes: Sequence[RowChange] = ()
    ) -> None:
        if outcome is RowOutcome.UNCHANGED:
            return
        # "fate" is the name that scripts read.
        member: dict[str, Any] = {"kind": kind, "row": row, "fate": outcome}
        if changes:
            member["changes"] = [change.members for change in changes]
        self.rows.append(member)

    def lines(self) -> Iterable[str]:
        return ()


def _spool() -> tempfile.SpooledTemporaryFile[str]:
    return tempfile.SpooledTemporaryFile(_SPOOLED_BYTES, "w+", encoding="utf-8")


class _Lines:
    """The plan of ``--plan``: a line for each row that changes, risky ones first."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._risky = stack.enter_context(_spool())
        self._others = stack.enter_context(_spool())

    def add(
        self, kind: str, row: str, outcome: RowOutcome, changes: Sequence[RowChange] = ()
    ) -> None:
        if outcome is not RowOutcome.UNCHANGED:
            planned = PlanRow(kind, row, outcome, changes)
            file = self._risky if planned.risks else self._others
            file.write(f"{planned}\n")

    def lines(self) -> Iterable[str]:
        for file in (self._risky, self._others):
            file.seek(0)
            yield from (line.rstrip("\n") for line in file)


class _First:
    """The plan of ``--dry-run``: the first rows that change, risky ones first."""

    def __init__(self) -> None:
        self._plan = ImportPlan(_LISTED)
        self.add = self._plan.add

    def lines(self) -> Iterable[str]:
        yield from map(str, self._plan.rows)
        if self._plan.hidden:
            yield f"{self._plan.hidden:,} more rows would change; --plan lists them all."


_Listing: TypeAlias = _Members | _Lines | _First


class ImportCommand(JSONCommand):
    """A command that applies all rows of a file or none, and reports the outcome of the rows.

    The import writes one audit entry with its counts, in the transaction of the rows. A plan is
    printed after that transaction, so that a slow reader of the output holds no locks; until then
    its lines wait in memory, and beyond 1 MiB in temporary files: one for risky rows, which are
    printed first. With ``--json`` the whole plan is held in memory.
    """

    is_audited = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help=f"report without changing anything, and list {_LISTED} rows that would change",
        )
        parser.add_argument(
            "--plan", action="store_true", help="like --dry-run, and list every row that changes"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        is_plan, as_json = options["plan"], options["json"]
        listed: _Listing | None = None
        with contextlib.ExitStack() as stack:
            if as_json and is_plan:
                listed = _Members()
            elif is_plan:
                listed = _Lines(stack)
            elif options["dry_run"] and not as_json:
                listed = _First()
            try:
                with transaction.atomic():
                    report = self.load(
                        options,
                        dry_run=options["dry_run"] or is_plan,
                        on_row=None if listed is None else listed.add,
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
            if isinstance(listed, _Members):
                result["plan"] = listed.rows
            elif listed is not None:
                for line in listed.lines():
                    self.note(line)
        self.report(result, as_json=as_json)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        """Applies the file, inside a transaction; raises :class:`ImportRefused`."""
        raise NotImplementedError


class ExportCommand(JSONCommand):
    """A command that writes a file; importing the file again changes nothing."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the file to write; - for standard output")
        super().add_arguments(parser)

    def write(
        self, kind: str, rows: Iterable[bytes], options: dict[str, Any], *, header: bytes = b""
    ) -> None:
        """Writes a file of rows of one kind, and reports their number."""
        self.require_separate_output(options)
        count = write_output(options["file"], with_progress(rows, self.stderr), header=header)
        self.finish({kind: count}, options)

    def require_separate_output(self, options: dict[str, Any]) -> None:
        """Refuses to send the rows and the report both to standard output."""
        if options["file"] == "-" and options["json"]:
            raise CommandError("--json needs a FILE: standard output has the rows.", returncode=2)

    def finish(self, counts: dict[str, int], options: dict[str, Any], **facts: Any) -> None:
        """Reports the number of rows written, for each kind, and further facts."""
        if options["file"] == "-":
            self.note(", ".join(f"{count} {kind}" for kind, count in counts.items()))
        else:
            self.report({"exported": counts, **facts}, as_json=options["json"])
