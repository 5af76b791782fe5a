from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now

from accounts.models import erase_new_secrets
from billing.open_transactions import open_transactions
from billing.topups import watcher
from catalog.sync.run import sync_due
from config.changes.models import expire_due
from config.clocks.leases import Interrupted, Lease
from config.clocks.report import clock_report
from config.console.sign_in.throttle import clear_limits
from config.database.outages import is_away, outages
from config.management.commands.serve import bind_metrics
from config.management.extras import log_missing_extras
from config.management.migrations import require_migrated
from config.outbound.engine import sources
from config.partitions.tables import make_all_ahead
from endpoints.watch import watch_due
from inference.archive.retention import ARCHIVE_PARTITIONS, archive_due
from inference.notices.run import find_notices
from inference.repeats.clearing import clear_expired
from inference.reports.estimates import propose_estimates
from inference.reports.hours import roll_up_hours
from inference.reports.rollups import roll_up_usage
from inference.settlement.sweeper import beat, clear_health, has_silent, may_believe_silence, sweep
from inference.settlement.verification import CHECK_LEDGER, check_daily
from inference.shadows.results import clear_shadows
from inference.texts.deleting import clear_texts

logger = logging.getLogger("causeway.work")

_PAUSE_SECONDS: Final = 5.0
# How long the duties wait while the database is unavailable.
_RECOVERY_SECONDS: Final = 15.0
# At the end, duties that run have so long to end by themselves, and so long to free their leases
# after their statements were cancelled.
END_SECONDS: Final = 5.0
CANCEL_SECONDS: Final = 3.0
_BEAT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Duty:
    """A periodic task, run by one process at a time; ``run`` returns the number of handled items.

    A duty that takes long has ``own_thread``, so that it does not delay the others. So has the
    sweeper, which nothing may delay: a locked row can hold up any of the others for ever. One that
    ``waits_first`` is done for the first time a whole interval after the installation.
    """

    name: str
    every_seconds: float
    run: Callable[[], int]
    own_thread: bool = False
    waits_first: bool = False


def _sweep_generations() -> int:
    """Sweeps, unless the database was unavailable: workers must write their journals first."""
    return sweep() if may_believe_silence() else 0


def _watch_transactions() -> int:
    """Logs the transactions that slow every request; they are warnings already."""
    open_transactions.report()
    return 0


class _Incomplete(Exception):
    """A duty has done a part of its work, and logged why the rest must wait."""


def _archive_partitions() -> int:
    """Archives what is due; raises :class:`_Incomplete` with what could not be stored."""
    stayed: list[str] = []
    done = archive_due(stayed)
    if stayed:
        raise _Incomplete(", ".join(stayed))
    return done


def _clear_sessions() -> int:
    """Deletes sessions that have ended and counters of sign-ins that count nothing any more."""
    return Session.objects.filter(expire_date__lt=Now()).delete()[0] + clear_limits()


DUTIES: Final = (
    Duty("sweep_generations", 15.0, _sweep_generations, own_thread=True),
    Duty("watch_transactions", 5.0, _watch_transactions),
    Duty("watch_endpoints", 60.0, watch_due, own_thread=True),
    Duty("watch_chains", 5.0, watcher.watch_due_chains, own_thread=True),
    Duty("roll_up_usage", 300.0, roll_up_usage),
    Duty("roll_up_hours", 300.0, roll_up_hours),
    Duty("clear_health", 300.0, clear_health),
    *(Duty(source.duty, 5.0, source.run, own_thread=True) for source in sources()),
    Duty("find_notices", 300.0, find_notices, own_thread=True),
    Duty("clear_answers", 60.0, clear_expired),
    Duty("clear_texts", 300.0, clear_texts, own_thread=True),
    Duty("clear_shadows", 3600.0, clear_shadows),
    Duty("erase_new_secrets", 300.0, erase_new_secrets),
    Duty("make_partitions", 3600.0, make_all_ahead),
    Duty("clear_sessions", 3600.0, _clear_sessions),
    Duty("expire_change_sets", 3600.0, expire_due),
    Duty(ARCHIVE_PARTITIONS, 3600.0, _archive_partitions, own_thread=True),
    Duty("sync_price_lists", 86_400.0, sync_due, own_thread=True),
    Duty("propose_estimates", 86_400.0, propose_estimates),
    Duty(CHECK_LEDGER, 86_400.0, check_daily, own_thread=True, waits_first=True),
)


class Command(BaseCommand):
    help = (
        "Runs the background duties. Several may run: each duty is done by one of them at a time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="run what is due, then exit")

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated()
        log_missing_extras()
        watcher.log_left_chains()
        if options["once"]:
            # A schedule may start it each minute.
            watcher.ask_for_tokens(ends_waits=False)
            beat()
            _wait_until_silence_counts()
            if not _run_once():
                raise CommandError("A duty failed.")
            return
        if metrics := bind_metrics(settings.METRICS_HOST or "127.0.0.1"):
            metrics.start()
        stop, asked = threading.Event(), threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        logger.info("working on %s", ", ".join(duty.name for duty in DUTIES))
        shared = [duty for duty in DUTIES if not duty.own_thread]
        threads = [
            _Thread(
                "heartbeat",
                partial(_keep_beating, stop, beat, Lease.objects.renew, clock_report.update),
            ),
            # Once, when the database takes it: a row that is locked must not delay the heartbeat.
            _Thread("tokens", partial(_keep_beating, asked, watcher.ask_for_tokens, asked.set)),
            *(
                _Thread(duty.name, partial(_repeat, [duty], stop))
                for duty in DUTIES
                if duty.own_thread
            ),
            _Thread("duties", partial(_repeat, shared, stop)),
        ]
        for thread in threads:
            thread.start()
        connection.close()
        # A signal that reaches another thread runs its handler when this one has a turn.
        while not stop.wait(_BEAT_SECONDS):
            pass
        asked.set()
        _end(threads)


class _Thread(threading.Thread):
    """Runs ``work`` with a connection of its own, which it closes at its end.

    The duties may be killed at any step, so it is a daemon: the command waits for it only briefly.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._database: BaseDatabaseWrapper | None = None

    def run(self) -> None:
        self._database = connections[DEFAULT_DB_ALIAS]
        try:
            self._work()
        finally:
            self._database.close()

    def cancel(self, seconds: float) -> None:
        """Cancels the statement that runs, which PostgreSQL would end only after its locks came."""
        session = None if self._database is None else self._database.connection
        if session is not None:
            with suppress(psycopg.Error):
                session.cancel_safe(timeout=seconds)


def _end(threads: Sequence[_Thread]) -> None:
    """Waits for the duties that run, and cancels the statements of those that last.

    A row that somebody else keeps locked would hold up the end for ever.
    """
    _join(threads, time.monotonic() + END_SECONDS)
    left = [thread for thread in threads if thread.is_alive()]
    deadline = time.monotonic() + CANCEL_SECONDS
    for thread in left:
        if (seconds := deadline - time.monotonic()) > 0:
            thread.cancel(seconds)
    _join(left, deadline)


def _join(threads: Sequence[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))


def _wait_until_silence_counts() -> None:
    """Sends heartbeats for a lease if a generation is silent and nobody sends any."""
    until = time.monotonic() + settings.HOLD_LEASE + _BEAT_SECONDS
    if has_silent() and not may_believe_silence():
        logger.info(
            "sweep_generations: waiting %d s, to see whether workers live", settings.HOLD_LEASE
        )
        while not may_believe_silence() and time.monotonic() < until:
            time.sleep(_BEAT_SECONDS)
            beat()


def _run_once() -> bool:
    """Runs the duties that are due, and renews their leases; returns whether all succeeded."""
    done = threading.Event()
    renewing = _Thread("renewal", partial(_keep_beating, done, Lease.objects.renew))
    renewing.start()
    try:
        return _run_due(DUTIES, threading.Event())
    finally:
        done.set()
        renewing.join()


def _keep_beating(stop: threading.Event, *steps: Callable[[], object]) -> None:
    """Does the steps of a heartbeat, such as the renewal of leases, until ``stop`` is set."""
    while not stop.wait(_BEAT_SECONDS):
        for step in steps:
            try:
                step()
            except Exception as exc:
                connection.close()
                if is_away(exc):
                    outages.report(exc)
                    break
                # A bug in one step must end neither the others nor this: the duties go on, and
                # without a lease others do them too.
                logger.exception("the heartbeat failed")
        outages.end_old()


def _repeat(duties: Sequence[Duty], stop: threading.Event) -> None:
    """Runs due duties every five seconds until ``stop`` is set."""
    while not stop.is_set():
        pause = _PAUSE_SECONDS
        try:
            _run_due(duties, stop)
        except Exception as exc:
            if not is_away(exc):
                raise
            # The duties wait until the database is back.
            outages.report(exc)
            connection.close()
            pause = _RECOVERY_SECONDS
        stop.wait(pause)


def _run_due(duties: Sequence[Duty], stop: threading.Event) -> bool:
    """Runs the duties that are due until ``stop`` is set; returns whether all succeeded.

    Raises the ORM's error when the database is unreachable or read-only.
    """
    all_succeeded = True
    for duty in duties:
        if stop.is_set():
            break
        try:
            with Lease.objects.hold(
                duty.name, every_seconds=duty.every_seconds, waits_first=duty.waits_first
            ) as is_held:
                # The lease ends as after a success: the rest is due at the next interval.
                try:
                    if is_held and (done := _run(duty, stop)):
                        logger.info("%s: %d", duty.name, done)
                except _Incomplete as exc:
                    logger.error("%s is incomplete: %s stay", duty.name, exc)
                    all_succeeded = False
        except Interrupted:
            logger.info("%s: interrupted; another process may do it at once", duty.name)
        except Exception as exc:
            if is_away(exc):
                raise
            # A bug in one duty must not end the other duties.
            logger.exception("%s failed", duty.name)
            all_succeeded = False
    return all_succeeded


def _run(duty: Duty, stop: threading.Event) -> int:
    """Runs a duty; raises :class:`Interrupted` if its statement was cancelled at the end."""
    try:
        return duty.run()
    except OperationalError as exc:
        if stop.is_set() and isinstance(exc.__cause__, psycopg.errors.QueryCanceled):
            raise Interrupted from exc
        raise
