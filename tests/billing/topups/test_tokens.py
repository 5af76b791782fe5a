"""Tests that a chain is offered and read only with the token that its contract is."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from billing.checks import check_tokens
from billing.models import ChainState, Deposit
from billing.topups import matching, watcher
from billing.topups.chains import Chain, Token, parse_address
from billing.topups.node import TokenRefused
from billing.topups.rpc import ChainUnavailable
from config.api.errors import GatewayError
from tests.support.chains.node_faults import STRANGER, of, refusing
from tests.support.chains.nodes import Answers, Anvil, Contract, Front, chain_of, deploy
from tests.support.chains.payments import ask, look, node_of
from tests.support.chains.watching import Offer, ask_and_pay, credited, found, status, watch_anvil
from tests.support.factories import Tenant
from tests.support.machine.logs import own_lines


def with_token(chain: Chain, **fields: Any) -> Chain:
    return replace(chain, token=replace(chain.token, **fields))


def test_a_token_with_eighteen_decimals_is_paid_in_the_sixth_decimal(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil, supply=10**30, decimals=18)
    chain = offer(chain_of(token, confirmations=1, decimals=18))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0], usd_cents=10_000)
    tail, rest = divmod(top_up.units - 100 * 10**18, 10**12)
    assert (rest, tail in range(1, 10_000)) == (0, True)
    assert top_up.amount_text == f"100.{tail:06d}000000000000 TUSD"
    token.pay(top_up.units)
    anvil.rpc("anvil_mine", "0x2")
    assert look(chain) == 1
    assert credited(tenant) == [100 * 10**9 + tail * 1_000]


@pytest.mark.parametrize(("on_chain", "configured"), [(18, 6), (6, 18)])
def test_wrong_decimals_refuse_the_chain_by_name_until_they_are_corrected(
    on_chain: int, configured: int, tenant: Tenant, anvil: Anvil, offer: Offer,
    operator: Client, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    token = deploy(anvil, supply=10**30, decimals=on_chain)
    chain = offer(chain_of(token, confirmations=1, decimals=configured))
    message = (
        f"CHAIN_TOKENS: chain 8453: the contract {token.address} has {on_chain} decimals, and the "
        f"settings say {configured}."
    )
    with caplog.at_level(logging.ERROR, "causeway.chain"):
        assert [look(chain), look(chain)] == [0, 0]
    assert own_lines(caplog) == [f"Base is refused: {message}"] * 2
    state = ChainState.objects.get()
    assert (state.cursor, state.failure, state.failures) == (None, message, 2)
    with pytest.raises(GatewayError, match=r"^Top-ups on Base are not offered, because its token"):
        ask(tenant, chain, token.payers[0])
    page = operator.get(reverse("admin:billing_chainstate_change", args=(8453,)))
    text = page.content.decode().replace("<wbr>", "")
    assert (">refused<" in "".join(text.split()), message in text) == (True, True)
    assert [(found.id, found.msg) for found in check_tokens()] == [("billing.E001", message)]

    right = offer(with_token(chain, decimals=on_chain))
    watcher.ask_for_tokens()
    assert watcher.watch_chain(right, node_of(right)) == 0
    assert check_tokens() == []
    top_up = ask_and_pay(tenant, right, token)
    anvil.rpc("anvil_mine", "0x2")
    assert look(right) == 1
    assert credited(tenant) == [top_up.units * 10**9 // 10**on_chain]


def test_a_chain_whose_decimals_were_changed_is_neither_offered_nor_read(
    tenant: Tenant, chain: Chain, token: Contract, offer: Offer
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    wrong = offer(with_token(chain, decimals=8))
    with pytest.raises(GatewayError, match=r"^The service does not read .* yet\."):
        ask(tenant, wrong, token.payers[0])
    assert (look(wrong), found(), status(top_up)) == (0, [], "open")
    with pytest.raises(GatewayError, match=r"^Top-ups on .* are not offered, because its token"):
        ask(tenant, wrong, token.payers[0])
    offer(chain)
    assert (look(chain), credited(tenant)) == (1, [top_up.units * 1_000])


def test_a_top_up_of_wrong_decimals_is_not_credited_after_the_correction(
    tenant: Tenant, chain: Chain, token: Contract, offer: Offer
) -> None:
    """A release that asked no contract could have created such a top-up."""
    ChainState.objects.update(token_verified=str(replace(chain.token, decimals=8)))
    top_up = ask(tenant, offer(with_token(chain, decimals=8)), token.payers[0])
    offer(chain)
    token.pay(top_up.units)
    assert look(chain) == 1
    assert found() == [("unmatched", top_up.units)]
    assert (credited(tenant), status(top_up)) == ([], "open")


def test_a_stored_payment_waits_until_the_token_is_confirmed(
    tenant: Tenant, chain: Chain, token: Contract, front: Front
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    state = ChainState.objects.get()
    watcher.read_payments(chain, node_of(chain), state)
    assert found() == [("received", top_up.units)]
    ChainState.objects.update(token_verified="")
    front.fault = refusing(-32603, "eth_getCode")
    assert look(replace(chain, rpc_url=front.url)) == 0
    assert found() == [("received", top_up.units)]
    assert (look(chain), credited(tenant)) == (1, [top_up.units * 1_000])


def test_an_address_without_a_contract_is_refused(db: None, offer: Offer, token: Contract) -> None:
    address = parse_address(STRANGER)
    chain = offer(with_token(chain_of(token), contract=address))
    look(chain)
    state = ChainState.objects.get()
    assert state.failure == (
        f"CHAIN_TOKENS: chain {chain.chain_id}: the contract {address} does not exist on this "
        "chain."
    )
    assert (state.cursor, state.token_verified) == (None, "")


@pytest.mark.parametrize(
    "code",
    [
        "0x60006000fd",  # REVERT
        "0xfe",  # INVALID
        "0x00",  # STOP: an empty answer
        "0x61010060005260206000f3",  # 256, which is no uint8
    ],
)
def test_a_contract_that_is_no_token_is_refused(code: str, anvil: Anvil, token: Contract) -> None:
    anvil.rpc("anvil_setCode", STRANGER, code)
    address = parse_address(STRANGER)
    chain = replace(chain_of(deploy(anvil)), token=Token(address, 6, "TUSD"))
    with pytest.raises(TokenRefused) as caught:
        node_of(chain).check_token(chain.token)
    assert str(caught.value) == (
        f"CHAIN_TOKENS: chain 8453: the contract {address} does not tell its decimals, so it is no "
        "token."
    )


def test_another_symbol_is_only_told(
    tenant: Tenant, chain: Chain, offer: Offer, caplog: pytest.LogCaptureFixture, token: Contract
) -> None:
    other = offer(with_token(chain, symbol="USDT"))
    watcher.ask_for_tokens()
    look(other)
    assert own_lines(caplog) == [
        f"{chain.name}: the token calls itself TUSD, and CHAIN_TOKENS says USDT"
    ]
    assert ask(tenant, other, token.payers[0]).token_symbol == "USDT"
    assert [found.msg for found in check_tokens()] == [
        f"{chain.name}: the token calls itself TUSD, not USDT."
    ]


@pytest.mark.parametrize(
    ("data", "symbol"),
    [
        ("0x" + b"MKR".ljust(32, b"\0").hex(), "MKR"),
        ("0x" + f"{32:064x}{5:064x}" + "USD₮".encode().ljust(32, b"\0").hex(), "USD"),
        ("0x" + f"{32:064x}{6:064x}" + "USD₮".encode().ljust(32, b"\0").hex(), "USD₮"),
        ("0x" + f"{32:064x}{2**255:064x}" + b"T\nUSD\0".ljust(32, b"\0").hex(), "TUSD"),
        ("0x", ""),
        ("0x0", ""),
    ],
)
def test_symbols_of_old_and_odd_tokens_are_read(
    data: str, symbol: str, token: Contract, front: Front
) -> None:
    def answer(calls: Answers, answers: Answers) -> Answers:
        for asked, given in zip(calls, answers, strict=True):
            if asked["method"] == "eth_call" and asked["params"][0]["data"] == "0x95d89b41":
                given["result"] = data
        return answers

    front.fault = answer
    chain = chain_of(token, url=front.url)
    assert node_of(chain).check_token(chain.token) == symbol


def test_a_node_that_does_not_tell_stops_no_offer_and_no_credit(
    tenant: Tenant, token: Contract, front: Front, fronted: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    watcher.ask_for_tokens()
    front.fault = refusing(-32601, "eth_call")
    top_up = ask_and_pay(tenant, fronted, token)
    message = "The node refused eth_call with error -32601."
    with caplog.at_level(logging.WARNING, "causeway.chain"):
        assert (look(fronted), credited(tenant)) == (1, [top_up.units * 1_000])
    assert own_lines(caplog) == [f"{fronted.name}: its token cannot be checked again: {message}"]
    state = ChainState.objects.get()
    assert (state.failures, state.token_checked_at) == (0, None)
    assert ask(tenant, fronted, token.payers[0]).status == "open"
    told = f"The token of {fronted.name} could not be checked. {message}"
    assert [(found.id, found.msg) for found in check_tokens()] == [("billing.I001", told)]
    # Asked once more, and then no more.
    front.fault = lambda calls, answers: answers
    look(fronted)
    front.calls.clear()
    look(fronted)
    assert front.asked("eth_call") == []


def test_check_deploy_names_the_chain(db: None, token: Contract, offer: Offer) -> None:
    offer(with_token(chain_of(token), decimals=18))
    with pytest.raises(Exception, match=r"has 6 decimals, and the settings say 18\."):
        call_command("check", "--deploy", "--tag", "security")
    call_command("check")


def test_a_transfer_beyond_every_amount_waits_for_review(
    tenant: Tenant, chain: Chain, token: Contract, operator: Client
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pretend(token.payers[0], 2**256 - 1)
    assert [look(chain), look(chain)] == [1, 0]
    assert found() == [("over", 2**256 - 1)]
    deposit = Deposit.objects.get()
    assert (deposit.amount_nano, status(top_up)) == ((2**256 - 1) * 1_000, "review")
    page = operator.get(reverse("admin:billing_deposit_change", args=(deposit.pk,)))
    assert (page.status_code, deposit.amount_text in page.content.decode()) == (200, True)
    with pytest.raises(matching.NotCreditable):
        matching.credit(deposit, tenant.organization.pk, by="operator ann")
    assert (credited(tenant), found()) == ([], [("over", 2**256 - 1)])


WAITS: list[tuple[Any, float]] = [
    ({"backoff_seconds": 17}, 17.0),
    ({"rate": {"backoff_seconds": 30, "current_rps": 13.3}}, 30.0),
    ({"backoff_seconds": "7.5"}, 7.5),
    ({"backoff_seconds": 0.25}, 0.25),
    ({"backoff_seconds": 1e9}, 3600.0),
    ({"backoff_seconds": None, "rate": {"backoff_seconds": "30"}}, 30.0),
]


@pytest.mark.parametrize(("data", "seconds"), WAITS)
@pytest.mark.parametrize("place", ["call", "batch", "429", "400"])
def test_a_wait_in_an_error_is_waited_for_and_narrows_no_range(
    data: Any, seconds: float, place: str, token: Contract, front: Front
) -> None:
    chain = chain_of(token, url=front.url)
    node = node_of(chain)
    ((_, cursor),) = node.scan(None)
    token.pay(1)
    error = {"code": -32005, "message": "limit exceeded", "data": data}

    def limited(calls: Answers, answers: Answers) -> Answers | bytes:
        if "eth_getLogs" not in [asked["method"] for asked in calls]:
            return answers
        if place == "call":
            return [{"id": answer["id"], "error": error} for answer in answers]
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        status = {"batch": "200 OK", "429": "429 Too Many", "400": "400 Bad"}[place]
        return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)

    front.fault = limited
    span = node.span
    with pytest.raises(ChainUnavailable) as caught:
        list(node.scan(cursor))
    assert (caught.value.retry_after, node.span) == (seconds, span)
    front.fault = lambda calls, answers: answers
    ((payments, _),) = node.scan(cursor)
    assert [payment.units for payment in payments] == [1]


@pytest.mark.parametrize(
    "data", [None, [], "17", {"backoff_seconds": -1}, {"backoff_seconds": True}, {"rate": 3},
             {"backoff_seconds": "soon"}, {"backoff_seconds": None, "rate": {}}]
)  # fmt: skip
def test_data_without_a_wait_still_means_a_range_that_is_too_wide(
    data: Any, anvil: Anvil, front: Front
) -> None:
    token = deploy(anvil)
    anvil.rpc("anvil_mine", "0x10")
    front.node = anvil

    def limited(calls: Answers, answers: Answers) -> Answers:
        for asked, answer in zip(calls, answers, strict=True):
            if asked["method"] == "eth_getLogs":
                wanted = asked["params"][0]
                if int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) > 3:
                    del answer["result"]
                    answer["error"] = {"code": -32005, "message": "limit", "data": data}
        return answers

    node = node_of(chain_of(token, url=front.url, confirmations=1))
    ((_, cursor),) = node.scan(None)
    token.pay(1)
    anvil.rpc("anvil_mine", "0x10")
    front.fault = limited
    assert [payment.units for found, _ in node.scan(cursor) for payment in found] == [1]


@pytest.mark.parametrize("wait", ["9", "1.5"])
def test_the_head_of_a_retry_after_of_an_error_is_waited_for(
    token: Contract, front: Front, wait: str
) -> None:
    body = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32005, "message": "wait"}}'
    front.fault = lambda calls, answers: (
        b"HTTP/1.1 200 OK\r\nRetry-After: %s\r\nContent-Length: %d\r\n\r\n%s"
        % (wait.encode(), len(body), body)
    )
    with pytest.raises(ChainUnavailable) as caught:
        list(node_of(chain_of(token, url=front.url)).scan(None))
    assert caught.value.retry_after == float(wait)


@pytest.mark.parametrize("answer", ["error", "nothing"])
def test_a_range_beyond_the_head_of_a_node_moves_no_cursor_and_narrows_nothing(
    answer: str, anvil: Anvil, front: Front
) -> None:
    """A balancer's first node knows the block; its second one, a real anvil, does not."""
    token = deploy(anvil)
    front.node = anvil
    node = node_of(chain_of(token, url=front.url, confirmations=1))
    ((_, cursor),) = node.scan(None)
    span = node.span

    def ahead(calls: Answers, answers: Answers) -> Answers:
        for asked, given in zip(calls, answers, strict=True):
            if asked["params"][:1] == ["latest"]:
                given["result"] = {**given["result"], "number": hex(cursor.number + 11)}
            elif asked["params"][:1] == [hex(cursor.number + 10)] and len(calls) == 1:
                given["result"] = {**of_cursor, "number": hex(cursor.number + 10)}
            elif asked["method"] == "eth_getLogs" and answer == "nothing":
                given.clear()
                given.update({"id": asked["id"], "result": []})
        return answers

    of_cursor = anvil.rpc("eth_getBlockByNumber", hex(cursor.number), False)
    front.fault = ahead
    with pytest.raises(Exception, match=rf"^The node lacks block {cursor.number + 10}\.$"):
        list(node.scan(cursor))
    assert node.span == span
    with pytest.raises(ChainUnavailable, match=r"^The node has not reached the latest block yet"):
        node.read_unconfirmed(cursor, cursor.number + 11)
    assert node.span == span
    front.fault = of("eth_chainId", lambda given: given)
    anvil.rpc("anvil_mine", "0x3")
    assert [len(payments) for payments, _ in node.scan(cursor)] == [0]


def test_raised_confirmations_say_so_and_lose_nothing(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token, chain = watch_anvil(anvil, offer, blocks=10, confirmations=1)
    top_up = ask(tenant, chain, token.payers[0])
    cursor = ChainState.objects.get().cursor
    assert cursor is not None
    deeper = offer(replace(chain, confirmations=6))
    look(deeper)
    state = ChainState.objects.get()
    assert (state.cursor, state.halted_at) == (cursor, None)
    assert state.failure == (
        f"The confirmed head is block {cursor.number - 5}, but block {cursor.number} was read "
        "already: CHAIN_CONFIRMATIONS was raised, or this node lags. Reading continues when the "
        "head has passed that block."
    )
    token.pay(top_up.units)
    anvil.rpc("anvil_mine", "0x8")
    assert (look(deeper), credited(tenant)) == (1, [top_up.units * 1_000])
