"""Whole replies and errors of chat in the format of Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from catalog.dialects.shared.messages import read_arguments
from inference.requests.chat_replies import (
    ChatError,
    ChatMessage,
    ChatReply,
    ChatUsage,
    CompletionDetails,
    Function,
    PromptDetails,
    ReplyChoice,
    ReplyReasoning,
    ReplyToolCall,
    drop_empty,
    read_count,
    read_reply,
    signature_detail,
)
from inference.requests.messages.reasoning import MARK, encode_opaque

_STOPS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
# Anthropic's own stop reasons, which are more exact than chat's finish reasons.
_NATIVE_STOPS: Final = frozenset(("stop_sequence", "model_context_window_exceeded"))
_ERRORS: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_encode = msgspec.json.Encoder().encode
_decode_stops = msgspec.json.Decoder(str | list[str] | None).decode


def render_reply(body: bytes, stops: Sequence[str] = ()) -> bytes:
    """Returns a whole chat reply as a message; ``stops`` are the stop sequences of the request.

    Raises :class:`InvalidReply`, and :class:`UpstreamError` for a reply that ended in an error.
    """
    reply, choice = read_reply(body)
    chat_message = choice.message or ChatMessage()
    content = [
        *_render_reasoning(chat_message),
        *_render_texts(chat_message),
    ]
    for call in chat_message.tool_calls or ():
        tool_use = start_tool_use(call)
        if call.signature is not None:
            content.append(render_redacted(signature_detail(call.signature, tool_use["id"])))
        content.append({**tool_use, "input": read_arguments(call.arguments)})
    message = render_message(
        reply,
        content,
        find_stop_reason(choice, stops),
        render_usage(reply.usage or ChatUsage()),
    )
    return _encode({**message, **drop_empty(openrouter_metadata=reply.openrouter_metadata)})


def render_error(body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Returns our error envelope in Anthropic's format, with its members beside ``error``."""
    beside = {name: value for name, value in body.items() if name != "error"}
    return {**render_chat_error(msgspec.convert(body["error"], ChatError), request_id), **beside}


def render_chat_error(error: ChatError, request_id: str) -> dict[str, Any]:
    """Renders an error; Anthropic's ``details`` contain our ``error_type`` and metadata."""
    kind = "api_error" if error.code >= 500 else "invalid_request_error"
    metadata = dict(error.metadata)
    return {
        "type": "error",
        "error": {
            "type": _ERRORS.get(error.code, kind),
            "message": error.message,
            "details": {"error_code": metadata.pop("error_type", "server"), **metadata},
        },
        "request_id": request_id,
    }


def render_message(
    reply: ChatReply,
    content: list[dict[str, Any]],
    stop: tuple[str | None, str | None],
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop[0],
        "stop_sequence": stop[1],
        "usage": usage,
        **drop_empty(provider=reply.provider),
    }


def find_stops(fields: Mapping[str, msgspec.Raw]) -> list[str]:
    """Returns the stop sequences of a request of chat."""
    found = _decode_stops(fields.get("stop", b"null"))
    return [found] if isinstance(found, str) else found or []


def find_stop_reason(choice: ReplyChoice, stops: Sequence[str]) -> tuple[str, str | None]:
    """Returns the stop reason, and the stop sequence if it is known.

    A server reports it, or the request has one alone, which are its ``stops``.
    """
    reason = choice.finish_reason or "stop"
    native = choice.native_finish_reason
    if isinstance(native, str) and native in _NATIVE_STOPS:
        is_known = native == "stop_sequence" and len(stops) == 1
        return native, stops[0] if is_known else None
    if reason == "stop" and isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    if reason == "stop" and isinstance(found := choice.matched_stop, str) and found in stops:
        # Another one is of the server's template.
        return "stop_sequence", found
    return _STOPS.get(reason, "end_turn"), None


def render_usage(usage: ChatUsage) -> dict[str, Any]:
    """Renders the counts and the cost; Anthropic's count of the prompt excludes cached tokens."""
    prompt = usage.prompt_tokens_details or PromptDetails()
    read, written = read_count(prompt.cached_tokens), read_count(prompt.cache_write_tokens)
    details = usage.completion_tokens_details or CompletionDetails()
    body: dict[str, Any] = {
        "input_tokens": max(usage.prompt_tokens - read - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage.completion_tokens,
    }
    if details.reasoning_tokens is not None:
        body["output_tokens_details"] = {"thinking_tokens": read_count(details.reasoning_tokens)}
    if searches := usage.searches:
        body["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
    return {
        **body,
        **drop_empty(cost=usage.cost, is_byok=usage.is_byok, cost_details=usage.cost_details),
    }


def _render_texts(chat_message: ChatMessage) -> Iterator[dict[str, Any]]:
    """Yields the text with its sources, and the refusal."""
    citations = [render_citation(source) for source in chat_message.citations]
    for text in chat_message.texts:
        yield {"type": "text", "text": text, **({"citations": citations} if citations else {})}
        citations = []


def render_citation(source: dict[str, Any]) -> dict[str, Any]:
    """Renders a source as a citation, whose opaque member shows that no search of Claude's gave it.

    A body that brings it back has no native form, because Anthropic would refuse the member.
    """
    quote, title = source.get("content"), source.get("title")
    return {
        "type": "web_search_result_location",
        "cited_text": quote if isinstance(quote, str) else "",
        "url": source["url"],
        "title": title if isinstance(title, str) else None,
        "encrypted_index": MARK,
    }


def _render_reasoning(chat_message: ChatMessage) -> Iterator[dict[str, Any]]:
    for detail in chat_message.details:
        if detail.data is not None:
            yield render_redacted(detail)
            continue
        yield {
            "type": "thinking",
            "thinking": detail.text or detail.summary or "",
            "signature": "" if _is_summary(detail) else encode_opaque(detail),
        }


def _is_summary(detail: ReplyReasoning) -> bool:
    """Returns whether a text is about thoughts that nobody sent, so that it need not come back."""
    return detail.text is None and detail.signature is None


def render_redacted(detail: ReplyReasoning) -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": encode_opaque(detail)}


def start_tool_use(call: ReplyToolCall) -> dict[str, Any]:
    function = call.function or Function()
    return {
        "type": "tool_use",
        "id": call.id or "",
        "name": function.name or "",
    }
