"""Searches of the web in chat: asked of the provider, counted by it, billed and told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from billing.models import Excess
from tests.support.inference.prices import read_pricing
from tests.support.inference.site import CHAT, MESSAGES, Site, content_of, events_of
from tests.support.upstreams.recorded import BLOCKS, EVENTS, MESSAGE, STARTED
from tests.support.upstreams.speaking import ANSWERS, Upstream
from tests.support.upstreams.standing import listening, make_maker

SEARCH: Final = {"type": "web_search", "max_uses": 3}
GROUNDS: Final = {
    "webSearchQueries": ["weather", "", "rain"],
    "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
    "groundingSupports": [{"segment": {"endIndex": 9}, "groundingChunkIndices": [0]}],
}
GROUNDED: Final[dict[str, Any]] = {
    **ANSWERS["gemini"],
    "candidates": [{**ANSWERS["gemini"]["candidates"][0], "groundingMetadata": GROUNDS}],
    "usageMetadata": {"promptTokenCount": 150, "candidatesTokenCount": 40},
}
MODELS: Final = {"anthropic": "claude-opus-5", "gemini": "gemini-3.8-flash"}
RATES: Final = {"prompt": "0.000001", "completion": "0.000002", "web_search": "0.01"}
PER_REQUEST: Final = {
    "billable": "search", "unit": "request", "variant": "request", "price": "0.035"
}  # fmt: skip
ASKED: Final[dict[str, list[Any]]] = {
    "anthropic": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
    "gemini": [{"googleSearch": {}}],
}
SOURCES: Final = {"anthropic": "https://weather.example/zurich", "gemini": "https://a.example"}
# 150 tokens of the prompt, 40 of the completion and 2 searches.
COST: Final = 0.02023


@pytest.fixture
def claude() -> Iterator[Upstream]:
    with listening(Upstream("anthropic", answer=MESSAGE, events=EVENTS)) as made:
        yield made


@pytest.fixture
def gemini() -> Iterator[Upstream]:
    with listening(Upstream("gemini", answer=GROUNDED, events=[GROUNDED])) as made:
        yield made


@pytest.fixture(params=["anthropic", "gemini"])
def upstream(request: pytest.FixtureRequest, claude: Upstream, gemini: Upstream) -> Upstream:
    return claude if request.param == "anthropic" else gemini


def publish(site: Site, upstream: Upstream, *lines: Any, **rates: str) -> None:
    price = read_pricing(rates or RATES, *lines)
    site.publish(MODELS[upstream.kind], provider=make_maker(upstream), price=price)


def offer(upstream: Upstream) -> list[dict[str, Any]]:
    """Returns the tools of a request; Gemini's search has no bound."""
    return [SEARCH if upstream.kind == "anthropic" else {"type": "web_search"}]


def assert_billed(site: Site, usage: dict[str, Any]) -> None:
    assert usage["server_tool_use_details"] == {"web_search_requests": 2}
    assert usage["cost"] == COST
    assert usage["cost_details"]["server_tool_cost"] == 0.02
    [line] = [each for each in usage["cost_details"]["rules"] if each["billable"] == "search"]
    assert line == {
        "billable": "search", "unit": "search", "quantity": 2, "price": "0.01", "cost": 0.02,
    }  # fmt: skip
    settled = site.settled()
    assert (settled.cost_nano, settled.units["searches"]) == (20_230_000, 2)
    assert not Excess.objects.exists()


def test_a_search_is_asked_for_billed_and_told(site: Site, upstream: Upstream) -> None:
    publish(site, upstream)
    answer = site.chat(tools=offer(upstream), max_tokens=50)
    assert answer.status_code == 200, answer.text
    assert "X-Left-Out" not in answer.headers
    assert upstream.seen()[0][2]["tools"] == ASKED[upstream.kind]
    body = answer.json()
    [choice] = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "It rains."
    assert "tool_calls" not in choice["message"]
    [source] = choice["message"]["annotations"]
    assert (source["type"], source["url_citation"]["url"]) == (
        "url_citation", SOURCES[upstream.kind],
    )  # fmt: skip
    assert_billed(site, body["usage"])


def test_a_streamed_search_is_asked_for_billed_and_told(site: Site, upstream: Upstream) -> None:
    publish(site, upstream)
    answer = site.chat(tools=offer(upstream), max_tokens=50, stream=True)
    assert answer.status_code == 200, answer.text
    events = [event for event in events_of(answer.text) if isinstance(event, dict)]
    assert content_of(events) == "It rains."
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert not any("tool_calls" in delta for delta in deltas)
    [source] = [each for delta in deltas for each in delta.get("annotations", ())]
    assert source["url_citation"]["url"] == SOURCES[upstream.kind]
    assert_billed(site, events[-1]["usage"])


def test_a_count_beyond_the_bound_is_an_excess_under_review(site: Site, claude: Upstream) -> None:
    publish(site, claude)
    answer = site.chat(tools=[{**SEARCH, "max_uses": 1}], max_tokens=50)
    usage = answer.json()["usage"]
    assert usage["server_tool_use_details"] == {"web_search_requests": 1}
    assert usage["cost"] == 0.01023
    assert site.settled().cost_nano == 10_230_000
    assert Excess.objects.get().amount_nano == 10_000_000


def test_a_request_that_searched_pays_once(site: Site, gemini: Upstream) -> None:
    publish(site, gemini, PER_REQUEST, prompt="0", completion="0")
    usage = site.chat(tools=[{"type": "web_search"}], max_tokens=50).json()["usage"]
    assert usage["server_tool_use_details"] == {"web_search_requests": 2}
    assert usage["cost_details"]["server_tool_cost"] == usage["cost"] == 0.035
    assert usage["cost_details"]["rules"][-1] == {
        "billable": "search", "variant": "request", "unit": "request", "quantity": 1,
        "price": "0.035", "cost": 0.035,
    }  # fmt: skip


def test_a_search_without_a_rate_is_left_out_and_named(site: Site, upstream: Upstream) -> None:
    publish(site, upstream, prompt="0.000001", completion="0.000002")
    answer = site.chat(tools=offer(upstream), max_tokens=50)
    assert (answer.status_code, answer.headers["X-Left-Out"]) == (200, "web_search")
    assert "tools" not in upstream.seen()[0][2]
    assert site.settled().cost_nano == 230_000


def test_an_option_that_gemini_lacks_is_left_out_and_named(site: Site, gemini: Upstream) -> None:
    publish(site, gemini)
    answer = site.chat(tools=[SEARCH], max_tokens=50, logprobs=True)
    assert (answer.status_code, answer.headers["X-Left-Out"]) == (200, "logprobs, web_search")
    assert "tools" not in gemini.seen()[0][2]


def test_a_search_that_gemini_cannot_be_forced_to_is_refused(site: Site, gemini: Upstream) -> None:
    publish(site, gemini)
    answer = site.chat(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("web_search: no endpoint")
    assert gemini.seen() == []


@pytest.mark.parametrize("name", ["chat/completions", "messages", "responses"])
def test_online_searches_on_every_face(site: Site, claude: Upstream, name: str) -> None:
    """The caller's own format has no such suffix, so the request is translated."""
    publish(site, claude)
    asked = [{"role": "user", "content": "x"}]
    body: dict[str, Any] = {"model": f"{site.model.slug}:online"}
    body |= {"input": "x"} if name == "responses" else {"messages": asked, "max_tokens": 50}
    answer = site.post(body, path=f"/api/v1/{name}")
    assert answer.status_code == 200, answer.text
    [(_, _, sent)] = claude.seen()
    assert sent["tools"] == [{**ASKED["anthropic"][0], "max_uses": 10}]
    usage = answer.json()["usage"]
    told = usage["server_tool_use"] if name == "messages" else usage["server_tool_use_details"]
    assert told["web_search_requests"] == 2
    assert usage["cost"] == COST
    assert SOURCES["anthropic"] in answer.text


def test_options_of_any_name_ask_for_a_search_that_is_held_and_billed(
    site: Site, upstream: Upstream
) -> None:
    """Only xAI's own field has a mode; a search that is not counted would cost the operator."""
    publish(site, upstream)
    answer = site.chat(web_search_options={"mode": "off"}, max_tokens=50)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("web_search_options: no endpoint")
    assert upstream.seen() == []
    site.assert_nothing_happened()


@pytest.mark.parametrize("bound", [-1, 0, "3", 1_001])
def test_a_bound_that_anthropic_cannot_be_told_is_refused(
    site: Site, claude: Upstream, bound: Any
) -> None:
    publish(site, claude)
    answer = site.chat(tools=[SEARCH | {"max_uses": bound}], max_tokens=50)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "max_uses: Expected a number from 1 to 1,000."
    assert claude.seen() == []


# In Anthropic's format, the query was delivered too.
@pytest.mark.parametrize(("path", "query_tokens"), [(CHAT, 0), (MESSAGES, 5)])
def test_an_answer_that_breaks_off_pays_for_the_searches_whose_results_came(
    site: Site, claude: Upstream, path: str, query_tokens: int
) -> None:
    """Anthropic counts searches at the end alone; nobody searches for nothing by leaving early."""
    publish(site, claude)
    begun = {**STARTED["message"], "usage": {"input_tokens": 150, "output_tokens": 1}}
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    failed = {"type": "web_search_tool_result", "tool_use_id": "s-2", "content": error}
    lost = [
        {"type": "content_block_start", "index": 3, "content_block": failed},
        {"type": "content_block_stop", "index": 3},
    ]
    claude.events = [{"type": "message_start", "message": begun}, *BLOCKS, *lost]
    tool = SEARCH if path == CHAT else ASKED["anthropic"][0]
    body = site.chat_body(tools=[tool], max_tokens=50, stream=True)
    answer = site.post(body, path=path)
    assert answer.status_code == 200, answer.text
    settled = site.settled()
    assert settled.status == "failed"
    # 150 tokens of the prompt, 3 of the delivered text and a search.
    cost = 10_156_000 + query_tokens * 2_000
    assert (settled.units["searches"], settled.cost_nano) == (1, cost)
