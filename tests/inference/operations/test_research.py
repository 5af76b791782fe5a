"""A model that researches: what it does by itself is bounded by its price, billed and told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

from billing.models import Excess
from tests.support.bodies.lines import dial, post_bytes
from tests.support.inference.endings import notice
from tests.support.inference.prices import read_pricing
from tests.support.inference.site import Site, events_of
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import listening, make_maker

# The example of Perplexity's price list.
USAGE: Final[dict[str, Any]] = {
    "prompt_tokens": 33,
    "completion_tokens": 11_395,
    "total_tokens": 11_428,
    "citation_tokens": 19_028,
    "num_search_queries": 21,
    "reasoning_tokens": 193_947,
}
ANSWER: Final[dict[str, Any]] = {
    "id": "r-1",
    "model": "sonar-deep-research",
    "object": "chat.completion",
    "created": 1,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "It rains."},
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}
CHUNK: Final[dict[str, Any]] = {
    **ANSWER,
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "It rains."}, "finish_reason": "stop"}],
}
RATES: Final = {"prompt": "0.000002", "completion": "0.000008"}
LINES: Final[list[dict[str, Any]]] = [
    {"billable": "search", "variant": "unasked", "unit": "search", "price": "0.005", "most": 60},
    {
        "billable": "prompt", "variant": "citation", "unit": "token", "price": "0.000002",
        "most": 100_000,
    },
    {
        "billable": "reasoning", "variant": "research", "unit": "token", "price": "0.000003",
        "most": 400_000,
    },
]  # fmt: skip
# 60 searches, 100,000 tokens of pages, and 400,000 of reasoning about them.
MOST_NANO: Final = 1_700_000_000


@pytest.fixture
def sonar() -> Iterator[Upstream]:
    with listening(Upstream("openai", answer=ANSWER, events=[CHUNK])) as made:
        yield made


def publish(site: Site, sonar: Upstream, *lines: dict[str, Any], **rates: str) -> None:
    site.publish(
        "sonar-deep-research",
        provider=make_maker(sonar),
        price=read_pricing(RATES | rates, *lines),
        supported_parameters=["max_tokens", "web_search_options"],
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [{}, {"web_search_options": {}}])
def test_research_costs_what_the_provider_counts(
    site: Site, sonar: Upstream, stream: bool, asked: dict[str, Any]
) -> None:
    publish(site, sonar, *LINES)
    answer = site.chat(max_tokens=20_000, stream=stream, **asked)
    assert answer.status_code == 200, answer.text
    usage = events_of(answer.text)[-2]["usage"] if stream else answer.json()["usage"]
    assert {name: usage[name] for name in USAGE} == USAGE
    assert usage["server_tool_use_details"] == {"web_search_requests": 21}
    assert usage["cost"] == 0.816123
    assert usage["cost_details"]["server_tool_cost"] == 0.105
    rules = [(each["billable"], each["quantity"]) for each in usage["cost_details"]["rules"]]
    assert rules == [
        ("prompt", 33), ("completion", 11_395), ("prompt", 19_028), ("reasoning", 193_947),
        ("search", 21),
    ]  # fmt: skip
    settled = site.settled()
    assert settled.cost_nano == 816_123_000
    assert settled.units == {"searches": 21, "citations": 19_028, "research": 193_947}
    assert not Excess.objects.exists()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("lines", "rates", "billed"),
    [
        (LINES, {}, (816_123_000, {"searches": 21, "citations": 19_028, "research": 193_947})),
        ([], {"request": "0.006"}, (97_226_000, None)),
    ],
)
def test_leaving_before_the_first_byte_costs_what_staying_costs(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    sonar: Upstream,
    stream: bool,
    lines: list[dict[str, Any]],
    rates: dict[str, str],
    billed: tuple[int, dict[str, int] | None],
) -> None:
    monkeypatch.setattr("inference.exchange.gateway._LATE_SECONDS", 60.0)
    publish(site, sonar, *lines, **rates)
    asked, may_answer = threading.Event(), threading.Event()

    def answer_late(_: Any) -> tuple[str, Any]:
        asked.set()
        assert may_answer.wait(60)
        return "200 OK", ANSWER

    sonar.answer = answer_late
    with dial(site, post_bytes(site, site.chat_body(max_tokens=20_000, stream=stream))):
        assert asked.wait(60)
    notice(site)
    may_answer.set()
    settled = site.settled()
    assert (settled.status, settled.is_estimated) == ("cancelled", False)
    assert (settled.cost_nano, settled.units) == billed
    assert not Excess.objects.exists()


def test_the_hold_covers_what_the_price_allows(site: Site, sonar: Upstream) -> None:
    publish(site, sonar, *LINES)
    assert site.chat(max_tokens=20_000).status_code == 200
    prompt = site.settled().hold_nano - MOST_NANO - 20_000 * 8_000
    # The bytes of a short prompt, at 2,000 nano-USD each.
    assert 0 < prompt < 1_000_000


def test_a_count_beyond_the_bound_is_an_excess_under_review(site: Site, sonar: Upstream) -> None:
    publish(site, sonar, *LINES)
    sonar.answer = {**ANSWER, "usage": {**USAGE, "num_search_queries": 70}}
    usage = site.chat(max_tokens=20_000).json()["usage"]
    assert usage["server_tool_use_details"] == {"web_search_requests": 60}
    assert usage["cost"] == 1.011123
    assert site.settled().cost_nano == 1_011_123_000
    assert Excess.objects.get().amount_nano == 50_000_000


def test_a_model_that_searches_for_a_fee_pays_it_alone(site: Site, sonar: Upstream) -> None:
    """Perplexity counts what its other models read too, and charges nothing for it."""
    publish(site, sonar, request="0.006")
    usage = site.chat(max_tokens=20_000).json()["usage"]
    assert usage["cost"] == 0.097226
    assert "server_tool_use_details" not in usage
    assert site.settled().units is None
    assert not Excess.objects.exists()


def test_research_without_funds_for_its_bound_is_refused(site: Site, sonar: Upstream) -> None:
    publish(site, sonar, *({**line, "most": 10**9} for line in LINES))
    answer = site.chat(max_tokens=20)
    assert answer.status_code == 402
    assert sonar.seen() == []
