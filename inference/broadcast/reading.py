"""Finds what a destination is to be sent next: from its cursor, in the order of admission.

A generation ends long after it is stored, so the cursor passes those that still run and notes them
in ``BroadcastWait``. It stays behind the present by a few seconds: a transaction that stores a
generation may commit later than its stamp, and a row behind the cursor would be missed for ever.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Now

from accounts.destinations.rules import Facts, Test, compile_rules
from accounts.models import BroadcastDestination
from catalog.pricing import NANO
from config.outbound.engine import is_slow
from config.partitions.tables import read_now
from config.sql import fetch_rows
from inference.broadcast.otlp import provider_of
from inference.ids import SLACK, first_id, id_bound, id_range, last_id
from inference.models import Generation

# Longer than the time limit of the statement that admits.
LAG: Final = timedelta(seconds=10)
# What has not been taken for so long is given up.
KEPT: Final = timedelta(days=1)
_SCANNED: Final = 1000
_WAITING: Final = 1000
# What the rules of a destination may take for one page.
_TEST_SECONDS: Final = 1.0
# A cursor without traffic moves this often.
_STEP: Final = timedelta(minutes=1)
_FRACTIONS: Final = 2**64

# Writers that have been open for longer than the lag hold the horizon back.
_HORIZON: Final = """
SELECT least(now() - make_interval(secs => %s), min(xact_start))
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
    AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
"""


class RulesTooSlow(Exception):
    """The rules of a destination take too long for a page of generations."""


class Due(NamedTuple):
    """A destination that may be sent to now, without its rules: they may be large."""

    pk: UUID
    organization_id: UUID
    is_slow: bool


@dataclass(slots=True)
class Page:
    """The next generations of a destination, and what its progress is once they are sent."""

    destination: BroadcastDestination
    generations: list[Generation] = field(default_factory=list)
    # The ids that need not be waited for any more, and those that must.
    ended: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    cursor_at: datetime | None = None
    cursor_id: str = ""
    has_more: bool = False


def find_horizon() -> datetime:
    """Returns the moment before which every admitted generation is visible."""
    [[horizon]] = fetch_rows(_HORIZON, [LAG.total_seconds()])
    assert isinstance(horizon, datetime)
    return horizon


def find_due() -> list[Due]:
    """Returns the destinations that may be sent to now, those that wait longest first."""
    rows = (
        BroadcastDestination.objects.broadcasting()
        .filter(Q(progress__retry_at=None) | Q(progress__retry_at__lte=Now()))
        .order_by(F("progress__succeeded_at").asc(nulls_first=True), "pk")
        .values_list("pk", "organization_id", "progress__failures", "progress__mean_ms")
    )
    return [
        Due(pk, organization_id, is_slow(failures, mean_ms))
        for pk, organization_id, failures, mean_ms in rows
    ]


def load_destination(pk: UUID) -> BroadcastDestination | None:
    """Returns a destination with its progress; ``None`` if it may not be sent to any more."""
    rows = BroadcastDestination.objects.broadcasting().select_related("progress")
    return rows.filter(pk=pk).first()


def read_page(destination: BroadcastDestination, horizon: datetime) -> Page:
    """Returns the next page of a destination; it reads a bounded number of rows."""
    page = Page(destination)
    passes, most = make_test(destination), destination.progress.batch
    _read_waiting(page, passes, most)
    if len(page.generations) < most:
        _read_new(page, passes, most, horizon)
    return page


def make_test(destination: BroadcastDestination) -> Test:
    """Returns the test of a generation's facts by the rules of a destination.

    It raises :class:`RulesTooSlow` when it has taken a second.
    """
    passes, taken = compile_rules(destination.filter_rules), 0.0

    def test(facts: Facts) -> bool:
        nonlocal taken
        if taken > _TEST_SECONDS:
            raise RulesTooSlow
        began = time.thread_time()
        try:
            return passes(facts)
        finally:
            taken += time.thread_time() - began

    return test


def is_wanted(destination: BroadcastDestination, generation: Generation, passes: Test) -> bool:
    """Returns whether a destination is to be sent an ended generation."""
    hashes = destination.api_key_hashes
    return (
        generation.region in destination.regions
        and (hashes is None or generation.api_key.digest in hashes)
        and is_sampled(destination, generation)
        and passes(describe(generation))
    )


def is_sampled(destination: BroadcastDestination, generation: Generation) -> bool:
    """Returns whether the sample of a destination has a generation.

    A session is sent as a whole or not at all, by every destination with the same rate.
    """
    if destination.sampling_rate == 1:
        return True
    name = generation.session_id or generation.pk
    digest = hashlib.sha256(f"{generation.workspace_id} {name}".encode()).digest()
    return int.from_bytes(digest[:8]) < destination.sampling_rate * _FRACTIONS


def describe(generation: Generation) -> Facts:
    """Returns the facts that filter rules read."""
    counts = [generation.prompt_tokens, generation.completion_tokens]
    known = [count for count in counts if count is not None]
    return {
        "model": generation.model,
        "provider": provider_of(generation),
        "session_id": generation.session_id,
        "user_id": generation.end_user,
        "api_key_name": generation.api_key.name,
        "finish_reason": generation.finish_reason,
        "total_cost": Decimal(generation.cost_nano) / NANO,
        "total_tokens": sum(known) if known else None,
        "prompt_tokens": counts[0],
        "completion_tokens": counts[1],
    }


def count_between(
    destination: BroadcastDestination, since: datetime, until: datetime
) -> tuple[int, str, str]:
    """Counts the generations of a workspace in a time; returns the first and the last id too."""
    ids = (
        Generation.objects.for_organization(destination.organization_id)
        .created(since, until)
        .filter(workspace=destination.workspace_id)
        .order_by("created_at", "pk")
        .values_list("pk", flat=True)
    )
    return ids.count(), ids.first() or "", ids.last() or ""


def _read_waiting(page: Page, passes: Test, most: int) -> None:
    """Adds the generations that have ended since the cursor passed them."""
    waits = page.destination.waits.order_by("generation_id").values_list("generation_id", flat=True)
    ids = list(waits[:_WAITING])
    if not ids:
        return
    lowest, highest = id_range(ids)
    rows = Generation.objects.filter(pk__in=ids, pk__gte=lowest, pk__lte=highest)
    statuses = dict(rows.values_list("pk", "status"))
    # A row that has left with its partition will never end.
    page.ended = [pk for pk in ids if statuses.get(pk) is None]
    ended = [pk for pk in ids if statuses.get(pk) not in (None, Generation.Status.PENDING)]
    page.has_more = len(ended) > most
    for generation in _load(ended[:most]):
        page.ended.append(generation.pk)
        if is_wanted(page.destination, generation, passes):
            page.generations.append(generation)


def _read_new(page: Page, passes: Test, most: int, horizon: datetime) -> None:
    """Adds the generations behind the cursor, and moves it."""
    destination, progress = page.destination, page.destination.progress
    since = progress.cursor_at
    if since >= horizon:
        if since > read_now():
            # The database's clock was wrong. Until it reached the cursor, nothing would be sent.
            page.cursor_at, page.cursor_id = horizon, ""
        return
    rows = (
        Generation.objects.for_organization(destination.organization_id)
        .filter(pk__gte=first_id(since), pk__lt=last_id(horizon))
        .filter(created_at__gte=since, created_at__lt=horizon)
        .filter(Q(created_at__gt=since) | Q(pk__gt=progress.cursor_id))
        .order_by("created_at", "pk")
        .values_list("pk", "created_at", "workspace_id", "status")
    )
    scanned = list(rows[:_SCANNED])
    room = most - len(page.generations)
    wanted: list[str] = []
    for pk, created_at, workspace_id, status in scanned:
        if workspace_id == destination.workspace_id:
            if status == Generation.Status.PENDING:
                page.running.append(pk)
            elif len(wanted) == room:
                page.has_more = True
                break
            else:
                wanted.append(pk)
        page.cursor_at, page.cursor_id = created_at, pk
    else:
        page.has_more |= len(scanned) == _SCANNED
        if len(scanned) < _SCANNED and (scanned or horizon - since > _STEP):
            page.cursor_at, page.cursor_id = horizon, ""
    for generation in _load(wanted):
        if is_wanted(destination, generation, passes):
            page.generations.append(generation)


def _load(ids: list[str]) -> list[Generation]:
    """Returns generations with what their spans need."""
    lowest, highest = id_range(ids)
    rows = Generation.objects.filter(pk__in=ids, pk__gte=lowest, pk__lte=highest)
    return list(
        rows.select_related(
            "api_key",
            "private_endpoint__provider",
            "private_endpoint__private_provider",
            "model_endpoint__provider",
        ).order_by("created_at", "pk")
    )


def oldest_kept_id(now: datetime) -> str:
    """Returns a lower bound of the ids that are not given up."""
    return id_bound(now - KEPT - SLACK)
