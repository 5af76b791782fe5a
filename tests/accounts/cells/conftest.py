"""Two cells behind a proxy, for the tests of moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cells.world import World, run_world
from tests.support.simulator.server import Simulator


@pytest.fixture(scope="module")
def world(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with run_world(simulator, tmp_path_factory.mktemp("cells")) as made:
        yield made
