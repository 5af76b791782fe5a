"""Tests how operators resolve deposits and resume or reread chains on the console."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing import verification as audit
from billing.models import Account, ChainState, Deposit, TopUp, Transfer
from billing.topups.chains import Chain
from config.audit.entries import AuditEntry
from tests.support import factories
from tests.support.chains.nodes import Contract, EthTester
from tests.support.chains.payments import ask, look
from tests.support.chains.watching import ask_and_pay
from tests.support.console import SUBMIT, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press


@pytest.fixture
def under(tenant: Tenant, chain: Chain, token: Contract) -> Deposit:
    """Returns a deposit that is one unit below the amount of its top-up."""
    ask_and_pay(tenant, chain, token, over=-1)
    look(chain)
    return Deposit.objects.get()


def text_of(client: Client, row: Any) -> str:
    """Returns a row's page without its invitations to break long words."""
    return client.get(page(row)).content.decode().replace("<wbr>", "")


def offered(client: Client, state: ChainState) -> list[bool]:
    """Returns whether the page of a chain offers to resume it, and to read it again."""
    text = text_of(client, state)
    return [f'href="{page(state, verb)}' in text for verb in ("resume", "read_again")]


def test_pages_of_billing_are_read_only(operator: Client, under: Deposit) -> None:
    account, transfer = Account.objects.first(), Transfer.objects.first()
    for row in (under, TopUp.objects.get(), ChainState.objects.get(), account, transfer):
        assert row is not None
        name = f"admin:billing_{row._meta.model_name}"
        assert operator.get(reverse(f"{name}_changelist")).status_code == 200
        assert operator.get(page(row)).status_code == 200
        assert operator.get(reverse(f"{name}_add")).status_code == 403
        assert operator.get(page(row, "delete")).status_code == 403
    with snapshots.unchanged():
        operator.post(page(under), {"units": 1, "status": "credited"})


def test_pages_show_the_payment(operator: Client, under: Deposit, chain: Chain) -> None:
    text = text_of(operator, under)
    for shown in (under.tx_hash, under.sender, under.block_hash, under.amount_text, "under"):
        assert shown in text
    assert chain.rpc_url not in text
    text = text_of(operator, ChainState.objects.get())
    assert "reading" in text
    assert chain.rpc_url not in text


def test_chain_page_shows_payable_tokens_and_recipients_removed_from_the_settings(
    operator: Client, under: Deposit, chain: Chain, offer: Callable[[Chain], Chain]
) -> None:
    state = ChainState.objects.get()
    said_of_it = f"TUSD {under.token} to {under.recipient}"
    assert said_of_it not in text_of(operator, state)
    offer(dataclasses.replace(chain, recipient=under.sender))
    assert said_of_it in text_of(operator, state)


def test_deposit_page_links_to_the_explorer_of_its_chain(operator: Client, under: Deposit) -> None:
    facts = {
        field.attname: getattr(under, field.attname)
        for field in Deposit._meta.concrete_fields
        if field.attname not in ("id", "chain_id", "status", "finding")
    }
    known = Deposit.objects.create(chain_id=8453, **facts)
    text = text_of(operator, known)
    for kind, shown in (
        ("tx", known.tx_hash),
        ("block", known.block_number),
        ("address", known.sender),
        ("token", known.token),
    ):
        assert f'href="https://basescan.org/{kind}/{shown}" target="_blank"' in text


def test_dialog_credits_a_deposit_once(operator: Client, tenant: Tenant, under: Deposit) -> None:
    with snapshots.unchanged():
        dialog = operator.get(page(under, "credit"))
    assert dialog.status_code == 200
    assert str(tenant.organization.pk) in dialog.content.decode()

    form = {"organization": str(tenant.organization.pk), "note": "one unit short"}
    response = press(operator, under, "credit", **form)

    under.refresh_from_db()
    assert (under.status, under.resolved_by, under.note) == (
        "credited", "operator operator", "one unit short",
    )  # fmt: skip
    transfer = Transfer.objects.get(kind="deposit")
    assert (transfer.posted_nano, transfer.actor) == (under.units * 1_000, "operator operator")
    assert messages_of(response) == [f"${under.units / 10**6} credited to Acme."]
    [entry] = AuditEntry.objects.filter(kind="billing.deposit")
    assert (entry.object_id, entry.actor) == (str(under.pk), "operator operator")
    assert audit.find_differences() == []

    again = press(operator, under, "credit", **form)
    assert messages_of(again) == [
        "The deposit is credited; this needs it to be unmatched or under or over or late."
    ]
    assert Transfer.objects.filter(kind="deposit").count() == 1


def test_dialog_lists_all_organizations_that_named_the_sender_and_preselects_none(
    operator: Client, tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_ups = [
        ask(other, chain, token.payers[0])
        for other in (tenant, factories.make_tenant("<b>Thief</b>"))
    ]
    token.pay(10_000_000)
    look(chain)
    text = operator.get(page(Deposit.objects.get(), "credit")).content.decode()
    for top_up, name in zip(top_ups, ("Acme", "&lt;b&gt;Thief&lt;/b&gt;"), strict=True):
        asked = f"{name} ({top_up.organization_id}) asked for {top_up.amount_text} at "
        assert f"{asked}{top_up.created_at:%Y-%m-%d %H:%M:%S} UTC: open." in text
        assert f'value="{top_up.organization_id}"' not in text


@pytest.mark.parametrize(
    "form",
    [
        {"note": "x"},
        {"organization": "x", "note": "x"},
        {"organization": "5f0f3c0e-0d7b-4c8a-9a53-2b7ad0f4b2b1", "note": "x"},
        {"organization": "", "note": "x"},
        {"organization": "{own}"},
        {"organization": "{own}", "note": " "},
        {"organization": "{own}", "note": "x" * 1_001},
    ],
)
def test_dialog_refuses_a_credit_without_an_organization_or_a_note(
    operator: Client, tenant: Tenant, under: Deposit, form: dict[str, str]
) -> None:
    form = {name: text.replace("{own}", str(tenant.organization.pk)) for name, text in form.items()}
    with snapshots.unchanged():
        operator.post(page(under, "credit"), {**SUBMIT, **form})


def test_dialog_dismisses_a_deposit(operator: Client, under: Deposit) -> None:
    response = press(operator, under, "dismiss", note="paid back")
    assert messages_of(response) == ["The deposit is dismissed."]
    under.refresh_from_db()
    assert (under.status, under.note) == ("dismissed", "paid back")
    assert Transfer.objects.filter(kind="deposit").count() == 0


@pytest.mark.parametrize("action", ["credit", "dismiss"])
def test_viewer_may_not_resolve_a_deposit(
    viewer: Client, tenant: Tenant, under: Deposit, action: str
) -> None:
    form = {**SUBMIT, "organization": str(tenant.organization.pk), "note": "x"}
    with snapshots.unchanged():
        assert viewer.post(page(under, action), form).status_code == 403
    assert viewer.get(page(under)).status_code == 200


def test_dialog_resumes_a_halted_chain(
    operator: Client, viewer: Client, tenant: Tenant, evm: EthTester, chain: Chain, token: Contract
) -> None:
    begin = ChainState.objects.get().cursor
    assert begin is not None
    snapshot = evm.rpc("evm_snapshot")
    token.pay(5)
    look(chain)
    evm.rpc("evm_revert", snapshot)
    top_up = ask_and_pay(tenant, chain, token)
    evm.rpc("evm_mine")
    look(chain)
    state = ChainState.objects.get()
    assert state.halted_at is not None
    assert "halted" in text_of(operator, state)
    assert state.number is not None

    form = {**SUBMIT, "block": begin.number}
    assert viewer.post(page(state, "resume"), form).status_code == 403
    beyond = press(operator, state, "resume", block=state.number + 1)
    assert messages_of(beyond) == [f"The block must be at most {state.number}."]
    missing = press(operator, state, "resume", block=10**9)
    assert messages_of(missing) == ["The node lacks block 1000000000."]
    assert ChainState.objects.get().halted_at == state.halted_at

    response = press(operator, state, "resume", block=begin.number)
    assert messages_of(response) == [f"{state} is read again after block {begin.number}."]
    look(chain)
    top_up.refresh_from_db()
    assert top_up.status == "confirmed"
    again = press(operator, state, "resume", block=begin.number)
    assert messages_of(again) == [f"{state} is not halted."]


def test_dialog_rereads_a_chain(operator: Client, viewer: Client, chain: Chain) -> None:
    state = ChainState.objects.get()
    assert state.number is not None
    assert offered(operator, state) == [False, True]
    form = {**SUBMIT, "block": state.number - 1}
    assert viewer.post(page(state, "read_again"), form).status_code == 403
    beyond = press(operator, state, "read_again", block=state.number + 1)
    assert messages_of(beyond) == [f"The node lacks block {state.number + 1}."]
    assert ChainState.objects.get().number == state.number

    response = press(operator, state, "read_again", **form)
    assert messages_of(response) == [f"{state} is read again after block {state.number - 1}."]
    now = ChainState.objects.get()
    assert (now.number, now.resumed_by) == (state.number - 1, "operator operator")
    assert now.cursor is not None
    now.halt(now.cursor, "x")
    assert offered(operator, state) == [True, False]
    again = press(operator, state, "read_again", **form)
    assert messages_of(again) == [f"{state} is halted; resume it."]


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5_000, "x"])
def test_a_dialog_of_a_chain_that_does_not_exist_leads_to_the_index(
    operator: Client, chain: Chain, number: str
) -> None:
    state = ChainState.objects.get()
    path = page(state, "read_again").replace(f"/{state.pk}/", f"/{number}/")
    assert operator.post(path, {**SUBMIT, "block": 1}).status_code == 302
    assert ChainState.objects.get().number == state.number


def test_lists_run_a_constant_number_of_queries(
    operator: Client, tenant: Tenant, chain: Chain, token: Contract
) -> None:
    counts = []
    for _ in range(2):
        for _ in range(2):
            ask_and_pay(tenant, chain, token)
        look(chain)
        for name in ("topup", "deposit", "chainstate", "transfer", "account"):
            cache.clear()
            with CaptureQueriesContext(connection) as queries:
                operator.get(reverse(f"admin:billing_{name}_changelist"))
            counts.append(len(queries))
    assert counts[:5] == counts[5:]
