"""What is sent to whom, and what happens when a receiver fails."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.models import (
    ApiKey,
    BroadcastDestination,
    BroadcastProgress,
    BroadcastWait,
    Workspace,
)
from config.clocks.clock import clock
from config.outbound import engine, sending
from config.outbound.sending import SendingOutcome
from inference.broadcast import reading, sender
from inference.broadcast.progress import BroadcastCollector, store_failure, store_success
from inference.broadcast.reading import Page, load_destination
from inference.broadcast.sender import Broadcaster
from inference.models import Generation
from tests.support import factories
from tests.support.broadcast.destinations import (
    SECRET,
    broadcast_to,
    make_past_generation,
    progress_of,
    retry_now,
    rewind,
)
from tests.support.broadcast.feeds import Feed, make_some
from tests.support.broadcast.traces import TAKEN, TraceReceiver
from tests.support.database import snapshots
from tests.support.database.locks import beside, locked
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_workspace
from tests.support.upstreams.tls import Script, answering
from tests.support.upstreams.tls import sending as sending_bytes


def rules_of(*rules: dict[str, Any], logic: str = "and") -> dict[str, Any]:
    return {"enabled": True, "groups": [{"logic": logic, "rules": [*rules]}]}


def named_as_given_up(caplog: pytest.LogCaptureFixture) -> str:
    [line] = [each.getMessage() for each in caplog.records if "given up" in each.getMessage()]
    return line


def test_generations_are_sent_once_in_order(feed: Feed) -> None:
    ids = feed.make(5)
    assert feed.run() == 5
    assert feed.run() == 0
    assert feed.receiver.ids() == ids
    progress = feed.progress()
    assert (progress.sent, progress.skipped, progress.failures) == (5, 0, 0)
    assert progress.succeeded_at is not None
    assert progress.cursor_at < clock.now() - timedelta(seconds=9)


def test_a_cursor_in_the_future_returns(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock stepped forward, and was corrected."""
    BroadcastProgress.objects.update(cursor_at=TransactionNow() + timedelta(hours=1), cursor_id="x")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "LAG", timedelta(minutes=10))
        corrected = reading.find_horizon()
        assert feed.run() == 0
    progress = feed.progress()
    assert (progress.cursor_at, progress.cursor_id) == (corrected, "")
    ids = feed.make(2)
    assert feed.run() == 2
    assert feed.receiver.ids() == ids


def test_a_cursor_of_this_moment_stays(feed: Feed) -> None:
    BroadcastProgress.objects.update(cursor_at=TransactionNow())
    begun = feed.progress().cursor_at
    feed.make(1)
    assert feed.run() == 0
    assert feed.progress().cursor_at == begun


def test_a_batch_is_bounded(feed: Feed) -> None:
    BroadcastProgress.objects.update(batch=2)
    ids = feed.make(5)
    assert feed.run() == 5
    # It grows again with each success.
    assert [len(batch) for batch in feed.receiver.batches()] == [2, 3]
    assert feed.receiver.ids() == ids


def test_only_what_a_workspace_broadcasts_is_sent(
    tenant: Tenant, make_receiver: Callable[[], TraceReceiver], broadcaster: Broadcaster
) -> None:
    other, stranger = make_workspace(tenant.organization), factories.make_tenant()
    receivers = [make_receiver() for _ in range(4)]
    broadcast_to(tenant.workspace, receivers[0].url)
    broadcast_to(stranger.workspace, receivers[1].url)
    broadcast_to(other, receivers[2].url, is_enabled=False)
    silent = factories.make_tenant()
    broadcast_to(silent.workspace, receivers[3].url)
    Workspace.objects.get(pk=silent.workspace.pk).edit(is_observability_broadcast_enabled=False)
    key = make_key(tenant, workspace=other)
    mine = make_past_generation(tenant)
    make_past_generation(tenant, workspace=other, api_key=key)
    theirs = make_past_generation(stranger)
    make_past_generation(silent)
    assert broadcaster.run() == 2
    assert [receiver.ids() for receiver in receivers] == [[mine.pk], [theirs.pk], [], []]


def test_keys_regions_and_rules_choose(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster
) -> None:
    key = make_key(tenant, "chosen")
    rules = rules_of(
        {"field": "total_tokens", "operator": "gt", "value": 10},
        {"field": "api_key_name", "operator": "equals", "value": "chosen"},
    )
    destination = broadcast_to(
        tenant.workspace,
        receiver.url,
        api_key_hashes=[key.digest],
        regions=["europe"],
        filter_rules=rules,
    )
    wanted = {"api_key": key, "region": "europe", "prompt_tokens": 11}
    chosen = make_past_generation(tenant, **wanted)
    make_past_generation(tenant, **{**wanted, "region": "global"})
    make_past_generation(tenant, **{**wanted, "prompt_tokens": 10})
    make_past_generation(tenant, region="europe", prompt_tokens=11)
    assert broadcaster.run() == 1
    assert receiver.ids() == [chosen.pk]
    assert progress_of(destination).sent == 1


def test_a_session_is_sampled_as_a_whole(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster
) -> None:
    broadcast_to(tenant.workspace, receiver.url, sampling_rate="0.5")
    sessions: dict[str, list[str]] = {}
    for number in range(12):
        for minutes in (2, 1):
            made = make_past_generation(tenant, session_id=f"s{number}", minutes=minutes)
            sessions.setdefault(f"s{number}", []).append(made.pk)
    broadcaster.run()
    sent = set(receiver.ids())
    assert {len(sent.intersection(ids)) for ids in sessions.values()} == {0, 2}


def test_a_running_generation_is_sent_when_it_has_ended(feed: Feed) -> None:
    """The cursor passes it, so that a long stream holds nothing back."""
    late = make_past_generation(feed.tenant, minutes=9, status=Generation.Status.PENDING)
    early = make_past_generation(feed.tenant, minutes=3)
    assert feed.run() == 1
    assert [wait.generation_id for wait in BroadcastWait.objects.all()] == [late.pk]
    Generation.objects.filter(pk=late.pk).update(status="completed", finish_reason="stop")
    assert feed.run() == 1
    assert feed.receiver.ids() == [early.pk, late.pk]
    assert not BroadcastWait.objects.exists()
    assert feed.run() == 0
    assert feed.progress().sent == 2


def test_a_generation_that_left_is_not_waited_for(feed: Feed) -> None:
    BroadcastWait.objects.create(destination=feed.destination, generation_id="gen-1-gone")
    assert feed.run() == 0
    assert not BroadcastWait.objects.exists()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answering(status="503 Busy"), "The receiver answered with HTTP 503."),
        (answering(status="401 No"), "The receiver answered with HTTP 401."),
        (
            answering(status="307 Elsewhere", headers=("Location: https://127.0.0.1:1/",)),
            "The receiver answered with a redirect.",
        ),
        (answering(b"x" * 100_000), "The receiver's answer is too large."),
        (sending_bytes(b"nonsense\r\n\r\n"), "The receiver's answer is invalid."),
    ],
)
def test_a_failure_moves_no_cursor_and_is_tried_again(
    feed: Feed, script: Script, error: str
) -> None:
    ids = feed.make(2)
    before = feed.progress()
    feed.receiver.scripts = [script]
    assert feed.run() == 0
    after = feed.progress()
    assert (after.cursor_at, after.cursor_id) == (before.cursor_at, "")
    assert (after.failures, after.last_error, after.sent) == (1, error, 0)
    assert after.failing_since is not None
    assert after.retry_at is not None
    # It is not tried before its time.
    assert feed.run() == 0
    assert len(feed.receiver.heads) == 1
    retry_now()
    assert feed.run() == 2
    assert feed.receiver.ids() == [*ids, *ids]
    after = feed.progress()
    assert (after.failures, after.last_error, after.retry_at) == (0, "", None)


def test_the_pause_grows_and_a_receiver_may_ask_for_more(feed: Feed) -> None:
    feed.make(1)
    busy = answering(status="429 Slow down", headers=("Retry-After: 120",))
    date = "Tue, 14 Jul 2026 03:33:20 GMT", "Tue, 14 Jul 2026 03:37:20 GMT"
    until = answering(status="503 No", headers=(f"Date: {date[0]}", f"Retry-After: {date[1]}"))
    endless = answering(status="503 No", headers=("Retry-After: 999999999999999",))
    feed.receiver.scripts = [busy, until, endless, *[answering(status="500 No")] * 6, busy]
    pauses = []
    for _ in range(10):
        begin = clock.now()
        feed.run()
        retry_at = feed.progress().retry_at
        assert retry_at is not None
        pauses.append(round((retry_at - begin).total_seconds() / 5) * 5)
        retry_now()
    assert pauses == [120, 240, 600, 40, 80, 160, 320, 600, 600, 600]


def test_a_receiver_that_hangs_delays_no_other_tenant(
    tenant: Tenant, make_receiver: Callable[[], TraceReceiver], broadcaster: Broadcaster
) -> None:
    """The other one is sent several batches while each request to the first one is open."""
    hanging, quick = make_receiver(), make_receiver()
    destinations = [broadcast_to(tenant.workspace, hanging.url) for _ in range(3)]
    stranger = factories.make_tenant()
    theirs = broadcast_to(stranger.workspace, quick.url)
    BroadcastProgress.objects.filter(pk=theirs.pk).update(batch=1)
    make_some(tenant, 1)
    ids = make_some(stranger, 6)
    hanging.gate.clear()

    def answer(line: socket.socket, head: bytes, body: bytes) -> bool:
        if len(quick.ids()) == 6:
            hanging.gate.set()
        return TAKEN(line, head, body)

    quick.scripts = [answer] * 6
    assert broadcaster.run() == 9
    assert quick.ids() == ids
    assert hanging.gate.is_set()
    # No more than two of one organization were open at a time.
    assert len(hanging.heads) == 3
    assert {progress_of(destination).failures for destination in destinations} == {0}


def test_slow_receivers_of_many_tenants_delay_no_other(
    make_receiver: Callable[[], TraceReceiver],
    tenant: Tenant,
    broadcaster: Broadcaster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tenants could take all four requests; their receivers take everything in the end."""
    monkeypatch.setattr(sender, "LIMITS", replace(sender.LIMITS, total=4, slow=2))
    slow, quick = make_receiver(), make_receiver()
    for stranger in (factories.make_tenant(), factories.make_tenant()):
        for _ in range(2):
            broadcast_to(stranger.workspace, slow.url)
        make_some(stranger, 1)
    BroadcastProgress.objects.update(mean_ms=5_000)
    mine = broadcast_to(tenant.workspace, quick.url)
    BroadcastProgress.objects.filter(pk=mine.pk).update(batch=1, succeeded_at=clock.now())
    ids = make_some(tenant, 3)
    slow.gate.clear()
    open_at_once: list[int] = []

    def answer(line: socket.socket, head: bytes, body: bytes) -> bool:
        open_at_once.append(slow.server.connections)
        if len(quick.ids()) == 3:
            slow.gate.set()
        return TAKEN(line, head, body)

    quick.scripts = [answer] * 3
    assert broadcaster.run() == 7
    assert quick.ids() == ids
    assert max(open_at_once) <= 2
    assert set(BroadcastProgress.objects.values_list("failures", flat=True)) == {0}


def test_a_destination_is_slow_by_its_last_requests(tenant: Tenant) -> None:
    destination = broadcast_to(tenant.workspace, "https://otel.example.com/v1/traces")
    made = make_past_generation(tenant)
    means = []

    def load_page() -> Page:
        loaded = load_destination(destination.pk)
        assert loaded is not None
        return Page(loaded, [made])

    for duration in (9_000, 9_000, 100, 9_000, 100, 100, 100, 100):
        store_success(load_page(), duration_ms=duration)
        means.append(progress_of(destination).mean_ms)
    assert means == [2_250, 3_937, 2_977, 4_482, 3_386, 2_564, 1_948, 1_486]
    outcome = SendingOutcome("The receiver answered with HTTP 500.", 500, duration_ms=9_000)
    store_failure(load_page(), outcome, clock.now())
    assert progress_of(destination).mean_ms == 3_364


def test_the_destinations_of_one_tenant_are_read_in_turn_with_others(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster
) -> None:
    """Destinations that pass over everything take no request, only the time to read."""
    mine = [broadcast_to(tenant.workspace, receiver.url, regions=["us"]) for _ in range(5)]
    stranger = factories.make_tenant()
    theirs = broadcast_to(stranger.workspace, receiver.url)
    # It comes last: the others have never been sent anything.
    BroadcastProgress.objects.filter(pk=theirs.pk).update(succeeded_at=clock.now())
    make_some(tenant, 1)
    [sent] = make_some(stranger, 1)
    with CaptureQueriesContext(connection) as queries:
        assert broadcaster.run() == 1
    read = [
        destination.pk
        for query in queries.captured_queries
        if query["sql"].startswith('SELECT "accounts_broadcastdestination"."id", ')
        for destination in (*mine, theirs)
        if destination.pk.hex in query["sql"]
    ]
    assert read[2] == theirs.pk
    assert set(read) == {theirs.pk, *(destination.pk for destination in mine)}
    assert receiver.ids() == [sent]


def test_a_destination_whose_row_is_locked_delays_no_other_tenant(
    transactional_db: None,
    receiver: TraceReceiver,
    broadcaster: Broadcaster,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    mine, stranger = factories.make_tenant(), factories.make_tenant()
    held = broadcast_to(mine.workspace, receiver.url)
    theirs = broadcast_to(stranger.workspace, receiver.url)
    make_some(mine, 1)
    make_some(stranger, 1)
    row = BroadcastProgress.objects.filter(pk=held.pk).order_by()
    with beside(broadcaster.run) as sent:
        with locked(row, strength="NO KEY UPDATE"):
            eventually(lambda: progress_of(theirs).sent == 1)
            assert progress_of(held).sent == 0
        assert sent.result(30) == 2
    assert progress_of(held).sent == 1
    assert len(receiver.heads) == 2


def test_a_page_whose_result_cannot_be_stored_is_not_sent_again_at_once(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    BroadcastProgress.objects.filter(pk=feed.destination.pk).update(batch=1)
    feed.make(3)
    monkeypatch.setattr(engine, "RUN_SECONDS", 1.0)
    with connection.cursor() as cursor:
        # PostgreSQL alters no table while deferred checks are pending.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(
            "ALTER TABLE accounts_broadcastprogress ADD CONSTRAINT nothing_sent CHECK (sent = 0)"
        )
    assert feed.run() == 0
    assert len(feed.receiver.heads) == 1
    assert feed.progress().sent == 0
    name = f"the broadcast to destination {feed.destination.pk}"
    assert f"the result of {name} is not stored: IntegrityError" in caplog.text


def test_rules_that_cannot_be_read_stop_no_other_tenant(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster
) -> None:
    """Another version of the patterns' library may refuse what is stored."""
    broken = broadcast_to(tenant.workspace, receiver.url)
    rules = rules_of({"field": "model", "operator": "regex", "value": "("})
    BroadcastDestination.objects.filter(pk=broken.pk).update(filter_rules=rules)
    stranger = factories.make_tenant()
    theirs = broadcast_to(stranger.workspace, receiver.url)
    BroadcastProgress.objects.filter(pk=theirs.pk).update(succeeded_at=clock.now())
    make_some(tenant, 1)
    [sent] = make_some(stranger, 1)
    assert broadcaster.run() == 1
    assert receiver.ids() == [sent]
    progress = progress_of(broken)
    assert (progress.last_error, progress.failures) == ("The generations cannot be read.", 1)
    # Once the rules are mended, nothing is missing.
    broken.edit(filter_rules=None)
    retry_now()
    assert broadcaster.run() == 1


def test_a_request_has_a_time_limit(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ATTEMPT_SECONDS", 0.5)
    feed.make(1)
    feed.receiver.gate.clear()
    assert feed.run() == 0
    assert feed.progress().last_error == "The receiver did not answer in time."


def test_a_run_waits_for_its_open_requests(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are open the duty keeps its lease: another process would send the same again."""
    feed.make(1)
    feed.receiver.gate.clear()
    monkeypatch.setattr(engine, "RUN_SECONDS", 0.2)
    opening = threading.Timer(0.5, feed.receiver.gate.set)
    opening.start()
    assert feed.run() == 1
    opening.join()
    assert len(feed.receiver.heads) == 1
    assert feed.progress().sent == 1


def test_a_result_after_a_new_beginning_is_dropped(tenant: Tenant) -> None:
    destination = broadcast_to(tenant.workspace, "https://otel.example.com/v1/traces")
    made = make_past_generation(tenant)
    loaded = load_destination(destination.pk)
    assert loaded is not None
    page = Page(loaded, [made], cursor_at=made.created_at, cursor_id=made.pk)
    destination.restart()
    begun = progress_of(destination).cursor_at
    assert not store_success(page)
    store_failure(page, SendingOutcome("The receiver answered with HTTP 500.", 500), clock.now())
    after = progress_of(destination)
    assert (after.cursor_at, after.sent, after.failures) == (begun, 0, 0)


def test_a_failure_of_an_earlier_receiver_does_not_pause_the_present_one(tenant: Tenant) -> None:
    destination = broadcast_to(tenant.workspace, "https://otel.example.com/v1/traces")
    BroadcastProgress.objects.update(failures=12)
    made = make_past_generation(tenant)
    loaded = load_destination(destination.pk)
    assert loaded is not None
    page = Page(loaded, [made], cursor_at=made.created_at, cursor_id=made.pk)
    moved = replace(destination.receiver(), url="https://new.example.com/v1/traces")
    assert destination.edit(find_receiver=lambda _: moved)
    assert progress_of(destination).failures == 0
    with snapshots.unchanged():
        for status in (500, 400):
            outcome = SendingOutcome("It failed.", status, retry_after=600)
            store_failure(page, outcome, clock.now())


def test_one_bad_generation_is_given_up_and_named(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    """A receiver that refuses a body gets half as much, down to the one that it refuses."""
    ids = feed.make(4)

    def refuse(line: socket.socket, head: bytes, body: bytes) -> bool:
        script = answering(b"{}", "400 Bad") if ids[1].encode() in body else TAKEN
        return script(line, head, body)

    feed.receiver.scripts = [refuse] * 20
    for _ in range(12):
        feed.run()
        retry_now()
    assert set(feed.receiver.ids()) == set(ids)
    after = feed.progress()
    assert (after.sent, after.skipped, after.failures) == (3, 1, 0)
    assert ids[1] in named_as_given_up(caplog)


def test_rejected_spans_are_counted_and_not_sent_again(feed: Feed) -> None:
    feed.make(3)
    partial = b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}'
    feed.receiver.scripts = [answering(partial)]
    assert feed.run() == 1
    assert feed.run() == 0
    after = feed.progress()
    assert (after.sent, after.skipped, len(feed.receiver.heads)) == (1, 2, 1)


def test_a_number_of_rejected_spans_that_is_none_is_left_out(feed: Feed) -> None:
    feed.make(1)
    feed.receiver.scripts = [answering(b'{"partialSuccess": {"rejectedSpans": 1e999}}')]
    assert feed.run() == 1
    after = feed.progress()
    assert (after.sent, after.skipped, after.failures) == (1, 0, 0)


def test_what_was_not_taken_for_a_day_is_given_up(
    tenant: Tenant,
    receiver: TraceReceiver,
    broadcaster: Broadcaster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    day = 24 * 60
    destination = broadcast_to(tenant.workspace, receiver.url, minutes=2 * day)
    old = [make_past_generation(tenant, minutes=day + minutes).pk for minutes in (9, 8, 7)]
    young = make_past_generation(tenant, minutes=5)
    receiver.scripts = [answering(status="500 No")]
    assert broadcaster.run() == 0
    after = progress_of(destination)
    assert (after.skipped, after.failures) == (3, 1)
    said = f"3 generations are given up (not taken for a day): {old[0]} to {old[-1]}"
    assert said in named_as_given_up(caplog)
    retry_now()
    assert broadcaster.run() == 1
    assert receiver.ids()[-1] == young.pk


def test_the_egress_policy_holds_when_it_is_sent(feed: Feed, settings: Any) -> None:
    """An address that became forbidden after the destination was made gets no connection."""
    feed.make(1)
    allowed = settings.EGRESS_POLICY
    settings.EGRESS_POLICY = replace(allowed, allowed_networks=())
    assert feed.run() == 0
    assert feed.receiver.server.connections == 0
    assert feed.progress().last_error == "The receiver could not be reached."
    settings.EGRESS_POLICY = allowed
    retry_now()
    assert feed.run() == 1


def test_lost_headers_are_said(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster, settings: Any
) -> None:
    config = {"headers": {"Authorization": SECRET}}
    destination = broadcast_to(tenant.workspace, receiver.url, config=config)
    make_some(tenant, 1)
    settings.CREDENTIAL_KEYS = [bytes(32)]
    assert broadcaster.run() == 0
    error = "The stored headers cannot be read. Enter them again."
    assert progress_of(destination).last_error == error
    assert receiver.server.connections == 0


def test_a_secret_goes_to_its_receiver_alone(
    tenant: Tenant,
    make_receiver: Callable[[], TraceReceiver],
    broadcaster: Broadcaster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    mine, other = make_receiver(), make_receiver()
    config = {"headers": {"Authorization": SECRET}}
    destination = broadcast_to(tenant.workspace, mine.url, config=config)
    broadcast_to(tenant.workspace, other.url)
    make_some(tenant, 1)
    mine.scripts = [answering(SECRET.encode(), status="500 No")]
    broadcaster.run()
    assert f"Authorization: {SECRET}" in mine.heads[0].split("\r\n")
    assert "canary" not in str(other.server.requests)
    assert "canary" not in caplog.text
    assert "canary" not in str(vars(progress_of(destination)))


def test_figures(tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster) -> None:
    def read() -> dict[str, float]:
        return {each.name: each.samples[0].value for each in BroadcastCollector().collect()}

    lag, failing = "causeway_broadcast_lag_seconds", "causeway_broadcast_failing_destinations"
    assert read() == {lag: 0, failing: 0}
    broadcast_to(tenant.workspace, receiver.url, minutes=10)
    assert 590 < read()[lag] < 660
    # A slow one is its owner's affair.
    BroadcastProgress.objects.update(mean_ms=5_000)
    assert read() == {lag: 0, failing: 0}
    BroadcastProgress.objects.update(mean_ms=0)
    make_some(tenant, 1)
    receiver.scripts = [answering(status="500 No")]
    broadcaster.run()
    assert read() == {lag: 0, failing: 1}


def test_the_key_that_made_a_generation_may_be_gone(feed: Feed) -> None:
    generation = make_past_generation(feed.tenant)
    ApiKey.objects.get(pk=generation.api_key_id).revoke()
    assert feed.run() == 1


def test_rules_that_take_too_long_fail_their_destination_alone(
    tenant: Tenant,
    receiver: TraceReceiver,
    broadcaster: Broadcaster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = rules_of({"field": "model", "operator": "regex", "value": "."})
    slow = broadcast_to(tenant.workspace, receiver.url, filter_rules=rules)
    other = factories.make_tenant("Other")
    broadcast_to(other.workspace, receiver.url)
    make_some(tenant, 2)
    [sent] = make_some(other, 1)
    monkeypatch.setattr(reading, "_TEST_SECONDS", -1.0)
    # Every test takes too long; rules without a regular expression take no time.
    assert broadcaster.run() == 0
    assert progress_of(slow).failures == 1
    assert "take too long" in progress_of(slow).last_error
    monkeypatch.undo()
    retry_now()
    assert broadcaster.run() == 3
    assert sent in receiver.ids()


def test_expressions_take_less_than_a_quarter_of_a_minute(
    tenant: Tenant,
    receiver: TraceReceiver,
    broadcaster: Broadcaster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expressions = [{"field": "model", "operator": "regex", "value": f"{n}"} for n in range(20)]
    rules = rules_of(*expressions, logic="or")
    own = [broadcast_to(tenant.workspace, receiver.url, filter_rules=rules) for _ in range(5)]
    other = factories.make_tenant("Other")
    broadcast_to(other.workspace, receiver.url)
    make_some(tenant, 12)
    sent = make_some(other, 1)
    # Between two looks at the clock, an eighth of a second of CPU.
    looks = count()
    clock_of_looks = SimpleNamespace(thread_time=lambda: next(looks) / 8, monotonic=time.monotonic)
    for module in (reading, sender):
        monkeypatch.setattr(module, "time", clock_of_looks)
    for _ in range(3):
        broadcaster.run()
        retry_now()
    # Each page of a destination ends after nine tests, behind the first second.
    assert sum(progress_of(each).failures for each in own) == 5
    assert broadcaster._spent[tenant.organization.pk][1] == 5 * 2.375 < sender._WINDOW / 4
    assert receiver.ids() == sent


def test_an_organization_whose_reading_took_long_waits_for_the_next_minute(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_SECONDS", 0.0)
    feed.make(1)
    assert feed.run() == 1
    rewind(feed.destination)
    other = factories.make_tenant("Other")
    broadcast_to(other.workspace, feed.receiver.url)
    make_some(other, 1)
    assert feed.run() == 1
    monkeypatch.setattr(sender, "_SECONDS", 60.0)
    assert feed.run() == 1


def test_what_the_reading_took_is_forgotten_after_its_minute(feed: Feed) -> None:
    feed.make(1)
    assert feed.run() == 1
    feed.broadcaster.begin_run()
    assert list(feed.broadcaster._spent) == [feed.tenant.organization.pk]
    # Its minute is over.
    feed.broadcaster._spent = {feed.tenant.organization.pk: (0.0, 1.0)}
    feed.broadcaster.begin_run()
    assert not feed.broadcaster._spent
