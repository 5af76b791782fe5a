"""One simulator for each module. Its records are cleared before every test."""

from collections.abc import Iterator

import pytest

from config.local.certificates import Certificates, ensure_certificates
from tests.support.simulator.server import Simulator


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def running(certificates: Certificates) -> Iterator[Simulator]:
    with Simulator(certificates).run_in_thread() as server:
        yield server


@pytest.fixture
def simulator(running: Simulator) -> Simulator:
    assert running.wait_until(lambda: running.open_connections == 0)
    running.clear()
    return running
