from __future__ import annotations

from datetime import date
from typing import Any

from django.core.management.base import CommandError, CommandParser

from catalog.sync.documents import UnreadableList
from catalog.sync.planning import PlannedRow
from catalog.sync.run import SOURCES, SyncReport, fetch_list, sync_list
from config.audit import context as audit
from config.bulk.commands import JSONCommand
from config.bulk.files import read_input, refuse
from config.clocks.clock import clock


class Command(JSONCommand):
    help = (
        "Brings the catalogue's prices up to date from a public price list. Vanished, unpriced "
        "and much dearer rows wait in the console."
    )
    is_audited = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--source", required=True, choices=SOURCES, help="the list's format")
        parser.add_argument("--from-url", metavar="URL", help="fetch the list over HTTPS")
        parser.add_argument("--file", metavar="FILE", help="read the list; - for standard input")
        parser.add_argument(
            "--as-of", metavar="DAY", help="the day of the list, as 2026-11-12; today by default"
        )
        parser.add_argument(
            "--existing", action="store_true", help="add nothing that the catalogue lacks"
        )
        parser.add_argument(
            "--propose", action="store_true", help="apply nothing: every change waits"
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="change nothing, and list what would change",
        )
        parser.add_argument(
            "--plan", action="store_true", help="like --dry-run, and list it in --json too"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        file, url = options["file"], options["from_url"]
        if (file is None) == (url is None):
            raise CommandError("Name either --file FILE or --from-url URL.", returncode=2)
        as_of = _read_day(options["as_of"])
        is_plan = options["plan"]
        try:
            # Fetches before the transaction begins: locks must not wait for a slow server.
            data = read_input(file) if url is None else fetch_list(url)
            report = sync_list(
                options["source"],
                data,
                as_of=as_of,
                by=audit.command_actor(self.name),
                action=f"command {self.name}",
                applies=not options["propose"],
                adds_rows=not options["existing"],
                dry_run=options["dry_run"] or is_plan,
            )
        except UnreadableList as exc:
            refuse(f"{exc} Nothing was changed.")
        self._print(report, options)

    def _print(self, report: SyncReport, options: dict[str, Any]) -> None:
        plan = report.plan
        result: dict[str, Any] = {
            name: getattr(report, name)
            for name in (
                "source", "as_of", "created", "updated", "unchanged", "proposed", "refused",
                "ignored", "dry_run",
            )
        }  # fmt: skip
        if plan is None:
            return
        for name, problem in plan.found.refused:
            self.note(f"refused: {name!r} {problem}")
        proposes = options["propose"]
        if options["plan"] and options["json"]:
            result["plan"] = [_describe(row, proposes=proposes) for row in plan.rows]
        elif report.dry_run and not options["json"]:
            for row in sorted(plan.rows, key=lambda row: not row.risk):
                self.note(_describe_line(row, proposes=proposes))
        if options["json"]:
            self.report(result, as_json=True)
        else:
            self.stdout.write(_summary(report))


def _read_day(text: str | None) -> date:
    if text is None:
        return clock.now().date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CommandError("--as-of must be a day such as 2026-11-12.", returncode=2) from None


def _describe(row: PlannedRow, *, proposes: bool) -> dict[str, Any]:
    return {
        "kind": "endpoints",
        "row": row.subject,
        "fate": _fate(row, proposes=proposes),
        "reason": row.reason.value,
        "changes": [change.members for change in row.changes],
    }


def _describe_line(row: PlannedRow, *, proposes: bool) -> str:
    """Returns the line of a row for people; risky ones say so first."""
    risk = f"Look twice ({row.risk}): " if row.risk else ""
    why = f" ({row.reason.label})" if row.waits else ""
    changes = "; ".join(map(str, row.changes))
    return f"{risk}{_fate(row, proposes=proposes)}: {row.subject}{why}: {changes}"


def _fate(row: PlannedRow, *, proposes: bool) -> str:
    if row.waits or proposes:
        return "propose"
    return "create" if row.endpoint is None else "update"


def _summary(report: SyncReport) -> str:
    created, updated = sum(report.created.values()), sum(report.updated.values())
    done = "would be" if report.dry_run else "were"
    return (
        f"{report.source} as of {report.as_of}: {created} rows {done} created, {updated} updated; "
        f"{report.unchanged['endpoints']} are unchanged, {report.proposed} wait for a person. "
        f"{report.refused} rows of the list cannot be used, {report.ignored} are ignored."
    )
