"""OpenAI's Responses for the document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.faces.openapi.answers import (
    AnsweringModel,
    Byok,
    Cost,
    GenerationId,
    ProviderName,
    RoutingMetadata,
    UnixSeconds,
)
from inference.faces.openapi.chat import Effort, FunctionName
from inference.faces.openapi.shapes import Open, any_of, nullable, refine, tagged, untagged
from inference.requests.limits import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from inference.requests.responses.request import ResponsesRequest as Parsed

DESCRIPTION: Final = (
    "Every model can be used: the request becomes a chat completion. Nothing is stored, so the "
    "whole conversation comes with every request; `store: true`, `previous_response_id`, "
    "`conversation`, `prompt`, `background: true` and items of the type `item_reference` are "
    "refused. A tool that no endpoint can run is left out and named in the header `X-Left-Out`, "
    "unless `tool_choice` demands it. The `encrypted_content` of reasoning is to be sent back "
    "unchanged. With `stream`, the response is OpenAI's events; a failure after the first event is "
    "`response.failed`, which ends the stream."
)
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """A text."""

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    """An image: a URL, or the image itself as a data URL."""

    image_url: _Id
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    """A document as a data URL."""

    file_data: _Id
    filename: str | UnsetType = UNSET


class OutputText(Open, tag_field="type", tag="output_text"):
    """A text of the model, with its sources."""

    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[dict[str, Any]] | UnsetType = UNSET


class Refusal(Open, tag_field="type", tag="refusal"):
    """The model's refusal to answer."""

    refusal: str


class SummaryText(Open, tag_field="type", tag="summary_text"):
    """A part of the model's reasoning."""

    text: str


_Inputs = (
    str | Annotated[list[InputText | InputImage | InputFile], msgspec.Meta(max_length=MAX_PARTS)]
)


class InputMessage(msgspec.Struct):
    """A message of the user, or instructions."""

    role: Literal["user", "system", "developer"]
    content: _Inputs
    type: Literal["message"] | UnsetType = UNSET


class SentAnswer(msgspec.Struct):
    """An earlier message of the model, as the answer had it."""

    role: Literal["assistant"]
    content: str | list[OutputText | Refusal]
    type: Literal["message"] | UnsetType = UNSET
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class OutputMessage(Open, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    role: Literal["assistant"]
    status: str
    content: list[OutputText | Refusal]


class FunctionCall(Open, tag_field="type", tag="function_call"):
    """A call of a function; `arguments` is JSON in a text."""

    call_id: _Id
    name: _Id
    arguments: str
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """The result of a function's call."""

    call_id: _Id
    output: _Inputs


class CustomToolCall(Open, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool with a text."""

    call_id: _Id
    name: _Id
    input: str
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class CustomToolCallOutput(msgspec.Struct, tag_field="type", tag="custom_tool_call_output"):
    """The result of a custom tool's call."""

    call_id: _Id
    output: _Inputs


class ReasoningItem(Open, tag_field="type", tag="reasoning"):
    """The model's reasoning, which is to be sent back unchanged."""

    summary: list[SummaryText]
    id: str | UnsetType = UNSET
    encrypted_content: str | UnsetType | None = UNSET


_ITEMS: Final = (OutputMessage, FunctionCall, CustomToolCall, ReasoningItem)
_OTHER_ITEM: Final = untagged(
    "OtherItem", "An item of another type, for instance `apply_patch_call`.", _ITEMS, ("id", str)
)
_Item = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_ITEMS, _OTHER_ITEM))]


class ResponsesFunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Annotated[FunctionName, msgspec.Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomToolFormat(msgspec.Struct):
    """A text, or a text that fits a grammar."""

    type: Literal["text", "grammar"]
    definition: str
    syntax: Literal["lark", "regex"] | UnsetType = UNSET


class ResponsesCustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A tool that the model calls with a text."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    description: str | None = None
    format: CustomToolFormat | None = None


class ResponsesNamedChoice(Open):
    """Demands a call of this tool, or of one of the `allowed_tools`."""

    type: str
    name: str | UnsetType = UNSET


class ResponsesReasoning(msgspec.Struct):
    """How much the model thinks before it answers."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] | None = None
    enabled: bool | None = None
    context: Literal["auto", "all_turns", "current_turn"] | None = None


_SENT_ITEMS: Final = (
    InputMessage, SentAnswer, FunctionCall, FunctionCallOutput, CustomToolCall,
    CustomToolCallOutput, ReasoningItem,
)  # fmt: skip
_KNOWN_TOOLS: Final = (ResponsesFunctionTool, ResponsesCustomTool)
_OTHER_TOOL: Final = untagged(
    "ResponsesOtherTool",
    "Another tool, for instance `apply_patch`, or `web_search`, which a provider runs.",
    _KNOWN_TOOLS,
)
_TOOLS: Final = (*_KNOWN_TOOLS, _OTHER_TOOL)
_SentItem = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_SENT_ITEMS))]
_Tool = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(*_TOOLS))]
_Choice = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        extra_json_schema=nullable(
            any_of({"type": "string", "enum": ["none", "auto", "required"]}, ResponsesNamedChoice)
        )
    ),
]
ResponsesRequest: Final = refine(
    Parsed,
    optional={
        "input": str
        | Annotated[list[_SentItem], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
        | None,
        "tools": Annotated[list[_Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None,
        "tool_choice": _Choice,
        "reasoning": ResponsesReasoning | None,
        "store": Literal[False] | None,
    },
)


class ResponsesInputDetails(Open):
    """Parts of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class ResponsesOutputDetails(Open):
    """Parts of the answer's tokens."""

    reasoning_tokens: int | UnsetType = UNSET


class ResponsesCostDetails(Open):
    """What the provider charges for the answer, in USD."""

    upstream_inference_cost: float | UnsetType = UNSET
    upstream_inference_input_cost: float | UnsetType = UNSET
    upstream_inference_output_cost: float | UnsetType = UNSET


class ResponsesUsage(Open):
    """The tokens of an answer, and its cost."""

    input_tokens: Annotated[int, msgspec.Meta(description="With the tokens of the cache.")]
    input_tokens_details: ResponsesInputDetails
    output_tokens: Annotated[int, msgspec.Meta(description="With the tokens of reasoning.")]
    output_tokens_details: ResponsesOutputDetails
    total_tokens: int
    cost: Cost | UnsetType = UNSET
    is_byok: Byok | UnsetType = UNSET
    cost_details: ResponsesCostDetails | UnsetType = UNSET
    server_tool_use_details: dict[str, Any] | UnsetType = UNSET


class ResponsesFailure(Open):
    """Why a response failed; `code` is a name such as `rate_limit_exceeded`."""

    code: str
    message: str
    metadata: dict[str, Any] | UnsetType = UNSET


class IncompleteDetails(Open):
    """Why a response ended early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponsesResult(Open):
    """A response; the members of the request come back in it."""

    id: GenerationId
    object: Literal["response"]
    created_at: UnixSeconds
    completed_at: UnixSeconds | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: AnsweringModel
    output: list[_Item]
    error: ResponsesFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    metadata: dict[str, str] | None
    parallel_tool_calls: bool
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    tool_choice: _Choice
    tools: list[_Tool]
    store: Literal[False]
    usage: ResponsesUsage | None
    provider: ProviderName | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


def _event(kind: str, doc: str, *members: tuple[str, Any]) -> type[msgspec.Struct]:
    """Returns the type of an event inside an item."""
    name = "".join(word.capitalize() for word in kind.replace(".", "_").split("_"))
    place = (("sequence_number", int), ("output_index", int))
    return tagged(f"{name}Event", f"response.{kind}", doc, *place, *members)


_CHANGE: Final = (("response", ResponsesResult), ("sequence_number", int))
_CHANGES: Final = (
    tagged("ResponseCreated", "response.created", "Begins the response.", *_CHANGE),
    tagged("ResponseInProgress", "response.in_progress", "Follows the first event.", *_CHANGE),
    tagged(
        "ResponseCompleted", "response.completed", "Ends the response, with its output and usage.",
        *_CHANGE,
    ),
    tagged(
        "ResponseIncomplete", "response.incomplete",
        "Ends a response that a limit or a filter cut off.", *_CHANGE,
    ),
    tagged("ResponseFailed", "response.failed", "Ends a response that failed.", *_CHANGE),
)  # fmt: skip
_AnyPart = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(OutputText, Refusal))]
_IN_ITEM: Final = ("item_id", str)
_IN_CONTENT: Final = (_IN_ITEM, ("content_index", int))
_IN_SUMMARY: Final = (_IN_ITEM, ("summary_index", int))
_DELTA: Final = ("delta", str)
_INSIDE: Final = (
    _event("output_item.added", "Begins an item.", ("item", _Item)),
    _event("output_item.done", "Ends an item.", ("item", _Item)),
    _event("content_part.added", "Begins a part.", *_IN_CONTENT, ("part", _AnyPart)),
    _event("content_part.done", "Ends a part.", *_IN_CONTENT, ("part", _AnyPart)),
    _event("output_text.delta", "A piece of a text.", *_IN_CONTENT, _DELTA),
    _event("output_text.done", "A whole text.", *_IN_CONTENT, ("text", str)),
    _event(
        "output_text.annotation.added",
        "A source of a text.",
        *_IN_CONTENT,
        ("annotation_index", int),
        ("annotation", dict[str, Any]),
    ),
    _event("refusal.delta", "A piece of a refusal.", *_IN_CONTENT, _DELTA),
    _event("refusal.done", "A whole refusal.", *_IN_CONTENT, ("refusal", str)),
    _event(
        "reasoning_summary_part.added", "Begins a part of the reasoning.", *_IN_SUMMARY,
        ("part", SummaryText),
    ),
    _event(
        "reasoning_summary_part.done", "Ends a part of the reasoning.", *_IN_SUMMARY,
        ("part", SummaryText),
    ),
    _event("reasoning_summary_text.delta", "A piece of the reasoning.", *_IN_SUMMARY, _DELTA),
    _event("reasoning_summary_text.done", "A whole part of it.", *_IN_SUMMARY, ("text", str)),
    _event("function_call_arguments.delta", "A piece of a call's arguments.", _IN_ITEM, _DELTA),
    _event("function_call_arguments.done", "A call's arguments.", _IN_ITEM, ("arguments", str)),
    _event("custom_tool_call_input.delta", "A piece of a call's text.", _IN_ITEM, _DELTA),
    _event("custom_tool_call_input.done", "A call's text.", _IN_ITEM, ("input", str)),
)  # fmt: skip
_EVENTS: Final[tuple[type[msgspec.Struct], ...]] = (*_CHANGES, *_INSIDE)
_OTHER_EVENT: Final = untagged(
    "OtherResponsesEvent",
    "An event of another type, as an OpenAI endpoint sends it.",
    _EVENTS,
    ("sequence_number", int),
)
RESPONSES_SHAPES: Final[tuple[type[msgspec.Struct], ...]] = (
    *_SENT_ITEMS, _OTHER_ITEM, *_ITEMS, *_TOOLS, ResponsesNamedChoice, ResponsesResult, Refusal,
    OutputText, *_EVENTS, _OTHER_EVENT,
)  # fmt: skip
RESPONSES_UNIONS: Final = {
    "ResponsesStreamEvent": {
        "description": "An event of a stream.",
        **any_of(*_EVENTS, _OTHER_EVENT),
    }
}
