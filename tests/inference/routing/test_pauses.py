"""An endpoint whose answer says that nothing is left of a limit is called after the others."""

from __future__ import annotations

from typing import Any

import pytest

from config.egress.client import Headers
from inference.exchange.failures import read_pause
from tests.support import factories
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order


def pause_of(**fields: str) -> float | None:
    headers = {f"x-ratelimit-{name.replace('_', '-')}": text for name, text in fields.items()}
    return read_pause(Headers(headers))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("1h2m3.5s", 3723.5), ("12.5", 12.5)]
    + [(text, 5) for text in ("", "soon", "-1s", "1e9s", "9" * 40)],
)
def test_the_reset_of_an_upstream_is_read(text: str, seconds: float) -> None:
    assert pause_of(remaining_requests="0", reset_requests=text) == seconds


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"remaining_requests": "1", "reset_requests": "9s"}, None),
        ({"remaining_tokens": "0"}, 5),
        (
            {
                "remaining_requests": "0",
                "reset_requests": "9s",
                "remaining_tokens": "0",
                "reset_tokens": "2s",
            },
            9,
        ),
    ],
)
def test_only_a_limit_with_nothing_left_causes_a_pause(
    fields: dict[str, str], seconds: float | None
) -> None:
    assert pause_of(**fields) == seconds


def test_an_endpoint_that_says_that_nothing_is_left_is_called_after_the_others(site: Site) -> None:
    site.publish("sim-exhausted")
    other = site.another_provider("other", name="Other AI")
    site.publish("sim-echo", provider=other, price=factories.make_price(prompt="0.00001"))

    def ask() -> Any:
        return site.chat(provider={"sort": "price"})

    def states() -> dict[str, str]:
        candidates = site.explain()["candidates"]
        return {each["provider"]: each["health"]["state"] for each in candidates}

    assert ask().json()["provider"] == "Acme AI"
    assert ask().json()["provider"] == "Other AI"
    # Workers share what they know once a second.
    site.eventually(lambda: states() == {"Acme AI": "rate_limited", "Other AI": "healthy"})
    assert_in_order()
