"""What a span says of a generation, decoded by OpenTelemetry's own packages."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from accounts.models import ApiKey
from inference.broadcast.sender import Broadcaster
from inference.models import Generation
from tests.support import factories
from tests.support.broadcast.destinations import broadcast_to, make_past_generation, rewind
from tests.support.broadcast.feeds import Feed
from tests.support.broadcast.traces import TraceReceiver, attributes
from tests.support.factories import Tenant

FULL: dict[str, Any] = {
    "end_user": "ada",
    "session_id": "talk",
    "app_title": "Desk",
    "http_referer": "https://desk.example",
    "user_agent": "desk/1",
    "streamed": True,
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "cached_tokens": 40,
    "cost_nano": 1_500_000,
    "upstream_cost_nano": 1_500_000,
    "finish_reason": "stop",
    "native_finish_reason": "end",
    "upstream_id": "up-1",
    "upstream_model": "falcon-9-0123",
    "latency_ms": 300,
    "duration_ms": 1200,
    "request_id": "r-1",
}


def test_a_span_has_the_metadata_of_a_generation(feed: Feed) -> None:
    generation = make_past_generation(feed.tenant, **FULL)
    assert feed.run() == 1
    [span] = feed.receiver.spans()
    assert generation.model_endpoint is not None
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": generation.model_endpoint.provider.slug,
        "causeway.provider.slug": generation.model_endpoint.provider.slug,
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 0.3,
        "gen_ai.request.model": "acme/falcon",
        "gen_ai.response.model": "falcon-9-0123",
        "gen_ai.response.id": generation.pk,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "causeway.usage.is_estimated": False,
        "gen_ai.conversation.id": "talk",
        "session.id": "talk",
        "causeway.generation.status": "completed",
        "causeway.generation.latency_ms": 300,
        "causeway.workspace.id": str(feed.tenant.workspace.pk),
    }
    assert (span.name, span.kind) == ("chat acme/falcon", Span.SpanKind.SPAN_KIND_CLIENT)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_200_000_000
    assert abs(span.start_time_unix_nano / 1e9 - generation.created_at.timestamp()) < 1e-3
    assert span.status.code == Status.StatusCode.STATUS_CODE_UNSET
    assert (len(span.trace_id), len(span.span_id), span.parent_span_id) == (16, 8, b"")


def test_a_span_has_the_words_of_the_registry(feed: Feed) -> None:
    provider = factories.make_provider("xai", name="xAI")
    endpoint = factories.make_endpoint(factories.make_model("x-ai/grok"), provider)
    generation = make_past_generation(feed.tenant, **FULL, model_endpoint=endpoint)
    units = {"cache_write_1h": 5, "audio": 3, "image_output": 7, "searches": 2}
    Generation.objects.filter(pk=generation.pk).update(
        units=units, cache_write_tokens=4, reasoning_tokens=6
    )
    feed.run()
    [span] = feed.receiver.spans()
    found = attributes(span)
    expected = {
        "gen_ai.provider.name": "x_ai",
        "causeway.provider.slug": "xai",
        "gen_ai.usage.cache_write.input_tokens": 9,
        "gen_ai.usage.reasoning.output_tokens": 6,
        "gen_ai.usage.audio.input_tokens": 3,
        "gen_ai.usage.image.output_tokens": 7,
    }
    assert {name: found.get(name) for name in expected} == expected
    _, body = feed.receiver.server.requests[-1]
    assert b'"schemaUrl":"https://opentelemetry.io/schemas/1.37.0"' in body


def test_groups_of_metadata_are_sent_if_they_are_asked_for(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster
) -> None:
    flags = dict.fromkeys(("has_cost", "has_identity", "has_request_context"), True)
    broadcast_to(tenant.workspace, receiver.url, **flags)
    key = ApiKey.objects.get(organization=tenant.organization, is_management=False)
    make_past_generation(tenant, **FULL)
    broadcaster.run()
    found = attributes(receiver.spans()[0])
    expected = {
        "causeway.cost.total_usd": 0.0015,
        "causeway.cost.upstream_usd": 0.0015,
        "causeway.cost.is_byok": False,
        "user.id": "ada",
        "causeway.api_key.name": key.name,
        "causeway.api_key.hash": key.digest,
        "causeway.app.title": "Desk",
        "causeway.app.referer": "https://desk.example",
        "causeway.organization.id": str(tenant.organization.pk),
        "causeway.operation": "chat/completions",
        "causeway.region": "global",
        "causeway.request.id": "r-1",
        "causeway.attempts": 0,
        "causeway.upstream.id": "up-1",
        "causeway.upstream.finish_reason": "end",
        "user_agent.original": "desk/1",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_an_error_is_the_status_of_its_span(feed: Feed) -> None:
    make_past_generation(feed.tenant, status="failed", error_type="upstream_timeout")
    feed.run()
    [span] = feed.receiver.spans()
    assert span.status.code == Status.StatusCode.STATUS_CODE_ERROR
    assert span.status.message == "upstream_timeout"
    assert attributes(span)["error.type"] == "upstream_timeout"


def test_the_callers_trace_is_kept(feed: Feed) -> None:
    """Known members place and name the span; all others are attributes."""
    known = {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "parent_span_id": "b7ad6b7169203331",
        "trace_name": "Order",
        "generation_name": "Summarize",
        "team": "desk",
        "step": 3,
        "ratio": 0.5,
        "is_trial": True,
        "nothing": None,
        "tags": ["a", 1],
    }
    make_past_generation(feed.tenant, trace=json.dumps(known), minutes=3)
    for minutes in (2, 1):
        make_past_generation(feed.tenant, trace='{"trace_id": "order 7"}', minutes=minutes)
    feed.run()
    first, second, third = feed.receiver.spans()
    assert first.trace_id.hex() == known["trace_id"]
    assert first.parent_span_id.hex() == known["parent_span_id"]
    assert first.name == "Summarize"
    found = {name: value for name, value in attributes(first).items() if name.startswith("trace.")}
    assert found == {
        "trace.trace_id": known["trace_id"],
        "trace.parent_span_id": known["parent_span_id"],
        "trace.trace_name": "Order",
        "trace.generation_name": "Summarize",
        "trace.metadata.team": "desk",
        "trace.metadata.step": 3,
        "trace.metadata.ratio": 0.5,
        "trace.metadata.is_trial": True,
        "trace.metadata.tags": '["a", 1]',
    }
    # A text that is no id joins the generations that have it.
    assert second.trace_id == third.trace_id
    assert second.span_id != third.span_id
    assert attributes(second)["trace.trace_id"] == "order 7"


def test_a_generation_that_is_sent_again_is_the_same_span(feed: Feed) -> None:
    make_past_generation(feed.tenant)
    make_past_generation(feed.tenant, minutes=4)
    feed.run()
    rewind(feed.destination)
    feed.run()
    first, again = feed.receiver.batches()
    assert first == again
    assert len({(span.trace_id, span.span_id) for span in first}) == 2


def test_a_webhook_gets_the_same_by_its_method(
    tenant: Tenant, receiver: TraceReceiver, broadcaster: Broadcaster
) -> None:
    config = {"method": "PUT", "headers": {"X-Token": "secret of the hook"}}
    broadcast_to(tenant.workspace, receiver.url, kind="webhook", config=config)
    generation = make_past_generation(tenant)
    broadcaster.run()
    assert receiver.ids() == [generation.pk]
    [head] = receiver.heads
    lines = head.split("\r\n")
    assert lines[0] == "PUT /v1/traces HTTP/1.1"
    assert {"Content-Type: application/json", "X-Token: secret of the hook"} <= set(lines)
