"""Responses that pass to an upstream that speaks them too, and its answers, unchanged."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import requests
from django.conf import LazySettings
from openai import OpenAI

from catalog.capabilities import NativeFormat
from catalog.dialects.shared.messages import omit_none
from catalog.models import LanguageModel, Provider
from config.credentials import Secret
from inference.models import Generation
from inference.requests.chat_replies import ReplyReasoning
from inference.requests.responses.reasoning import seal
from tests.support import factories
from tests.support.contract.sdks import openai_client
from tests.support.database.snapshots import everything, unchanged
from tests.support.governance import filter_secret
from tests.support.inference.messages import events_of
from tests.support.inference.prices import read_pricing
from tests.support.inference.responses import asked, hold_back
from tests.support.inference.site import CHAT, OPERATOR_SECRET, RESPONSES, Site
from tests.support.upstreams.recorded_responses import (
    AGENT,
    COMPLETED,
    EVENTS,
    ITEMS,
    OPENED,
    RESPONSE,
    THOUGHT,
    USAGE,
)
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import make_maker

RATES: Final = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
}
# 80 tokens at the full rate, 20 read from the cache, and 40 of output.
COST: Final = 0.000003 * 80 + 0.0000003 * 20 + 0.000015 * 40
# What the gateway replaces in a request.
REPLACED: Final = {"model", "store", "prompt_cache_key", "safety_identifier", "stream"}


def publish(
    site: Site, speaker: Upstream, native_format: str = NativeFormat.RESPONSES, **fields: Any
) -> None:
    """Publishes the model at an upstream that speaks Responses, with the operator's credential."""
    LanguageModel.objects.filter(pk=site.model.pk).update(native_format=native_format)
    site.publish("gpt-5-codex", provider=make_maker(speaker), price=read_pricing(RATES), **fields)


@pytest.fixture
def codex(site: Site, speaker: Upstream) -> Upstream:
    """The speaker, at which the model is published for Responses alone."""
    publish(site, speaker)
    return speaker


def send(site: Site, body: dict[str, Any], *, key: str | None = None) -> requests.Response:
    return site.post(body, path=RESPONSES, key=key)


def answered(site: Site, body: dict[str, Any]) -> requests.Response:
    answer = send(site, body)
    assert answer.status_code == 200, answer.text
    return answer


def sent(speaker: Upstream) -> dict[str, Any]:
    [(_, _, body)] = speaker.seen()
    return dict(body)


def as_ours(site: Site, row: Generation, response: dict[str, Any]) -> dict[str, Any]:
    identity = {"id": row.id, "model": site.model.slug, "provider": "Maker"}
    told = {"prompt_cache_key": AGENT["prompt_cache_key"], "safety_identifier": None, "user": None}
    return {**response, **identity, **told, "metadata": {}}


def test_the_body_of_an_agent_arrives_as_it_was_sent(site: Site, codex: Upstream) -> None:
    answer = answered(site, {**AGENT, "user": "me", "client_metadata": {"installation": "i"}})
    body = sent(codex)
    changed = {name for name in body if body[name] != AGENT.get(name)}
    assert changed == REPLACED
    assert body.keys() - AGENT.keys() == {"store", "safety_identifier", "stream"}
    assert (body["model"], body["store"]) == ("gpt-5-codex", False)
    assert body["safety_identifier"] != "me"
    path, headers, _ = codex.seen()[0]
    assert path == "/v1/responses"
    assert headers["authorization"] == f"Bearer {OPERATOR_SECRET}"
    assert "X-Left-Out" not in answer.headers


LISTED: Final = ["max_completion_tokens", "tools", "tool_choice", "reasoning", "reasoning_effort"]
MARK: Final[dict[str, Any]] = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("listed", "mark", "names"),
    [(LISTED, {}, "cache_control"), ([*LISTED, "cache_control"], MARK, None), ([], MARK, None)],
    ids=["unlisted", "listed", "no list"],
)
def test_an_endpoint_with_a_list_gets_no_member_that_openai_refuses(
    site: Site, speaker: Upstream, listed: list[str], mark: dict[str, Any], names: str | None
) -> None:
    publish(site, speaker, supported_parameters=listed)
    tool = AGENT["tools"][0]
    function = {name: value for name, value in tool.items() if name != "type"}
    wish = {"enabled": True, "max_tokens": 3000}
    part, said = {"type": "input_text", "text": "Hi"}, {"type": "message", "role": "user"}
    called = {"type": "function_call", "call_id": "a", "name": "shell_command", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a"}

    def converse(marked: dict[str, Any]) -> list[dict[str, Any]]:
        parts = {"content": [part | marked]}
        return [said | parts, called, output | {"output": [part | marked]}]

    body = asked(
        converse(MARK),
        tools=[{"type": "function", "function": function, **MARK}],
        tool_choice={"type": "function", "function": {"name": "shell_command"}},
        reasoning={"summary": "auto", **wish},
    )
    answer = answered(site, body)
    got = sent(speaker)
    assert got["reasoning"] == {"summary": "auto", "effort": "low"}
    assert got["input"] == converse(mark)
    assert got["tools"] == [tool | mark]
    assert got["tool_choice"] == {"type": "function", "name": "shell_command"}
    assert answer.headers.get("X-Left-Out") == names


def test_two_tenants_have_two_users_and_one_body(site: Site, codex: Upstream) -> None:
    other = factories.make_tenant("Other")
    for key in (site.tenant.api_key, other.api_key):
        assert send(site, {**AGENT, "user": "me"}, key=key).status_code == 200
    (_, _, first), (_, _, second) = codex.seen()
    for name in ("safety_identifier", "prompt_cache_key"):
        assert first.pop(name) != second.pop(name)
    assert first == second


@pytest.mark.parametrize(("stream", "times"), [(False, 1), (True, 3)])
def test_metadata_stays_here_and_is_repeated(
    site: Site, codex: Upstream, stream: bool, times: int
) -> None:
    kept = {"metadata": {"customer": "Ada"}, "prediction": {"type": "content", "content": "x"}}
    answer = answered(site, {**AGENT, **kept, "stream": stream})
    assert sent(codex).keys().isdisjoint(kept)
    events = read_events(answer.content) if stream else [{"response": answer.json()}]
    told = [each["response"]["metadata"] for each in events if "response" in each]
    assert told == [kept["metadata"]] * times


CHATTED: Final = {
    "id": "chat_1",
    "object": "chat.completion",
    "created": 1763800000,
    "model": "gpt-5-codex",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "I look."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}


@pytest.mark.parametrize("key", ["bot", "ä" * 300])
@pytest.mark.parametrize("is_own", [False, True])
def test_two_tenants_have_two_keys_of_the_cache(
    site: Site, speaker: Upstream, is_own: bool, key: str
) -> None:
    """Nobody names an end user. OpenAI accepts keys of up to 64 characters."""
    publish(site, speaker, NativeFormat.BOTH)
    speaker.answer = lambda body: ("200 OK", RESPONSE if "input" in body else CHATTED)
    for tenant in (site.tenant, factories.make_tenant("Other")):
        if is_own:
            factories.make_credential(tenant, Provider.objects.get(slug="maker"))
        for path, body in ((CHAT, site.chat_body()), (RESPONSES, asked())):
            answer = site.post({**body, "prompt_cache_key": key}, path=path, key=tenant.api_key)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            told = found.get("prompt_cache_key") if path == RESPONSES else key
            assert (found["usage"]["is_byok"], told) == (is_own, key)
    first, second, third, fourth = (body["prompt_cache_key"] for _, _, body in speaker.seen())
    assert (first, third) == (second, fourth)
    assert first != third
    assert [len(each) for each in (first, third)] == [64, 64]


def test_the_answer_passes_with_our_id_model_and_cost(site: Site, codex: Upstream) -> None:
    answer = answered(site, AGENT)
    row = site.settled()
    body = answer.json()
    usage = body["usage"]
    ours = {name: usage[name] for name in ("cost", "is_byok", "cost_details")}
    assert body == {**as_ours(site, row, RESPONSE), "usage": {**USAGE, **ours}}
    assert usage["cost"] == pytest.approx(COST, abs=1e-12)
    assert "upstream_inference_input_cost" in usage["cost_details"]
    assert row.cost_nano == round(COST * 10**9)
    assert (row.prompt_tokens, row.completion_tokens) == (100, 40)
    assert (row.cached_tokens, row.reasoning_tokens) == (20, 30)
    assert (row.finish_reason, row.native_finish_reason) == ("tool_calls", "completed")
    assert (row.upstream_id, row.upstream_model) == ("resp_1", "gpt-5-codex")


def test_the_events_pass_with_our_id_model_and_cost(site: Site, codex: Upstream) -> None:
    answer = answered(site, {**AGENT, "stream": True})
    row = site.settled()
    assert answer.content.endswith(b"\n\ndata: [DONE]\n\n")
    events = read_events(answer.content)
    assert events[2:-1] == ITEMS
    for event, given in zip(events[:2], OPENED, strict=True):
        assert event == {**given, "response": as_ours(site, row, given["response"])}
    ended = events[-1]
    usage = ended["response"].pop("usage")
    expected = as_ours(site, row, RESPONSE)
    del expected["usage"]
    assert ended == {**COMPLETED, "response": expected}
    assert usage["cost"] == pytest.approx(COST, abs=1e-12)
    assert {name: usage[name] for name in USAGE} == USAGE
    assert row.cost_nano == round(COST * 10**9)
    assert (row.status, row.is_estimated) == (Generation.Status.COMPLETED, False)
    assert sent(codex)["stream"] is True


def read_events(content: bytes) -> list[Any]:
    return events_of(content.removesuffix(b"data: [DONE]\n\n"))


def test_the_openai_client_reads_both(site: Site, codex: Upstream) -> None:
    with openai_client(site) as client:
        talk(client)
    check_second_turn(codex)


def talk(client: OpenAI) -> None:
    asks: dict[str, Any] = {
        name: AGENT[name] for name in ("model", "input", "instructions", "tools", "include")
    }
    whole = client.responses.create(**asks, store=False)
    assert (whole.status, whole.output_text) == ("completed", "I look.")
    with client.responses.stream(**asks, store=False) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_response()
    assert kinds == [event["type"] for event in EVENTS]
    assert [item.type for item in last.output] == ["reasoning", "message", "function_call"]
    assert last.output[0].model_dump()["encrypted_content"] == "gAAAAABpOpaque=="
    again = [*asks["input"], *(item.model_dump(exclude_none=True) for item in last.output)]
    again.append({"type": "function_call_output", "call_id": "call_1", "output": "a.txt"})
    assert client.responses.create(**{**asks, "input": again}, store=False).output


def check_second_turn(speaker: Upstream) -> None:
    *_, (_, _, body) = speaker.seen()
    assert [item for item in body["input"] if item["type"] == "reasoning"] == [
        AGENT["input"][2],
        THOUGHT,
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_0"},
        {"background": True},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"store": True},
        {"input": [{"type": "item_reference", "id": "rs_1"}]},
        {"context_management": [{"type": "compaction"}]},
        {"prompt_cache_retention": "24h"},
        {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
    ],
    ids=str,
)
def test_what_needs_a_store_or_a_rate_is_refused(
    site: Site, codex: Upstream, fields: dict[str, Any]
) -> None:
    with unchanged():
        assert send(site, asked(**fields)).status_code == 400
    assert codex.seen() == []


def test_tools_that_the_provider_runs_are_left_out_and_named(site: Site, codex: Upstream) -> None:
    search, function = {"type": "web_search"}, AGENT["tools"][0]
    container = {"type": "shell", "environment": {"type": "container_auto"}}
    loaded = {"type": "additional_tools", "tools": [search, function]}
    said = {"type": "message", "role": "user", "content": "Hi"}
    body = asked([said, loaded], tools=[search, function, container], previous_response_id=None)
    answer = answered(site, body)
    assert answer.headers["X-Left-Out"] == "web_search, shell"
    got = sent(codex)
    assert got["tools"] == [function]
    assert got["input"] == [said, {**loaded, "tools": [function]}]
    assert "previous_response_id" not in got


def test_the_name_of_a_member_may_be_escaped(site: Site, codex: Upstream) -> None:
    search, function = {"type": "web_search"}, AGENT["tools"][0]
    loaded = {"type": "additional_tools", "tools": [search, function]}
    said = {"type": "message", "role": "user", "content": "Hi"}
    text = json.dumps(asked([said, loaded], tools=[function]))
    text = text.replace('"tools": [{"type": "web_search"', r'"tool\u0073": [{"type": "web_search"')
    headers = {"Content-Type": "application/json"}
    answer = site.post(None, path=RESPONSES, data=text, headers=headers)
    assert (answer.status_code, answer.headers["X-Left-Out"]) == (200, "web_search")
    assert sent(codex)["input"] == [said, {**loaded, "tools": [function]}]


def test_offers_alone_leave_no_tools(site: Site, codex: Upstream) -> None:
    offers = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}]
    answered(site, asked(tools=offers, tool_choice="auto", parallel_tool_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & sent(codex).keys()


def test_a_tier_that_costs_more_is_refused(site: Site, codex: Upstream) -> None:
    refused = send(site, asked(service_tier="priority"))
    assert refused.status_code == 400
    assert "service_tier" in refused.json()["error"]["message"]
    assert send(site, asked(service_tier="auto")).status_code == 200
    assert "service_tier" not in sent(codex)


def test_reasoning_of_another_provider_is_left_out_and_named(site: Site, codex: Upstream) -> None:
    site.publish()
    sealed = reason_elsewhere()
    said = {"type": "message", "role": "user", "content": "Hi"}
    answer = answered(site, asked([sealed, said], provider={"only": ["maker"]}))
    assert answer.headers["X-Left-Out"] == "input.reasoning"
    assert sent(codex)["input"] == [said]


def reason_elsewhere() -> dict[str, Any]:
    text = seal([ReplyReasoning(type="reasoning.encrypted", data="x")])
    return {"type": "reasoning", "summary": [], "encrypted_content": text}


def test_a_bound_of_the_gateway_is_sent(site: Site, codex: Upstream) -> None:
    assert send(site, asked(max_output_tokens=77)).status_code == 200
    assert sent(codex)["max_output_tokens"] == 77


def test_a_model_of_responses_alone_is_not_asked_in_chat(site: Site, codex: Upstream) -> None:
    before = everything()
    refused = site.chat()
    assert refused.status_code == 404, refused.text
    assert "/responses" in refused.json()["error"]["message"]
    [excluded] = refused.json()["error"]["metadata"]["excluded"]
    assert excluded["excluded_by"] == ["native_format"]
    assert (everything(), codex.seen()) == (before, [])


def test_a_model_of_both_is_asked_in_both(site: Site, speaker: Upstream) -> None:
    publish(site, speaker, NativeFormat.BOTH)
    site.chat()
    send(site, asked())
    assert [path for path, _, _ in speaker.seen()] == ["/v1/chat/completions", "/v1/responses"]


def test_a_model_that_is_not_described_is_asked_in_chat(site: Site, speaker: Upstream) -> None:
    publish(site, speaker, NativeFormat.OPENAI)
    send(site, asked())
    assert [path for path, _, _ in speaker.seen()] == ["/v1/chat/completions"]


def test_an_error_of_the_upstream_keeps_its_words(site: Site, codex: Upstream) -> None:
    words = "The encrypted content gAAA... could not be verified."
    codex.status = "400 Bad Request"
    codex.answer = {
        "error": {"message": words, "type": "invalid_request_error", "param": None, "code": "bad"}
    }
    refused = send(site, AGENT)
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "answer",
    [
        {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "Broken."}},
        {**RESPONSE, "status": "in_progress"},
        {**RESPONSE, "output": 5},
        {"object": "chat.completion", "choices": []},
    ],
    ids=["failed", "unfinished", "type", "chat"],
)
def test_an_answer_that_is_none_costs_nothing(site: Site, codex: Upstream, answer: Any) -> None:
    codex.answer = answer
    assert send(site, AGENT).status_code in (502, 503)
    assert site.settled().cost_nano == 0


def test_an_incomplete_answer_is_told_and_billed(site: Site, codex: Upstream) -> None:
    details = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    cut = {**RESPONSE, **details}
    codex.events = [*EVENTS[:-1], {"type": "response.incomplete", "response": cut}]
    events = read_events(send(site, {**AGENT, "stream": True}).content)
    assert events[-1]["type"] == "response.incomplete"
    row = site.settled()
    assert (row.finish_reason, row.cost_nano) == ("length", round(COST * 10**9))


def test_a_stream_that_ends_at_its_callers_limit_is_one_response(
    site: Site, codex: Upstream
) -> None:
    codex.events, codex.missing = [*OPENED, ITEMS[0]], 1
    body = {**AGENT, "stream": True}
    answer = site.post(body, path=RESPONSES, headers={"X-Request-Timeout": "3"})
    events = read_events(answer.content)
    kinds = [event["type"] for event in [*OPENED, ITEMS[0]]]
    assert [event["type"] for event in events] == [*kinds, "response.failed"]
    assert events[-1]["sequence_number"] == len(kinds)
    response = events[-1]["response"]
    assert (response["id"], response["status"]) == (site.settled().id, "failed")
    assert response["error"]["message"].startswith("The time limit of the request itself is over")


PADDING: Final = {"type": "keepalive", "padding": "x" * 20_000}


@pytest.mark.parametrize("mark", [b"response.created", b"[DONE]"])
def test_an_error_is_numbered_after_the_events_that_were_delivered(
    site: Site,
    codex: Upstream,
    settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
    mark: bytes,
) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.05
    sent = hold_back(monkeypatch, mark)
    codex.events = [*OPENED, ITEMS[0], PADDING, *ITEMS[1:], COMPLETED]
    # The rest comes when the caller has the first events, or has lost them.
    codex.pause = b"event: keepalive", sent
    body = {**AGENT, "stream": True}
    answer = site.post(body, path=RESPONSES, headers={"X-Request-Timeout": "3"})
    sent.set()
    lines = answer.text.split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    *delivered, last = [event["type"] for event in events]
    # How many came before the part that is held back is up to the network.
    relayed = [event["type"] for event in codex.events if event is not PADDING]
    assert delivered == relayed[: len(delivered)]
    assert (last, "response.completed" in delivered) == ("response.failed", False)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert site.settled().status == "cancelled"


@pytest.mark.parametrize(
    ("numbers", "told"), [([0, 1, 2, 3, 4], [0, 1, 2, 4, 5]), ([None] * 5, [None] * 4 + [4])]
)
def test_an_error_follows_the_number_of_the_last_event(
    site: Site, codex: Upstream, numbers: list[int | None], told: list[int | None]
) -> None:
    """An event that only keeps the connection alive does not pass, and may have a number."""
    events = [*OPENED, ITEMS[0], PADDING, ITEMS[1]]
    codex.events = [
        omit_none(**{**event, "sequence_number": number})
        for event, number in zip(events, numbers, strict=True)
    ]
    codex.events.append(LATE)
    found = read_events(answered(site, {**AGENT, "stream": True}).content)
    assert [event.get("sequence_number") for event in found] == told
    assert found[-1]["type"] == "response.failed"


def lie(site: Site, speaker: Upstream, *events: dict[str, Any]) -> tuple[list[Any], Generation]:
    # The answer has begun when the caller gets the first piece of what is read.
    speaker.events = [*OPENED, ITEMS[0], PADDING, *events]
    answer = answered(site, {**AGENT, "stream": True})
    return read_events(answer.content), site.settled()


FAILED: Final = {
    "type": "response.failed",
    "response": {
        **OPENED[0]["response"],
        "status": "failed",
        "error": {"code": "server_error", "message": "Broken inside."},
    },
}
LATE: Final = {"type": "error", "code": "server_error", "message": "Overloaded", "param": None}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((ITEMS[5], COMPLETED), "has not begun"),
        ((OPENED[0],), "one response"),
        ((FAILED,), "is overloaded"),
        ((LATE, COMPLETED), "is overloaded"),
        (tuple(ITEMS[1:9]), "end mark"),
        (({"type": "response.completed"},), "no response"),
        (({"type": "response.completed", "response": 5},), "malformed"),
        (({"type": "keepalive", "padding": "x" * 34_000_000},), "too large"),
    ],
    ids=["index", "again", "failed", "error", "cut", "empty", "type", "huge"],
)
def test_a_stream_that_breaks_its_format_ends_in_an_error(
    site: Site, codex: Upstream, events: tuple[dict[str, Any], ...], message: str
) -> None:
    found, row = lie(site, codex, *events)
    kinds = [event["type"] for event in found]
    assert kinds.count("response.created") == kinds.count("response.failed") == 1
    last = found[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["id"] == row.id
    assert message in last["response"]["error"]["message"]
    assert last["sequence_number"] == len(found) - 1
    assert row.status == Generation.Status.FAILED


def test_a_failure_before_any_output_falls_back(
    site: Site, codex: Upstream, maker: Upstream
) -> None:
    secret = Secret(OPERATOR_SECRET)
    other = factories.make_provider(
        "other", dialect="anthropic", base_url=maker.base_url, secret=secret
    )
    site.publish("claude", provider=other, price=factories.make_price("0.1", "0.1"))
    codex.events = [*OPENED, FAILED]
    answer = answered(site, asked(stream=True))
    assert read_events(answer.content)[-1]["type"] == "response.completed"
    assert len(codex.seen()) == len(maker.seen()) == 1


def test_a_stream_without_its_beginning_gets_one(site: Site, codex: Upstream) -> None:
    codex.events = [*ITEMS, COMPLETED]
    answer = send(site, {**AGENT, "stream": True})
    assert answer.status_code == 200
    found = read_events(answer.content)
    assert [found[0]["type"], found[-1]["type"]] == ["response.created", "response.completed"]
    assert found[0]["response"]["id"] == found[-1]["response"]["id"]
    assert site.settled().cost_nano > 0


WHOLE: Final = [event for event in ITEMS[1:] if "response.output_item." in event["type"]]


@pytest.mark.parametrize("events", [ITEMS[1:], WHOLE, []], ids=["pieces", "items", "end"])
def test_an_answer_without_usage_is_estimated(
    site: Site, codex: Upstream, events: list[dict[str, Any]]
) -> None:
    last = {**COMPLETED, "response": {**RESPONSE, "usage": None}}
    found, row = lie(site, codex, *events, last)
    usage = found[-1]["response"]["usage"]
    assert (row.is_estimated, bool(row.completion_tokens)) == (True, True)
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        row.prompt_tokens,
        row.completion_tokens,
    )
    assert usage["cost"] == row.cost_nano / 10**9 > 0


def test_whole_items_before_a_failure_are_paid(site: Site, codex: Upstream) -> None:
    _, row = lie(site, codex, *WHOLE, LATE)
    assert (row.status, bool(row.completion_tokens)) == (Generation.Status.FAILED, True)
    assert row.cost_nano > 0


def test_a_claim_beyond_what_was_allowed_is_not_told_as_a_count(
    site: Site, codex: Upstream
) -> None:
    claim = {"input_tokens": 10**9, "output_tokens": 10**9, "total_tokens": 2 * 10**9}
    last = {**COMPLETED, "response": {**RESPONSE, "usage": claim}}
    found, row = lie(site, codex, *ITEMS[1:], last)
    usage = found[-1]["response"]["usage"]
    assert usage["input_tokens"] == row.prompt_tokens < 10**6
    assert usage["output_tokens"] == row.completion_tokens < 10**6
    assert usage["total_tokens"] == row.prompt_tokens + row.completion_tokens


def test_what_a_filter_redacts_is_redacted_in_the_native_body(site: Site, codex: Upstream) -> None:
    filter_secret(site.tenant.workspace, "redact")
    said = {"type": "message", "role": "user", "content": "the SECRET"}
    answered(site, asked([*AGENT["input"], said], instructions="keep SECRET"))
    body = sent(codex)
    assert body["input"] == [*AGENT["input"], {**said, "content": "the [S]"}]
    assert body["instructions"] == "keep [S]"


def test_what_a_filter_blocks_reaches_no_upstream(site: Site, codex: Upstream) -> None:
    filter_secret(site.tenant.workspace, "block")
    assert send(site, asked("the SECRET")).status_code == 403
    hidden = send(site, asked("Hi", a_field_of_next_year="SECRET"))
    assert hidden.status_code == 404, hidden.text
    assert "SECRET" not in json.dumps(codex.seen())
