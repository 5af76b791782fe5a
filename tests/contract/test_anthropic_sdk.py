"""The ``anthropic`` SDK calls any model, given only the base URL and a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest

from billing.models import Account
from catalog.capabilities import ThinkingControl
from catalog.models import LanguageModel
from inference.models import Generation
from tests.support import factories
from tests.support.contract import document
from tests.support.contract.answers import ANSWER, COST, MESSAGES, WORDS
from tests.support.contract.clients import NO_AUTHORITIES, Serve, publish_maker
from tests.support.factories import Tenant
from tests.support.inference.prices import read_pricing
from tests.support.simulator.server import Simulator
from tests.support.upstreams import recorded
from tests.support.upstreams.speaking import ANSWERS, EVENTS, Upstream

Eventually = Callable[[Callable[[], bool]], None]
TOOL: Any = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
INPUT = {"city": "Zürich", "number": 0}


def connected(server: str, **login: Any) -> anthropic.Anthropic:
    """Returns a client that does not retry and checks each response against the document."""
    transport = anthropic.DefaultHttpxClient(
        timeout=30, event_hooks={"response": [document.check_answer]}, verify=NO_AUTHORITIES
    )
    return anthropic.Anthropic(
        base_url=f"{server}/api", max_retries=0, http_client=transport, **login
    )


@pytest.fixture
def client(server: str, tenant: Tenant) -> Iterator[anthropic.Anthropic]:
    with connected(server, api_key=tenant.api_key) as client:
        yield client


@pytest.fixture
def at_maker(maker: Upstream, tenant: Tenant) -> str:
    price = factories.make_price(cache_read="0.0000001")
    return publish_maker(maker, price, input_modalities=["text", "image"])


def ask(client: anthropic.Anthropic, model: str, **fields: Any) -> anthropic.types.Message:
    message: anthropic.types.Message = client.messages.create(
        **{"model": model, "max_tokens": 50, "messages": MESSAGES, **fields}
    )
    return message


def stream(client: anthropic.Anthropic, model: str, **fields: Any) -> tuple[list[Any], Any]:
    """Returns the events of the SDK's stream helper and the message that it assembled."""
    wanted = {"model": model, "max_tokens": 50, "messages": MESSAGES, **fields}
    with client.messages.stream(**wanted) as events:
        return list(events), events.get_final_message()


def sent(simulator: Simulator) -> Any:
    return simulator.requests[-1].body


def answered(message: anthropic.types.Message, result: dict[str, Any]) -> list[Any]:
    """Returns the turns after a message that calls a tool, with its result."""
    assistant = {"role": "assistant", "content": message.content}
    return [*MESSAGES, assistant, {"role": "user", "content": [result]}]


def test_create_answers(client: anthropic.Anthropic, serve: Serve) -> None:
    message = ask(client, serve("sim-echo"))
    assert message.id.startswith("gen-")
    assert (message.type, message.role, message.model) == ("message", "assistant", "acme/falcon")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": ANSWER}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.to_dict() == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 5,
        **COST,
    }
    assert message._request_id is not None


def test_stream_delivers_one_word_at_a_time(client: anthropic.Anthropic, serve: Serve) -> None:
    events, message = stream(client, serve("sim-echo"))
    assert [event.text for event in events if event.type == "text"] == WORDS
    assert message.content[0].text == ANSWER
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 5)


def test_every_event_is_documented(client: anthropic.Anthropic, serve: Serve) -> None:
    with client.messages.create(
        model=serve("sim-tools:2"), max_tokens=50, messages=MESSAGES, tools=[TOOL], stream=True
    ) as events:
        found = [event.to_dict() for event in events]
    assert [event["type"] for event in found[:3]] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    assert found[-1] == {"type": "message_stop"}
    for event in found:
        document.check_schema(document.stream_schema("/messages"), event)


def test_tools_are_called_and_their_results_are_sent(
    client: anthropic.Anthropic, serve: Serve, simulator: Simulator
) -> None:
    model = serve("sim-tools")
    message = ask(client, model, tools=[TOOL], tool_choice={"type": "any"})
    assert message.stop_reason == "tool_use"
    [call] = message.content
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == ("call_0", "get_weather", INPUT)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 °C"}
    turns = answered(message, result)
    ask(client, model, tools=[TOOL], messages=turns)
    body = sent(simulator)
    arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    function = {"name": "get_weather", "arguments": arguments}
    called = {"id": "call_0", "type": "function", "function": function}
    assert body["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_0", "content": "12 °C"},
    ]
    offered = {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": TOOL["input_schema"],
    }
    assert body["tools"] == [{"type": "function", "function": offered}]


def test_the_input_of_tools_is_streamed(client: anthropic.Anthropic, serve: Serve) -> None:
    events, message = stream(client, serve("sim-tools:2"), tools=[TOOL])
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert "".join(pieces[: len(pieces) // 2]) == '{"city": "Z\\u00fcrich", "number": 0}'
    assert [(call.id, call.input) for call in message.content] == [
        ("call_0", INPUT),
        ("call_1", {**INPUT, "number": 1}),
    ]
    assert message.stop_reason == "tool_use"


def test_an_image_and_a_system_prompt_reach_the_upstream(
    client: anthropic.Anthropic, serve: Serve, simulator: Simulator
) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    ask(
        client,
        serve("sim-echo"),
        system="Be brief.",
        messages=[{"role": "user", "content": content}],
        stop_sequences=["END"],
        extra_body={"temperature": 0.5},
    )
    body = sent(simulator)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                {"type": "text", "text": "What is it?"},
            ],
        },
    ]
    assert (body["temperature"], body["stop"], body["max_tokens"]) == (0.5, ["END"], 50)


def test_reasoning_of_the_upstream_becomes_thinking(
    client: anthropic.Anthropic, serve: Serve
) -> None:
    model = serve("sim-reasoning")
    for message in (ask(client, model), stream(client, model)[1]):
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].thinking == "Let me think."
        assert message.content[1].text == ANSWER
        assert message.usage.output_tokens_details.thinking_tokens == 3


def test_an_answer_is_relayed_and_sent_back_without_loss(
    client: anthropic.Anthropic, maker: Upstream, at_maker: str
) -> None:
    maker.answer = {
        **ANSWERS["anthropic"],
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": INPUT},
        ],
        "stop_reason": "tool_use",
    }
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    LanguageModel.objects.update(thinking=ThinkingControl.BUDGET)
    message = ask(client, at_maker, max_tokens=2000, tools=[TOOL], thinking=thinking)
    assert [block.to_dict() for block in message.content] == maker.answer["content"]
    assert (message.stop_reason, message.id[:4]) == ("tool_use", "gen-")
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12 °C"}
    turns = answered(message, result)
    ask(client, at_maker, max_tokens=2000, messages=turns, tools=[TOOL], thinking=thinking)
    (_, _, first), (path, _, second) = maker.seen()
    assert path == "/v1/messages"
    assert first["thinking"] == second["thinking"] == thinking
    assert second["messages"][1] == {"role": "assistant", "content": maker.answer["content"]}
    assert second["messages"][2]["content"] == [result]
    assert second["tools"] == [TOOL]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_citations_and_server_tools_arrive(
    server: str, maker: Upstream, tenant: Tenant, is_streamed: bool
) -> None:
    maker.answer, maker.events = recorded.MESSAGE, recorded.EVENTS
    price = read_pricing({"prompt": "0.000003", "completion": "0.000015", "web_search": "0.01"})
    publish_maker(maker, price, "claude-opus-5")
    tools: Any = [{"type": "web_search_20250305", "name": "web_search"}]
    # No document describes what passes: it is Anthropic's.
    with anthropic.Anthropic(
        base_url=f"{server}/api", api_key=tenant.api_key, max_retries=0
    ) as client:
        if is_streamed:
            _, message = stream(client, "acme/falcon", tools=tools)
        else:
            message = ask(client, "acme/falcon", tools=tools)
        found = [block.to_dict() for block in message.content]
        assert [block["type"] for block in found] == [
            "server_tool_use",
            "web_search_tool_result",
            "text",
        ]
        assert found[0]["input"] == {"query": "weather"}
        assert found[2]["citations"] == [recorded.CITED]
        assert message.stop_reason == "pause_turn"
        assert message.usage.server_tool_use is not None
        assert message.usage.server_tool_use.web_search_requests == 2
        turns = [*MESSAGES, {"role": "assistant", "content": message.content}]
        ask(client, "acme/falcon", messages=turns, tools=tools)
    sent_back = maker.seen()[1][2]["messages"][1]["content"]
    assert sent_back == found


def test_thinking_is_streamed_with_its_signature(
    client: anthropic.Anthropic, maker: Upstream, at_maker: str
) -> None:
    begun, *rest = EVENTS["anthropic"]
    block = {"type": "thinking", "thinking": "", "signature": ""}
    pieces: list[Any] = [
        {"type": "thinking_delta", "thinking": "H"},
        {"type": "thinking_delta", "thinking": "m."},
        {"type": "signature_delta", "signature": "c2ln"},
    ]
    thought = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": piece} for piece in pieces),
        {"type": "content_block_stop", "index": 0},
    ]
    later = [{**event, "index": 1} if "index" in event else event for event in rest]
    maker.events = [begun, *thought, *later]
    _, message = stream(client, at_maker)
    assert [block.to_dict() for block in message.content] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "It rains."},
    ]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_reported_cost_is_the_charged_cost(
    client: anthropic.Anthropic,
    tenant: Tenant,
    at_maker: str,
    eventually: Eventually,
    is_streamed: bool,
) -> None:
    if is_streamed:
        events, message = stream(client, at_maker)
        [told] = [event.usage for event in events if event.type == "message_delta"]
    else:
        message = ask(client, at_maker)
        told = message.usage
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (10, 20, 40)
    assert told.to_dict()["cost"] == 0.000092
    eventually(lambda: not Generation.objects.filter(status="pending").exists())
    row = Generation.objects.get()
    assert (row.id, row.status, row.cost_nano) == (message.id, "completed", 92_000)
    account = Account.objects.get(organization=tenant.organization, kind=Account.Kind.CREDITS)
    assert account.available == 1_000 * 10**9 - 92_000


def test_a_bearer_token_authenticates_like_a_key(server: str, tenant: Tenant, serve: Serve) -> None:
    with connected(server, auth_token=tenant.api_key) as client:
        assert ask(client, serve("sim-echo")).stop_reason == "end_turn"


def test_beta_and_asynchronous_clients_answer(server: str, tenant: Tenant, serve: Serve) -> None:
    model = serve("sim-echo")

    async def talk() -> tuple[str, list[str]]:
        async with anthropic.AsyncAnthropic(
            api_key=tenant.api_key, base_url=f"{server}/api", max_retries=0
        ) as client:
            message = await client.beta.messages.create(
                model=model,
                max_tokens=50,
                messages=MESSAGES,
                betas=["context-management-2025-06-27"],
            )
            async with client.messages.stream(
                model=model, max_tokens=50, messages=MESSAGES
            ) as events:
                return message.content[0].text, [text async for text in events.text_stream]

    assert asyncio.run(talk()) == (ANSWER, WORDS)


def test_a_request_of_a_coding_agent_reaches_the_upstream(
    client: anthropic.Anthropic, maker: Upstream, at_maker: str
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
    _, message = stream(
        client,
        at_maker,
        max_tokens=32_000,
        system=[{"type": "text", "text": "You help with code.", **mark}],
        messages=[{"role": "user", "content": [reminder, {"type": "text", "text": "Hi", **mark}]}],
        tools=[{**TOOL, "eager_input_streaming": True}],
        metadata={"user_id": "user_1_account__session_2"},
        thinking={"type": "adaptive"},
        output_config={"effort": "medium"},
        extra_body={"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
    )
    assert message.content[0].text == "It rains."
    [(_, _, body)] = maker.seen()
    assert body["system"] == [{"type": "text", "text": "You help with code.", **mark}]
    assert body["messages"] == [
        {"role": "user", "content": [reminder, {"type": "text", "text": "Hi", **mark}]}
    ]
    assert body["metadata"]["user_id"] != "user_1_account__session_2"


def test_the_client_counts_tokens(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="any", messages=MESSAGES, tools=[TOOL])
    assert counted.input_tokens > 10


def test_a_wrong_key_is_an_authentication_error(server: str, db: None) -> None:
    with (
        connected(server, api_key="sk-unknown") as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        ask(client, "any")
    assert (caught.value.status_code, caught.value.type) == (401, "authentication_error")
    assert caught.value.api_message == "The API key is not valid."
    assert caught.value.request_id is not None


def test_a_management_key_is_a_permission_error(server: str, tenant: Tenant) -> None:
    with (
        connected(server, api_key=tenant.management_key) as client,
        pytest.raises(anthropic.PermissionDeniedError) as caught,
    ):
        ask(client, "any")
    assert (caught.value.status_code, caught.value.type) == (403, "permission_error")


def test_an_unknown_model_is_a_not_found_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, "acme/none")
    assert caught.value.type == "not_found_error"
    assert caught.value.api_message == "There is no model 'acme/none'."
    assert caught.value.error_code == "model_not_found"


def test_a_server_tool_is_a_bad_request_error(client: anthropic.Anthropic, serve: Serve) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(
            client, serve("sim-echo"), tools=[{"type": "web_search_20250305", "name": "web_search"}]
        )
    assert caught.value.type == "invalid_request_error"
    assert caught.value.api_message == (
        "tools[0].type: Only tools that the caller runs, of type 'custom'."
    )
    assert not Generation.objects.exists()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_insufficient_credits_are_a_billing_error(
    server: str, at_maker: str, is_streamed: bool
) -> None:
    poor = factories.make_tenant("Poor", credits_usd=0)
    with (
        connected(server, api_key=poor.api_key) as client,
        pytest.raises(anthropic.PaymentRequiredError) as caught,
    ):
        (stream if is_streamed else ask)(client, at_maker)
    assert (caught.value.status_code, caught.value.type) == (402, "billing_error")
    assert not Generation.objects.exists()


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "error", "kind"),
    [
        ("sim-status-400", anthropic.BadRequestError, "invalid_request_error"),
        ("sim-status-429", anthropic.RateLimitError, "rate_limit_error"),
        ("sim-status-500", anthropic.InternalServerError, "api_error"),
        ("sim-status-504", anthropic.InternalServerError, "timeout_error"),
        ("sim-status:529", anthropic.InternalServerError, "overloaded_error"),
        ("sim-html", anthropic.InternalServerError, "api_error"),
    ],
)
def test_each_failure_of_an_upstream_has_its_own_class(
    client: anthropic.Anthropic,
    serve: Serve,
    behaviour: str,
    error: type[anthropic.APIStatusError],
    kind: str,
    is_streamed: bool,
) -> None:
    with pytest.raises(error) as caught:
        (stream if is_streamed else ask)(client, serve(behaviour))
    assert caught.value.type == kind


def test_an_error_inside_a_stream_is_raised_after_the_earlier_words(
    client: anthropic.Anthropic, serve: Serve
) -> None:
    words = []
    with (
        client.messages.stream(
            model=serve("sim-reset-stream"), max_tokens=50, messages=MESSAGES
        ) as events,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        words.extend(events.text_stream)
    assert words == ["You"]
    assert caught.value.type == "api_error"
    assert caught.value.error_code == "provider_unavailable"
