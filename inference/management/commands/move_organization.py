from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet
from psycopg import sql

from accounts.cells import moves
from accounts.cells.databases import (
    is_away,
    open_cell,
    open_here,
    read_identity,
    refuse_in_words,
    require_same_schema,
)
from accounts.cells.moves import Cells
from accounts.cells.rows import find_digest, owned_tables
from accounts.models import ApiKey, DirectoryEntry, Organization, Residence
from billing import verification as billing_verification
from billing.arrivals import carry_openings
from billing.models import Account, Meter, MeterOpening, Opening, TopUp, Transfer
from config.audit import context as audit
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from config.cells import HOME
from inference.models import Generation
from inference.reports.hours import HOUR, KEPT_OF_KEYS
from inference.settlement import verification

_DOUBLED = (
    "Both cells have the organization as theirs, so one of them was restored from before a move. "
    "Run this with --lives-there in the cell that was restored; see docs/backup.md."
)


class Command(JSONCommand):
    help = (
        "Carries an organization with all its rows to another cell. It can be run again after any "
        "interruption, and goes on where it stopped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization", metavar="ID")
        parser.add_argument("--to", required=True, metavar="CELL")
        parser.add_argument(
            "--wait",
            type=float,
            default=settings.HOLD_TIMEOUT + 60.0,
            metavar="SECONDS",
            help="how long running requests may take to end (default: HOLD_TIMEOUT + 60)",
        )
        parser.add_argument(
            "--revoke-old-keys",
            action="store_true",
            help="revoke the keys without a routing code before it leaves; they stay revoked, even "
            "if the move is refused afterwards",
        )
        steps = parser.add_mutually_exclusive_group()
        steps.add_argument(
            "--dry-run", action="store_true", help="count the rows, and say what is in the way"
        )
        steps.add_argument(
            "--give-up", action="store_true", help="let it stay here, unless it is served there"
        )
        steps.add_argument(
            "--purge", action="store_true", help="delete its rows here after it has moved"
        )
        steps.add_argument(
            "--lives-there",
            action="store_true",
            help="after a restore, when both cells have it as theirs: let it live there alone",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        organization = _find(options["organization"])
        name = options["to"]
        if name == settings.CELL:
            refuse(f"{name} is this cell.")
        if options["give_up"] and is_away(name):
            with refuse_in_words(), open_here(self.name) as here:
                self._stay(here, organization, options)
            return
        with refuse_in_words(), open_here(self.name) as here, open_cell(name, self.name) as there:
            if read_identity(there) != name:
                refuse(f"The database of {name} in CELL_DATABASE_URLS is {read_identity(there)}.")
            require_same_schema(here, there)
            cells = Cells(here, there, settings.CELL, name)
            with moves.hold_move(here, organization.pk):
                self._do(cells, organization, options)

    def _do(self, cells: Cells, organization: Organization, options: dict[str, Any]) -> None:
        state, other = moves.read_residence(cells.here, organization.pk) or ("", "")
        there, origin = moves.read_residence(cells.there, organization.pk) or ("", "")
        if state in (Residence.LEAVING, Residence.LEFT) and other != cells.name_there:
            refuse(f"The organization is {state} for the cell {other}.")
        if state == Residence.ARRIVING:
            refuse(f"It is on its way from {other}: run the command there to end that move.")
        is_doubled = (state, there) == (Residence.HERE, Residence.HERE)
        report: dict[str, Any] = {"organization_id": str(organization.pk), "cell": cells.name_there}
        if options["dry_run"]:
            obstacles = [
                *([_DOUBLED] if is_doubled else []),
                *find_obstacles(organization, revokes=options["revoke_old_keys"]),
                *find_obstacles_there(cells, organization.pk),
                *find_unfinished(organization.pk),
            ]
            rows = _count_rows(cells, organization)
            report |= {"residence": state, "rows": rows, "obstacles": obstacles, "dry_run": True}
            self.report(report, as_json=options["json"])
        elif options["lives_there"]:
            if not is_doubled:
                refuse("Only an organization that both cells have as theirs can be given away so.")
            moves.declare_left(cells, organization.pk)
            self.report({**report, "residence": "left"}, as_json=options["json"])
        elif is_doubled:
            refuse(_DOUBLED)
        elif options["give_up"]:
            origin_is_here = there == Residence.ARRIVING and origin == cells.name_here
            if state != Residence.LEAVING and not (
                origin_is_here or (state == Residence.LEFT and not there and _is_lost(organization))
            ):
                refuse(f"The organization is {state}; only one that is leaving can stay.")
            moves.give_up(cells, organization.pk)
            self.report({**report, "residence": "here"}, as_json=options["json"])
        elif options["purge"]:
            if (state, there) != (Residence.LEFT, Residence.HERE):
                refuse("Only the rows of an organization that lives in the other cell can go.")
            self._purge(cells, organization, report, as_json=options["json"])
        else:
            self._move(cells, organization, state, there, options)

    def _purge(
        self, cells: Cells, organization: Organization, report: dict[str, Any], *, as_json: bool
    ) -> None:
        if _is_folded(organization):
            refuse(
                "Old months of it are folded here. Their opening balances stay for the proof of "
                "the fold, so its accounts must stay too. Nothing was changed."
            )
        rows = _count_rows(cells, organization)
        moves.purge(cells, organization.pk)
        # Its own entries have gone with it; this one says why.
        audit.record_import(
            audit.command_actor(self.name),
            f"command {self.name}: purged, it lives in {cells.name_there}",
            organization_id=None,
            counts={"organization_id": str(organization.pk), "rows": rows},
        )
        self.report({**report, "residence": "purged"}, as_json=as_json)

    def _stay(
        self, here: psycopg.Connection[Any], organization: Organization, options: dict[str, Any]
    ) -> None:
        """Ends a move while the other cell is away, which may have a copy of the rows."""
        with moves.hold_move(here, organization.pk):
            found = moves.read_residence(here, organization.pk)
            if found != (Residence.LEAVING, options["to"]):
                refuse(f"The organization is not leaving for {options['to']}. Nothing was changed.")
            moves.stay(here, organization.pk)
        report = {"organization_id": str(organization.pk), "cell": options["to"]}
        self.report({**report, "residence": "here"}, as_json=options["json"])
        self.note(
            f"The cell {options['to']} cannot be reached. If it has a copy, --give-up deletes that "
            "once it is back; until then it reports an unfinished move, and serves nobody from it."
        )

    def _move(
        self,
        cells: Cells,
        organization: Organization,
        state: str,
        there: str,
        options: dict[str, Any],
    ) -> None:
        rows: dict[str, int] = {}
        if state != Residence.LEFT:
            rows = self._carry(cells, organization, options)
        if there != Residence.HERE or rows:
            moves.admit(cells, organization.pk)
        self.report(
            {
                "organization_id": str(organization.pk),
                "cell": cells.name_there,
                "residence": "left",
                "rows": rows,
                "map": f"{organization.code} {cells.name_there}",
            },
            as_json=options["json"],
        )
        self.note("Now make the proxy's map again (cell_map), or add this line to it.")

    def _carry(
        self, cells: Cells, organization: Organization, options: dict[str, Any]
    ) -> dict[str, int]:
        """Drains and copies. Whatever is refused, the organization stays and is served again."""

        def require_fit(*, is_quiet: bool = True, revokes: bool = False) -> None:
            unfinished = find_unfinished(organization.pk) if is_quiet else []
            there = find_obstacles_there(cells, organization.pk)
            here = find_obstacles(organization, revokes=revokes)
            if found := [*here, *there, *unfinished]:
                refuse(" ".join(found))
            _require_order_there(cells)

        try:
            # Whatever can be refused is refused before anything has changed.
            require_fit(is_quiet=False, revokes=options["revoke_old_keys"])
            _require_order_here()
            if options["revoke_old_keys"]:
                for key in _old_keys(organization):
                    key.revoke()
                    self.note(f"The key {key.label} is revoked.")
            moves.drain(
                cells, organization.pk, lambda: find_unfinished(organization.pk), options["wait"]
            )
            self.note("It is quiet: copying.")
            return moves.carry(cells, organization.pk, narrow, require_fit)
        except CommandError as exc:
            found = moves.read_residence(cells.here, organization.pk)
            if found is None or found[0] != Residence.LEAVING:
                raise
            moves.give_up(cells, organization.pk)
            refuse(f"{exc} The organization stays here, and is served again.")


def _count_rows(cells: Cells, organization: Organization) -> dict[str, int]:
    return {
        table.name: find_digest(cells.here, table, {"id": organization.pk}).rows
        for table in owned_tables()
    }


def find_obstacles(organization: Organization, *, revokes: bool = False) -> list[str]:
    """Returns what must be settled by somebody before an organization can move.

    ``revokes`` says that the keys without a routing code are revoked before it leaves.
    """
    found = []
    top_ups = TopUp.objects.filter(organization=organization, is_reserved=True).count()
    if top_ups:
        found.append(
            f"{top_ups} top-ups wait for a payment, which this cell watches: wait until they are "
            "paid or have expired."
        )
    keys = _old_keys(organization)
    if not revokes and (labels := list(keys.values_list("label", flat=True)[:10])):
        found.append(
            f"The keys {', '.join(labels)} have no routing code and would not be found elsewhere: "
            "replace them, then revoke them or let --revoke-old-keys do it."
        )
    return found


def _old_keys(organization: Organization) -> QuerySet[ApiKey]:
    """Returns the keys that a proxy would not send to another cell."""
    found: QuerySet[ApiKey] = ApiKey.objects.filter(organization=organization, deleted_at=None)
    return found.exclude(label__contains=f"-cw-{organization.code}-")


def find_obstacles_there(cells: Cells, organization_id: UUID) -> list[str]:
    """Returns what the other cell cannot take: rows of months that it has archived."""
    archived = cells.there.execute("SELECT max(f.end) FROM billing_fold AS f").fetchone()
    older = cells.here.execute(
        "SELECT 1 FROM inference_generation WHERE organization_id = %s AND id < %s LIMIT 1",
        [organization_id, archived[0] if archived else None],
    ).fetchone()
    if older is None:
        return []
    found = (
        f"The cell {cells.name_there} has archived months of which the organization has rows here: "
        "it can only move to a cell with the same RETENTION_DAYS or more."
    )
    return [found]


def _is_lost(organization: Organization) -> bool:
    """Returns whether no cell has an organization that has left this one, as after a restore.

    Only the home cell has the directory of all cells, so elsewhere nobody can tell.
    """
    others = DirectoryEntry.objects.filter(organization_id=organization.pk).exclude(cell=HOME)
    return settings.CELL == HOME and not others.exclude(residence=Residence.LEFT).exists()


def _is_folded(organization: Organization) -> bool:
    accounts = Account.objects.filter(organization=organization).values("pk")
    meters = Meter.objects.filter(organization=organization).values("pk")
    return (
        Opening.objects.filter(account_id__in=accounts).exists()
        or MeterOpening.objects.filter(subject_id__in=meters).exists()
    )


def find_unfinished(organization_id: UUID) -> list[str]:
    """Returns what ends by itself when no new requests come."""
    running = Generation.objects.filter(
        organization_id=organization_id, journal__isnull=False
    ).count()
    held = Transfer.objects.filter(
        organization_id=organization_id, status=Transfer.Status.PENDING
    ).count()
    found = [f"{running} generations run"] if running else []
    return [*found, f"{held} holds are open"] if held else found


def narrow(cells: Cells, organization_id: UUID) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Carries the opening balances, and prepares the days of the other cell.

    Leaves out the days that it will sum itself.

    A day that only the other cell has summed is summed there again, with the new generations. A day
    on which the other cell served nobody is taken over. No day is summed there meanwhile.
    """
    carry_openings(cells.here, cells.there, organization_id, cells.name_here)
    _prepare_hours(cells)
    cells.there.execute("LOCK TABLE inference_usageday IN SHARE ROW EXCLUSIVE MODE")
    mine, other = (
        {row[0] for row in cell.execute("SELECT day FROM inference_usageday")}
        for cell in (cells.here, cells.there)
    )
    taken = [day for day in sorted(mine - other) if not _served(cells.there, day, organization_id)]
    for day in taken:
        cells.there.execute(
            "INSERT INTO inference_usageday (day, rolled_up_at) VALUES (%s, now())", [day]
        )
    for day in other - mine:
        if _served(cells.here, day, None):
            cells.there.execute("DELETE FROM inference_dailyusage WHERE day = %s", [day])
            cells.there.execute("DELETE FROM inference_usageday WHERE day = %s", [day])
    return {
        # They were carried above, and are not the same in both cells.
        **dict.fromkeys(
            ("billing_arrival", "billing_opening", "billing_meteropening"), ("false", {})
        ),
        "inference_dailyusage": (
            "day = ANY(%(days)s)",
            {"days": sorted({*taken, *(mine & other)})},
        ),
    }


def _prepare_hours(cells: Cells) -> None:
    """Deletes the sums of those recent hours of the other cell that this one has not summed yet.

    Its duty sums them again, with the new generations. No hour is summed there meanwhile. The
    shares of summed hours are carried like other rows.
    """
    cells.there.execute("LOCK TABLE inference_hourlyusage IN SHARE ROW EXCLUSIVE MODE")
    row = cells.here.execute("SELECT max(hour) FROM inference_hourlyusage").fetchone()
    last = None if row is None or row[0] is None else row[0] + HOUR
    cells.there.execute(
        "DELETE FROM inference_hourlyusage WHERE hour >= greatest(%s, now() - %s)",
        [last, KEPT_OF_KEYS],
    )


def _served(cell: psycopg.Connection[Any], day: Any, other_than: UUID | None) -> bool:
    """Returns whether a cell has generations of other organizations on a day."""
    row = cell.execute(
        "SELECT 1 FROM inference_generation WHERE created_at >= %(day)s::date "
        "AND created_at < %(day)s::date + 1 AND organization_id IS DISTINCT FROM %(id)s LIMIT 1",
        {"day": day, "id": other_than},
    ).fetchone()
    return row is not None


def _find(text: str) -> Organization:
    try:
        return Organization.objects.get(pk=UUID(text))
    except (ValueError, Organization.DoesNotExist):
        refuse(f"There is no organization {text} in this cell.")


def _require_order_here() -> None:
    """Refuses to move anything out of a ledger that does not add up."""
    _refuse_differences(verification.find_all_differences(), settings.CELL)


def _require_order_there(cells: Cells) -> None:
    """Refuses to serve an organization from a ledger that does not add up."""
    checks = (*billing_verification.CHECKS, *verification.CHECKS)
    found = [row[0] for check in checks for row in cells.there.execute(sql.SQL(check.text))]
    _refuse_differences(found, cells.name_there)


def _refuse_differences(differences: Sequence[str], cell: str) -> None:
    if differences:
        refuse(
            f"verify_ledger finds {len(differences)} differences in the cell {cell}: "
            f"{differences[0]}."
        )
