"""Embeddings through the gateway: routed, held, and charged only for the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import Transfer
from tests.support import factories
from tests.support.inference.site import CHAT, TEXT, Site
from tests.support.ledger import assert_in_order

ROUTE = "/api/v1/embeddings"


def test_embeddings_have_every_field_and_cost_their_prompt(site: Site) -> None:
    site.produce("embeddings")
    site.publish(price=factories.make_price("0.001", "0.002"))
    answer = site.post({"model": site.model.slug, "input": ["one two", "three"]}, path=ROUTE)
    assert answer.status_code == 200
    body = answer.json()
    assert [item["index"] for item in body.pop("data")] == [0, 1]
    row = site.settled()
    assert body == {
        "id": row.pk,
        "object": "list",
        "model": site.model.slug,
        "provider": "Acme AI",
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 3,
            "cost": 0.003,
            "is_byok": False,
            "cost_details": {
                "upstream_inference_cost": 0.003,
                "upstream_inference_prompt_cost": 0.003,
                "upstream_inference_completions_cost": 0.0,
            },
        },
    }
    assert (row.operation, row.status, row.cost_nano) == ("embeddings", "completed", 3_000_000)
    assert (row.prompt_tokens, row.completion_tokens, row.is_estimated) == (3, 0, False)
    posted = Transfer.objects.get(reference=row.pk)
    assert (posted.kind, posted.status, posted.posted_nano) == ("usage", "posted", 3_000_000)
    assert_in_order()


def test_tools_are_nothing_to_embeddings(site: Site) -> None:
    site.produce("embeddings")
    site.publish()
    tools = [{"type": "function", "function": {"name": "a.b"}}]
    answer = site.post({"model": site.model.slug, "input": "one", "tools": tools}, path=ROUTE)
    assert answer.status_code == 200, answer.text
    assert [item["index"] for item in answer.json()["data"]] == [0]
    [sent] = site.upstream.requests
    assert sent.body["tools"] == tools


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stream": True}, "stream"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_held(
    site: Site, change: dict[str, Any], field: str
) -> None:
    site.publish()
    answer = site.post({"model": site.model.slug, "input": "one", **change}, path=ROUTE)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["metadata"]["fields"]
    site.assert_nothing_happened()
    assert_in_order()


@pytest.mark.parametrize(
    ("outputs", "chats", "embeds"),
    [
        (["embeddings"], False, True),
        (["text"], True, False),
        (["image", "text"], True, False),
        (["text", "embeddings"], True, True),
        (["video"], False, False),
        (["rerank"], False, False),
        ([], True, True),
    ],
)
def test_a_model_is_asked_only_for_what_it_produces(
    site: Site, outputs: list[str], chats: bool, embeds: bool
) -> None:
    site.produce(*outputs)
    site.publish()
    for path, body, is_served in (
        (CHAT, site.chat_body(), chats),
        (TEXT, {"model": site.model.slug, "prompt": "one"}, chats),
        (ROUTE, {"model": site.model.slug, "input": "one"}, embeds),
    ):
        before = len(site.upstream.requests)
        answer = site.post(body, path=path)
        assert answer.status_code == (200 if is_served else 404)
        if not is_served:
            [excluded] = answer.json()["error"]["metadata"]["excluded"]
            assert excluded["excluded_by"] == ["operation_not_supported"]
            assert len(site.upstream.requests) == before


@pytest.mark.parametrize(
    ("outputs", "served"),
    [
        (["rerank"], " Its endpoints serve /rerank."),
        (["speech", "transcription"], " Its endpoints serve /audio/speech, /audio/transcriptions."),
        (["video"], ""),
    ],
)
def test_a_refusal_names_the_routes_that_the_model_has(
    site: Site, outputs: list[str], served: str
) -> None:
    site.produce(*outputs)
    site.publish()
    answer = site.post({"model": site.model.slug, "input": "one"}, path=ROUTE)
    assert answer.json()["error"]["message"] == (
        f"No endpoints found for {site.model.slug!r} that may serve this request. "
        f"Reasons: operation_not_supported.{served}"
    )


def test_the_routing_record_is_returned_on_request(site: Site) -> None:
    bad = site.another_provider("bad", name="Bad")
    site.publish("sim-status:500", provider=bad)
    site.publish()
    order = {"order": ["bad", "acme"]}
    asked = {"headers": {"X-OpenRouter-Metadata": "enabled"}}
    answer = site.post(site.chat_body(provider=order), **asked)
    record = answer.json()["openrouter_metadata"]
    assert record.pop("generation_time") >= 0
    assert record == {
        "requested": site.model.slug,
        "strategy": "direct",
        "region": None,
        "summary": "2 of 2 endpoints available, 2 tried, Acme AI answered.",
        "attempt": 2,
        "is_byok": False,
        "endpoints": {
            "total": 2,
            "available": [
                {"provider": "Bad", "model": site.model.slug, "selected": False},
                {"provider": "Acme AI", "model": site.model.slug, "selected": True},
            ],
        },
        "attempts": [
            {"provider": "Bad", "model": site.model.slug, "status": 500},
            {"provider": "Acme AI", "model": site.model.slug, "status": 200},
        ],
    }
    assert "openrouter_metadata" not in site.chat(provider=order).json()
