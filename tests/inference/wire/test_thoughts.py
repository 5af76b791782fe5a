"""Thoughts that a server wants back in the second turn reach it through every interface."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import openai
import pytest

from config.credentials import Secret
from tests.support import factories
from tests.support.contract.sdks import anthropic_client, openai_client
from tests.support.inference.judges import TOOLS
from tests.support.inference.messages import SIGNED_THOUGHT
from tests.support.inference.site import CHAT, OPERATOR_SECRET, Site
from tests.support.upstreams.standing import serving_locally
from tests.support.upstreams.tls import Server

THOUGHT: Final = "I must look."
CALL: Final = {
    "id": "get_weather:0", "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
}  # fmt: skip
USAGE: Final = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}


def _answer(body: dict[str, Any]) -> bytes:
    """Answers the first turn with a call; refuses the second one without the thoughts."""
    answers = [each for each in body["messages"] if each["role"] == "assistant"]
    message: dict[str, Any] = {"role": "assistant", "content": "It rains."}
    if not answers:
        message = {"role": "assistant", "content": None, "reasoning_content": THOUGHT,
                   "tool_calls": [{"index": 0, **CALL}]}  # fmt: skip
    elif [each.get("reasoning_content") for each in answers] != [THOUGHT]:
        text = "thinking is enabled but reasoning_content is missing in assistant tool call message"
        return json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()
    finish = "stop" if answers else "tool_calls"
    if not body["stream"]:
        return _write({"message": message, "finish_reason": finish})
    thought = message.pop("reasoning_content", "")
    pieces = [{"reasoning_content": each} for each in (thought[:6], thought[6:]) if each]
    events = [*map(_write, ({"delta": each} for each in pieces))]
    events.append(_write({"delta": message, "finish_reason": finish}))
    return b"".join(b"data: %b\n\n" % each for each in (*events, b"[DONE]"))


def _write(choice: dict[str, Any]) -> bytes:
    usage = {"usage": USAGE} if "finish_reason" in choice else {}
    return json.dumps({"id": "c", "model": "m", "choices": [{"index": 0, **choice}], **usage}
                      ).encode()  # fmt: skip


def _script(line: socket.socket, head: bytes, body: bytes) -> bool:
    answer = _answer(json.loads(body))
    status = b"400 Bad Request" if answer.startswith(b'{"error"') else b"200 OK"
    kind = b"text/event-stream" if answer.startswith(b"data") else b"application/json"
    line.sendall(
        b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
        % (status, kind, len(answer), answer)
    )
    return True


@pytest.fixture
def thinker() -> Iterator[Server]:
    with serving_locally(_script) as server:
        yield server


def publish(site: Site, thinker: Server, **fields: Any) -> None:
    base_url = f"https://127.0.0.1:{thinker.port}/v1"
    provider = factories.make_provider("thinker", base_url=base_url, secret=Secret(OPERATOR_SECRET))
    site.publish("m", provider=provider, **fields)


def converse_in_messages(site: Site, *, stream: bool, **fields: Any) -> str:
    tools: Any = [{"name": "get_weather", "input_schema": {"type": "object"}}]
    messages: Any = [{"role": "user", "content": "Does it rain?"}]
    with anthropic_client(site) as client:
        for _ in range(2):
            asked: Any = {"model": site.model.slug, "max_tokens": 99, "tools": tools,
                          "messages": messages, **fields}  # fmt: skip
            if stream:
                with client.messages.stream(**asked) as events:
                    whole = events.get_final_message()
            else:
                whole = client.messages.create(**asked)
            uses = [block.id for block in whole.content if block.type == "tool_use"]
            result = [
                {"type": "tool_result", "tool_use_id": each, "content": "Yes"} for each in uses
            ]
            messages += [{"role": "assistant", "content": whole.content},
                         {"role": "user", "content": result}]  # fmt: skip
    return str(whole.content[-1].text)  # type: ignore[union-attr]


def converse_in_responses(site: Site, *, stream: bool) -> str:
    tools: Any = [{"type": "function", **TOOLS[0]["function"], "strict": False}]
    items: Any = [{"role": "user", "content": "Does it rain?"}]
    with openai_client(site) as client:
        for _ in range(2):
            asked: Any = {"model": site.model.slug, "input": items, "tools": tools,
                          "store": False, "include": ["reasoning.encrypted_content"]}  # fmt: skip
            if stream:
                with client.responses.stream(**asked) as events:
                    whole: Any = events.until_done().get_final_response()
            else:
                whole = client.responses.create(**asked)
            items += whole.output
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "Yes"}
                for item in whole.output
                if item.type == "function_call"
            ]
    return str(whole.output_text)


def converse_in_chat(
    site: Site, *, stream: bool, kept: str = "reasoning_details", **fields: Any
) -> str:
    messages: Any = [{"role": "user", "content": "Does it rain?"}]
    with openai_client(site) as client:
        for _ in range(2):
            asked: Any = {"model": site.model.slug, "messages": messages, "tools": TOOLS, **fields}
            if stream:
                with client.chat.completions.stream(**asked) as events:
                    whole: Any = events.until_done().get_final_completion()
            else:
                whole = client.chat.completions.create(**asked)
            message = whole.choices[0].message
            calls = [
                {"id": each.id, "type": "function",
                 "function": {"name": each.function.name, "arguments": each.function.arguments}}
                for each in message.tool_calls or ()
            ]  # fmt: skip
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls,
                             kept: getattr(message, kept, None)})  # fmt: skip
            messages += [{"role": "tool", "tool_call_id": each["id"], "content": "Yes"}
                         for each in calls]  # fmt: skip
    return str(message.content)


CONVERSATIONS: Final[dict[str, Callable[..., str]]] = {
    "messages": converse_in_messages,
    "responses": converse_in_responses,
    "chat": converse_in_chat,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("face", list(CONVERSATIONS))
def test_thoughts_come_back_through_every_interface(
    site: Site, thinker: Server, face: str, stream: bool
) -> None:
    publish(site, thinker)
    assert CONVERSATIONS[face](site, stream=stream) == "It rains."


HIDDEN: Final[dict[str, dict[str, Any]]] = {
    "messages": {"thinking": {"type": "adaptive", "display": "omitted"}},
    "chat": {"extra_body": {"reasoning": {"exclude": True}}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("face", list(HIDDEN))
def test_thoughts_that_their_caller_hides_come_back_too(
    site: Site, thinker: Server, face: str, stream: bool
) -> None:
    publish(site, thinker)
    assert CONVERSATIONS[face](site, stream=stream, **HIDDEN[face]) == "It rains."


@pytest.mark.parametrize("kept", ["reasoning", "reasoning_content", "reasoning_details"])
def test_each_member_of_chat_brings_the_thoughts_back(
    site: Site, thinker: Server, kept: str
) -> None:
    publish(site, thinker, supported_parameters=["tools", "reasoning", "max_tokens"])
    assert converse_in_chat(site, stream=False, kept=kept) == "It rains."


def test_thoughts_that_another_provider_signed_are_not_sent(site: Site, thinker: Server) -> None:
    publish(site, thinker)
    answer = {"content": "Hm", "reasoning": "Hm.", "reasoning_details": [SIGNED_THOUGHT]}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", **answer},
        {"role": "user", "content": "Hi"},
    ]
    assert site.post({"model": site.model.slug, "messages": messages}, path=CHAT).status_code == 400
    [(_, body)] = thinker.requests
    assert "reasoning_content" not in json.loads(body)["messages"][1]


def test_an_endpoint_with_efforts_gets_no_thoughts(site: Site, thinker: Server) -> None:
    publish(site, thinker, supported_parameters=["tools", "reasoning", "reasoning_effort"])
    with pytest.raises(openai.BadRequestError):
        converse_in_chat(site, stream=False)
    answers = [json.loads(body)["messages"][1:2] for _, body in thinker.requests]
    assert [each.keys() for turn in answers for each in turn] == [{"role", "content", "tool_calls"}]
