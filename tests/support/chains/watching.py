"""Watched chains, paid top-ups, and queries of the watcher's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billing.models import Deposit, TopUp, Transfer
from billing.topups.chains import Chain
from tests.support.chains.node_faults import mine
from tests.support.chains.nodes import Anvil, Contract, chain_of, deploy
from tests.support.chains.payments import ask, look
from tests.support.factories import Tenant

Offer = Callable[[Chain], Chain]


def watch_anvil(
    anvil: Anvil, offer: Offer, *, blocks: int, **options: Any
) -> tuple[Contract, Chain]:
    """Deploys a token, mines so many blocks, and watches the chain with options of ``chain_of``."""
    token = deploy(anvil)
    mine(anvil, blocks)
    chain = offer(chain_of(token, **options))
    look(chain)
    return token, chain


def ask_and_pay(tenant: Tenant, chain: Chain, token: Contract, *, over: int = 0) -> TopUp:
    """Requests a top-up of the token's first payer, who pays it so many units above its amount."""
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units + over)
    return top_up


def found() -> list[tuple[str, int]]:
    """Returns the status and the units of each deposit, in the order of the chain."""
    rows = Deposit.objects.order_by("block_number", "tx_hash", "ordinal")
    return [(deposit.status, deposit.units) for deposit in rows]


def credited(tenant: Tenant) -> list[int]:
    """The amounts of the organization's deposit transfers, in nano-USD."""
    rows = Transfer.objects.for_organization(tenant.organization.pk).filter(kind="deposit")
    return list(rows.order_by("id").values_list("posted_nano", flat=True))


def status(top_up: TopUp) -> str:
    top_up.refresh_from_db()
    return str(top_up.status)
