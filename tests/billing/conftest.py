"""Fixtures for the tests of payments: nodes, a token and watched chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from billing import verification as audit
from billing.topups.chains import Chain
from tests.support.chains.nodes import (
    Anvil,
    Contract,
    EthTester,
    Front,
    before,
    chain_of,
    deploy,
    start_eth_tester,
)
from tests.support.chains.payments import look


@pytest.fixture(scope="session")
def evm() -> Iterator[EthTester]:
    with start_eth_tester() as node:
        yield node


@pytest.fixture(scope="session")
def _deployed(evm: EthTester) -> tuple[Contract, str]:
    return deploy(evm), evm.rpc("evm_snapshot")


@pytest.fixture
def token(evm: EthTester, _deployed: tuple[Contract, str]) -> Contract:
    """Returns a token without payments: the node goes back to where it was deployed."""
    contract, snapshot = _deployed
    evm.rpc("evm_revert", snapshot)
    return contract


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
    """Configures a chain for the test, and checks the ledger at the end of the test."""

    def configure(chain: Chain) -> Chain:
        settings.CHAINS = {**settings.CHAINS, chain.chain_id: chain}
        return chain

    yield configure
    assert audit.find_differences() == []


@pytest.fixture
def chain(db: None, token: Contract, offer: Callable[[Chain], Chain]) -> Chain:
    """Returns a watched chain of the in-process node; its blocks are final immediately."""
    chain = offer(chain_of(token))
    look(chain)
    return chain


@pytest.fixture
def fronted(db: None, token: Contract, front: Front, offer: Callable[[Chain], Chain]) -> Chain:
    """Returns the watched chain with a front before its node."""
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    return chain
