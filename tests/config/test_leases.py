"""Leases of scheduled duties: one holder, renewed, by the database's clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from config.clocks.leases import LEASE_SECONDS, Interrupted, Lease, process_name
from config.management.commands import work
from tests.support.database.locks import beside, locked
from tests.support.machine.waiting import wait_until

OTHER = "elsewhere:1:x"


def hold(name: str = "duty", every_seconds: float = 60) -> bool:
    with Lease.objects.hold(name, every_seconds=every_seconds) as is_held:
        return is_held


def change(**fields: Any) -> None:
    assert Lease.objects.filter(name="duty").update(**fields) == 1


def was_renewed() -> bool:
    """Returns whether a lease was renewed in the last ten seconds."""
    since = TransactionNow() - timedelta(seconds=10)
    return Lease.objects.filter(renewed_at__gt=since).exists()


def test_a_duty_is_due_once_in_its_interval(db: None) -> None:
    assert hold() is True
    assert hold() is False
    change(until=TransactionNow())
    assert hold() is True


def test_a_held_lease_names_its_holder_and_is_renewed(db: None) -> None:
    with Lease.objects.hold("duty", every_seconds=60) as is_held:
        assert is_held
        assert Lease.objects.get().holder == process_name()
        change(renewed_at=TransactionNow() - timedelta(seconds=20))
        Lease.objects.renew()
        assert was_renewed()
    assert Lease.objects.get().holder == ""
    change(renewed_at=TransactionNow() - timedelta(seconds=20))
    Lease.objects.renew()
    assert not was_renewed()


def test_a_renewal_leaves_the_lease_of_another_holder_alone(db: None) -> None:
    with Lease.objects.hold("duty", every_seconds=60):
        change(holder=OTHER, renewed_at=TransactionNow() - timedelta(seconds=20))
        Lease.objects.renew()
        assert not was_renewed()
    assert Lease.objects.get().holder == OTHER


@pytest.mark.parametrize(
    ("renewed", "is_free"), [(0, False), (LEASE_SECONDS - 3, False), (LEASE_SECONDS + 1, True)]
)
def test_a_lease_that_is_not_renewed_is_taken_over(
    db: None, caplog: pytest.LogCaptureFixture, renewed: int, is_free: bool
) -> None:
    hold()
    last = TransactionNow() - timedelta(seconds=renewed)
    change(holder=OTHER, renewed_at=last)
    assert hold() is is_free
    taken_over = "duty: taken over from elsewhere:1:x, which has stopped renewing it"
    assert (taken_over in caplog.messages) is is_free


def test_a_duty_that_kills_its_holders_waits_for_its_interval(db: None) -> None:
    """The first death may have any reason."""
    dead = TransactionNow() - timedelta(seconds=LEASE_SECONDS + 1)
    hold()
    change(holder=OTHER, renewed_at=dead)
    with Lease.objects.hold("duty", every_seconds=60) as is_held:
        assert is_held
        assert Lease.objects.get().failures == 1
        change(holder=OTHER, renewed_at=dead)
        assert hold() is False
        change(until=TransactionNow())
        assert hold() is True
    assert Lease.objects.get().failures == 0


def test_one_run_of_work_renews_what_it_holds(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> int:
        change(renewed_at=TransactionNow() - timedelta(seconds=20))
        wait_until(was_renewed)
        return 0

    monkeypatch.setattr(work, "DUTIES", (work.Duty("duty", 60.0, run),))
    assert work._run_once()
    Lease.objects.all().delete()


def test_a_step_that_fails_ends_no_heartbeat(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    begun: list[None] = []

    def fail() -> None:
        begun.append(None)
        with connection.cursor() as cursor:
            cursor.execute("SELECT missing")

    with Lease.objects.hold("duty", every_seconds=60):
        change(renewed_at=TransactionNow() - timedelta(seconds=20))
        with beside(partial(work._keep_beating, stop, fail, Lease.objects.renew)):
            try:
                wait_until(was_renewed)
                wait_until(lambda: len(begun) > 1)
            finally:
                stop.set()
    assert "the heartbeat failed" in caplog.messages
    Lease.objects.all().delete()


def test_times_in_the_future_hold_nothing(db: None) -> None:
    hold()
    change(until=TransactionNow() + timedelta(hours=2))
    assert hold() is True
    change(holder=OTHER, until=TransactionNow(), renewed_at=TransactionNow() + timedelta(hours=2))
    assert hold() is True


def test_one_of_several_takes_a_lease(
    transactional_db: None, together: Callable[..., list[bool]]
) -> None:
    for _ in range(5):
        assert sorted(together(*[hold] * 6)) == [False] * 5 + [True]
        change(until=TransactionNow())
    Lease.objects.all().delete()


def test_a_locked_lease_stops_no_other_duty(transactional_db: None) -> None:
    hold()
    change(until=TransactionNow())
    locked, done = threading.Event(), threading.Event()

    def lock() -> None:
        with transaction.atomic():
            Lease.objects.select_for_update().get(name="duty")
            locked.set()
            done.wait(60)
        connection.close()

    thread = threading.Thread(target=lock)
    thread.start()
    assert locked.wait(60)
    try:
        assert hold() is False
        assert hold("another") is True
    finally:
        done.set()
        thread.join()
    Lease.objects.all().delete()


class WatchedLock:
    """A lock that calls ``note`` before somebody waits for it."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._lock, self._note = threading.Lock(), note

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._note()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_a_release_waits_for_a_renewal_by_its_own_process(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, may_commit = threading.Event(), threading.Event()
    monkeypatch.setattr(Lease.objects, "_lock", WatchedLock(may_commit.set))

    def commit_late(execute: Callable[..., Any], *statement: Any) -> Any:
        with transaction.atomic():
            result = execute(*statement)
            renewed.set()
            assert may_commit.wait(60)
        return result

    def renew() -> None:
        with connection.execute_wrapper(commit_late):
            Lease.objects.renew()

    with ExitStack() as renewal:
        with Lease.objects.hold("duty", every_seconds=60) as is_held:
            assert is_held
            change(failures=1)
            renewal.enter_context(beside(renew))
            assert renewed.wait(60)
        may_commit.set()
    lease = Lease.objects.get()
    assert (lease.holder, lease.failures) == ("", 0)
    assert hold() is False
    Lease.objects.all().delete()


def test_a_release_leaves_a_row_alone_that_another_session_has_locked(
    transactional_db: None,
) -> None:
    with ExitStack() as session, Lease.objects.hold("duty", every_seconds=60):
        session.enter_context(locked(Lease.objects.all()))
    assert Lease.objects.get().holder == process_name()
    Lease.objects.all().delete()


def test_an_error_of_the_duty_frees_its_lease(db: None) -> None:
    with pytest.raises(ZeroDivisionError), Lease.objects.hold("duty", every_seconds=60):
        raise ZeroDivisionError
    assert Lease.objects.get().holder == ""


def test_an_interrupted_duty_has_not_failed_and_is_due_at_once(db: None) -> None:
    with pytest.raises(Interrupted), Lease.objects.hold("duty", every_seconds=60):
        raise Interrupted
    assert Lease.objects.get().failures == 0
    assert hold() is True


def test_the_console_lists_duties_and_changes_none(operator: Client) -> None:
    hold("duty")
    Lease.objects.create(name="late", until=TransactionNow(), failures=3)
    path = reverse("admin:config_lease_changelist")

    listed = operator.get(path).context["cl"].result_list
    failed = operator.get(path, {"failed": "yes"}).context["cl"].result_list
    shown = operator.get(reverse("admin:config_lease_change", args=["duty"])).content.decode()

    assert [row.name for row in listed] == ["duty", "late"]
    assert [row.name for row in failed] == ["late"]
    assert "60 s" in shown
    for verb, arguments in (("add", []), ("delete", ["late"]), ("change", ["late"])):
        url = reverse(f"admin:config_lease_{verb}", args=arguments)
        assert operator.post(url, {"failures": "0"}).status_code == 403
    assert Lease.objects.get(name="late").failures == 3
