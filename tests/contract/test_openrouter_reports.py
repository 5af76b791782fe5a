"""The public Python SDK reads generations, activity and analytics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from openrouter import OpenRouter, errors
from openrouter.analytics import Analytics
from openrouter.generations import Generations

from inference.models import Feedback, Generation
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.contract.answers import ANSWER, MESSAGES
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

# The SDK warns about every response with a field that its OpenAPI document marks as deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:warning. .. DEPRECATED:DeprecationWarning")

gives_feedback = pytest.mark.skipif(
    not hasattr(Generations, "submit_feedback"), reason="this SDK has no feedback"
)
asks_analytics = pytest.mark.skipif(
    not hasattr(Analytics, "query_analytics"), reason="this SDK has no analytics"
)


def test_get_generation_returns_the_record_of_a_request(caller: OpenRouter, serve: Serve) -> None:
    answer = caller.chat.send(model=serve("sim-echo"), messages=MESSAGES)
    found = caller.generations.get_generation(id=answer.id).data
    stored = Generation.objects.get()
    assert (found.id, found.model, found.provider_name) == (answer.id, "acme/falcon", "Acme AI")
    assert (found.tokens_prompt, found.native_tokens_completion) == (3, 5)
    assert (found.is_byok, found.total_cost, found.usage) == (True, 0.0, 0.0)
    assert found.upstream_inference_cost == 0.000013
    assert (found.finish_reason, found.cancelled, found.api_type) == ("stop", False, "completions")
    assert found.generation_time == stored.duration_ms
    [tried] = found.provider_responses or []
    assert (tried.status, tried.endpoint_id, tried.provider_name, tried.model_permaslug) == (
        200,
        str(stored.model_endpoint_id),
        "Acme AI",
        "acme/falcon-2026-01-01",
    )


def test_a_pending_generation_is_not_found(caller: OpenRouter, tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, status="pending")
    with pytest.raises(errors.NotFoundResponseError, match="has not ended yet"):
        caller.generations.get_generation(id=generation.pk)


def test_unknown_generations_and_their_contents_are_not_found(
    caller: OpenRouter, tenant: Tenant
) -> None:
    generation = factories.make_generation(tenant)
    with pytest.raises(errors.NotFoundResponseError, match="does not exist"):
        caller.generations.get_generation(id="gen-1")
    with pytest.raises(errors.NotFoundResponseError, match="No input and output"):
        caller.generations.list_generation_content(id=generation.pk)


@gives_feedback
def test_feedback_is_stored_once_and_needs_a_management_key(
    manager: OpenRouter, caller: OpenRouter, tenant: Tenant
) -> None:
    generation = factories.make_generation(tenant)
    given: dict[str, Any] = {"generation_id": generation.pk, "category": "latency"}
    assert manager.generations.submit_feedback(**given, comment="slow").data.SUCCESS is True
    # Some versions of the SDK have no class for these statuses of this operation.
    for client, status in ((manager, 409), (caller, 403)):
        with pytest.raises(errors.OpenRouterError) as caught:
            client.generations.submit_feedback(**given)
        assert caught.value.status_code == status
    assert Feedback.objects.get().comment == "slow"


def test_activity_returns_daily_usage(
    manager: OpenRouter, caller: OpenRouter, tenant: Tenant
) -> None:
    yesterday = timezone.now() - timedelta(days=1)
    made = factories.make_generation(
        tenant, created_at=yesterday, prompt_tokens=10, completion_tokens=5, cost_nano=25
    )
    roll_up_usage()
    [row] = manager.analytics.get_user_activity().data
    assert row.model_dump(exclude_unset=True) == {
        "byok_usage_inference": 0.0,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "date": yesterday.date().isoformat(),
        "endpoint_id": str(made.model_endpoint_id),
        "model": "acme/falcon",
        "model_permaslug": made.model_endpoint.model.canonical_slug,
        "prompt_tokens": 10,
        "provider_name": "Acme AI",
        "reasoning_tokens": 0,
        "requests": 1,
        "usage": 0.000000025,
    }
    asked: dict[str, Any] = {"group_by": "workspace", "workspace_id": str(tenant.workspace.pk)}
    [split] = manager.analytics.get_user_activity(request=asked).data
    assert split.workspace_id == str(tenant.workspace.pk)
    with pytest.raises(errors.BadRequestResponseError):
        manager.analytics.get_user_activity(request={"date": "2020-01-01"})
    with pytest.raises(errors.NotFoundResponseError):
        manager.analytics.get_user_activity(request={"api_key_hash": "0" * 64})
    with pytest.raises(errors.ForbiddenResponseError):
        caller.analytics.get_user_activity()


@asks_analytics
def test_analytics_returns_the_requested_metrics(manager: OpenRouter, tenant: Tenant) -> None:
    at = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    for end_user in ("alice", "alice", "bob"):
        factories.make_generation(
            tenant, created_at=at, end_user=end_user, cost_nano=1_000, latency_ms=20
        )
    words = manager.analytics.get_analytics_meta().data
    assert [operator.name for operator in words.operators] == [
        "eq", "neq", "in", "not_in", "gt", "gte", "lt", "lte",
    ]  # fmt: skip
    assert "external_user" in [dimension.name for dimension in words.dimensions]
    answer = manager.analytics.query_analytics(
        metrics=[metric.name for metric in words.metrics],
        dimensions=["external_user"],
        granularity="hour",
        filters=[{"field": "external_user", "operator": "in", "value": ["alice", "carol"]}],
        order_by={"field": "request_count", "direction": "desc"},
        time_range={"start": at, "end": at + timedelta(seconds=1)},
    ).data
    # The SDK declares no fields of a row and drops them; other tests check their values.
    assert len(answer.data) == 1
    assert (answer.metadata.row_count, answer.metadata.truncated) == (1, False)
    with pytest.raises(errors.BadRequestResponseError, match="order_by"):
        manager.analytics.query_analytics(
            metrics=["usage"], order_by={"field": "error_rate", "direction": "asc"}
        )


def test_the_stored_content_of_a_request_is_read(
    manager: OpenRouter, caller: OpenRouter, serve: Serve, tenant: Tenant
) -> None:
    manager.workspaces.update(
        id=str(tenant.workspace.pk),
        is_observability_io_logging_enabled=True,
        io_logging_sampling_rate=1,
        io_logging_api_key_ids=None,
    )
    answer = caller.chat.send(model=serve("sim-echo"), messages=MESSAGES)
    for client in (caller, manager):
        data = client.generations.list_generation_content(id=answer.id).data
        assert data.model_dump() == {
            "input": {"messages": MESSAGES},
            "output": {"completion": ANSWER, "reasoning": None},
            "error": None,
        }
