"""Chat completions over real sockets, from the caller's request to the stored generation."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from accounts.models import ByokCredential
from catalog.models import ModelAlias
from config.credentials import Secret
from inference.models import Generation
from tests.support import factories
from tests.support.inference.prices import cost_details
from tests.support.inference.site import (
    OPERATOR_SECRET,
    TENANT_SECRET,
    Site,
    content_of,
    error_of,
    events_of,
)

IDENTITY = {"model": "acme/falcon", "provider": "Acme AI", "system_fingerprint": "fp_simulated"}
USAGE = {
    "prompt_tokens": 2,
    "completion_tokens": 4,
    "total_tokens": 6,
    "cost": 0,
    "is_byok": True,
    "cost_details": cost_details(0, 0, 0),
}


def test_a_chat_answer_has_every_field(site: Site) -> None:
    site.own()
    before = int(time.time())
    answer = site.chat("one two")
    body = answer.json()
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert before <= body.pop("created") <= time.time()
    assert body == {
        "id": answer.headers["X-Generation-Id"],
        "object": "chat.completion",
        **IDENTITY,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "You said: one two"},
                "logprobs": None,
                "finish_reason": "stop",
                "native_finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def test_a_streamed_chat_answer_has_every_field(site: Site) -> None:
    site.own()
    answer = site.chat("one two", stream=True)
    identity = {
        "id": answer.headers["X-Generation-Id"],
        "object": "chat.completion.chunk",
        "created": events_of(answer.text)[0]["created"],
        **IDENTITY,
    }
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text} for text in ("You", " said:", " one", " two")]
    assert answer.status_code == 200
    last = {"delta": {}, "finish_reason": "stop", "native_finish_reason": "stop"}
    choices = [*({"delta": delta, "finish_reason": None} for delta in deltas), last]
    assert events_of(answer.text) == [
        *({**identity, "choices": [{"index": 0, **choice}]} for choice in choices),
        {**identity, "choices": [], "usage": USAGE},
        "[DONE]",
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_stores_every_field_of_its_generation(site: Site, stream: bool) -> None:
    endpoint = site.own("sim-versioned", price=factories.make_price())
    answer = site.post(
        site.chat_body("one two", stream=stream, user="ada"), headers={"X-Request-Id": "req.1-a"}
    )
    row = site.settled()
    assert row.latency_ms is not None
    assert row.duration_ms is not None
    assert 0 <= row.latency_ms <= row.duration_ms < 20_000
    [attempt] = row.attempts
    assert 0 <= attempt.pop("latency_ms") <= row.latency_ms
    assert attempt == {
        "provider": "Acme AI",
        "endpoint_id": str(endpoint.pk),
        "is_byok": True,
        "credential_id": str(ByokCredential.objects.get().pk),
        "status": 200,
    }
    expected = {
        "id": answer.headers["X-Generation-Id"],
        "organization": site.tenant.organization,
        "workspace": site.tenant.workspace,
        "end_user": "ada",
        "operation": "chat/completions",
        "streamed": stream,
        "model": "acme/falcon",
        "private_endpoint": endpoint,
        "model_endpoint": None,
        "provider_name": "Acme AI",
        "price_id": endpoint.price_id,
        "is_byok": True,
        "status": Generation.Status.COMPLETED,
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "is_estimated": False,
        "cost_nano": 0,
        "upstream_cost_nano": 10_000,
        "finish_reason": "stop",
        "upstream_model": "sim-versioned-2026-01-01",
        "error_type": None,
        "request_id": "req.1-a",
    }
    assert {name: getattr(row, name) for name in expected} == expected
    assert row.upstream_id is not None
    assert row.upstream_id.startswith("chatcmpl-")
    assert row.api_key.name == "inference"


def test_a_negotiated_price_is_reported_and_costs_no_credits(site: Site) -> None:
    site.own(price=factories.make_price())
    usage = site.chat("one two").json()["usage"]
    assert usage["cost"] == 0
    assert usage["cost_details"] == cost_details(0.00001, 0.000002, 0.000008)


@pytest.mark.parametrize("stream", [False, True])
def test_a_public_endpoint_costs_its_list_price_exactly(site: Site, stream: bool) -> None:
    price = factories.make_price(
        "0.00000015", "0.0000006", request="0.00001", cache_read="0.000000075"
    )
    endpoint = site.publish("sim-cached:400", price=price)
    answer = site.chat(" ".join(["word"] * 1000), stream=stream)
    row = site.settled()
    # 600 × 0.15 µ$ + 400 × 0.075 µ$ + 256 × 0.6 µ$ + 10 µ$; the answer is cut at 256 words.
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (1000, 400, 256)
    assert row.cost_nano == row.upstream_cost_nano == 90_000 + 30_000 + 153_600 + 10_000
    assert (row.model_endpoint, row.private_endpoint) == (endpoint, None)
    assert not row.is_byok
    usage = events_of(answer.text)[-2]["usage"] if stream else answer.json()["usage"]
    assert usage["cost"] == 0.0002836
    assert usage["is_byok"] is False
    assert usage["cost_details"]["upstream_inference_cost"] == 0.0002836
    assert usage["prompt_tokens_details"] == {"cached_tokens": 400}
    [request] = site.dialled()
    assert request.headers["authorization"] == f"Bearer {OPERATOR_SECRET}"


def test_the_private_endpoint_is_preferred(site: Site) -> None:
    site.allow_fallback()
    site.publish("sim-status:500", price=factories.make_price("0", "0"))
    endpoint = site.own()
    assert site.chat().status_code == 200
    assert site.settled().private_endpoint == endpoint
    [request] = site.dialled()
    assert request.headers["authorization"] == f"Bearer {TENANT_SECRET}"


def test_unknown_fields_reach_the_upstream_untouched(site: Site) -> None:
    site.publish("sim-mirror")
    body = (
        b'{"model": "acme/falcon", "messages": [{"role": "user", "content": "one", "x": 1.50}],'
        b' "future": {"a": [1.10, 1e2, null, "\\u00fc\xc3\xbc"], "b": 12345678901234567890123},'
        b' "temperature": 0.70, "max_tokens": 16, "tools": [{"type": "function", "y": {}}],'
        b' "stream": false}'
    )
    answer = site.post(None, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    [request] = site.dialled()
    assert request.raw == (
        b'{"messages":[{"role": "user", "content": "one", "x": 1.50}],'
        b'"future":{"a": [1.10, 1e2, null, "\\u00fc\xc3\xbc"], "b": 12345678901234567890123},'
        b'"temperature":0.70,"max_tokens":16,"tools":[{"type": "function", "y": {}}],'
        b'"stream":false,"model":"sim-mirror"}'
    )


def test_routing_fields_are_not_sent_upstream(site: Site) -> None:
    site.publish("sim-mirror")
    answer = site.chat(
        models=["acme/falcon"],
        provider={"order": ["acme"]},
        route="fallback",
        session_id="s",
        trace={"trace_id": "t"},
        transforms=[],
        debug={"echo_upstream_body": False},
    )
    assert answer.status_code == 200
    seen = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert seen["path"] == "/v1/chat/completions"
    asked = [{"role": "user", "content": "one two"}]
    assert seen["body"] == {"model": "sim-mirror", "messages": asked, "stream": False}


def test_headers_of_the_caller_are_not_sent_upstream(site: Site) -> None:
    site.own()
    headers = {"Cookie": "a=b", "X-Title": "app", "HTTP-Referer": "https://app.example"}
    site.post(site.chat_body(), headers=headers)
    [request] = site.dialled()
    assert request.headers["authorization"] == f"Bearer {TENANT_SECRET}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "application/json"
    assert not {"cookie", "x-title", "http-referer", "x-request-id"} & set(request.headers)
    assert site.tenant.api_key not in str(request.headers)


@pytest.mark.parametrize(
    ("headers", "stored"),
    [
        ({"X-Title": "older"}, "older"),
        ({"X-OpenRouter-Title": "newer", "X-Title": "older"}, "newer"),
        ({"X-OpenRouter-Title": "", "X-Title": "t" * 300}, "t" * 255),
        ({"X-Title": "Größe".encode()}, "Größe"),
        ({"X-Title": "Größe".encode("latin-1")}, "Größe"),
        ({}, None),
    ],
)
def test_the_title_of_an_application_has_two_names(
    site: Site, headers: dict[str, Any], stored: str | None
) -> None:
    site.own()
    site.post(site.chat_body(), headers=headers)
    assert site.settled().app_title == stored


def test_a_stream_asks_for_usage_and_keeps_other_options(site: Site) -> None:
    site.own()
    site.chat(stream=True, stream_options={"include_usage": False, "include_obfuscation": True})
    [request] = site.dialled()
    assert request.body["stream"] is True
    assert request.body["stream_options"] == {"include_usage": True, "include_obfuscation": True}
    assert request.headers["accept"] == "text/event-stream"


@pytest.mark.parametrize(
    "asked", [{"reasoning": {"effort": "high", "exclude": True}}, {"reasoning_effort": "high"}]
)
@pytest.mark.parametrize(
    ("listed", "is_sent", "is_usable"),
    [
        (["reasoning_effort"], True, True),
        # Nobody has stated how its thinking is switched.
        (["reasoning", "include_reasoning"], False, False),
        (["reasoning", "reasoning_effort", "include_reasoning"], True, True),
        (["temperature"], False, False),
    ],
)
def test_an_effort_is_sent_as_reasoning_effort_if_the_endpoint_lists_it(
    site: Site, asked: dict[str, Any], listed: list[str], is_sent: bool, is_usable: bool
) -> None:
    site.publish(supported_parameters=listed)
    asked = {**asked, "include_reasoning": False}
    assert site.chat(**asked).status_code == 200
    asked.pop("include_reasoning")
    required = site.chat(**asked, provider={"require_parameters": True})
    assert required.status_code == (200 if is_usable else 404)
    for request in site.dialled():
        assert request.body.get("reasoning_effort") == ("high" if is_sent else None)
        assert not {"reasoning", "include_reasoning"} & request.body.keys()


@pytest.mark.parametrize("is_private", [True, False])
def test_an_endpoint_that_lists_no_parameters_receives_all_unchanged(
    site: Site, is_private: bool
) -> None:
    if is_private:
        site.own()
    else:
        site.publish(supported_parameters=[])
    mark = {"cache_control": {"type": "ephemeral"}}
    thoughts = {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text"}]}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]},
        {"role": "assistant", "content": "Ho", **thoughts},
        {"role": "user", "content": "Hi"},
    ]
    asked = {
        "reasoning": {"effort": "high", "exclude": True},
        "reasoning_effort": "high",
        "include_reasoning": False,
        **mark,
    }
    assert site.post({**site.chat_body(), "messages": said, **asked}).status_code == 200
    [request] = site.dialled()
    assert request.body["messages"] == said
    assert {name: request.body[name] for name in asked} == asked


@pytest.mark.parametrize("option", [{"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}])
@pytest.mark.parametrize("asked", [{"reasoning_effort": "high"}, {"reasoning": {"enabled": False}}])
def test_an_effort_in_provider_options_replaces_the_callers(
    site: Site, option: dict[str, Any], asked: dict[str, Any]
) -> None:
    site.publish(supported_parameters=["reasoning_effort"])
    assert site.chat(**asked, provider={"options": {"acme": option}}).status_code == 200
    [request] = site.dialled()
    assert request.body["reasoning_effort"] == "low"


@pytest.mark.parametrize(("listed", "is_sent"), [("temperature", False), ("cache_control", True)])
def test_a_parameter_unknown_to_openai_is_sent_only_if_the_endpoint_lists_it(
    site: Site, listed: str, is_sent: bool
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "Hi"}
    site.publish(supported_parameters=[listed])
    assert site.chat([{**part, **mark}], **mark).status_code == 200
    [request] = site.dialled()
    sent = [{**part, **(mark if is_sent else {})}]
    assert request.body["messages"] == [{"role": "user", "content": sent}]
    assert ("cache_control" in request.body) is is_sent


def test_the_user_is_sent_as_a_stable_hash_per_organization(site: Site) -> None:
    site.publish()
    other = factories.make_tenant("Other")
    for user, key in (
        ("zoë@example.com", site.tenant.api_key),
        ("zoë@example.com", site.tenant.api_key),
        ("bob", site.tenant.api_key),
        ("zoë@example.com", other.api_key),
    ):
        assert site.post(site.chat_body(user=user), key=key).status_code == 200
    sent = [request.body["user"] for request in site.dialled()]
    assert sent[0] == sent[1]
    assert len(set(sent)) == 3
    assert not any("zo" in request.raw.decode() for request in site.dialled())
    assert set(Generation.objects.values_list("end_user", flat=True)) == {"zoë@example.com", "bob"}


def test_an_empty_user_is_not_sent_upstream(site: Site) -> None:
    site.publish()
    for user in ("", None):
        assert site.chat(user=user).status_code == 200
    assert all("user" not in request.body for request in site.dialled())
    assert set(Generation.objects.values_list("end_user", flat=True)) == {None}


def test_an_invalid_request_id_is_replaced(site: Site) -> None:
    site.publish()
    for offered in ("", "has space", "x" * 65, "ü", "a;b"):
        answer = site.post(site.chat_body(), headers={"X-Request-Id": offered.encode()})
        given = answer.headers["X-Request-Id"]
        assert len(given) == 16
        assert Generation.objects.get(pk=answer.json()["id"]).request_id == given


def test_a_model_is_found_by_slug_and_canonical_slug(site: Site) -> None:
    site.publish()
    assert site.chat(model=site.model.canonical_slug).json()["model"] == "acme/falcon"
    assert site.settled().model == "acme/falcon"


def test_the_first_known_model_serves(site: Site) -> None:
    site.publish()
    answer = site.chat(model="nobody/knows", models=["acme/falcon"])
    assert answer.status_code == 200
    assert answer.json()["model"] == "acme/falcon"


def test_later_models_are_fallbacks(site: Site) -> None:
    second = factories.make_model("acme/hawk")
    site.publish("sim-status:503")
    endpoint = site.publish(model=second)
    assert site.chat(models=["acme/hawk"]).json()["model"] == "acme/hawk"
    row = site.settled()
    assert (row.model, row.model_endpoint) == ("acme/hawk", endpoint)
    assert row.price_id == endpoint.price_id


def test_gateway_fields_are_not_sent_upstream(site: Site) -> None:
    site.publish()
    meant_for_us = {
        "usage": {"include": True},
        "plugins": [{"id": "response-healing", "enabled": False}],
        "transforms": [],
        "route": "fallback",
    }
    assert site.chat(seed=5, **meant_for_us).status_code == 200
    [request] = site.dialled()
    assert request.body == {
        "model": "sim-echo",
        "messages": [{"role": "user", "content": "one two"}],
        "seed": 5,
        "stream": False,
    }


@pytest.mark.parametrize("empty", ["[ ]", "[\n]"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_empty_format_sets_nothing_however_it_is_written(
    site: Site, empty: str, is_stream: bool
) -> None:
    site.publish("sim-no-usage")
    text = json.dumps(site.chat_body(stream=is_stream))[:-1] + f', "response_format": {empty}}}'
    answer = site.post(None, data=text)
    assert answer.status_code == 200
    assert "error" not in answer.text
    assert "response_format" not in site.dialled()[0].body
    row = site.settled()
    assert (row.status, row.prompt_tokens, row.is_estimated) == ("completed", 6, True)


def test_an_unsupported_plugin_is_refused_before_admission(site: Site) -> None:
    site.publish()
    error = error_of(site.chat(plugins=[{"id": "moderation"}]), 400)
    assert error["metadata"]["fields"] == {
        "plugins[0].id": "This service does not run the plugin. Leave it out, or set 'enabled' to "
        "false."
    }
    site.assert_nothing_happened()


def test_other_members_of_the_upstream_answer_are_kept(site: Site) -> None:
    site.publish("sim-extra")
    timings = {"prompt_n": 1, "prompt_ms": 1.5, "predicted_n": 2, "predicted_ms": 2.5}
    assert site.chat().json()["timings"] == timings
    *events, done = events_of(site.chat(stream=True).text)
    assert done == "[DONE]"
    assert [event["timings"] for event in events] == [timings] * len(events)


def test_tool_calls_are_streamed(site: Site) -> None:
    site.publish("sim-tools:2")
    events = events_of(site.chat(stream=True, tools=[{"function": {"name": "look"}}]).text)
    calls: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                text = call["function"]["arguments"]
                calls[call["index"]] = calls.get(call["index"], "") + text
    made = [json.loads(text) for text in calls.values()]
    assert made == [{"city": "Zürich", "number": number} for number in (0, 1)]
    assert site.settled().finish_reason == "tool_calls"


def test_reasoning_tokens_are_stored(site: Site) -> None:
    site.publish("sim-reasoning")
    usage = site.chat().json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert site.settled().reasoning_tokens == 3


def test_a_big_answer_is_relayed_whole(site: Site) -> None:
    site.publish("sim-big:3000000")
    assert site.chat().json()["choices"][0]["message"]["content"] == "x" * 3_000_000


def test_a_big_request_is_sent_whole(site: Site) -> None:
    site.publish("sim-echo")
    content = "x" * 5_000_000
    assert site.chat(content).status_code == 200
    [request] = site.dialled()
    assert request.body["messages"][0]["content"] == content


def test_an_attempt_names_the_own_credential_and_the_alias_that_was_asked_for(site: Site) -> None:
    site.publish()
    ModelAlias.objects.create(
        organization=site.tenant.organization, name="house-*", targets=[site.model.slug]
    )
    credential = factories.make_credential(site.tenant, site.provider)
    own = {"credential_id": str(credential.pk)}
    assert store_attempt(site, "house-best") == own | {"requested": "house-best"}
    # A text that the database refuses would leave the generation without a charge.
    assert store_attempt(site, "house-\0best") == own | {"requested": "house-best"}
    assert store_attempt(site, site.model.slug) == own
    credential.remove()
    assert store_attempt(site, site.model.slug) == {}


def store_attempt(site: Site, model: str) -> dict[str, Any]:
    """Sends a request, and returns the members of its attempt that not every attempt has."""
    answer = site.post(site.chat_body(model=model))
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    [attempt] = Generation.objects.get(pk=answer.headers["X-Generation-Id"]).attempts
    always = {"provider", "endpoint_id", "is_byok", "latency_ms", "status"}
    assert always <= attempt.keys()
    return {name: value for name, value in attempt.items() if name not in always}


def test_concurrent_streams_do_not_mix(site: Site) -> None:
    site.publish()
    words = [f"word-{number}" for number in range(24)]
    with ThreadPoolExecutor(12) as pool:
        texts = pool.map(lambda word: site.chat(word, stream=True).text, words)
        assert [content_of(events_of(text)) for text in texts] == [f"You said: {w}" for w in words]
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 24)


def test_a_price_change_does_not_affect_an_admitted_request(site: Site) -> None:
    endpoint = site.publish("sim-held", price=factories.make_price("0.000001", "0.000001"))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(site.chat, "one two")
        assert site.upstream.wait_until(lambda: len(site.upstream.requests) == 1)
        factories.set_price(endpoint, factories.make_price("1", "1"))
        site.upstream.release()
        assert answer.result().json()["usage"]["cost"] == 0.000006
    assert site.settled().cost_nano == 6000


def test_a_rotated_operator_credential_is_used_immediately(site: Site) -> None:
    site.publish()
    site.chat()
    site.provider.set_credential(Secret("operator-second-0123456789"))
    site.chat()
    used = [request.headers["authorization"] for request in site.dialled()]
    assert used == [f"Bearer {OPERATOR_SECRET}", "Bearer operator-second-0123456789"]
