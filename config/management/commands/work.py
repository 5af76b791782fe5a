from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone

from billing.topups import watcher
from config.bulk.commands import require_migrated
from config.models import Lease
from endpoints.watch import watch_due
from inference.reports.hours import roll_up_hours
from inference.reports.rollups import roll_up_usage
from inference.settlement.sweeper import clear_health, sweep

logger = logging.getLogger("causeway.work")

_PAUSE_SECONDS: Final = 5.0
# After an outage the workers come first: they tell that they live, and what they have to settle,
# before anyone takes them for dead.
_RECOVERY_SECONDS: Final = 15.0
_END_SECONDS: Final = 5.0
_HAS_RECOVERED: Final = "SELECT now() - pg_postmaster_start_time() > make_interval(secs => %s)"


@dataclass(frozen=True, slots=True)
class Duty:
    """Something done again and again by one runner at a time; returns how much there was.

    What waits for others long is done `apart`, so that no hold outlives its time limit for it.
    """

    name: str
    every_seconds: float
    run: Callable[[], int]
    apart: bool = False


def _sweep_generations() -> int:
    """Sweeps, but where PostgreSQL was started a moment ago: it has heard nobody before."""
    with connection.cursor() as cursor:
        cursor.execute(_HAS_RECOVERED, [_RECOVERY_SECONDS])
        [has_recovered] = cursor.fetchone()
    return sweep() if has_recovered else 0


def _clear_sessions() -> int:
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]


DUTIES: Final = (
    Duty("sweep_generations", 15.0, _sweep_generations),
    Duty("watch_endpoints", 60.0, watch_due),
    Duty("watch_chains", 5.0, watcher.watch_due_chains, apart=True),
    Duty("roll_up_usage", 300.0, roll_up_usage),
    Duty("roll_up_hours", 300.0, roll_up_hours),
    Duty("clear_health", 300.0, clear_health),
    Duty("clear_sessions", 3600.0, _clear_sessions),
)


class Command(BaseCommand):
    help = "Does the background duties; of any number of runners, one does each duty at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do what is due, then exit")

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated()
        if options["once"]:
            if not _do_due(DUTIES):
                raise CommandError("A duty failed.")
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        logger.info("working on %s", ", ".join(duty.name for duty in DUTIES))
        apart = [
            # Each of their steps survives a kill: the command ends without what does not end soon.
            threading.Thread(target=_keep_doing, args=([duty], stop), name=duty.name, daemon=True)
            for duty in DUTIES
            if duty.apart
        ]
        for thread in apart:
            thread.start()
        _keep_doing([duty for duty in DUTIES if not duty.apart], stop)
        for thread in apart:
            thread.join(_END_SECONDS)


def _keep_doing(duties: Sequence[Duty], stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            pause = _PAUSE_SECONDS
            try:
                _do_due(duties)
            except (OperationalError, InterfaceError) as exc:
                # The duties wait for the database as everything else does.
                logger.error("the database is unavailable: %s", type(exc).__name__)
                connection.close()
                pause = _RECOVERY_SECONDS
            stop.wait(pause)
    finally:
        connection.close()


def _do_due(duties: Sequence[Duty]) -> bool:
    """Does what is due; returns whether none failed. Raises when the database is away."""
    is_well = True
    for duty in duties:
        try:
            if Lease.objects.take(duty.name, seconds=duty.every_seconds) and (done := duty.run()):
                logger.info("%s: %d", duty.name, done)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            # The outermost boundary: one duty's bug must not end the others.
            logger.exception("%s failed", duty.name)
            is_well = False
    return is_well
