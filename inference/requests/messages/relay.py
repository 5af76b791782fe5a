"""Puts the gateway's members into answers of Anthropic's Messages that pass unchanged otherwise."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.pricing import Usage
from inference.requests.chat_replies import encode_named_event, type_of

Members = dict[str, Any]

_ENDED: Final = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
}
# Members of a message that some compatible servers leave out.
DEFAULTS: Final[Members] = {"content": [], "stop_reason": None, "stop_sequence": None}
# The end mark of a stream.
STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_end(fields: Members) -> bool:
    """Returns whether an event says how the answer ended."""
    return type_of(fields) == "message_delta"


def write_start(fields: Members, identity: Members) -> tuple[Members, Any]:
    """Returns the event that begins an answer, with our identity, and the usage in it."""
    message: Members = {**DEFAULTS, **_decode_members(fields["message"]), **identity}
    return {**fields, "message": message}, message.get("usage")


def write_end(fields: Members | None, usage: Members, metadata: Members) -> bytes:
    """Returns the event that ends an answer, made if the upstream sent none, and the end mark."""
    return encode_named_event({**(fields or _ENDED), "usage": usage, **metadata}) + STOP


def write_counts(usage: Usage) -> Members:
    """Returns the counts of a usage under Anthropic's names."""
    written = usage.cache_write + usage.cache_write_1h
    return {
        "input_tokens": max(usage.prompt - usage.cached - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
