"""Anthropic's Messages for the document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.faces.openapi.answers import (
    AnsweringModel,
    Byok,
    Cost,
    CostDetails,
    GenerationId,
    ProviderName,
    RoutingMetadata,
)
from inference.faces.openapi.shapes import Open, any_of, refine, tagged, untagged
from inference.requests.messages import request

DESCRIPTION: Final = (
    "The key may also be sent as `x-api-key`. Every model can be used. An endpoint of Anthropic's "
    "format gets the body as it is, with members and blocks that are not named here. For any other "
    "endpoint the request becomes a chat completion, and what has no translation is refused. With "
    "`stream`, the response is Anthropic's events; a failure after the first event is an `error` "
    "event, which ends the stream."
)
_MEMBERS: Final = {"route": Literal["fallback"] | None}
MessagesRequest: Final = refine(request.MessagesRequest, optional=_MEMBERS)
CountTokensRequest: Final = refine(request.CountTokensRequest, optional=_MEMBERS)


_BLOCKS: Final = (
    tagged(
        "MessagesTextBlock", "text", "A text, and the sources that it cites.",
        ("text", str), ("citations", list[dict[str, Any]] | UnsetType | None, UNSET),
    ),
    tagged(
        "MessagesThinkingBlock", "thinking",
        "A part of the model's reasoning, which is to be sent back unchanged.",
        ("thinking", str), ("signature", str),
    ),
    tagged(
        "MessagesRedactedBlock", "redacted_thinking",
        "Encrypted reasoning, which is to be sent back unchanged.", ("data", str),
    ),
    tagged(
        "MessagesToolUseBlock", "tool_use", "A call of a tool that the caller runs.",
        ("id", str), ("name", str), ("input", dict[str, Any]),
    ),
)  # fmt: skip
_OTHER_BLOCK: Final = untagged(
    "MessagesOtherBlock", "A block of another type, as an Anthropic endpoint sends it.", _BLOCKS
)
_Block = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_BLOCKS, _OTHER_BLOCK))]


class MessagesOutputDetails(Open):
    """Parts of the answer's tokens."""

    thinking_tokens: int | UnsetType = UNSET


class MessagesUsage(Open):
    """The tokens of an answer, and its cost."""

    input_tokens: Annotated[int, msgspec.Meta(description="Without the tokens of the cache.")]
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessagesOutputDetails | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET
    is_byok: Byok | UnsetType = UNSET
    cost_details: CostDetails | UnsetType = UNSET


class MessagesResult(Open):
    """A whole answer."""

    id: GenerationId
    type: Literal["message"]
    role: Literal["assistant"]
    model: AnsweringModel
    content: list[_Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage
    provider: ProviderName | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class MessagesCount(Open):
    """The size of a prompt."""

    input_tokens: Annotated[
        int, msgspec.Meta(description="Estimated by the model's tokenizer and script.")
    ]


class MessagesErrorDetails(Open):
    """What other routes tell in `error.metadata`."""

    error_code: Annotated[str, msgspec.Meta(description="The `error_type` of other routes.")]


class MessagesErrorMember(Open):
    """The type of an error in Anthropic's words, and what is wrong."""

    type: str
    message: str
    details: MessagesErrorDetails


class MessagesError(Open):
    """An error in Anthropic's envelope."""

    type: Literal["error"]
    error: MessagesErrorMember
    request_id: str
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class MessageEnding(Open):
    """Why the answer ended."""

    stop_reason: str | None
    stop_sequence: str | None


_DELTAS: Final = (
    tagged("TextDelta", "text_delta", "A piece of a text.", ("text", str)),
    tagged("ThinkingDelta", "thinking_delta", "A piece of reasoning.", ("thinking", str)),
    tagged("SignatureDelta", "signature_delta", "The signature of reasoning.", ("signature", str)),
    tagged(
        "InputJsonDelta", "input_json_delta", "A piece of a call's input as JSON.",
        ("partial_json", str),
    ),
)  # fmt: skip
_OTHER_DELTA: Final = untagged(
    "OtherDelta", "A piece of another type, as an Anthropic endpoint sends it.", _DELTAS
)
_Delta = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_DELTAS, _OTHER_DELTA))]
_INDEX: Final = ("index", int)
EVENTS: Final = (
    tagged(
        "MessageStart", "message_start", "Begins the answer; its counts are those of the start.",
        ("message", MessagesResult),
    ),
    tagged(
        "ContentBlockStart", "content_block_start", "Begins a block.",
        _INDEX, ("content_block", _Block),
    ),
    tagged(
        "ContentBlockDelta", "content_block_delta", "A piece of a block.",
        _INDEX, ("delta", _Delta),
    ),
    tagged("ContentBlockStop", "content_block_stop", "Ends a block.", _INDEX),
    tagged(
        "MessageDelta", "message_delta", "Tells why the answer ended, its usage and its cost.",
        ("delta", MessageEnding), ("usage", MessagesUsage),
    ),
    tagged("MessageStop", "message_stop", "Ends the stream."),
    tagged("MessagePing", "ping", "Keeps the connection open."),
    tagged(
        "MessageErrorEvent", "error", "Ends a stream that fails.",
        ("error", MessagesErrorMember), ("request_id", str),
    ),
)  # fmt: skip
MESSAGES_SHAPES: Final = (
    *_BLOCKS, _OTHER_BLOCK, MessagesResult, MessagesCount, MessagesError, *_DELTAS, _OTHER_DELTA,
    *EVENTS,
)  # fmt: skip
MESSAGES_UNIONS: Final = {
    "MessagesStreamEvent": {"description": "An event of a stream.", **any_of(*EVENTS)}
}
