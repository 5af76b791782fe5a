"""Queries of the watcher's tests."""

from __future__ import annotations

from collections.abc import Callable

from billing.models import Deposit, TopUp, Transfer
from billing.topups.chains import Chain
from tests.support.chains.nodes import Anvil
from tests.support.factories import Tenant

Offer = Callable[[Chain], Chain]


def mine(node: Anvil, blocks: int) -> None:
    node.rpc("anvil_mine", hex(blocks))


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
