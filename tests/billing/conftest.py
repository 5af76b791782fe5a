"""Who takes part in the tests of payments: nodes, a token, and chains that are watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from billing import verification as audit
from billing.models import ChainState, TopUp
from billing.topups.chains import Chain
from billing.topups.node import Node
from billing.topups.watcher import watch_chain
from config.egress.addresses import EgressPolicy
from tests.support.factories import Tenant
from tests.support.nodes import (
    Anvil,
    Contract,
    EthTester,
    Front,
    before,
    chain_of,
    deploy,
    start_eth_tester,
)


@pytest.fixture(scope="session")
def evm() -> Iterator[EthTester]:
    with start_eth_tester() as node:
        yield node


@pytest.fixture
def token(evm: EthTester) -> Contract:
    return deploy(evm)


@pytest.fixture
def front(evm: EthTester) -> Iterator[Front]:
    with before(evm) as front:
        yield front


@pytest.fixture
def anvil() -> Iterator[Anvil]:
    with Anvil() as node:
        yield node


@pytest.fixture
def offer(settings: Any) -> Iterator[Callable[[Chain], Chain]]:
    """Configures a chain for the test and, at its end, lets the ledger be checked."""

    def configure(chain: Chain) -> Chain:
        settings.CHAINS = {**settings.CHAINS, chain.chain_id: chain}
        return chain

    yield configure
    assert audit.find_differences() == []


@pytest.fixture
def chain(db: None, token: Contract, offer: Callable[[Chain], Chain]) -> Chain:
    """A watched chain of the node in this process, on which a block is final at once."""
    chain = offer(chain_of(token))
    look(chain)
    return chain


def node_of(chain: Chain) -> Node:
    return Node(chain, EgressPolicy(), calls_per_second=100_000)


def look(chain: Chain) -> int:
    """Watches once, whatever a failure before wished to wait."""
    ChainState.objects.update(retry_at=None)
    return watch_chain(chain, node_of(chain))


def ask(tenant: Tenant, chain: Chain, sender: str, usd_cents: int = 1_000, **fields: Any) -> TopUp:
    top_up: TopUp = TopUp.objects.request(
        organization_id=tenant.organization.pk,
        chain_id=chain.chain_id,
        usd_cents=usd_cents,
        sender=sender,
        **fields,
    )
    return top_up
