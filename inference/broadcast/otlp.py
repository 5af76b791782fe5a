"""Renders generations as spans of OTLP in JSON, by the conventions for generative AI.

A span has no prompt and no answer. Its ids are derived from the generation's, so that a generation
that is sent again is the same span.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings

from accounts.models import BroadcastDestination
from catalog.dialects.base import Operation
from catalog.operations import name_span
from catalog.pricing import usd
from config.telemetry.tracing import SCHEMA_URL
from inference import conventions
from inference.models import Generation

_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CLIENT: Final = 3
_ERROR: Final = 2
_MAX_TEXT: Final = 1024
# Members of a caller's trace that name spans; all others are attributes.
_KNOWN: Final = ("trace_id", "trace_name", "span_name", "generation_name", "parent_span_id")

Attribute = str | int | float | bool | Sequence[str] | None


def render_request(destination: BroadcastDestination, generations: Iterable[Generation]) -> bytes:
    """Returns the body of an export request with a span for each generation."""
    spans = [render_span(destination, generation) for generation in generations]
    resource = {"service.name": "causeway", "service.version": settings.VERSION}
    scope: dict[str, Any] = {"name": "causeway.broadcast", "version": settings.VERSION}
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": _render_attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": spans, "schemaUrl": SCHEMA_URL}],
            }
        ]
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def render_span(destination: BroadcastDestination, generation: Generation) -> dict[str, Any]:
    """Returns the span of a generation with the groups of metadata that a destination gets."""
    caller = _read_trace(generation)
    attributes = {**_describe(generation), **_describe_trace(caller)}
    if destination.has_cost:
        attributes |= _describe_cost(generation)
    if destination.has_identity:
        attributes |= _describe_identity(generation)
    if destination.has_request_context:
        attributes |= _describe_context(generation)
    begin = (generation.created_at - _EPOCH) // _EPOCH.resolution * 1000
    end = begin + (generation.duration_ms or generation.latency_ms or 0) * 1_000_000
    span: dict[str, Any] = {
        "traceId": _trace_id(generation, caller.get("trace_id")),
        "spanId": _digest(f"span {generation.pk}")[:16],
        "name": _span_name(generation, caller),
        "kind": _CLIENT,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(end),
        "attributes": _render_attributes(attributes),
        "status": {},
    }
    parent = caller.get("parent_span_id")
    if isinstance(parent, str) and _SPAN_ID.fullmatch(parent):
        span["parentSpanId"] = parent
    if generation.error_type is not None:
        span["status"] = {"code": _ERROR, "message": generation.error_type}
    return span


def _describe(generation: Generation) -> dict[str, Attribute]:
    reason, latency = generation.finish_reason, generation.latency_ms
    slug, provider = provider_of(generation), _find_provider(generation)
    dialect = None if provider is None else provider.dialect
    return {
        conventions.OPERATION: _operation_name(generation),
        conventions.PROVIDER: conventions.name_provider(slug, dialect),
        conventions.OWN_PROVIDER: slug,
        conventions.REQUEST_MODEL: generation.model,
        conventions.RESPONSE_MODEL: generation.upstream_model,
        conventions.RESPONSE_ID: generation.pk,
        conventions.STREAM: generation.streamed,
        conventions.FIRST_CHUNK: latency / 1000 if generation.streamed and latency else None,
        conventions.FINISH_REASONS: None if reason is None else [reason],
        conventions.INPUT_TOKENS: generation.prompt_tokens,
        conventions.OUTPUT_TOKENS: generation.completion_tokens,
        conventions.CACHE_READ_TOKENS: generation.cached_tokens,
        conventions.CACHE_WRITE_TOKENS: _cache_writes(generation),
        conventions.REASONING_TOKENS: generation.reasoning_tokens,
        **conventions.describe_units(generation.units),
        "causeway.usage.is_estimated": generation.is_estimated,
        conventions.CONVERSATION: generation.session_id,
        "session.id": generation.session_id,
        "error.type": generation.error_type,
        "causeway.generation.status": generation.status,
        "causeway.generation.latency_ms": generation.latency_ms,
        "causeway.workspace.id": str(generation.workspace_id),
    }


def _describe_cost(generation: Generation) -> dict[str, Attribute]:
    units, reported = generation.units or {}, generation.reported_cost_nano
    return {
        conventions.OWN_COST: usd(generation.cost_nano),
        "causeway.cost.upstream_usd": usd(generation.upstream_cost_nano),
        "causeway.cost.reported_usd": None if reported is None else usd(reported),
        "causeway.cost.is_byok": generation.is_byok,
        **{f"causeway.units.{name}": _plain(count) for name, count in units.items()},
    }


def _describe_identity(generation: Generation) -> dict[str, Attribute]:
    member = generation.member_id
    return {
        "user.id": generation.end_user,
        "causeway.api_key.name": generation.api_key.name,
        "causeway.api_key.hash": generation.api_key.digest,
        "causeway.member.id": None if member is None else str(member),
        "causeway.app.title": generation.app_title,
        "causeway.app.referer": generation.http_referer,
        "causeway.organization.id": str(generation.organization_id),
    }


def _describe_context(generation: Generation) -> dict[str, Attribute]:
    preset = generation.preset_id
    return {
        "causeway.operation": generation.operation,
        "causeway.region": generation.region,
        "causeway.request.id": generation.request_id or None,
        "causeway.attempts": len(generation.attempts),
        "causeway.preset.id": None if preset is None else str(preset),
        "causeway.cached_from": generation.cached_from,
        "causeway.retry_of": generation.retry_of,
        "causeway.upstream.id": generation.upstream_id,
        "causeway.upstream.finish_reason": generation.native_finish_reason,
        "user_agent.original": generation.user_agent,
    }


def _describe_trace(caller: Mapping[str, Any]) -> dict[str, Attribute]:
    """Returns the attributes of the caller's own trace."""
    found: dict[str, Attribute] = {
        f"trace.{name}": caller[name] for name in _KNOWN if isinstance(caller.get(name), str)
    }
    for name, value in caller.items():
        if name not in _KNOWN:
            found[f"trace.metadata.{name}"] = _plain(value)
    return found


def provider_of(generation: Generation) -> str:
    """Returns the slug of the provider that served a generation."""
    provider = _find_provider(generation)
    return str(generation.provider_name if provider is None else provider.slug)


def _find_provider(generation: Generation) -> Any:
    """Returns the provider of the endpoint that served a generation, if one did."""
    if (own := generation.private_endpoint) is not None:
        return own.upstream_provider
    return None if generation.model_endpoint is None else generation.model_endpoint.provider


def _cache_writes(generation: Generation) -> int | None:
    """Returns the tokens that were written to a cache, for whatever time."""
    for_an_hour = (generation.units or {}).get("cache_write_1h", 0)
    return ((generation.cache_write_tokens or 0) + for_an_hour) or generation.cache_write_tokens


def _operation_name(generation: Generation) -> str:
    return name_span(Operation(generation.operation))


def _span_name(generation: Generation, caller: Mapping[str, Any]) -> str:
    for member in ("generation_name", "span_name"):
        name = caller.get(member)
        if isinstance(name, str) and name:
            return name[:_MAX_TEXT]
    return f"{_operation_name(generation)} {generation.model}"


def _trace_id(generation: Generation, given: Any) -> str:
    """Returns the caller's id of the trace, one derived from it, or one of the generation.

    A text that is no id of OTLP names a trace within the organization.
    """
    if isinstance(given, str) and _TRACE_ID.fullmatch(given):
        return given
    if isinstance(given, str) and given:
        return _digest(f"trace {generation.organization_id} {given}")[:32]
    return _digest(f"trace {generation.pk}")[:32]


def _read_trace(generation: Generation) -> dict[str, Any]:
    caller = {} if generation.trace is None else json.loads(generation.trace)
    return caller if isinstance(caller, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: Any) -> Attribute:
    """Returns a member of JSON as the value of an attribute."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return value if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _render_attributes(attributes: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": _render_value(value)}
        for name, value in attributes.items()
        if value is not None
    ]


def _render_value(value: Attribute) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            # JSON has no integers of 64 bits.
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            assert value is not None
            return {"arrayValue": {"values": [{"stringValue": text} for text in value]}}
