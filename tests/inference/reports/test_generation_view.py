"""``/generation``: the view of one generation, its content and its feedback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from accounts.models import ApiKey
from config.clocks.clock import clock
from inference.models import Feedback, Generation
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.inference.site import Site

CATEGORIES = [
    "latency", "incoherence", "incorrect_response", "formatting", "billing", "api_error", "other",
]  # fmt: skip
NOT_FOUND = {
    "error": {
        "code": 404,
        "message": "The generation does not exist.",
        "metadata": {"error_type": "not_found"},
    }
}
MALFORMED_IDS = ["", " ", "x", "gen-1 ", "gen-%00", "gen-\n", "é", "g" * 48, "g" * 49, "g" * 5000]


def shown(client: APIClient, generation_id: str, path: str = "generation") -> Any:
    return client.get(f"/api/v1/{path}", {"id": generation_id})


def submit(client: APIClient, body: Any) -> Any:
    text = body if isinstance(body, str) else json.dumps(body)
    return client.generic(
        "POST", "/api/v1/generation/feedback", text, content_type="application/json"
    )


def attempt(endpoint_id: Any, **changes: Any) -> dict[str, Any]:
    """Returns an attempt as the gateway records it."""
    return {
        "provider": "Acme AI",
        "endpoint_id": str(endpoint_id),
        "is_byok": False,
        "latency_ms": 12,
        "status": 200,
        **changes,
    }


def answered(endpoint_id: Any, name: str, status: int, **changes: Any) -> dict[str, Any]:
    """Returns an attempt as the view tells it."""
    return {
        "status": status,
        "endpoint_id": str(endpoint_id),
        "is_byok": False,
        "latency": 12,
        "provider_name": name,
        **changes,
    }


def test_a_generation_has_every_field(
    inference: APIClient, management: APIClient, tenant: Tenant
) -> None:
    model = factories.make_model("acme/falcon")
    tried = factories.make_endpoint(model, factories.make_provider(name="Acme AI"))
    served = factories.make_endpoint(model, factories.make_provider(name="Beta AI"))
    gone = "00000000-0000-4000-8000-000000000000"
    generation = factories.make_generation(
        tenant,
        model_endpoint=served,
        provider_name="Beta AI",
        streamed=True,
        is_byok=True,
        end_user="alice",
        session_id="talk-1",
        trace='{"trace_id":"t-1","step":[1.5,"é"]}',
        region="europe",
        http_referer="https://name:word@app.example.com:8443/chat?x=1#y",
        app_title="App",
        user_agent="curl/8",
        request_id="req-1",
        prompt_tokens=100,
        completion_tokens=50,
        cached_tokens=30,
        reasoning_tokens=20,
        cost_nano=1_500,
        upstream_cost_nano=30_000_000_001,
        finish_reason="stop",
        native_finish_reason="end_turn",
        upstream_id="chatcmpl-1",
        attempts=[
            attempt(gone, status=503, error_type="provider_unavailable"),
            attempt(tried.pk, status=429, error_type="rate_limit_exceeded", latency_ms=3),
            attempt(served.pk, provider="Beta AI", is_byok=True),
        ],
        latency_ms=250,
        duration_ms=1_800,
        created_at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
    )
    answer = shown(inference, generation.pk)
    assert answer.status_code == 200
    known = {"model_permaslug": "acme/falcon-2026-01-01"}
    assert answer.json() == {
        "data": {
            "api_type": "completions",
            "app_id": None,
            "cache_discount": None,
            "cancelled": False,
            "created_at": "2026-01-02T03:04:05.678901Z",
            "data_region": "europe",
            "external_user": "alice",
            "finish_reason": "stop",
            "generation_time": 1_800,
            "http_referer": "https://name:word@app.example.com:8443/chat?x=1#y",
            "id": generation.pk,
            "is_byok": True,
            "latency": 250,
            "model": "acme/falcon",
            "moderation_latency": None,
            "native_finish_reason": "end_turn",
            "native_tokens_cached": 30,
            "native_tokens_completion": 50,
            "native_tokens_completion_images": None,
            "native_tokens_prompt": 100,
            "native_tokens_reasoning": 20,
            "num_fetches": None,
            "num_input_audio_prompt": None,
            "num_media_completion": None,
            "num_media_prompt": None,
            "num_search_results": None,
            "origin": "https://app.example.com:8443",
            "preset_id": None,
            "provider_name": "Beta AI",
            "provider_responses": [
                answered(gone, "Acme AI", 503),
                answered(tried.pk, "Acme AI", 429, latency=3, **known),
                answered(served.pk, "Beta AI", 200, is_byok=True, **known),
            ],
            "router": None,
            "service_tier": None,
            "streamed": True,
            "tokens_completion": 50,
            "tokens_prompt": 100,
            "total_cost": 0.0000015,
            "upstream_id": "chatcmpl-1",
            "upstream_inference_cost": 30.000000001,
            "usage": 0.0000015,
            "user_agent": "curl/8",
            "web_search_engine": None,
            "workspace_id": str(tenant.workspace.pk),
            "request_id": "req-1",
            "response_cache_source_id": None,
            "retry_of": None,
            "session_id": "talk-1",
            "trace": {"trace_id": "t-1", "step": [1.5, "é"]},
        }
    }
    assert shown(management, generation.pk).json() == answer.json()


def test_a_pending_generation_is_not_found_yet(transactional_db: None) -> None:
    tenant = factories.make_tenant()
    generation = factories.make_generation(tenant, status="pending")
    with snapshots.unchanged():
        answer = shown(factories.client(tenant.api_key), generation.pk)
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "code": 404,
            "message": "The generation has not ended yet: ask again once its answer is complete.",
            "metadata": {"error_type": "generation_under_way"},
        }
    }


@contextmanager
def at_look(
    number: int,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> Iterator[list[bool]]:
    """Acts before or after a look of the view at its generation.

    Yields whether each look was outside of a transaction, which would hide what happens meanwhile.
    """
    reads: list[bool] = []

    def look(execute: Any, sql: str, *args: Any) -> Any:
        if not sql.startswith('SELECT "inference_generation"'):
            return execute(sql, *args)
        reads.append(connection.get_autocommit())
        is_then = len(reads) == number
        if is_then:
            before()
        found = execute(sql, *args)
        if is_then:
            after()
        return found

    with connection.execute_wrapper(look):
        yield reads


def end() -> None:
    Generation.objects.update(
        status="completed", finish_reason="stop", cost_nano=1_500, completion_tokens=5
    )


def test_a_key_that_is_revoked_while_it_waits_is_shown_nothing(transactional_db: None) -> None:
    tenant = factories.make_tenant()
    generation = factories.make_generation(tenant, status="pending")

    def revoke() -> None:
        ApiKey.objects.get(name="inference").revoke()
        end()

    with at_look(2, after=revoke) as reads:
        answer = shown(factories.client(tenant.api_key), generation.pk)
    assert (answer.status_code, len(reads)) == (401, 3)
    assert set(answer.json()) == {"error"}


def test_a_key_that_is_revoked_while_a_text_is_awaited_is_refused(transactional_db: None) -> None:
    tenant = factories.make_tenant()
    tenant.workspace.edit(is_observability_io_logging_enabled=True)
    key = ApiKey.objects.get(name="inference")
    generation = factories.make_generation(tenant)

    def revoke() -> None:
        key.revoke()
        # The text will not come any more.
        tenant.workspace.edit(is_observability_io_logging_enabled=False)

    with at_look(2, before=revoke) as reads:
        answer = shown(factories.client(tenant.api_key), generation.pk, "generation/content")
    assert (answer.status_code, len(reads)) == (401, 2)


def test_the_view_waits_for_a_generation_that_is_about_to_end(transactional_db: None) -> None:
    tenant = factories.make_tenant()
    generation = factories.make_generation(tenant, status="pending")
    with at_look(3, after=end) as reads:
        answer = shown(factories.client(tenant.api_key), generation.pk)
    assert (answer.status_code, reads) == (200, [True] * 4)
    data = answer.json()["data"]
    told = (data["finish_reason"], data["total_cost"], data["tokens_completion"])
    assert told == ("stop", 0.0000015, 5)


def test_an_answer_can_be_looked_up_immediately(site: Site) -> None:
    site.publish()
    for _ in range(20):
        answer = site.chat().json()
        found = site.get(f"/api/v1/generation?id={answer['id']}")
        assert found.status_code == 200
        data = found.json()["data"]
        assert (data["finish_reason"], data["total_cost"]) == ("stop", answer["usage"]["cost"])
        assert data["tokens_completion"] == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("status", "cancelled"), [("completed", False), ("failed", False), ("cancelled", True)]
)
@pytest.mark.parametrize("operation", ["chat/completions", "completions"])
def test_cancelled_states_whether_the_caller_left(
    inference: APIClient, tenant: Tenant, status: str, cancelled: bool, operation: str
) -> None:
    generation = factories.make_generation(tenant, status=status, operation=operation)
    data = shown(inference, generation.pk).json()["data"]
    assert (data["cancelled"], data["api_type"]) == (cancelled, "completions")
    assert (data["provider_responses"], data["upstream_inference_cost"]) == ([], 0.0)


@pytest.mark.parametrize(
    ("referer", "origin"),
    [
        (None, ""),
        ("", ""),
        ("https://a.example", "https://a.example"),
        ("http://a.example:80/x", "http://a.example:80"),
        ("HTTPS://A.example/x", "https://A.example"),
        ("https://me@a.example/", "https://a.example"),
        ("http://[::1]:8000/x", "http://[::1]:8000"),
        ("http://[::1/x", ""),
        ("a.example/x", ""),
        ("//a.example/x", ""),
        ("about:blank", ""),
        ("https://a\t.example/", ""),
    ],
)
def test_the_origin_is_taken_from_the_referer(
    inference: APIClient, tenant: Tenant, referer: str | None, origin: str
) -> None:
    generation = factories.make_generation(tenant, http_referer=referer)
    assert shown(inference, generation.pk).json()["data"]["origin"] == origin


@pytest.mark.parametrize("path", ["generation", "generation/content"])
def test_a_generation_of_another_organization_is_not_found(tenant: Tenant, path: str) -> None:
    other = factories.make_tenant("Other")
    generation = factories.make_generation(tenant)
    for key in (other.api_key, other.management_key):
        answer = shown(factories.client(key), generation.pk, path)
        assert (answer.status_code, answer.json()) == (404, NOT_FOUND)


@pytest.mark.parametrize("path", ["generation", "generation/content"])
@pytest.mark.parametrize("generation_id", MALFORMED_IDS, ids=ascii)
def test_an_unknown_id_is_not_found(
    inference: APIClient, tenant: Tenant, path: str, generation_id: str
) -> None:
    factories.make_generation(tenant)
    answer = shown(inference, generation_id, path)
    assert (answer.status_code, answer.json()) == (404, NOT_FOUND)


@pytest.mark.parametrize("path", ["generation", "generation/content"])
def test_the_id_is_required(inference: APIClient, path: str) -> None:
    answer = inference.get(f"/api/v1/{path}", {"ID": "gen-1"})
    assert answer.status_code == 400
    assert answer.json()["error"]["metadata"]["fields"] == {"id": "Is required."}


def test_the_number_of_queries_does_not_depend_on_the_attempts(
    inference: APIClient, tenant: Tenant
) -> None:
    endpoints = [
        factories.make_endpoint(factories.make_model(), factories.make_provider()) for _ in range(9)
    ]
    few = factories.make_generation(tenant, attempts=[attempt(endpoints[0].pk)])
    many = factories.make_generation(tenant, attempts=[attempt(each.pk) for each in endpoints])
    counts = []
    for generation in (few, many):
        with CaptureQueriesContext(connection) as captured:
            shown(inference, generation.pk)
        counts.append(len(captured))
    # One query each for the key, the generation, and both kinds of endpoints.
    assert counts == [4, 4]


def test_content_that_is_not_stored_is_not_found(inference: APIClient, tenant: Tenant) -> None:
    generation = factories.make_generation(
        tenant, created_at=clock.now() - timedelta(minutes=1), duration_ms=1
    )
    answer = shown(inference, generation.pk, "generation/content")
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "code": 404,
            "message": (
                "No input and output of this generation is stored: its workspace does not log "
                "them, the request was not logged, or they were deleted. POST /routing/explain "
                "says what is logged."
            ),
            "metadata": {"error_type": "content_not_stored"},
        }
    }


@pytest.mark.parametrize("category", CATEGORIES)
def test_feedback_is_stored(management: APIClient, tenant: Tenant, category: str) -> None:
    generation = factories.make_generation(tenant)
    answer = submit(
        management,
        {"generation_id": generation.pk, "category": category, "comment": "slow\nand wrong"},
    )
    assert (answer.status_code, answer.json()) == (200, {"data": {"success": True}})
    feedback = Feedback.objects.get()
    label = ApiKey.objects.get(name="management").label
    assert (feedback.generation, feedback.created_by) == (generation, f"key {label}")
    assert (feedback.category, feedback.comment) == (category, "slow\nand wrong")


def test_feedback_is_given_once_in_each_category(management: APIClient, tenant: Tenant) -> None:
    generation, other = (factories.make_generation(tenant) for _ in range(2))
    body = {"generation_id": generation.pk, "category": "billing"}
    assert submit(management, body).status_code == 200
    with snapshots.unchanged():
        again = submit(management, {**body, "comment": "other words"})
    assert again.status_code == 409
    assert again.json()["error"]["metadata"] == {"error_type": "feedback_given"}
    assert submit(management, {**body, "category": "other"}).status_code == 200
    assert submit(management, {**body, "generation_id": other.pk}).status_code == 200
    assert Feedback.objects.count() == 3


@pytest.mark.parametrize("length", [0, 1, 4095, 4096])
def test_a_comment_may_have_up_to_4096_characters(
    management: APIClient, tenant: Tenant, length: int
) -> None:
    generation = factories.make_generation(tenant)
    body = {"generation_id": generation.pk, "category": "other", "comment": "é" * length}
    assert submit(management, body).status_code == 200
    assert Feedback.objects.get().comment == "é" * length


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"comment": "x" * 4097}, "comment"),
        ({"comment": None}, "comment"),
        ({"comment": 5}, "comment"),
        ({"comment": "a\0b"}, "comment"),
        ({"category": "Latency"}, "category"),
        ({"category": "latency "}, "category"),
        ({"category": None}, "category"),
        ({"category": ["latency"]}, "category"),
        ({"generation_id": 5}, "generation_id"),
        ({"generation_id": None}, "generation_id"),
        ({"generation_id": ""}, "generation_id"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_feedback_is_refused_by_field(
    management: APIClient, tenant: Tenant, changes: dict[str, Any], field: str
) -> None:
    generation = factories.make_generation(tenant)
    with snapshots.unchanged():
        answer = submit(management, {"generation_id": generation.pk, "category": "other"} | changes)
    assert answer.status_code == 400
    assert list(answer.json()["error"]["metadata"]["fields"]) == [field]


@pytest.mark.parametrize("missing", ["generation_id", "category"])
def test_feedback_requires_a_generation_and_a_category(
    management: APIClient, tenant: Tenant, missing: str
) -> None:
    body = {"generation_id": factories.make_generation(tenant).pk, "category": "other"}
    del body[missing]
    answer = submit(management, body)
    assert answer.status_code == 400
    assert list(answer.json()["error"]["metadata"]["fields"]) == [missing]
    assert not Feedback.objects.exists()


def test_feedback_on_an_unknown_or_foreign_generation_is_not_found(
    management: APIClient, tenant: Tenant
) -> None:
    foreign = factories.make_generation(factories.make_tenant("Other"))
    for generation_id in (foreign.pk, "gen-1", "x y"):
        answer = submit(management, {"generation_id": generation_id, "category": "other"})
        assert (answer.status_code, answer.json()) == (404, NOT_FOUND)
    assert not Feedback.objects.exists()


def test_concurrent_feedback_is_stored_once(transactional_db: None, together: Any) -> None:
    tenant = factories.make_tenant()
    generation = factories.make_generation(tenant)
    body = {"generation_id": generation.pk, "category": "other"}
    client = factories.client(tenant.management_key)
    answers = together(*[lambda: submit(client, body).status_code] * 8)
    assert sorted(answers) == [200] + [409] * 7
    assert Feedback.objects.count() == 1
    assert Generation.objects.get() == generation
