"""Upstreams that speak the formats of the faces and record what they get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.local.certificates import ensure_certificates
from tests.support.upstreams.recorded import EVENTS, MESSAGE
from tests.support.upstreams.recorded_responses import EVENTS as RESPONSE_EVENTS
from tests.support.upstreams.recorded_responses import RESPONSE
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.tls import serving


def listening(made: Upstream) -> Iterator[Upstream]:
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(made, certificates.server_context()) as made.server:
        yield made


@pytest.fixture
def maker() -> Iterator[Upstream]:
    """An upstream that speaks Anthropic's Messages."""
    yield from listening(Upstream("anthropic", answer=MESSAGE, events=EVENTS))


@pytest.fixture
def speaker() -> Iterator[Upstream]:
    """An upstream that speaks OpenAI's Responses."""
    yield from listening(Upstream("responses", answer=RESPONSE, events=RESPONSE_EVENTS))
