"""An upstream that speaks Anthropic's format and records what it gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.local.simulator.certificates import ensure_certificates
from tests.support.upstreams.recorded import EVENTS, MESSAGE
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.tls import serving


@pytest.fixture
def maker() -> Iterator[Upstream]:
    made = Upstream("anthropic", answer=MESSAGE, events=EVENTS)
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(made, certificates.server_context()) as made.server:
        yield made
