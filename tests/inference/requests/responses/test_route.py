"""`/responses` on the running service."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from django.conf import LazySettings

from accounts.models import Guardrail
from inference.requests.chat_replies import ReplyReasoning
from inference.requests.responses.reasoning import seal
from tests.support.database.snapshots import unchanged
from tests.support.inference.responses import FUNCTION, asked, events_of, hold_back
from tests.support.inference.site import RESPONSES, Site
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import standing_in


def send(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> requests.Response:
    return site.post(asked(**fields), path=RESPONSES, headers=headers or {}, stream=True)


def respond(site: Site, *, is_streamed: bool, **fields: Any) -> tuple[requests.Response, Any]:
    """Asks; returns the answer, and the response that it has or ends with."""
    found = send(site, stream=is_streamed, **fields)
    assert found.status_code == 200, found.text
    return found, events_of(found.content)[-1]["response"] if is_streamed else found.json()


def text_of(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_response_costs_as_much_as_its_chat(published: Site, is_streamed: bool) -> None:
    asks = {"content": "one two", "user": "ada@example.com"}
    found, response = respond(published, is_streamed=is_streamed, **asks)
    row = published.settled()
    assert (response["id"], response["object"]) == (row.id, "response")
    assert (response["status"], text_of(response)) == ("completed", "You said: one two")
    assert response["usage"] == {
        "input_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
        "cost": 0.00001,
        "is_byok": False,
        "cost_details": {
            "upstream_inference_cost": 0.00001,
            "upstream_inference_input_cost": 0.000002,
            "upstream_inference_output_cost": 0.000008,
        },
    }
    assert (row.status, row.operation, row.cost_nano) == ("completed", "chat/completions", 10_000)
    assert found.headers["x-generation-id"] == row.id
    assert "x-left-out" not in found.headers
    [request] = published.dialled()
    assert "ada@example.com" not in json.dumps(request.body)


@pytest.mark.parametrize(
    ("mark", "end"), [(b"later", "response.failed"), (b"[DONE]", "response.completed")]
)
def test_events_whose_delivery_was_broken_off_come_before_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch, mark: bytes, end: str
) -> None:
    hold_back(monkeypatch, mark)
    padding = {"choices": [], "padding": "x" * 20_000}
    begun, rest = event_of({"content": "now "}), event_of({"content": "later"}, "stop")
    events = [begun, padding, rest, padding]
    with standing_in(site.provider, Upstream("openai", events=events)):
        site.publish("m")
        found = send(site, stream=True, headers={"X-Request-Timeout": "3"})
        told = events_of(found.content)
    assert told[-1]["type"] == end
    deltas = [each["delta"] for each in told if each["type"] == "response.output_text.delta"]
    assert deltas == ["now ", "later"]
    assert site.settled().status == "cancelled"


def event_of(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_is_left_out_is_named(published: Site, is_streamed: bool) -> None:
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    found, response = respond(
        published,
        is_streamed=is_streamed,
        content=[{"role": "user", "content": "Hi"}, foreign],
        tools=[{"type": "web_search"}, FUNCTION],
        headers={"X-OpenRouter-Metadata": "enabled"},
    )
    [stage] = response["openrouter_metadata"]["pipeline"]
    assert stage == {
        "type": "server_tools",
        "name": "left-out",
        "summary": "Not sent, because no endpoint can use it: web_search, input.reasoning.",
        "data": {"left_out": ["web_search", "input.reasoning"]},
    }
    assert found.headers["x-left-out"] == "web_search, input.reasoning"
    [request] = published.dialled()
    assert [tool["type"] for tool in request.body["tools"]] == ["function"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"content": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"content": "x" * 70_000, "truncation": "auto"}, "truncation"),
    ],
)
def test_a_refusal_changes_nothing(published: Site, fields: dict[str, Any], name: str) -> None:
    with unchanged():
        found = send(published, **fields)
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert (error["code"], [*error["metadata"]["fields"]]) == (400, [name])
    published.assert_nothing_happened()


def test_the_key_is_checked_before_the_body(site: Site) -> None:
    for key, status in (("sk-unknown", 401), (site.tenant.management_key, 403)):
        refused = send(site, headers={"Authorization": f"Bearer {key}"}, content=5)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, status)
    got = requests.get(f"{site.server}{RESPONSES}", timeout=60)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")


def test_a_quiet_stream_is_kept_alive_with_comments(site: Site, settings: LazySettings) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    site.publish("sim-gated")
    chunks = send(site, content="one two", stream=True).iter_content(None)
    # Comments may come before the first event.
    first = next(chunk for chunk in chunks if chunk[:1] != b":")
    assert first.startswith(b"event: response.created\n")
    assert next(chunks).startswith(b": ")
    settings.STREAM_KEEPALIVE_INTERVAL = 60
    site.upstream.release(20)
    rest = first + b"".join(chunks)
    assert text_of(events_of(rest)[-1]["response"]) == "You said: one two"
    assert site.settled().status == "completed"


def test_a_caller_that_leaves_ends_the_upstream(site: Site) -> None:
    site.publish("sim-gated")
    site.upstream.release(3)
    with send(site, content="one two", stream=True) as found:
        assert next(line for line in found.iter_lines(chunk_size=None) if b" said" in line)
    [request] = site.dialled()
    assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
    assert site.settled().status == "cancelled"


@pytest.mark.parametrize("behaviour", ["sim-reset-stream", "sim-close-stream"])
def test_a_stream_that_breaks_off_ends_in_a_failed_response(site: Site, behaviour: str) -> None:
    site.publish(behaviour)
    found = send(site, content="one two", stream=True)
    assert found.status_code == 200
    last = events_of(found.content)[-1]
    assert last["type"] == "response.failed"
    error = last["response"]["error"]
    assert error["code"] == "server_error"
    assert error["message"]
    assert error["metadata"]["error_type"] == "provider_unavailable"
    assert site.settled().status == "failed"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_failure_before_the_first_event_has_its_status(site: Site, is_streamed: bool) -> None:
    site.publish("sim-status:429,7")
    found = send(site, content="one two", stream=is_streamed)
    assert (found.status_code, found.headers["retry-after"]) == (429, "7")
    assert found.json()["error"]["code"] == 429


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_bound_that_is_reached_is_incomplete(published: Site, is_streamed: bool) -> None:
    asks = {"content": "one two three", "max_output_tokens": 2}
    _, response = respond(published, is_streamed=is_streamed, **asks)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["max_output_tokens"] == 2


def test_a_long_answer_is_converted(site: Site) -> None:
    site.publish("sim-big:3000000")
    assert len(text_of(send(site).json())) == 3_000_000


def test_a_long_stream_is_converted(site: Site) -> None:
    site.publish("sim-chunks:20000")
    _, response = respond(site, is_streamed=True)
    assert text_of(response) == "".join(f" {number}" for number in range(20_000))


def test_an_answer_beyond_the_bound_is_refused(site: Site) -> None:
    site.publish("sim-big:8388608")
    found = send(site)
    assert found.status_code == 502
    assert "/chat/completions" in found.json()["error"]["message"]
    site.wait_for_settlement()


def test_items_reach_the_upstream_as_messages(site: Site) -> None:
    site.publish("sim-mirror")
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "b"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "12 °C"}
    found = send(site, content=[call, output, {"role": "user", "content": "Hi"}])
    seen = json.loads(text_of(found.json()))["body"]
    assert [each["role"] for each in seen["messages"]] == ["assistant", "tool", "user"]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_text", "text": "joe@example.com"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "joe@example.com"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '"joe@example.com"'},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "joe@example.com"},
        {"type": "local_shell_call", "call_id": "c", "action": {"command": ["joe@example.com"]}},
        {
            "type": "reasoning",
            "summary": [],
            "encrypted_content": seal(
                [ReplyReasoning(type="reasoning.text", text="joe@example.com", signature="x")]
            ),
        },
    ],
)
def test_content_filters_read_what_items_carry(published: Site, item: Any) -> None:
    builtin = {"slug": "email", "action": "block", "label": "[EMAIL]"}
    Guardrail.objects.edit_workspace_default(
        published.tenant.workspace, content_filter_builtins=[builtin]
    )
    found = send(published, content=[item, {"role": "user", "content": "Hi"}])
    assert found.status_code == 403, found.text
    published.assert_nothing_happened()


def test_routing_metadata_comes_with_the_response(published: Site) -> None:
    headers = {"X-OpenRouter-Metadata": "enabled"}
    for is_streamed in (False, True):
        _, response = respond(published, is_streamed=is_streamed, headers=headers)
        assert response["openrouter_metadata"]["requested"] == "acme/falcon"
