"""Upstreams that speak the formats of the faces and record what they get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.upstreams.recorded import EVENTS, MESSAGE
from tests.support.upstreams.recorded_responses import EVENTS as RESPONSE_EVENTS
from tests.support.upstreams.recorded_responses import RESPONSE
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import listening


@pytest.fixture
def maker() -> Iterator[Upstream]:
    """An upstream that speaks Anthropic's Messages."""
    with listening(Upstream("anthropic", answer=MESSAGE, events=EVENTS)) as made:
        yield made


@pytest.fixture
def speaker() -> Iterator[Upstream]:
    """An upstream that speaks OpenAI's Responses."""
    with listening(Upstream("responses", answer=RESPONSE, events=RESPONSE_EVENTS)) as made:
        yield made
