"""Whether admissions fail, by requests and probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from config.server import readiness as module
from config.server.readiness import Admissions, Readiness


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the monotonic clock of the module."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def move(seconds: float) -> None:
        clock.now += seconds

    return move


async def succeed() -> None:
    pass


async def fail() -> None:
    raise OSError


def test_one_failure_is_not_enough(advance: Callable[[float], None]) -> None:
    admissions = Admissions()
    admissions.record_failure()
    assert not admissions.is_failing
    advance(0.9)
    admissions.record_failure()
    assert not admissions.is_failing
    advance(0.2)
    admissions.record_failure()
    assert admissions.is_failing
    admissions.record_success()
    assert not admissions.is_failing


def test_a_success_between_two_failures_starts_anew(advance: Callable[[float], None]) -> None:
    admissions = Admissions()
    for _ in range(10):
        admissions.record_failure()
        advance(0.9)
        admissions.record_success()
        advance(0.9)
    assert not admissions.is_failing


def test_one_organization_does_not_make_a_worker_unready(advance: Callable[[float], None]) -> None:
    admissions = Admissions()
    for _ in range(10):
        admissions.record_failure("one")
        advance(1)
    assert not admissions.is_failing
    asyncio.run(admissions.probe_once(succeed))
    admissions.record_failure("other")
    advance(1.1)
    admissions.record_failure("one")
    assert admissions.is_failing


def test_probes_end_the_failing_state_only_without_requests(
    advance: Callable[[float], None],
) -> None:
    admissions = Admissions()
    for name in ("one", "other", "third"):
        admissions.record_failure(name)
        advance(1)
    assert admissions.is_failing
    asyncio.run(admissions.probe_once(succeed))
    assert admissions.is_failing
    advance(5)
    asyncio.run(admissions.probe_once(succeed))
    assert not admissions.is_failing


def test_probes_that_fail_make_a_quiet_worker_unready(advance: Callable[[float], None]) -> None:
    admissions = Admissions()
    asyncio.run(admissions.probe_once(fail))
    assert not admissions.is_failing
    advance(1)
    asyncio.run(admissions.probe_once(fail))
    assert admissions.is_failing
    asyncio.run(admissions.probe_once(succeed))
    assert not admissions.is_failing


def test_a_busy_worker_is_not_probed(advance: Callable[[float], None]) -> None:
    admissions = Admissions()
    admissions.record_success()
    advance(4)
    asyncio.run(admissions.probe_once(fail))
    advance(0.5)
    asyncio.run(admissions.probe_once(fail))
    assert not admissions.is_failing
    assert not admissions.is_quiet
    advance(1)
    assert admissions.is_quiet


def test_the_body_names_the_first_reason(advance: Callable[[float], None]) -> None:
    found = Readiness()
    assert found.body() == (200, {"status": "ok"})
    for _ in range(2):
        found.admissions.record_failure()
        advance(1)
    reasons = [found.body()]
    found.is_database_available = False
    reasons.append(found.body())
    found.is_draining = True
    reasons.append(found.body())
    assert [(status, body["reason"]) for status, body in reasons] == [
        (503, "admissions"), (503, "database"), (503, "stopping"),
    ]  # fmt: skip
    assert all(body["status"] == "unavailable" and body["message"] for _, body in reasons)
