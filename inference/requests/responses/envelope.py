"""Builds the response object around the items of an answer.

Answers of providers that speak Responses too have one: the gateway's own members are put into it,
and the rest passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from catalog.pricing import Usage
from config.clocks.clock import clock
from inference.requests.chat_replies import (
    ChatError,
    ChatReply,
    ChatUsage,
    CompletionDetails,
    PromptDetails,
    ReplyChoice,
    drop_empty,
    encode_named_event,
    read_count,
    type_of,
)

_REASONS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The codes of failed responses by HTTP status; agents compare them.
_CODES: Final = {
    400: "invalid_prompt",
    402: "insufficient_quota",
    403: "permission_denied",
    413: "invalid_prompt",
    422: "invalid_prompt",
    429: "rate_limit_exceeded",
    503: "server_is_overloaded",
    529: "server_is_overloaded",
}
_CONTEXT: Final = "context_length_exceeded"
# Chat's names of the two halves of an upstream's cost, and the names of this interface.
COSTS: Final = {
    "upstream_inference_prompt_cost": "upstream_inference_input_cost",
    "upstream_inference_completions_cost": "upstream_inference_output_cost",
}
# The end mark of a stream.
DONE: Final = b"data: [DONE]\n\n"
Members = dict[str, Any]
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Envelope(msgspec.Struct):
    """What all responses of one request have in common."""

    echo: Mapping[str, Any]
    id: str
    model: str
    created_at: int
    provider: msgspec.Raw

    @classmethod
    def of(cls, reply: ChatReply, echo: Mapping[str, Any]) -> Envelope:
        created_at = reply.created or int(clock.time())
        return cls(echo, reply.id, reply.model, created_at, reply.provider)

    def render(
        self,
        status: str,
        output: list[Any],
        *,
        usage: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
        incomplete: str | None = None,
        service_tier: Any = None,
        metadata: msgspec.Raw | None = None,
    ) -> dict[str, Any]:
        """Returns the response in a state; ``incomplete`` is the reason for an early end."""
        is_ended = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": int(clock.time()) if is_ended else None,
            "model": self.model,
            "output": output,
            "error": error,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            **self.echo,
            "service_tier": service_tier if isinstance(service_tier, str) else None,
            "usage": usage,
            **drop_empty(provider=self.provider, openrouter_metadata=metadata or msgspec.Raw()),
        }


def find_ending(choice: ReplyChoice) -> tuple[str, str | None]:
    """Returns the status of a response, and the reason if it is incomplete."""
    reason = _REASONS.get(choice.finish_reason or "")
    return ("completed" if reason is None else "incomplete"), reason


def render_usage(usage: ChatUsage) -> dict[str, Any]:
    """Renders the counts and the cost, with the names of this interface."""
    prompt = usage.prompt_tokens_details or PromptDetails()
    completion = usage.completion_tokens_details or CompletionDetails()
    cost_details = _read_costs(usage.cost_details)
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": read_count(prompt.cached_tokens),
            "cache_write_tokens": read_count(prompt.cache_write_tokens),
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": read_count(completion.reasoning_tokens)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **drop_empty(cost=usage.cost, is_byok=usage.is_byok),
        **({} if cost_details is None else {"cost_details": cost_details}),
        **drop_empty(server_tool_use_details=usage.server_tool_use_details),
    }


def _read_costs(raw: msgspec.Raw) -> dict[str, Any] | None:
    if not bytes(raw):
        return None
    costs = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return {COSTS.get(name, name): cost for name, cost in costs.items()}


def render_failure(error: ChatError) -> dict[str, Any]:
    """Renders the error of a failed response, whose code is a name instead of a number."""
    code = _CODES.get(error.code, "server_error")
    if _CONTEXT in (error.metadata.get("error_type"), error.metadata.get("provider_code")):
        code = _CONTEXT
    return {"code": code, "message": error.message, "metadata": error.metadata}


def is_end(fields: Members) -> bool:
    return type_of(fields) in ("response.completed", "response.incomplete")


def write_start(fields: Members, identity: Members) -> tuple[Members, Any]:
    """Returns an event with our identity in its response, and the usage in that."""
    response: Members = {**_decode_members(fields["response"]), **identity}
    return {**fields, "response": response}, response.get("usage")


def write_end(fields: Members | None, usage: Members, metadata: Members) -> bytes:
    """Returns the last event with the usage, and the end mark; that event ends every answer."""
    assert fields is not None
    response = {**fields["response"], "usage": usage, **metadata}
    rest = {name: value for name, value in fields.items() if name not in ("usage", "response")}
    return encode_named_event({**rest, "response": response}) + DONE


def write_error(started: Members, error: Members, metadata: Members, number: int) -> bytes:
    """Returns the last event of an answer that fails, with its number."""
    failure = render_failure(msgspec.convert(error, ChatError))
    response = {**started["response"], "status": "failed", "error": failure, **metadata}
    event = {"type": "response.failed", "sequence_number": number, "response": response}
    return encode_named_event(event) + DONE


def write_counts(usage: Usage) -> Members:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_write + usage.cache_write_1h,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
