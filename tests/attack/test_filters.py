"""A tenant whose guardrail filters card numbers tries every way to send one to an upstream."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import Guardrail
from billing.models import Account
from inference.models import Generation
from tests.support.attack import Answer, connect, post_of
from tests.support.bulkheads.counters import read_counter
from tests.support.factories import Tenant
from tests.support.inference.site import Site

NUMBER = "4111111111111111"
ESCAPED = "".join(f"\\u{ord(digit):04x}" for digit in NUMBER)
ENCODED = base64.b64encode(f"my card is {NUMBER}".encode()).decode()
PIXELS = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(200, 256)) * 2).decode()
PATHS = {
    "chat": "/api/v1/chat/completions",
    "completions": "/api/v1/completions",
    "embeddings": "/api/v1/embeddings",
    "messages": "/api/v1/messages",
    "responses": "/api/v1/responses",
}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def tool(**function: Any) -> dict[str, Any]:
    return {**user("hi"), "tools": [{"type": "function", "function": {"name": "f", **function}}]}


def called(call_id: str, arguments: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "done"},
        ]
    }


def message(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 16, "messages": [{"role": "user", "content": list(blocks)}], **fields}


HELLO = {"type": "text", "text": "hi"}
# Each body, and whether a redacting filter can replace the number in it.
ATTACKS: list[tuple[str, dict[str, Any], bool]] = [
    ("chat", user(NUMBER), True),
    ("chat", user(ESCAPED), True),
    ("chat", user([{"type": "text", "text": NUMBER}]), True),
    ("chat", user([{"type": "image_url", "image_url": {"url": f"https://x.example/{NUMBER}"}}]),
     False),
    ("chat", user([{"type": "file", "file": {"file_data": f"data:text/plain;base64,{ENCODED}"}}]),
     False),
    ("chat", user([{"type": "input_audio", "input_audio": {"data": NUMBER, "format": "wav"}}]),
     False),
    ("chat", {**user("hi"), "prediction": {"type": "content", "content": NUMBER}}, True),
    ("chat", {**user("hi"), "documents": [{"text": NUMBER}]}, True),
    ("chat", {**user("hi"), "documents": [{"card": int(NUMBER)}]}, False),
    ("chat", {**user("hi"), "documents": [{NUMBER: 1}]}, False),
    ("chat", {**user("hi"), "chat_template_kwargs": {"note": NUMBER}}, True),
    ("chat", {**user("hi"), "metadata": {"card": NUMBER}}, True),
    ("chat", {**user("hi"), "stop": NUMBER}, False),
    ("chat", {**user("hi"), "seed": int(NUMBER)}, False),
    ("chat", {**user("hi"), "reasoning_effort": NUMBER}, False),
    ("chat", {**user("hi"), f"x_{NUMBER}_x": 1}, False),
    ("chat", {**user("hi"), "provider": {"options": {"acme": {"note": NUMBER}}}}, True),
    ("chat", tool(description=NUMBER), True),
    ("chat", tool(parameters={"type": "object", "properties": {f"p_{NUMBER}": {}}}), False),
    ("chat", tool(parameters={"type": "object", "description": NUMBER}), True),
    ("chat", tool(parameters={"enum": [NUMBER]}), True),
    ("chat", called("call-1", json.dumps({"card": int(NUMBER), NUMBER: [NUMBER]})), True),
    ("chat", called(f"call-{NUMBER}", "{}"), True),
    ("completions", {"prompt": NUMBER}, True),
    ("completions", {"prompt": ["x", ESCAPED]}, True),
    ("completions", {"prompt": "x", "suffix": NUMBER}, True),
    ("completions", {"prompt": "x", "guided_regex": NUMBER}, True),
    ("embeddings", {"input": ["x", NUMBER]}, True),
    ("embeddings", {"input": [{"content": [{"type": "text", "text": NUMBER}]}]}, True),
    ("embeddings", {"input": "x", "input_type": NUMBER}, False),
    ("messages", message({"type": "text", "text": NUMBER}), True),
    ("messages", message(HELLO, system=[{"type": "text", "text": ESCAPED}]), True),
    ("messages", message(HELLO, tools=[{"name": "f", "description": NUMBER, "input_schema": {}}]),
     True),
    ("messages", message(HELLO, tools=[{"name": "f", "input_schema": {"title": {NUMBER: 1}}}]),
     False),
    ("messages", message(HELLO, stop_sequences=[NUMBER]), False),
    ("messages", message(HELLO, cache_control={"type": "ephemeral", "note": NUMBER}), True),
    ("messages", message({"type": "document", "title": NUMBER,
                          "source": {"type": "text", "media_type": "text/plain", "data": "x"}}),
     True),
    ("messages", message({"type": "image", "source": {"type": "url", "url": f"https://x/{NUMBER}"}}),
     False),
]  # fmt: skip


def send(site: Site, route: str, body: dict[str, Any], key: str | None = None) -> Answer:
    raw = json.dumps({"model": site.model.slug, **body}).replace("\\\\u", "\\u").encode()
    key = key or site.tenant.api_key
    with connect(site.server) as line:
        line.send(post_of(PATHS[route], key, raw, Content_Type="application/json"))
        return line.receive_answer()


def guard(site: Site, action: str, **fields: Any) -> None:
    entry = {"slug": "credit-card", "action": action, "label": "[CREDIT_CARD]", **fields}
    Guardrail.objects.edit_workspace_default(site.tenant.workspace, content_filter_builtins=[entry])


def available(tenant: Tenant) -> int:
    account = Account.objects.get(organization=tenant.organization, kind=Account.Kind.CREDITS)
    return account.available


def carries_number(raw: bytes) -> bool:
    """Returns whether a body contains the number, as text or behind escapes."""
    decoded = json.dumps(json.loads(raw), ensure_ascii=False)
    return NUMBER in decoded or ENCODED in decoded


def test_a_blocking_filter_lets_no_number_out(
    service: Site, neighbour: Tenant, is_served: Callable[[], bool]
) -> None:
    site = service
    guard(site, "block")
    before = available(site.tenant)
    labels = {"action": "block", "kind": "credit-card"}
    counted = read_counter(site.server, "causeway_filtered_texts_total", **labels)
    for route, body, _ in ATTACKS:
        answer = send(site, route, body)
        text = answer.body.decode()
        assert (answer.status, NUMBER in text) == (403, False), (route, body, text)
        assert "CREDIT_CARD" in text
    assert site.dialled() == []
    assert not Generation.objects.exists()
    assert available(site.tenant) == before
    after = read_counter(site.server, "causeway_filtered_texts_total", **labels)
    assert after - counted == len(ATTACKS)
    # The neighbour has no guardrail: the same text reaches the upstream.
    assert send(site, "chat", user(NUMBER), neighbour.api_key).status == 200
    assert carries_number(site.dialled()[-1].raw)
    assert is_served()


@pytest.mark.parametrize("route", ["chat", "messages", "responses"])
@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_an_identifier_of_the_end_user_leaves_as_a_pseudonym(
    service: Site, route: str, name: str
) -> None:
    """No filter reads it, because no upstream gets it."""
    guard(service, "block")
    body = {"chat": user("hi"), "messages": message(HELLO), "responses": {"input": "hi"}}[route]
    answer = send(service, route, {**body, name: NUMBER})
    assert answer.status == 200, answer.body
    [arrived] = service.dialled()
    assert name != "safety_identifier" or name not in arrived.body
    assert arrived.body["user"]
    assert not carries_number(arrived.raw)


def test_a_redacting_filter_replaces_the_number_or_blocks(
    service: Site, is_served: Callable[[], bool]
) -> None:
    site = service
    guard(site, "redact")
    sent = 0
    for route, body, is_replaceable in ATTACKS:
        answer = send(site, route, body)
        assert answer.status == (200 if is_replaceable else 403), (route, body, answer.body)
        sent += is_replaceable
    arrived = site.dialled()
    assert len(arrived) == sent
    assert not [request.raw for request in arrived if carries_number(request.raw)]
    assert all(b"[CREDIT_CARD]" in request.raw or b'"call_' in request.raw for request in arrived)
    assert is_served()


@pytest.mark.parametrize("is_blocked", [True, False])
def test_media_pass_unless_a_filter_blocks_what_it_cannot_read(
    service: Site, is_blocked: bool
) -> None:
    guard(service, "block", **({"block_unreadable": True} if is_blocked else {}))
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS}"}}
    block = {"type": "image",
             "source": {"type": "base64", "media_type": "image/png", "data": PIXELS}}  # fmt: skip
    answers = [send(service, "chat", user([image])), send(service, "messages", message(block))]
    assert [answer.status for answer in answers] == [403 if is_blocked else 200] * 2
    assert len(service.dialled()) == (0 if is_blocked else 2)
    if is_blocked:
        assert "Send text instead" in answers[0].error["message"]


def test_a_long_body_is_screened_while_a_neighbour_is_served(
    service: Site, is_served: Callable[[], bool]
) -> None:
    guard(service, "block")
    tools = [
        {"type": "function", "function": {"name": f"f{index}", "description": "many words " * 200}}
        for index in range(300)
    ]
    last = {"type": "function", "function": {"name": "last", "description": NUMBER}}
    assert send(service, "chat", {**user("hi"), "tools": tools}).status == 200
    assert send(service, "chat", {**user("hi"), "tools": [*tools, last]}).status == 403
    assert len(service.dialled()) == 1
    assert is_served()
