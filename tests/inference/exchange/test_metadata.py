"""``routing_metadata`` describes a plan and its attempts to the caller."""

from __future__ import annotations

import uuid
from typing import Any

from inference.exchange.metadata import routing_metadata
from tests.support.inference.routes import planned, route

FIRST = route("x", "1", endpoint_id=uuid.UUID(int=1))
SECOND = route("y", "2", endpoint_id=uuid.UUID(int=2), model_slug="c/d", model_permaslug="c/d-1")


def attempt(number: int, status: int = 200, **fields: Any) -> dict[str, Any]:
    provider = {1: "X Inc", 2: "Y Inc"}[number]
    endpoint = str(uuid.UUID(int=number))
    base = {"provider": provider, "endpoint_id": endpoint, "is_byok": False, "latency_ms": 5}
    return {**base, "status": status, **fields}


def test_an_answer_of_the_first_model_is_direct() -> None:
    found = planned([FIRST, route("z", "2", endpoint_id=uuid.UUID(int=3))], ignore=["z"])
    assert routing_metadata(found, [attempt(1)], region="europe", generation_time_ms=7) == {
        "requested": "a/b",
        "strategy": "direct",
        "region": "europe",
        "summary": "1 of 2 endpoints available, 1 tried, X Inc answered.",
        "attempt": 1,
        "is_byok": False,
        "endpoints": {
            "total": 2,
            "available": [{"provider": "X Inc", "model": "a/b", "selected": True}],
        },
        "attempts": [{"provider": "X Inc", "model": "a/b", "status": 200}],
        "pipeline": [
            {
                "type": "routing",
                "name": "selection",
                "summary": "The candidates were selected; 1 endpoints were excluded.",
                "data": {
                    "excluded": [
                        {
                            "provider": "Z Inc",
                            "private": False,
                            "model": "a/b",
                            "excluded_by": ["provider_ignored"],
                        }
                    ]
                },
            }
        ],
        "generation_time": 7,
    }


def test_endpoints_excluded_by_forbidden_fallbacks_are_counted() -> None:
    found = planned([FIRST, route("z", "2")], allow_fallbacks=False)
    shown = routing_metadata(found, [attempt(1)])
    assert shown["summary"] == "1 of 2 endpoints available, 1 tried, X Inc answered."
    assert shown["endpoints"]["total"] == 2


def test_an_answer_of_the_next_model_is_a_fallback() -> None:
    found = planned([FIRST, SECOND], models=["a/b", "c/d"])
    attempts = [attempt(1, 503, error_type="provider_overloaded"), attempt(2, is_byok=True)]
    assert routing_metadata(found, attempts) == {
        "requested": "a/b",
        "strategy": "fallback",
        "region": None,
        "summary": "2 of 2 endpoints available, 2 tried, Y Inc answered.",
        "attempt": 2,
        "is_byok": True,
        "endpoints": {
            "total": 2,
            "available": [
                {"provider": "X Inc", "model": "a/b", "selected": False},
                {"provider": "Y Inc", "model": "c/d", "selected": True},
            ],
        },
        "attempts": [
            {"provider": "X Inc", "model": "a/b", "status": 503},
            {"provider": "Y Inc", "model": "c/d", "status": 200},
        ],
    }


def test_no_endpoint_is_selected_without_an_answer() -> None:
    found = planned([FIRST])
    failed = routing_metadata(found, [attempt(1, 502, error_type="provider_unavailable")])
    assert failed["endpoints"]["available"][0]["selected"] is False
    assert failed["summary"] == "1 of 1 endpoints available, 1 tried, none answered."
    untried = routing_metadata(found, [])
    assert (untried["attempt"], untried["attempts"], untried["is_byok"]) == (0, [], False)


def test_a_free_variant_has_the_strategy_free() -> None:
    free = route("x", "0", endpoint_id=uuid.UUID(int=1))
    found = planned([free], models=["a/b:free"])
    assert routing_metadata(found, [attempt(1)])["strategy"] == "free"
    own = route("x", "1", model_slug="e/f:free", endpoint_id=uuid.UUID(int=1))
    found = planned([own], models=["e/f:free"])
    assert routing_metadata(found, [attempt(1)])["strategy"] == "direct"
