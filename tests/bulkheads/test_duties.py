"""A row that one duty of ``work`` waits for does not hold up the sweeper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.postgres.functions import TransactionNow

from inference.models import Generation, Journal, KeptAnswer
from tests.support import factories
from tests.support.database.locks import locked, waiting
from tests.support.ledger import assert_in_order
from tests.support.processes import MANAGE, environment

pytestmark = pytest.mark.slow


def test_generations_are_swept_while_another_duty_waits_for_a_lock(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    tenant = factories.make_tenant()
    row = factories.make_generation(tenant, status="pending")
    factories.place_hold(row, 1_000)
    earlier = TransactionNow() - timedelta(hours=1)
    Journal.objects.filter(generation=row).update(beat_at=earlier)
    KeptAnswer.objects.create(
        organization_id=tenant.organization.pk,
        generation_id=row.pk,
        sealed=b"sealed",
        size=6,
        created_at=earlier,
        expires_at=earlier,
    )
    with locked(KeptAnswer.objects.all()):
        work = subprocess.Popen(
            [sys.executable, str(MANAGE), "work"],
            env=environment(HOLD_TIMEOUT="8"),
            stderr=subprocess.DEVNULL,
        )
        try:
            # Most of its duties stand still from now on.
            eventually(lambda: waiting() == 1)
            eventually(lambda: Generation.objects.filter(status="failed").exists())
            assert KeptAnswer.objects.exists()
        except BaseException:
            work.kill()
            raise
    eventually(lambda: not KeptAnswer.objects.exists())
    work.terminate()
    assert work.wait(60) == 0
    assert_in_order()
