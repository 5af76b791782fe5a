"""Messages that pass to Claude on Amazon Bedrock, and its answers, unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote

import pytest

from catalog.capabilities import NativeFormat
from catalog.models import LanguageModel
from config.credentials import Secret
from inference.models import Generation
from tests.support import factories
from tests.support.contract.sdks import anthropic_client
from tests.support.database.snapshots import everything
from tests.support.factories import Tenant
from tests.support.governance import filter_secret
from tests.support.inference.messages import answered, asked, events_of, refusal, send
from tests.support.inference.prices import read_pricing
from tests.support.inference.site import MESSAGES, Site
from tests.support.simulator.protocol import Request, Signal, error_reply, http_response
from tests.support.upstreams import clouds as cloud
from tests.support.upstreams.clouds import Clouds, exception, frame, invoke_stream, stream_head
from tests.support.upstreams.recorded import (
    AGENT,
    BETAS,
    BLOCKS,
    ENDED,
    FOUND_SECRET,
    MESSAGE,
    RATES,
    STARTED,
    USAGE,
)
from tests.support.upstreams.recorded import COST as COST_WITH_SEARCHES

MODEL: Final = "us.anthropic.claude-opus-4-8-v1:0"
LOGINS: Final = {
    "signed": cloud.bedrock(),
    "session": cloud.bedrock(session_token=cloud.SESSION_TOKEN),
    "key": cloud.bedrock_key(),
}
# Bedrock runs no searches.
COUNTS: Final = {name: value for name, value in USAGE.items() if name != "server_tool_use"}
COST: Final = COST_WITH_SEARCHES - 0.02
WHOLE: Final = {**MESSAGE, "usage": COUNTS}
BEGUN: Final = {
    **STARTED,
    "message": {**STARTED["message"], "usage": {**COUNTS, "output_tokens": 1}},
}
METRICS: Final = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 100}}
OVER: Final = [{**ENDED[0], "usage": COUNTS}, {**ENDED[1], **METRICS}]
STREAM: Final = [BEGUN, *BLOCKS, *OVER]
# A prompt that may have as many tokens as the recorded answers count.
LONG: Final = "word " * 200


@pytest.fixture
def bedrock(site: Site, clouds: Any) -> Clouds:
    """Publishes the model at Bedrock with the operator's credential."""
    publish(site, cloud.bedrock_key())
    return cast(Clouds, clouds)


def publish(site: Site, members: dict[str, Any]) -> None:
    LanguageModel.objects.filter(pk=site.model.pk).update(native_format=NativeFormat.ANTHROPIC)
    secret = Secret(json.dumps(members))
    provider = factories.make_provider(
        "cloud", name="Cloud", dialect="bedrock", base_url=None, secret=secret
    )
    rates = {name: rate for name, rate in RATES.items() if name != "web_search"}
    site.publish(MODEL, provider=provider, price=read_pricing(rates))


def own_credential(site: Site, owner: Tenant, **members: Any) -> None:
    """Gives an organization an account of its own at the provider."""
    provider = site.model.endpoints.get().provider
    factories.make_credential(owner, provider, json.dumps(members or cloud.bedrock_key()))


def received(bedrock: Clouds) -> dict[str, Any]:
    """Returns the body of the only request, as it arrived."""
    [request] = bedrock.requests
    body: dict[str, Any] = json.loads(request.raw)
    return body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("login", LOGINS)
def test_the_body_of_an_agent_arrives_by_invoke_model(
    site: Site, clouds: Any, login: str, stream: bool
) -> None:
    publish(site, LOGINS[login])
    answer = answered(site, {**AGENT, "stream": stream}, anthropic_beta=BETAS)
    assert "You said: Hi" in answer.text
    assert "X-Left-Out" not in answer.headers
    [request] = clouds.requests
    method = "invoke-with-response-stream" if stream else "invoke"
    assert unquote(request.path) == f"/model/{MODEL}/{method}"
    assert not [name for name in request.headers if name.startswith("anthropic-")]
    body = received(clouds)
    # Pseudonym of ours instead of the caller's.
    user = body.pop("metadata")["user_id"]
    assert user
    assert "device_id" not in user
    assert body == {
        "anthropic_version": "bedrock-2023-05-31",
        "anthropic_beta": [
            "context-management-2025-06-27",
            "effort-2025-11-24",
            # What Anthropic knows without a beta, or by another one.
            "tool-search-tool-2025-10-19",
        ],
        **{name: AGENT[name] for name in AGENT.keys() - {"model", "stream", "metadata", "system"}},
        # Bedrock hands the line for Anthropic to the model.
        "system": AGENT["system"][1:],
    }


def test_a_field_without_its_beta_is_left_out_and_named(site: Site, bedrock: Clouds) -> None:
    answer = answered(site, {**AGENT, "diagnostics": {"previous_message_id": "m"}, "stream": False})
    assert answer.headers["X-Left-Out"] == "context_management, diagnostics"
    body = received(bedrock)
    assert {"context_management", "diagnostics"}.isdisjoint(body)
    assert body["anthropic_beta"] == ["tool-search-tool-2025-10-19"]


def test_without_betas_there_is_no_list_of_them(site: Site, bedrock: Clouds) -> None:
    betas = "claude-code-20250219, prompt-caching-scope-2026-01-05,,of-next-year-2027-01-01"
    mark = {"type": "ephemeral", "ttl": "5m", "scope": "global"}
    body = asked([{"type": "text", "text": "Hi", "cache_control": mark}], cache_control=mark)
    answered(site, body, anthropic_beta=betas)
    arrived = received(bedrock)
    assert arrived.keys() == {"anthropic_version", "messages", "max_tokens"} | (
        {"metadata"} & arrived.keys()
    )
    # The scope belongs to one of the betas that stay behind.
    assert arrived["messages"][0]["content"][0]["cache_control"] == {
        "type": "ephemeral",
        "ttl": "5m",
    }


@pytest.mark.parametrize(
    ("tool", "beta"),
    [
        ({"type": "computer_20250124", "name": "computer"}, "computer-use-2025-01-24"),
        ({"type": "memory_20250818", "name": "memory"}, "context-management-2025-06-27"),
        (
            {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
            "tool-search-tool-2025-10-19",
        ),
        ({"type": "bash_20250124", "name": "bash"}, None),
        ({"type": "text_editor_20250728", "name": "edit"}, None),
    ],
)
def test_a_tool_brings_its_beta(
    site: Site, bedrock: Clouds, tool: dict[str, Any], beta: str | None
) -> None:
    # A tool that runs elsewhere than at the caller may cost extra, except by an own credential.
    own_credential(site, site.tenant)
    answered(site, asked([{"type": "text", "text": "Hi"}], tools=[tool]))
    body = received(bedrock)
    assert body["tools"] == [tool]
    assert body.get("anthropic_beta") == (None if beta is None else [beta])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["acme/falcon[1m]", "acme/falcon[1m]:nitro"])
def test_a_name_for_a_million_tokens_asks_for_the_beta(
    site: Site, bedrock: Clouds, name: str, stream: bool
) -> None:
    text = [{"type": "text", "text": "Hi"}]
    body = {**asked(text, stream=stream), "model": name}
    answered(site, body)
    assert received(bedrock)["anthropic_beta"] == ["context-1m-2025-08-07"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"type": "web_fetch_20260209", "name": "web_fetch"}]},
        {"inference_geo": "us"},
        {"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_bedrock_does_not_know_is_refused_by_name(
    site: Site, bedrock: Clouds, fields: dict[str, Any]
) -> None:
    before = everything()
    error = refusal(site, asked(**fields))
    assert error["type"] == "invalid_request_error"
    [excluded] = error["details"]["excluded"]
    assert "native_format" in excluded["excluded_by"]
    assert (everything(), bedrock.requests) == (before, [])


@pytest.mark.parametrize("kind", ["url", "file"])
def test_media_outside_the_request_go_nowhere(site: Site, bedrock: Clouds, kind: str) -> None:
    own_credential(site, site.tenant)
    source = {"type": kind, kind if kind == "url" else "file_id": "https://x.example/a.png"}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    for block in (image, result):
        refusal(site, asked([block]))
    assert bedrock.requests == []


def test_chat_still_speaks_converse(site: Site, bedrock: Clouds) -> None:
    assert site.chat([{"type": "text", "text": "Hi"}]).status_code == 200
    [request] = bedrock.requests
    assert request.path.endswith("/converse")


def test_a_whole_answer_passes_and_its_writes_are_billed_by_lifetime(
    site: Site, bedrock: Clouds
) -> None:
    bedrock.script = (http_response(200, json.dumps(WHOLE).encode()),)
    answer = answered(site, asked(LONG))
    row = site.settled()
    body = answer.json()
    usage = body.pop("usage")
    assert body == {
        **{name: value for name, value in WHOLE.items() if name != "usage"},
        "id": row.id,
        "model": site.model.slug,
        "provider": "Cloud",
    }
    assert usage["cache_creation"] == COUNTS["cache_creation"]
    assert usage["cost"] == pytest.approx(COST, abs=1e-12)
    assert (row.status, row.cost_nano, row.is_estimated) == ("completed", round(COST * 1e9), False)


def test_a_stream_passes_and_its_writes_are_billed_by_lifetime(site: Site, bedrock: Clouds) -> None:
    streamed(bedrock, invoke_stream(*STREAM))
    answer = answered(site, asked(LONG, stream=True))
    row = site.settled()
    found = events_of(answer.content)
    assert found[0]["message"]["id"] == row.id
    assert found[1:-2] == BLOCKS
    assert found[-2]["usage"]["cost"] == pytest.approx(COST, abs=1e-12)
    # The last event is ours: AWS's counts of its own are not the caller's.
    assert found[-1] == {"type": "message_stop"}
    assert (row.status, row.cost_nano, row.is_estimated) == ("completed", round(COST * 1e9), False)
    assert (row.upstream_id, row.native_finish_reason) == ("msg_1", "pause_turn")


def test_pieces_of_any_size_are_one_stream(site: Site, bedrock: Clouds) -> None:
    data = invoke_stream(*STREAM)
    pieces: list[Any] = []
    for start in range(0, len(data), 997):
        pieces += [data[start : start + 997], 0.0]
    streamed(bedrock, *pieces)
    answer = send(site, asked(stream=True))
    assert events_of(answer.content)[1:-2] == BLOCKS
    assert site.settled().status == Generation.Status.COMPLETED


def test_a_stream_without_its_end_mark_is_whole(site: Site, bedrock: Clouds) -> None:
    streamed(bedrock, invoke_stream(*STREAM[:-1]))
    answer = send(site, asked(stream=True))
    assert events_of(answer.content)[-1] == {"type": "message_stop"}
    assert site.settled().status == Generation.Status.COMPLETED


def streamed(bedrock: Clouds, *steps: Any) -> None:
    bedrock.script = (stream_head(), *steps, Signal.CLOSE)


TOO_LARGE: Final = {"type": "ping", "padding": "x" * 16_000_000}
FAULTS: Final[dict[str, tuple[Callable[[], bytes], int, str]]] = {
    "throttled": (lambda: exception("throttlingException", "Slow down."), 429, "its rate"),
    "model": (lambda: exception("modelStreamErrorException", "It broke."), 502, "It broke."),
    "timeout": (lambda: exception("modelTimeoutException", "Too late."), 504, "Too late."),
    "busy": (lambda: exception("serviceUnavailableException", "Busy."), 503, "is overloaded"),
    "checksum": (lambda: damage(invoke_stream(BLOCKS[0])), 502, "damaged"),
    "large": (lambda: invoke_stream(TOO_LARGE), 502, "not valid"),
    "base64": (lambda: part(b'{"bytes": "???"}'), 502, "malformed"),
    "no bytes": (lambda: part(b'{"p": "abc"}'), 502, "malformed"),
    "no JSON": (lambda: part(b'{"bytes": "eHh4"}'), 502, "malformed"),
    "cut": (lambda: invoke_stream(BLOCKS[0])[:-3], 502, "cut off"),
}


def damage(data: bytes) -> bytes:
    """Changes the payload, but not its checksum."""
    return data[:-8] + bytes((data[-8] ^ 1,)) + data[-7:]


def part(payload: bytes) -> bytes:
    return frame(payload, event_type="chunk", message_type="event")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_any_output_is_a_status_and_free(
    site: Site, bedrock: Clouds, fault: str
) -> None:
    make, status, message = FAULTS[fault]
    streamed(bedrock, make())
    assert message in refusal(site, asked(stream=True), status)["message"]
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)


def test_another_provider_answers_after_an_exception(site: Site, bedrock: Clouds) -> None:
    site.publish(price=factories.make_price("0.1", "0.1"))
    streamed(bedrock, exception("throttlingException", "Slow down."))
    answer = answered(site, asked("one two", stream=True))
    assert events_of(answer.content)[0]["message"]["provider"] == "Acme AI"
    assert [attempt["status"] for attempt in site.settled().attempts] == [429, 200]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_after_output_is_an_error_event_and_charged(
    site: Site, bedrock: Clouds, fault: str
) -> None:
    make, _, message = FAULTS[fault]
    streamed(bedrock, invoke_stream(BEGUN, *BLOCKS[:3]), Signal.GATE, make())
    with site.post(asked(stream=True), path=MESSAGES, stream=True) as answer:
        assert answer.status_code == 200, answer.text
        pieces = answer.iter_content(None)
        first = next(pieces)
        bedrock.release()
        found = events_of(first + b"".join(pieces))
    assert found[1:4] == BLOCKS[:3]
    assert found[-1]["type"] == "error"
    assert message in found[-1]["error"]["message"]
    row = site.settled()
    assert row.status == Generation.Status.FAILED
    assert row.cost_nano > 0


def test_an_error_of_bedrock_keeps_its_words(site: Site, bedrock: Clouds) -> None:
    words = f"Malformed input request ({cloud.BEDROCK_KEY})."
    body = json.dumps({"message": words}).encode()
    bedrock.script = (http_response(400, body),)
    message = refusal(site, asked())["message"]
    assert message == words.replace(cloud.BEDROCK_KEY, "********")


def test_two_tenants_have_two_users_and_each_its_own_account(site: Site, bedrock: Clouds) -> None:
    other = factories.make_tenant("Other")
    own_credential(site, other, **cloud.bedrock())
    for key in (site.tenant.api_key, other.api_key):
        answered(site, {**AGENT, "stream": False}, key=key, anthropic_beta=BETAS)
    first, second = bedrock.requests
    assert login_of(first).startswith("Bearer ")
    assert login_of(second).startswith("AWS4-HMAC-SHA256 ")
    one, two = json.loads(first.raw), json.loads(second.raw)
    assert one.pop("metadata") != two.pop("metadata")
    assert one == two


def login_of(request: Request) -> str:
    return request.headers["authorization"]


def test_what_a_filter_redacts_is_redacted_here_too(site: Site, bedrock: Clouds) -> None:
    filter_secret(site.tenant.workspace, "redact")
    said = [FOUND_SECRET, {"type": "text", "text": "SECRET"}]
    answered(site, asked(said, system="keep SECRET"))
    body = received(bedrock)
    assert "SECRET" not in json.dumps(body)
    assert body["messages"][0]["content"][0]["title"] == "about [S]"


def test_a_refused_login_is_the_operators_problem(site: Site, bedrock: Clouds) -> None:
    bedrock.script = (error_reply(403),)
    refused = send(site, asked())
    assert refused.status_code in (502, 503), refused.text
    assert cloud.BEDROCK_KEY not in refused.text


def test_the_sdk_of_anthropic_reads_both_kinds_of_answers(site: Site, bedrock: Clouds) -> None:
    question: Any = [{"role": "user", "content": LONG}]
    asked_for: Any = {
        "model": site.model.slug,
        "max_tokens": 50,
        "messages": question,
        "betas": ["context-management-2025-06-27"],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    }
    with anthropic_client(site, timeout=30) as client:
        bedrock.script = (http_response(200, json.dumps(WHOLE).encode()),)
        message = client.beta.messages.create(**asked_for)
        assert message.content[-1].to_dict() == MESSAGE["content"][-1]
        assert message.usage.cache_creation.ephemeral_1h_input_tokens == 20
        streamed(bedrock, invoke_stream(*STREAM))
        with client.beta.messages.stream(**asked_for) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
    assert text == "It rains."
    assert (final.stop_reason, final.usage.output_tokens) == ("pause_turn", 40)
    for request in bedrock.requests:
        body = json.loads(request.raw)
        assert body["anthropic_beta"] == ["context-management-2025-06-27"]
        assert body["context_management"] == asked_for["context_management"]
