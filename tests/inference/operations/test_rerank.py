"""Rerank through the gateway: sorted, echoed, held, charged, and refused when an answer lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from billing.models import Transfer
from catalog.pricing import Price
from tests.support import factories
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering

ROUTE = "/api/v1/rerank"
# Two query words with each of three documents of two, two and one words: eleven words, which are
# the simulator's tokens.
DOCUMENTS = ["green tea", "black coffee", {"text": "water"}]
QUERY = "black tea"
TOKENS = 11
# The worst case is paid in advance: the prompt's bytes are many more than its tokens.
PRICE = ("0.001", "0")


@pytest.fixture
def reranker(site: Site) -> Site:
    site.produce("rerank")
    return site


def ask(site: Site, **fields: Any) -> Any:
    body = {"model": site.model.slug, "query": QUERY, "documents": DOCUMENTS, **fields}
    return site.post(body, path=ROUTE)


def test_the_best_documents_come_first_and_are_echoed(reranker: Site) -> None:
    reranker.publish(price=factories.make_price(*PRICE))
    answer = ask(reranker, query="black strong tea", documents=[*DOCUMENTS, "Black strong"])
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["results"] == [
        {"index": 3, "relevance_score": 2 / 3, "document": {"text": "Black strong"}},
        {"index": 0, "relevance_score": 1 / 3, "document": {"text": "green tea"}},
        {"index": 1, "relevance_score": 1 / 3, "document": {"text": "black coffee"}},
        {"index": 2, "relevance_score": 0.0, "document": {"text": "water"}},
    ]


def test_the_answer_has_every_field_and_costs_its_tokens(reranker: Site) -> None:
    reranker.publish(price=factories.make_price(*PRICE))
    answer = ask(reranker)
    body = answer.json()
    row = reranker.settled()
    body.pop("results")
    assert body == {
        "id": row.pk,
        "model": reranker.model.slug,
        "provider": "Acme AI",
        "usage": {
            "search_units": 1,
            "total_tokens": TOKENS,
            "cost": 0.011,
            "is_byok": False,
            "cost_details": {
                "upstream_inference_cost": 0.011,
                "upstream_inference_prompt_cost": 0.011,
                "upstream_inference_completions_cost": 0.0,
            },
        },
    }
    assert answer.headers["X-Generation-Id"] == row.pk
    assert (row.operation, row.status, row.cost_nano) == ("rerank", "completed", 11_000_000)
    assert (row.prompt_tokens, row.completion_tokens, row.is_estimated) == (TOKENS, 0, False)
    posted = Transfer.objects.get(reference=row.pk)
    assert (posted.kind, posted.status, posted.posted_nano) == ("usage", "posted", 11_000_000)
    assert_in_order()


def test_top_n_cuts_the_results_after_they_are_sorted(reranker: Site) -> None:
    reranker.publish()
    documents = ["tea", "black tea", "black", "none"]
    for limit, expected in ((1, [1]), (3, [1, 0, 2]), (4, [1, 0, 2, 3]), (9, [1, 0, 2, 3])):
        body = ask(reranker, documents=documents, top_n=limit).json()
        assert [each["index"] for each in body["results"]] == expected
    # The gateway cuts: servers disagree on the name of the limit.
    assert all("top_n" not in request.body for request in reranker.upstream.requests)


@pytest.mark.parametrize(("asked", "is_there"), [(True, True), (None, True), (False, False)])
def test_documents_are_left_out_when_the_caller_says_so(
    reranker: Site, asked: bool | None, is_there: bool
) -> None:
    reranker.publish()
    body = ask(reranker, return_documents=asked).json()
    assert ["document" in each for each in body["results"]] == [is_there] * 3


def test_the_upstream_gets_texts_and_not_the_user(reranker: Site) -> None:
    reranker.publish()
    assert ask(reranker, user="anna", truncation=False).status_code == 200
    [sent] = reranker.upstream.requests
    assert sent.path == "/v1/rerank"
    assert sent.body == {
        "query": QUERY,
        "documents": ["green tea", "black coffee", "water"],
        "truncation": False,
        "model": "sim-echo",
    }


def test_tools_are_nothing_to_a_rerank(reranker: Site) -> None:
    reranker.publish()
    tools = [{"type": "function", "function": {"name": "a.b"}}]
    answer = ask(reranker, tools=tools)
    assert answer.status_code == 200, answer.text
    assert [each["index"] for each in answer.json()["results"]] == [0, 1, 2]
    [sent] = reranker.upstream.requests
    assert sent.body["tools"] == tools


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["x"] * 2049}, "documents"),
        ({"documents": "x"}, "documents"),
        ({"documents": ["x", 5]}, "documents[1]"),
        ({"documents": ["x", {}]}, "documents[1]"),
        ({"documents": [{"text": "", "image": None}]}, "documents[0]"),
        ({"documents": [{"text": "x", "title": "y"}]}, "documents[0]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"top_n": 1_000_001}, "top_n"),
        ({"return_documents": "no"}, "return_documents"),
        ({"stream": True}, "stream"),
        ({"model": None}, "model"),
        (
            {"provider": {"options": {"acme": {"documents": ["y"]}}}},
            "provider.options.acme.documents",
        ),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_held(
    reranker: Site, change: dict[str, Any], field: str
) -> None:
    reranker.publish()
    answer = ask(reranker, **change)
    assert answer.status_code == 400
    [named] = answer.json()["error"]["metadata"]["fields"]
    assert named.replace("[]", "[1]") == field or named == field
    reranker.assert_nothing_happened()
    assert_in_order()


def test_bounds_hold_at_their_ends(reranker: Site) -> None:
    reranker.publish()
    for change in (
        {"documents": ["x"] * 2048},
        {"documents": ["", {"text": "", "image": "https://img.example/a.png"}]},
        {"top_n": 1_000_000},
        {"top_n": None, "provider": None, "user": "", "session_id": None, "stream": False},
    ):
        assert ask(reranker, **change).status_code == 200


def test_a_model_that_only_reranks_does_not_chat(reranker: Site) -> None:
    reranker.publish()
    answer = reranker.chat()
    assert answer.status_code == 404
    [excluded] = answer.json()["error"]["metadata"]["excluded"]
    assert excluded["excluded_by"] == ["operation_not_supported"]
    reranker.assert_nothing_happened()


@pytest.fixture
def answer_with(reranker: Site) -> Iterator[Callable[..., None]]:
    """Returns a function that publishes the model behind a server with one fixed answer."""
    with ExitStack() as stack:

        def stand_in(body: Any, slug: str = "acme", price: Price | None = None) -> None:
            written = body if isinstance(body, bytes) else json.dumps(body).encode()
            provider = reranker.provider if slug == "acme" else reranker.another_provider(slug)
            stack.enter_context(standing_in(provider, answering(written)))
            price = price or factories.make_price(*PRICE)
            reranker.publish("m", provider=provider, price=price)

        yield stand_in


def scored(*indexes: int) -> list[dict[str, Any]]:
    return [{"index": index, "relevance_score": 0.5} for index in indexes]


STRANGE = "A result of the answer has an index that no document has."
MALFORMED = "The results of the answer are malformed."
LIES: list[tuple[Any, str]] = [
    ({"results": scored(0, 1, 3)}, STRANGE),
    ({"results": scored(0, 1, -1)}, STRANGE),
    ({"results": scored(0, 1, 1)}, "Two results of the answer have the same document."),
    ({"results": scored(0, 1, 2, 2)}, "It has 4 choices; 3 were asked for."),
    ({"results": scored(0, 1)}, "The answer has 2 results instead of 3."),
    ({"results": []}, "The answer has 0 results instead of 3."),
    ({"usage": {"total_tokens": 5}}, MALFORMED),
    (b'{"results": [{"index": 0, "relevance_score": NaN}]}', MALFORMED),
    (b'{"results": [{"index": 0, "relevance_score": 1e999}]}', MALFORMED),
]


@pytest.mark.parametrize(("body", "reason"), LIES)
def test_an_answer_that_lies_costs_nothing(
    reranker: Site, answer_with: Callable[..., None], body: Any, reason: str
) -> None:
    usage = {} if isinstance(body, bytes) else {"usage": {"total_tokens": 5}}
    answer_with(body if isinstance(body, bytes) else {**usage, **body})
    answer = ask(reranker)
    assert answer.status_code == 502
    assert reason in answer.json()["error"]["message"]
    row = reranker.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)
    assert_in_order()


def test_the_next_candidate_answers_instead_of_a_liar(
    reranker: Site, answer_with: Callable[..., None]
) -> None:
    answer_with({"results": scored(0, 0, 1), "usage": {"total_tokens": 500}}, "liar")
    answer_with({"results": scored(2, 1, 0), "usage": {"total_tokens": 5}})
    body = ask(reranker, provider={"order": ["liar", "acme"]}).json()
    assert body["provider"] == "Acme AI"
    # Equal scores keep the order of the provider.
    assert [each["index"] for each in body["results"]] == [2, 1, 0]
    assert reranker.settled().cost_nano == 5_000_000


def test_a_count_beyond_what_was_sent_is_not_believed(
    reranker: Site, answer_with: Callable[..., None]
) -> None:
    answer_with({"results": scored(0, 1, 2), "usage": {"total_tokens": 10**9}})
    assert ask(reranker).status_code == 200
    row = reranker.settled()
    assert row.status == "completed"
    # Three documents with the query, and what may join them; far less than was claimed.
    assert row.prompt_tokens < 1_000
    assert_in_order()


def test_an_answer_without_usage_is_estimated_by_all_pairs(
    reranker: Site, answer_with: Callable[..., None]
) -> None:
    answer_with({"results": scored(0, 1)})
    answer = ask(reranker, query="q" * 100, documents=["a" * 100, "b" * 100])
    assert answer.json()["usage"]["total_tokens"] == 100
    row = reranker.settled()
    assert (row.prompt_tokens, row.is_estimated) == (100, True)


@pytest.mark.parametrize(
    ("rates", "cost_nano", "is_estimated"),
    [
        ({"prompt": "0.001"}, 100 * 1_000_000, True),
        ({"prompt": "0.001", "request": "0.002"}, 2_000_000, False),
        ({"prompt": "0"}, 0, False),
    ],
)
def test_units_without_a_rate_are_estimated_as_tokens(
    reranker: Site,
    answer_with: Callable[..., None],
    rates: dict[str, str],
    cost_nano: int,
    *,
    is_estimated: bool,
) -> None:
    answer_with(
        {"results": scored(0, 1), "meta": {"billed_units": {"search_units": 1}}},
        price=factories.make_price(**rates, completion="0"),
    )
    assert ask(reranker, query="q" * 100, documents=["a" * 100, "b" * 100]).status_code == 200
    row = reranker.settled()
    assert (row.cost_nano, row.is_estimated) == (cost_nano, is_estimated)
    assert_in_order()


def test_a_spent_budget_refuses_before_anything_is_sent(reranker: Site) -> None:
    reranker.publish(price=factories.make_price("1000", "0"))
    answer = ask(reranker)
    assert answer.status_code == 402
    reranker.assert_nothing_happened()
    assert_in_order()


@pytest.mark.parametrize(
    ("count", "units", "counted"),
    [(1, 1, 1), (100, None, 1), (101, None, 2), (3, 0, 1), (200, 1, 1)],
)
def test_search_units_are_told_by_the_provider_or_by_the_documents(
    reranker: Site, answer_with: Callable[..., None], count: int, units: int | None, counted: int
) -> None:
    meta = {} if units is None else {"meta": {"billed_units": {"search_units": units}}}
    answer_with({"results": scored(*range(count)), **meta})
    answer = ask(reranker, documents=["d"] * count)
    assert answer.json()["usage"]["search_units"] == counted
    assert reranker.settled().status == "completed"
