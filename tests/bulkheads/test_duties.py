"""A row that a duty of ``work`` waits for holds up neither the sweeper nor the end of ``work``."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow

from config.clocks.leases import Lease
from config.management.commands import work as command
from inference.models import Generation, Journal, KeptAnswer, StoredText, Uptime
from tests.support import factories
from tests.support.database.locks import locked, waiting
from tests.support.ledger import assert_in_order
from tests.support.processes import MANAGE, environment


def keep_answer(row: Generation, expired: Any) -> None:
    KeptAnswer.objects.create(
        organization_id=row.organization_id,
        generation_id=row.pk,
        sealed=b"sealed",
        size=6,
        created_at=expired,
        expires_at=expired,
    )


def test_generations_are_swept_while_another_duty_waits_for_a_lock(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    row = factories.make_generation(factories.make_tenant(), status="pending")
    factories.place_hold(row, 1_000)
    earlier = TransactionNow() - timedelta(hours=1)
    # Heartbeats have reached the database all the time, so the first sweep believes the silence.
    Uptime.objects.update_or_create(pk=1, defaults={"since": earlier, "beat_at": TransactionNow()})
    Journal.objects.filter(generation=row).update(beat_at=earlier)
    keep_answer(row, earlier)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_ends_while_its_duties_wait_for_locks_and_leaves_them_to_others(
    transactional_db: None,
    eventually: Callable[[Callable[[], bool]], None],
    tmp_path: Path,
    number: int,
) -> None:
    """One duty shares its thread with others, the other one has its own."""
    tenant = factories.make_tenant()
    row = factories.make_generation(tenant)
    expired = TransactionNow() - timedelta(days=400)
    keep_answer(row, expired)
    StoredText.objects.create(
        generation_id=row.pk,
        organization_id=tenant.organization.pk,
        workspace_id=tenant.workspace.pk,
        api_key_id=uuid.uuid4(),
        text_key_id=1,
        sealed=b"sealed",
        input_bytes=1,
        output_bytes=1,
        is_truncated=False,
        created_at=expired,
    )
    duties = ("clear_answers", "clear_texts")
    log = tmp_path / "log"
    with locked(KeptAnswer.objects.all(), StoredText.objects.all()):
        with log.open("w") as stderr:
            work = subprocess.Popen(
                [sys.executable, str(MANAGE), "work"], env=environment(), stderr=stderr
            )
        try:
            eventually(lambda: waiting() == 2)
            assert Lease.objects.filter(name__in=duties).exclude(holder="").count() == 2
            work.send_signal(number)
            began = time.monotonic()
            assert work.wait(60) == 0
        finally:
            work.kill()
        bound = command.END_SECONDS + command.CANCEL_SECONDS
        # The interpreter takes a moment to end, longer on a busy machine.
        assert time.monotonic() - began < bound + 5
        # Nothing of the process waits in PostgreSQL, and the rows are still locked.
        assert waiting() == 0
        for name in duties:
            assert Lease.objects.get(name=name).failures == 0
            with Lease.objects.hold(name, every_seconds=300) as is_held:
                assert is_held
    assert (KeptAnswer.objects.count(), StoredText.objects.count()) == (1, 1)
    text = log.read_text()
    assert [f"{name}: interrupted" in text for name in duties] == [True, True]
    assert "Traceback" not in text
