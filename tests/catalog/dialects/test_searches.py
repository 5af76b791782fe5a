"""Searches of the web: how each format asks for them, and how their number is read."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest

from catalog.dialects.base import Chunk, Untranslatable
from catalog.dialects.shared import searches
from catalog.dialects.shared.searches import MOST_SEARCHES
from tests.support.dialects.reading import deltas_of, parse, parser_of, read
from tests.support.inference.dialects import ASK, TOOL, body
from tests.support.inference.transcripts import feed_of
from tests.support.upstreams.recorded import EVENTS, MESSAGE

SEARCH: Final = {"type": "web_search"}
OSLO: Final = {"city": "Oslo", "country": "NO"}
ASKED: Final = {"type": "web_search_20250305", "name": "web_search", "max_uses": 10}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [SEARCH]}, {}),
        ({"tools": [{"type": "openrouter:web_search"}]}, {}),
        ({"tools": [SEARCH, SEARCH]}, {}),
        ({"web_search_options": {}}, {}),
        ({"tools": [SEARCH], "web_search_options": {}}, {}),
        ({"tools": [SEARCH], "web_search_options": None}, {}),
        ({"tools": [{**SEARCH, "allowed_domains": ["a.example"], "excluded_domains": []}]},
         {"allowed_domains": ["a.example"]}),
        ({"tools": [{**SEARCH, "parameters": {"excluded_domains": ["b.example"]}}]},
         {"blocked_domains": ["b.example"]}),
        ({"tools": [{**SEARCH, "user_location": {"type": "approximate", **OSLO}}]},
         {"user_location": {"type": "approximate", **OSLO}}),
        (
            {
                "web_search_options": {
                    "user_location": {
                        "type": "approximate",
                        "approximate": {**OSLO, "region": None},
                    }
                }
            },
            {"user_location": {"type": "approximate", **OSLO}},
        ),
    ],
)  # fmt: skip
def test_anthropic_is_asked_by_its_tool(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    made = body("anthropic", **fields)
    assert made["tools"] == [ASKED | expected]
    assert "web_search_options" not in made


def test_anthropic_searches_beside_functions_as_often_as_the_hold_covers() -> None:
    made = body("anthropic", tools=[SEARCH, TOOL], most_searches=3)
    assert [tool["name"] for tool in made["tools"]] == ["look", "web_search"]
    assert made["tools"][1]["max_uses"] == 3


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "web_search"}, {"type": "tool", "name": "web_search"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ("auto", {"type": "auto"}),
    ],
)
def test_anthropic_can_be_made_to_search(choice: Any, expected: dict[str, Any]) -> None:
    assert body("anthropic", tools=[SEARCH], tool_choice=choice)["tool_choice"] == expected


def test_a_model_that_must_search_is_not_told_to_think_first() -> None:
    made = body("anthropic", tools=[SEARCH], tool_choice="required", reasoning={"effort": "high"})
    assert "thinking" not in made


def test_gemini_is_asked_by_its_tool() -> None:
    for fields in ({"tools": [SEARCH]}, {"web_search_options": {}}):
        made = body("gemini", **fields)
        assert made["tools"] == [{"googleSearch": {}}]
        assert "toolConfig" not in made


def test_a_search_that_the_choice_excludes_is_not_offered() -> None:
    """Gemini and OpenAI's field have no word for a search that must not be made."""
    made = body("gemini", tools=[SEARCH], tool_choice="none")
    assert {"tools", "toolConfig"}.isdisjoint(made)
    fields = {name: msgspec.Raw(json.dumps(value).encode())
              for name, value in (("tools", [SEARCH, TOOL]), ("tool_choice", "none"))}  # fmt: skip
    written = searches.write_options(fields)
    assert json.loads(msgspec.json.encode(written)) == {"tools": [TOOL], "tool_choice": "none"}


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("bedrock", {"tools": [SEARCH]}, "has no search"),
        ("bedrock", {"web_search_options": {}}, "has no search"),
        ("gemini", {"tools": [{**SEARCH, "allowed_domains": ["a"]}]}, "has no options"),
        ("gemini", {"tools": [SEARCH], "tool_choice": "required"}, "cannot be forced"),
        ("gemini", {"tools": [SEARCH, TOOL], "tool_choice": {"type": "web_search"}},
         "cannot be forced"),
        ("anthropic", {"tools": [{**SEARCH, "allowed_domains": ["a"], "excluded_domains": ["b"]}]},
         "not both"),
        ("anthropic", {"tools": [SEARCH | {"allowed_domains": ["a"]}, SEARCH]}, "these differ"),
        ("anthropic", {"tools": [SEARCH | {"allowed_domains": "a"}]}, "^allowed_domains: "),
        ("anthropic", {"tools": [SEARCH | {"max_uses": -1}]}, "^max_uses: .* from 1 to 1,000"),
        ("anthropic", {"tools": [SEARCH | {"max_uses": 0}]}, "^max_uses: "),
        ("anthropic", {"tools": [SEARCH | {"max_uses": "3"}]}, "^max_uses: "),
        ("anthropic", {"tools": [SEARCH | {"parameters": {"max_uses": 1_001}}]}, "^max_uses: "),
        ("gemini", {"tools": [SEARCH | {"max_uses": 0}]}, "^max_uses: "),
        ("anthropic", {"web_search_options": [5]}, "^web_search_options: "),
        ("anthropic", {"web_search_options": {"user_location": 5}}, "^user_location: "),
        ("anthropic", {"web_search_options": {"user_location": {"type": "exact"}}},
         "^user_location.type: "),
        ("anthropic", {"web_search_options": {"user_location": {"latitude": 5}}},
         "^user_location.latitude: "),
        ("anthropic", {"web_search_options": {"user_location": {"city": 5}}},
         "^user_location.city: "),
    ],
)  # fmt: skip
def test_a_search_that_a_format_cannot_express_is_refused(
    kind: str, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(Untranslatable, match=text):
        body(kind, **fields)


@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
def test_a_search_that_no_hold_covers_is_never_asked_for(kind: str) -> None:
    with pytest.raises(Untranslatable, match="may not search"):
        body(kind, web_search_options={"mode": "off"}, most_searches=0)


def searches_of(chunks: list[Chunk]) -> list[int]:
    return [chunk.usage.searches for chunk in chunks if chunk.usage is not None]


def test_the_results_of_a_search_are_no_calls_of_tools() -> None:
    reply = parse("anthropic", MESSAGE)
    [choice] = reply.fields["choices"]
    assert {*choice["message"]} == {"role", "content", "annotations"}
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("stop", "pause_turn")
    usage = json.loads(bytes(reply.fields["usage"]))
    assert usage["server_tool_use_details"] == {"web_search_requests": 2}
    chunks = parser_of("anthropic").feed(feed_of("anthropic", EVENTS))
    assert {name for delta in deltas_of(chunks) for name in delta} == {
        "role", "content", "annotations",
    }  # fmt: skip
    assert searches_of(chunks)[-1] == 2


def test_a_large_result_of_a_search_passes() -> None:
    result = {"type": "web_search_tool_result", "content": [{"encrypted_content": "x" * 3_000_000}]}
    begun = {"type": "content_block_start", "index": 0, "content_block": result}
    assert parser_of("anthropic").feed(feed_of("anthropic", [begun])) == []


def grounded(*queries: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "content": {"parts": [{"text": "x"}]},
        "finishReason": "STOP",
        "groundingMetadata": {"webSearchQueries": list(queries), **metadata},
    }


COUNTS: Final = {"promptTokenCount": 3, "candidatesTokenCount": 4}
PAGE: Final = {"web": {"uri": "https://a.example", "title": "A"}}


@pytest.mark.parametrize(
    ("candidates", "searches"),
    [
        ([grounded("a", "b")], 2),
        ([grounded("a", "", "a", 5)], 1),
        ([grounded("a", groundingChunks=[PAGE, PAGE])], 1),
        ([grounded(groundingChunks=[PAGE, PAGE])], 1),
        ([grounded(groundingChunks=[{"retrievedContext": {"uri": "https://a.example"}}])], 0),
        ([grounded()], 0),
        ([grounded("a") | {"index": 0}, grounded("a", "c") | {"index": 1}], 3),
    ],
)
def test_gemini_counts_its_different_queries(
    candidates: list[dict[str, Any]], searches: int
) -> None:
    answer = {"candidates": candidates, "usageMetadata": COUNTS}
    assert parse("gemini", answer).usage.searches == searches
    chunks = read("gemini", feed_of("gemini", [answer]), len(candidates))
    assert searches_of(chunks) == [searches]


def test_gemini_adds_up_the_queries_of_a_stream() -> None:
    first = {**grounded("a"), "finishReason": None}
    second = {**grounded("a", "b"), "finishReason": None}
    last = {"content": {"parts": [{"text": "."}]}, "finishReason": "STOP"}
    events = [
        {"candidates": [first], "usageMetadata": COUNTS},
        {"candidates": [second]},
        {"candidates": [last], "usageMetadata": COUNTS},
    ]
    assert searches_of(read("gemini", feed_of("gemini", events))) == [1, 2]


@pytest.mark.parametrize("has_many_candidates", [False, True])
def test_the_queries_of_a_long_stream_are_counted_to_a_bound(has_many_candidates: bool) -> None:
    """A stream may name a query in each of its events; more are kept of no candidate."""
    parser = parser_of("gemini")
    for number in range(2 * MOST_SEARCHES):
        candidate = {**grounded(f"q{number}"), "finishReason": None}
        candidate["index"] = number if has_many_candidates else 0
        event = {"candidates": [candidate], "usageMetadata": COUNTS}
        chunks = parser.feed(feed_of("gemini", [event]))
        counted = number + 1 if has_many_candidates else min(number + 1, MOST_SEARCHES)
        assert searches_of(chunks) == [counted]


@pytest.mark.parametrize("kind", ["anthropic", "gemini", "bedrock"])
def test_a_chat_without_searches_has_no_tools(kind: str) -> None:
    assert {"tools", "toolConfig"}.isdisjoint(body(kind, messages=ASK))
