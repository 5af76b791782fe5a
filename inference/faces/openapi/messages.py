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
from inference.faces.openapi.shapes import Open, any_of, other_type, refine
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


class MessagesTextBlock(Open, tag_field="type", tag="text"):
    """A text, and the sources that it cites."""

    text: str
    citations: list[dict[str, Any]] | UnsetType | None = UNSET


class MessagesThinkingBlock(Open, tag_field="type", tag="thinking"):
    """A part of the model's reasoning, which is to be sent back unchanged."""

    thinking: str
    signature: str


class MessagesRedactedBlock(Open, tag_field="type", tag="redacted_thinking"):
    """Encrypted reasoning, which is to be sent back unchanged."""

    data: str


class MessagesToolUseBlock(Open, tag_field="type", tag="tool_use"):
    """A call of a tool that the caller runs."""

    id: str
    name: str
    input: dict[str, Any]


_BLOCKS: Final = (
    MessagesTextBlock,
    MessagesThinkingBlock,
    MessagesRedactedBlock,
    MessagesToolUseBlock,
)
_OtherBlockType = Annotated[str, msgspec.Meta(extra_json_schema=other_type(*_BLOCKS))]


class MessagesOtherBlock(Open):
    """A block of another type, as an Anthropic endpoint sends it."""

    type: _OtherBlockType


_Block = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_BLOCKS, MessagesOtherBlock))
]


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
        int, msgspec.Meta(description="Estimated by size, at four bytes per token.")
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


class MessageStart(Open, tag_field="type", tag="message_start"):
    """Begins the answer; its counts are those of the start."""

    message: MessagesResult


class ContentBlockStart(Open, tag_field="type", tag="content_block_start"):
    """Begins a block."""

    index: int
    content_block: _Block


class TextDelta(Open, tag_field="type", tag="text_delta"):
    """A piece of a text."""

    text: str


class ThinkingDelta(Open, tag_field="type", tag="thinking_delta"):
    """A piece of reasoning."""

    thinking: str


class SignatureDelta(Open, tag_field="type", tag="signature_delta"):
    """The signature of reasoning."""

    signature: str


class InputJsonDelta(Open, tag_field="type", tag="input_json_delta"):
    """A piece of a call's input as JSON."""

    partial_json: str


_DELTAS: Final = (TextDelta, ThinkingDelta, SignatureDelta, InputJsonDelta)
_OtherDeltaType = Annotated[str, msgspec.Meta(extra_json_schema=other_type(*_DELTAS))]


class OtherDelta(Open):
    """A piece of another type, as an Anthropic endpoint sends it."""

    type: _OtherDeltaType


_Delta = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_DELTAS, OtherDelta))]


class ContentBlockDelta(Open, tag_field="type", tag="content_block_delta"):
    """A piece of a block."""

    index: int
    delta: _Delta


class ContentBlockStop(Open, tag_field="type", tag="content_block_stop"):
    """Ends a block."""

    index: int


class MessageEnding(Open):
    """Why the answer ended."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Open, tag_field="type", tag="message_delta"):
    """Tells why the answer ended, its usage and its cost."""

    delta: MessageEnding
    usage: MessagesUsage


class MessageStop(Open, tag_field="type", tag="message_stop"):
    """Ends the stream."""


class MessagePing(Open, tag_field="type", tag="ping"):
    """Keeps the connection open."""


class MessageErrorEvent(Open, tag_field="type", tag="error"):
    """Ends a stream that fails."""

    error: MessagesErrorMember
    request_id: str


EVENTS: Final = (
    MessageStart, ContentBlockStart, ContentBlockDelta, ContentBlockStop, MessageDelta, MessageStop,
    MessagePing, MessageErrorEvent,
)  # fmt: skip
MESSAGES_SHAPES: Final = (
    *_BLOCKS, MessagesOtherBlock, MessagesResult, MessagesCount, MessagesError, *_DELTAS,
    OtherDelta, *EVENTS,
)  # fmt: skip
MESSAGES_UNIONS: Final = {
    "MessagesStreamEvent": {"description": "An event of a stream.", **any_of(*EVENTS)}
}
