"""Fills an empty or a demo database with a month of plausible traffic, in one transaction."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TextIO
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from accounts.destinations.models import BroadcastDestination
from accounts.destinations.receivers import Receiver
from accounts.models import (
    BudgetInterval,
    ByokCredential,
    Guardrail,
    GuardrailShadow,
    Organization,
    Workspace,
    workspace_for,
)
from accounts.webhooks.models import Subscription
from billing.models import Transfer
from catalog import imports
from catalog.pricing import NANO
from config.apps import event_kinds
from config.audit import context as audit
from config.credentials import Secret
from inference.models import HourlyUsage, UsageDay
from inference.reports.hours import roll_up_hours
from inference.reports.rollups import midnight, roll_up_usage
from tests.bench.fill import statements, surroundings
from tests.bench.fill.hours import Hour, count_rows, spread_hours

ACTOR: Final = "demo data"
DAYS: Final = 35
GENERATIONS: Final = 1_000_000
END_USERS: Final = 1_000_000
ENDPOINTS: Final = 100_000
TRANSFERS: Final = 5_000_000
TOP_UPS: Final = 20_000
KEYS: Final = 10_000
MEMBERS: Final = 5_000
EVENTS: Final = 200_000
CHANGE_SETS: Final = 2_000
MIN_SCALE: Final = Decimal("0.0001")
MAX_SCALE: Final = 10
_APPS: Final = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
_DAY: Final = timedelta(days=1)
_CLEAR_LINE: Final = "\r\x1b[K"
_NAMES: Final = (
    "Alder", "Brightwater", "Cobalt", "Drumlin", "Eastgate", "Fernhill", "Granite", "Harbour",
    "Ironwood", "Juniper", "Kestrel", "Larkfield", "Meridian", "Northfold", "Osprey", "Pinecrest",
    "Quarry",
)  # fmt: skip
_TRADES: Final = (
    "Health", "Logistics", "Analytics", "Insurance", "Robotics", "Energy", "Media", "Legal",
    "Retail", "Aerospace", "Learning", "Foods", "Security",
)  # fmt: skip
ORGANIZATIONS: Final = tuple(
    f"{_NAMES[number % len(_NAMES)]} {_TRADES[number % len(_TRADES)]}" for number in range(50)
)
_WORKSPACES: Final = ("Production", "Staging")
_CHAIN: Final = {
    "chain": 8453,
    "token": "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
    "recipient": "0x00000000000000000000000000000000000dE300",
}


class DatabaseInUse(Exception):
    """The database holds organizations that the demo did not create."""


def main(
    arguments: Sequence[str], *, output: TextIO = sys.stdout, messages: TextIO = sys.stderr
) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fill", description=__doc__)
    parser.add_argument(
        "--scale",
        type=parse_scale,
        default=Decimal("0.001"),
        metavar="F",
        help=f"1 is a million generations; from {MIN_SCALE} to {MAX_SCALE} (0.001)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        report = fill(options.scale, messages=messages)
    except DatabaseInUse as exc:
        print(exc, file=messages)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Nothing was changed.", file=messages)
        return 130
    if options.json:
        print(json.dumps(report), file=output)
    else:
        for name, value in report.items():
            print(f"{name}: {value}", file=output)
    return 0


def parse_scale(text: str) -> Decimal:
    try:
        scale = Decimal(text)
    except InvalidOperation:
        raise argparse.ArgumentTypeError("must be a number") from None
    if not scale.is_finite() or not MIN_SCALE <= scale <= MAX_SCALE:
        raise argparse.ArgumentTypeError(f"must be from {MIN_SCALE} to {MAX_SCALE}")
    return scale


def fill(scale: Decimal, *, messages: TextIO | None = None) -> dict[str, Any]:
    """Fills the database in one transaction; returns the number of rows of each kind.

    Raises :class:`DatabaseInUse`. Progress is shown on ``messages`` if that is a terminal.
    """
    began = time.monotonic()
    with transaction.atomic():
        report: dict[str, Any] = Filling(scale, messages).run()
        # One audit entry with the counts is more useful than a million entries.
        audit.record_import(
            audit.command_actor("fill"), "command fill", organization_id=None, counts=report
        )
    report["seconds"] = round(time.monotonic() - began, 1)
    return report


class Filling:
    """One fill, with its scale, its hours and its organizations."""

    def __init__(self, scale: Decimal, messages: TextIO | None = None) -> None:
        now = timezone.now()
        self._scale = scale
        self._messages = messages
        self._hours = spread_hours(midnight(now.astimezone(UTC).date()) - DAYS * _DAY, now)
        self._organizations: list[UUID] = []

    def run(self) -> dict[str, int]:
        """Fills all tables and returns the number of rows of each kind."""
        _require_demo()
        self._show("the catalogue and the organizations")
        path = settings.BASE_DIR / "catalog" / "data" / "catalogue.json"
        imports.apply(imports.parse(path.read_bytes()))
        self._organizations = _create_organizations(endpoints=self._scaled(ENDPOINTS))
        # Queued until commit, the constraint checks would exceed the memory of a small server.
        _run("SET CONSTRAINTS ALL IMMEDIATE")
        _run("SELECT setseed(0.5)")
        self._fill_accounts()
        endpoints = self._fill_endpoints()
        self._fill_top_ups()
        end_users = self._fill_end_users()
        generations = self._fill_generations(end_users)
        transfers = self._fill_transfers()
        events = self._fill_surroundings()
        self._show("balances and sums")
        self._sum_up()
        self._show("")
        return {
            "organizations": len(self._organizations),
            "end_users": end_users,
            "private_endpoints": endpoints,
            "generations": generations,
            "transfers": transfers,
            "events": events,
        }

    @property
    def _common(self) -> dict[str, Any]:
        """The parameters of most statements."""
        return {
            "organizations": self._organizations,
            "begin": self._hours[0].begin,
            "end": self._hours[-1].end,
            "actor": ACTOR,
        }

    def _scaled(self, rows: int) -> int:
        return int(rows * self._scale)

    def _fill_accounts(self) -> None:
        each = len(self._organizations)
        _run(
            statements.INSERT_MEMBERS,
            **self._common,
            each=max(self._scaled(MEMBERS) // each, 3),
        )
        _run(
            statements.INSERT_KEYS,
            **self._common,
            each=max(self._scaled(KEYS) // each, 4),
            workspaces=len(_WORKSPACES) + 1,
        )
        _run(statements.INSERT_KEY_GUARDRAILS, **self._common)
        _run(statements.INSERT_GRANT_REQUESTS, **self._common)

    def _fill_endpoints(self) -> int:
        self._show("private endpoints")
        wanted = max(self._scaled(ENDPOINTS), len(self._organizations))
        return _run(statements.INSERT_ENDPOINTS, **self._common, wanted=wanted)

    def _fill_top_ups(self) -> None:
        self._show("top-ups")
        wanted = max(self._scaled(TOP_UPS), 20)
        _run(statements.INSERT_TOP_UPS, **self._common, **_CHAIN, wanted=wanted)
        _run(statements.INSERT_CHAIN_STATE, **self._common, **_CHAIN)

    def _fill_end_users(self) -> int:
        wanted = self._scaled(END_USERS)
        for day in self._days("end users"):
            hours = count_rows(self._hours, day, wanted)
            _run(statements.INSERT_END_USERS, **self._common, **hours)
        return wanted

    def _fill_generations(self, end_users: int) -> int:
        wanted = self._scaled(GENERATIONS)
        users_each = end_users // len(self._organizations)
        generations = 0
        for day in self._days("generations"):
            hours = count_rows(self._hours, day, wanted)
            generations += _run(
                statements.INSERT_GENERATIONS, **self._common, **hours, users_each=users_each
            )
        _run(statements.INSERT_FEEDBACK, **self._common)
        return generations

    def _fill_transfers(self) -> int:
        """Stores the transfers day by day; returns their number."""
        with connection.cursor() as cursor:
            cursor.execute(statements.READ_USAGE, self._common)
            usage = cursor.fetchall()
        # The last organizations run out of credits.
        short = {owner for owner, _ in usage[-4:]}
        generous = [owner for owner, _ in usage if owner not in short]
        openings = [
            nano + (2 * NANO if owner in short else NANO * 50 + nano // 4) for owner, nano in usage
        ]
        wanted = self._scaled(TRANSFERS)
        transfers = 0
        for day in self._days("transfers"):
            first, last = self._hours[day.start], self._hours[day.stop - 1]
            opened = self._organizations if day.start == 0 else []
            transfers += _run(
                statements.INSERT_TRANSFERS,
                **{**self._common, "begin": first.begin, "end": last.end},
                **_id_range(first),
                opened=opened,
                openings=openings if opened else [],
                generous=generous,
                wanted=max(round(wanted * last.share) - transfers, 0),
            )
        return transfers

    def _fill_surroundings(self) -> int:
        """Stores what lies around the traffic; returns the number of events."""
        self._show("events")
        samples = {
            name: json.dumps(dict(kind.sample))
            for name, kind in event_kinds().items()
            if not (kind.for_operators or kind.direct)
        }
        wanted = max(self._scaled(EVENTS), 100)
        events = {"kinds": [*samples], "data": [*samples.values()], "wanted": wanted}
        _run(surroundings.INSERT_EVENTS, **self._common, **events)
        _run(surroundings.INSERT_SHADOW_COUNTS, **self._common)
        _run(surroundings.INSERT_GUARDRAIL_COUNTS, **self._common)
        changes = max(self._scaled(CHANGE_SETS), 50)
        _run(surroundings.INSERT_CHANGE_SETS, **self._common, wanted=changes)
        return wanted

    def _sum_up(self) -> None:
        _run(statements.UPDATE_BALANCES, **self._common)
        _run(statements.UPDATE_METERS, **self._common)
        _analyze()
        # The fill adds rows to days that were already summed.
        UsageDay.objects.all().delete()
        HourlyUsage.objects.all().delete()
        roll_up_usage()
        roll_up_hours()
        _run("SET CONSTRAINTS ALL DEFERRED")
        _analyze()

    def _days(self, step: str) -> Iterator[slice]:
        """Yields the slice of hours of each day, and shows the progress of the step."""
        began = time.monotonic()
        count = -(-len(self._hours) // 24)
        for number in range(count):
            left = ""
            if number:
                seconds = (time.monotonic() - began) * (count - number) / number
                left = f", {seconds:.0f} s left"
            self._show(f"{step}: day {number + 1} of {count}{left}")
            yield slice(24 * number, min(24 * number + 24, len(self._hours)))

    def _show(self, text: str) -> None:
        """Replaces the progress line on a terminal; otherwise writes nothing."""
        if self._messages is not None and self._messages.isatty():
            self._messages.write(_CLEAR_LINE + text)
            self._messages.flush()


def _id_range(first: Hour) -> dict[str, str]:
    """Returns the id bounds of the generations of a day, given its first hour."""
    return {
        "first_id": f"gen-{int(first.begin.timestamp())}",
        "last_id": f"gen-{int((first.begin + _DAY).timestamp())}",
    }


def _require_demo() -> None:
    """Raises :class:`DatabaseInUse` for other organizations; makes a second fill wait."""
    _run("SELECT pg_advisory_xact_lock(hashtextextended('fill_demo', 0))")
    others = Organization.objects.exclude(
        pk__in=Transfer.objects.filter(actor="demo").values("organization")
    )
    other = others.order_by("created_at").first()
    if other is not None:
        raise DatabaseInUse(
            f"The database holds organizations already ({other.name!r}). Demo data goes into an "
            "empty database, or into that of a demo, once."
        )


def _create_organizations(*, endpoints: int) -> list[UUID]:
    """Creates the organizations with their workspaces, budgets, guardrails and credentials."""
    created = []
    for name in ORGANIZATIONS:
        organization = Organization.objects.create_organization(
            name=name, endpoint_limit=2 * endpoints // len(ORGANIZATIONS) + 100
        )
        for workspace_name in _WORKSPACES:
            workspace = Workspace.objects.create_workspace(
                organization_id=organization.pk,
                name=workspace_name,
                slug=workspace_name.lower(),
                created_by=ACTOR,
            )
            workspace.set_budget(BudgetInterval.MONTHLY, limit_nano=5_000 * NANO)
        whole = workspace_for(organization.pk, None)
        guardrail = Guardrail.objects.create_guardrail(
            workspace=whole,
            name="Batch jobs",
            description="Limits what nightly jobs spend.",
            limit_nano=100 * NANO,
            reset_interval="daily",
        )
        GuardrailShadow.objects.start(guardrail, by=ACTOR, limit_nano=50 * NANO)
        receiver = Receiver(f"https://{organization.slug}.example/hooks")
        Subscription.objects.create_subscription(
            organization=organization, form="webhook", name="Operations", url=receiver.url
        )
        BroadcastDestination.objects.create_destination(
            whole, kind="webhook", receiver=receiver, name="Traces", regions=["global"]
        )
        for provider_slug in ("openai", "mistral"):
            ByokCredential.objects.create_credential(
                organization=organization,
                workspace=None,
                provider_slug=provider_slug,
                secret=Secret("demo-credential-of-nobody"),
                name="Production",
            )
        created.append(organization.pk)
    return created


def _run(statement: str, **parameters: Any) -> int:
    """Runs a statement and returns its number of rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return int(cursor.rowcount)


def _analyze() -> None:
    """Updates the planner's statistics before the next automatic vacuum."""
    for model in apps.get_models():
        if model._meta.app_label in _APPS:
            _run(f"ANALYZE {connection.ops.quote_name(model._meta.db_table)}")
