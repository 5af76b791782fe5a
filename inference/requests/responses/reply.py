"""Whole replies of chat as responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from inference.requests.chat_replies import (
    ChatMessage,
    ChatUsage,
    ReplyChoice,
    ReplyReasoning,
    read_reply,
    signature_detail,
)
from inference.requests.responses.envelope import Envelope, find_ending, render_usage
from inference.requests.responses.output import (
    Names,
    Thoughts,
    call_item,
    call_prefix,
    find_tool,
    message_item,
    picture_item,
    read_annotations,
    read_logprobs,
    read_picture,
    reasoning_item,
    refusal_part,
    text_part,
)
from inference.requests.responses.tools import CallerTool

_encode = msgspec.json.Encoder().encode


def render_reply(body: bytes, echo: Mapping[str, Any], tools: Mapping[str, CallerTool]) -> bytes:
    """Returns a whole chat reply as a response.

    Raises :class:`InvalidReply`, and :class:`UpstreamError` for a reply that ended in an error.
    """
    reply, choice = read_reply(body)
    status, reason = find_ending(choice)
    response = Envelope.of(reply, echo).render(
        status,
        [*_render_output(choice, Names(reply.id), tools, status)],
        usage=render_usage(reply.usage or ChatUsage()),
        incomplete=reason,
        service_tier=reply.service_tier,
        metadata=reply.openrouter_metadata,
    )
    return _encode(response)


def _render_output(
    choice: ReplyChoice, names: Names, tools: Mapping[str, CallerTool], status: str
) -> Iterator[dict[str, Any]]:
    """Yields the items in the order in which a model produces them."""
    message = choice.message or ChatMessage()
    if message.details:
        yield _render_thoughts(message.details, names)
    content = []
    if message.text:
        annotations, logprobs = read_annotations(message.annotations), choice.logprobs
        content.append(text_part(message.text, annotations, read_logprobs(logprobs)))
    if isinstance(message.refusal, str) and message.refusal:
        content.append(refusal_part(message.refusal))
    if content:
        yield message_item(names.item("msg"), content, status)
    for image in message.images if isinstance(message.images, list) else ():
        if (data := read_picture(image)) is not None:
            yield picture_item(names.item("ig"), data, "completed")
    for call in message.tool_calls or ():
        call_id = call.id or ""
        if call.signature is not None:
            yield _render_thoughts([signature_detail(call.signature, call_id)], names)
        tool = find_tool(call, tools)
        item_id = names.item(call_prefix(tool))
        yield call_item(tool, item_id, call_id, call.arguments or "{}", status)


def _render_thoughts(details: list[ReplyReasoning], names: Names) -> dict[str, Any]:
    thoughts = Thoughts()
    for detail in details:
        thoughts.add(detail)
    return reasoning_item(names.item("rs"), thoughts.texts, thoughts.seal())
