"""Requests top-ups and watches chains."""

from __future__ import annotations

from typing import Any

from billing.models import ChainState, TopUp
from billing.topups.chains import Chain
from billing.topups.node import Node
from billing.topups.watcher import watch_chain
from config.egress.addresses import EgressPolicy
from tests.support.factories import Tenant


def node_of(chain: Chain) -> Node:
    return Node(chain, EgressPolicy(), calls_per_second=100_000)


def look(chain: Chain) -> int:
    """Watches the chain once, even if an earlier failure asks for a pause."""
    ChainState.objects.update(retry_at=None)
    return watch_chain(chain, node_of(chain))


def ask(tenant: Tenant, chain: Chain, sender: str, usd_cents: int = 1_000, **fields: Any) -> TopUp:
    top_up: TopUp = TopUp.objects.create_top_up(
        organization_id=tenant.organization.pk,
        chain_id=chain.chain_id,
        usd_cents=usd_cents,
        sender=sender,
        **fields,
    )
    return top_up
