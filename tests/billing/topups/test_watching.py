"""Tests the watcher under faults, kills and races."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection

from billing import verification as audit
from billing.checks import check_left_chains
from billing.ledger import BeingArchived
from billing.models import ChainState, Deposit, TopUp, Transfer
from billing.topups import matching, watcher
from billing.topups import node as chain_module
from billing.topups.chains import Chain
from config.clocks.clock import clock
from config.management.commands import work
from config.models import Lease
from inference.archive.sealing import list_sealed, unseal
from tests.support.chains.node_faults import FAULTS, failing_after, limited_to, mine, ranges
from tests.support.chains.nodes import (
    Answers,
    Anvil,
    Contract,
    Front,
    before,
    chain_of,
    deploy,
    http_response,
)
from tests.support.chains.payments import ask, look, node_of
from tests.support.chains.watching import Offer, ask_and_pay, credited, found, status
from tests.support.database import archive
from tests.support.factories import Tenant
from tests.support.machine.logs import own_lines
from tests.support.machine.waiting import wait_until


def test_watcher_continues_from_the_cursor_after_an_outage_of_the_node(
    tenant: Tenant, token: Contract, front: Front, offer: Offer, fronted: Chain
) -> None:
    top_up = ask_and_pay(tenant, fronted, token)
    gone = offer(chain_of(token, url="http://127.0.0.1:1/v2/node-key"))
    assert look(gone) == 0
    state = ChainState.objects.get()
    assert (state.failures, state.failure) == (1, "The call of the node failed: could not connect.")
    assert state.retry_at is not None
    # The watcher does not call the node before that time, although the node works again.
    front.calls.clear()
    assert watcher.watch_chain(offer(fronted), node_of(fronted)) == 0
    assert front.calls == []
    assert look(fronted) == 1
    state.refresh_from_db()
    assert (state.failures, state.failure, state.retry_at) == (0, "", None)
    assert credited(tenant) == [top_up.units * 1_000]


def test_record_failure_doubles_the_delay_and_respects_retry_after(chain: Chain) -> None:
    state = ChainState.objects.get()
    waits = []
    for _ in range(8):
        before_it = clock.now()
        state.record_failure("x", None)
        assert state.retry_at is not None
        waits.append(round((state.retry_at - before_it).total_seconds()))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    before_it = clock.now()
    state.record_failure("x", 1_000.0)
    assert state.retry_at is not None
    assert round((state.retry_at - before_it).total_seconds()) == 1_000
    state.record_success()
    before_it = clock.now()
    state.record_failure("x", 0.5)
    assert round((state.retry_at - before_it).total_seconds()) == 5


def test_a_start_of_work_ends_the_wait_of_a_verified_chain(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    ChainState.objects.get().record_failure("x", 3_600.0)
    assert watcher.watch_chain(chain, node_of(chain)) == 0
    watcher.ask_for_tokens()
    assert watcher.watch_chain(chain, node_of(chain)) == 1
    assert credited(tenant) == [top_up.units * 1_000]


@pytest.mark.parametrize("has_confirmed_token", [True, False])
def test_work_once_keeps_the_wait_that_a_node_asked_for(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, has_confirmed_token: bool
) -> None:
    monkeypatch.setattr(work, "DUTIES", ())
    state = ChainState.objects.get()
    if not has_confirmed_token:
        ChainState.objects.update(token_verified="", token_checked_at=None)
    state.record_failure("x", 3_600.0)
    for _ in range(2):
        call_command("work", once=True)
    assert ChainState.objects.get().retry_at == state.retry_at


def test_work_once_ends_the_wait_of_a_refused_token(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "DUTIES", ())
    state = ChainState.objects.get()
    state.record_token(None)
    state.record_failure("x", None)
    call_command("work", once=True)
    assert ChainState.objects.get().retry_at is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_node_neither_loses_nor_duplicates_a_credit(
    name: str, tenant: Tenant, token: Contract, front: Front, fronted: Chain
) -> None:
    fault, _, message = FAULTS[name]
    cursor = ChainState.objects.get().cursor
    assert cursor is not None
    top_ups = [ask(tenant, fronted, token.payers[0]) for _ in range(3)]
    message = message.format(
        block=cursor.number + 1, last=cursor.number + 2, tx_hash=token.pay(top_ups[0].units)
    )
    token.pay_twice(top_ups[1].units, top_ups[2].units)

    front.fault = fault
    assert look(fronted) == 0
    state = ChainState.objects.get()
    assert (state.cursor, state.failure, state.halted_at) == (cursor, message, None)
    assert (found(), credited(tenant)) == ([], [])
    assert audit.find_differences() == []

    front.fault = lambda calls, answers: answers
    assert [look(fronted), look(fronted)] == [3, 0]
    assert credited(tenant) == [top_up.units * 1_000 for top_up in top_ups]


def test_a_failure_at_any_call_neither_loses_nor_duplicates_a_credit(
    tenant: Tenant, token: Contract, front: Front, fronted: Chain
) -> None:
    paid = []
    for fails_at in itertools.count():
        top_up = ask_and_pay(tenant, fronted, token)
        paid.append(top_up.units * 1_000)
        left = itertools.count()

        def failing(
            calls: Answers, answers: Answers, left: Any = left, fails_at: int = fails_at
        ) -> Answers | bytes:
            return http_response(b"", "502 Bad Gateway") if next(left) == fails_at else answers

        front.fault = failing
        look(fronted)
        failed = ChainState.objects.get().failures
        front.fault = lambda calls, answers: answers
        look(fronted)
        assert credited(tenant) == paid
        if not failed:
            break
    # The four calls are: chain and heads, logs, receipt, time of the block.
    assert fails_at == 4


class Killed(BaseException):
    """Simulates a kill; no handler in the product catches it."""


@contextmanager
def killed_at(statement: int) -> Iterator[list[str]]:
    """Kills the watcher of this thread before it runs statement number ``statement``."""
    done: list[str] = []

    def run(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if len(done) == statement:
            raise Killed
        done.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(run):
        yield done


@pytest.mark.django_db(transaction=True)
def test_a_kill_at_any_statement_neither_loses_nor_duplicates_a_credit(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    paid: list[int] = []
    seen: set[tuple[int, int]] = set()
    for statement in itertools.count():
        top_up = ask_and_pay(tenant, chain, token)
        token.pay(7)
        ChainState.objects.update(retry_at=None)
        try:
            with killed_at(statement):
                watcher.watch_chain(chain, node_of(chain))
            is_killed = False
        except Killed:
            is_killed = True
        seen.add((Deposit.objects.received().count(), len(credited(tenant)) - len(paid)))
        assert audit.find_differences() == []
        look(chain)
        paid.append(top_up.units * 1_000)
        assert credited(tenant) == paid
        assert Deposit.objects.received().count() == 0
        assert Deposit.objects.count() == 2 * len(paid)
        if not is_killed:
            break
    # Each pair counts received deposits and new credits: the kill came before the batch was
    # stored, after it was stored, after the first match, and after the last match.
    assert seen == {(0, 0), (2, 0), (1, 1), (0, 1)}


@pytest.mark.django_db(transaction=True)
def test_concurrent_watchers_credit_each_payment_once(
    tenant: Tenant, chain: Chain, token: Contract, together: Callable[..., list[Any]]
) -> None:
    top_ups = [ask(tenant, chain, token.payers[0]) for _ in range(2)]
    for top_up in top_ups:
        token.pay(top_up.units)
    counts = together(*[lambda: watcher.watch_chain(chain, node_of(chain))] * 32)
    assert sum(counts) == 2
    assert sorted(credited(tenant)) == sorted(top_up.units * 1_000 for top_up in top_ups)
    assert ChainState.objects.get().failures == 0


@pytest.mark.django_db(transaction=True)
def test_concurrent_matches_of_one_deposit_make_one_credit(
    tenant: Tenant, chain: Chain, token: Contract, together: Callable[..., list[Any]]
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    state = ChainState.objects.get()
    assert watcher.read_payments(chain, node_of(chain), state) is True
    pk = Deposit.objects.get().pk
    results = together(*[lambda: matching.match_deposit(Deposit.objects.get(pk=pk))] * 32)
    assert sorted(results) == [False] * 31 + [True]
    assert credited(tenant) == [top_up.units * 1_000]


def test_store_batch_refuses_a_batch_that_another_watcher_stored(
    chain: Chain, token: Contract
) -> None:
    token.pay(7)
    mine_state, other = ChainState.objects.get(), ChainState.objects.get()
    ((payments, cursor),) = node_of(chain).scan(mine_state.cursor)
    assert Deposit.objects.store_batch(other, chain, payments, cursor) is True
    assert Deposit.objects.store_batch(mine_state, chain, payments, cursor) is False
    assert Deposit.objects.count() == 1


def test_watcher_reads_a_long_range_in_several_rounds(
    chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "FIRST_SPAN", 1)
    monkeypatch.setattr(chain_module, "MAX_SPAN", 1)
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
    for units in (1, 2, 3):
        token.pay(units)
    assert [look(chain) for _ in range(4)] == [1, 1, 1, 0]


def test_scanned_at_changes_only_when_a_round_reaches_the_head(
    chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "MAX_SPAN", 1)
    monkeypatch.setattr(watcher, "MAX_SPAN", 1)
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
    before_it = ChainState.objects.get().scanned_at
    for units in (1, 2):
        token.pay(units)
    stamped = []
    for _ in range(3):
        look(chain)
        stamped.append(ChainState.objects.get().scanned_at != before_it)
    assert stamped == [False, False, True]


def test_watcher_reads_many_payments_from_a_rate_limited_node_in_several_rounds(
    tenant: Tenant, token: Contract, front: Front, fronted: Chain
) -> None:
    """Checks that small payments of strangers do not delay a payment for ever."""
    for units in range(1, 8):
        token.pay(units)
    top_up = ask_and_pay(tenant, fronted, token)
    limit = http_response(b"", "429 Too Many Requests")
    rounds = []
    for _ in range(3):
        front.fault = failing_after(3, limit)
        count = look(fronted)
        state = ChainState.objects.get()
        rounds.append((count, state.failures))
    # A round that stored blocks restarts the count of failures, which sets the delay.
    assert rounds == [(3, 1), (3, 1), (2, 0)]
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_round_that_reaches_its_time_limit_keeps_the_blocks_that_it_read(
    chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
    for units in (1, 2, 3):
        token.pay(units)
    assert [look(chain) for _ in range(4)] == [1, 1, 1, 0]


def test_watcher_reads_unconfirmed_blocks_from_a_limited_node_and_stores_its_span(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 40)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=32))
        front.fault = limited_to(10)
        look(chain)
        top_up = ask_and_pay(tenant, chain, token)
        look(chain)
        state = ChainState.objects.get()
        assert (status(top_up), state.failures, state.latest_number) == (
            "seen", 0, top_up.block_number,
        )  # fmt: skip
        assert state.span == 16
        front.calls.clear()
        look(chain)
        assert ranges(front) == [16, 8, 16, 8, 16, 8, 8]


def test_a_round_that_reaches_its_time_limit_leaves_the_later_unconfirmed_blocks(
    tenant: Tenant, anvil: Anvil, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = deploy(anvil)
    mine(anvil, 10)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=6))
        look(chain)
        first = ask_and_pay(tenant, chain, token)
        look(chain)
        second = ask_and_pay(tenant, chain, token)
        monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
        ChainState.objects.update(span=1)
        look(chain)
        assert (status(first), status(second)) == ("seen", "open")
        ChainState.objects.update(span=1)
        front.calls.clear()
        look(chain)
        assert (status(first), status(second), ranges(front)) == ("seen", "open", [1])
        monkeypatch.undo()
        look(chain)
        assert (status(first), status(second)) == ("seen", "seen")


def test_a_refused_read_of_unconfirmed_blocks_is_not_a_failure(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 10)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=2))
        look(chain)
        ask(tenant, chain, token.payers[0])
        front.fault = limited_to(0)
        look(chain)
        state = ChainState.objects.get()
        assert (state.failures, state.failure, state.retry_at) == (0, "", None)


def test_a_lagging_node_does_not_reopen_a_seen_top_up(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 10)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=6))
        look(chain)
        top_up = ask_and_pay(tenant, chain, token)
        look(chain)

        def lagging(calls: Answers, answers: Answers) -> Answers:
            if calls[0]["method"] == "eth_getLogs":
                answers[0]["result"], answers[1]["result"] = [], None
            return answers

        span = ChainState.objects.get().span
        front.fault = lagging
        look(chain)
        state = ChainState.objects.get()
        assert (status(top_up), state.failures, state.span) == ("seen", 0, span)


def test_watcher_reads_no_unconfirmed_blocks_without_a_payable_top_up(
    token: Contract, front: Front, fronted: Chain
) -> None:
    token.pay(5)
    front.calls.clear()
    look(fronted)
    assert [wanted["toBlock"] for (wanted,) in front.asked("eth_getLogs")] == [
        hex(ChainState.objects.get().number or 0)
    ]


def test_watch_due_chains_watches_each_chain_under_its_lease(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    assert [watcher.watch_due_chains(), watcher.watch_due_chains()] == [1, 0]
    assert Lease.objects.filter(name=f"watch_chain_{chain.chain_id}").count() == 1
    assert credited(tenant) == [top_up.units * 1_000]


def test_an_unexpected_error_on_one_chain_does_not_stop_the_others(
    tenant: Tenant, chain: Chain, token: Contract, settings: Any
) -> None:
    # The missing URL stands for an unexpected error.
    broken = dataclasses.replace(chain, chain_id=5, rpc_url=cast(str, None))
    settings.CHAINS = {5: broken, **settings.CHAINS}
    top_up = ask_and_pay(tenant, chain, token)
    assert watcher.watch_due_chains() == 1
    assert credited(tenant) == [top_up.units * 1_000]
    state = ChainState.objects.get(chain_id=5)
    assert (state.failures, state.failure) == (
        1,
        "The round ended in an unexpected error; see the log.",
    )


def test_a_chain_that_left_the_settings_before_its_top_ups_were_read_is_named(
    tenant: Tenant, chain: Chain, token: Contract, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ask_and_pay(tenant, chain, token)
    look(chain)
    top_ups = [ask(tenant, chain, token.payers[0]) for _ in range(2)]
    assert check_left_chains() == []
    settings.CHAINS = {}
    warning = (
        f"Chain {chain.chain_id} has 2 reserved top-ups and is not in CHAIN_RPC_URLS, so their "
        "payments are not credited. Put it back until it has been read past "
        f"{top_ups[1].payable_until:%Y-%m-%d %H:%M} UTC."
    )
    assert [(found.id, found.msg) for found in check_left_chains()] == [("billing.W001", warning)]
    with pytest.raises(SystemCheckError, match=re.escape(warning)):
        call_command("check", "--deploy", "--tag", "security", "--fail-level", "WARNING")
    with caplog.at_level(logging.WARNING, "causeway.chain"):
        call_command("work", once=True)
    told = [record for record in caplog.records if record.name == "causeway.chain"]
    assert [record.getMessage() for record in told] == [warning]


def test_a_deposit_that_cannot_be_matched_does_not_stop_the_others(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(7)
    look(chain)
    facts = {
        field.attname: getattr(Deposit.objects.get(), field.attname)
        for field in Deposit._meta.concrete_fields
        if field.attname not in ("id", "status", "finding")
    }
    end = datetime.max.replace(tzinfo=UTC)
    Deposit.objects.create(**{**facts, "ordinal": 99, "mined_at": end})
    top_up = ask_and_pay(tenant, chain, token)
    assert look(chain) == 1
    assert [name for name, _ in found()] == ["unmatched", "received", "credited"]
    assert credited(tenant) == [top_up.units * 1_000]


def test_a_payment_waits_while_the_first_partition_is_archived(
    tenant: Tenant, chain: Chain, token: Contract, caplog: pytest.LogCaptureFixture
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    archive.seal_oldest(Transfer)
    with caplog.at_level(logging.WARNING, "causeway.chain"):
        assert look(chain) == 0
    assert (found(), credited(tenant)) == ([("received", top_up.units)], [])
    assert status(top_up) == "seen"
    deposit = Deposit.objects.get()
    assert set(own_lines(caplog)) == {f"{deposit.reference} waits: {BeingArchived.message}"}
    unseal(list_sealed())
    assert look(chain) == 1
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_chain_is_read_up_to_the_time_of_its_newest_block(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has stopped answers as before, and is late."""
    look(chain)
    mined_at = node_of(chain).read_block(ChainState.objects.get().latest_number or 0).mined_at
    present = mined_at + timedelta(hours=2)
    monkeypatch.setattr(clock, "now", lambda: present)
    look(chain)
    state = ChainState.objects.get()
    assert (state.scanned_at, state.failures) == (mined_at, 0)


def test_a_worker_credits_a_payment(tenant: Tenant, chain: Chain, token: Contract) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    call_command("work", once=True)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


@pytest.mark.django_db(transaction=True)
def test_a_silent_node_does_not_delay_the_other_duties_of_a_worker(
    tenant: Tenant, token: Contract, front: Front, fronted: Chain
) -> None:
    top_up = ask_and_pay(tenant, fronted, token)
    asked, answers_now = threading.Event(), threading.Event()
    others = {"sweep_generations", "clear_sessions", "watch_chains"}

    def silent(calls: Answers, answers: Answers) -> Answers:
        asked.set()
        answers_now.wait(60)
        return answers

    def end_the_worker() -> None:
        asked.wait(60)
        try:
            wait_until(lambda: others <= set(Lease.objects.values_list("name", flat=True)))
            answers_now.set()
            wait_until(lambda: TopUp.objects.get().status == "confirmed")
        finally:
            answers_now.set()
            connection.close()
            os.kill(os.getpid(), signal.SIGTERM)

    front.fault = silent
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ender = threading.Thread(target=end_the_worker)
    ender.start()
    try:
        call_command("work")
    finally:
        ender.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])
