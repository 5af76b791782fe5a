"""The items of a conversation, as msgspec reads them; members that chat cannot use are not read."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from inference.requests.limits import MAX_PARTS

_Raws = dict[str, msgspec.Raw]


class ItemPart(msgspec.Struct):
    """A part of a message or of a tool's output; its type says which members it has."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: _Raws | None = None
    video_url: Any = None
    prompt_cache_breakpoint: _Raws | None = None
    cache_control: _Raws | None = None


_Parts = Annotated[list[ItemPart], msgspec.Meta(max_length=MAX_PARTS)]


class MessageItem(msgspec.Struct):
    role: str
    content: str | _Parts | None = None


class FunctionCallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    namespace: str | None = None


class CustomCall(msgspec.Struct):
    call_id: str
    name: str
    input: str


class KnownCall(msgspec.Struct):
    """A call of a tool without a schema of its own, or of the search for tools."""

    call_id: str | None = None
    id: str | None = None
    action: _Raws | None = None
    operation: _Raws | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    execution: str | None = None


class CallOutput(msgspec.Struct):
    output: str | _Parts
    call_id: str


class KnownOutput(msgspec.Struct):
    """The output of a tool whose output has a shape of its own."""

    call_id: str | None = None
    id: str | None = None
    status: str | None = None
    output: msgspec.Raw = msgspec.Raw()
    tools: list[msgspec.Raw] | None = None


class _Thought(msgspec.Struct):
    text: str = ""


class ThoughtItem(msgspec.Struct):
    summary: list[_Thought] | None = None
    encrypted_content: str | None = None


class _Effort(msgspec.Struct):
    effort: str


class ConfigurationUpdate(msgspec.Struct):
    reasoning: _Effort


class AdditionalTools(msgspec.Struct):
    tools: list[msgspec.Raw]


class PictureItem(msgspec.Struct):
    """A picture that a model made; some servers leave out what it shows."""

    result: str | None = None


class ItemKind(msgspec.Struct):
    """The members by which an item's type is known: a message may have a role only."""

    type: str | None = None
    role: str | None = None


decode_kind: Final = msgspec.json.Decoder(ItemKind)
MESSAGE: Final = msgspec.json.Decoder(MessageItem)
FUNCTION_CALL: Final = msgspec.json.Decoder(FunctionCallItem)
CUSTOM_CALL: Final = msgspec.json.Decoder(CustomCall)
KNOWN_CALL: Final = msgspec.json.Decoder(KnownCall)
CALL_OUTPUT: Final = msgspec.json.Decoder(CallOutput)
KNOWN_OUTPUT: Final = msgspec.json.Decoder(KnownOutput)
REASONING: Final = msgspec.json.Decoder(ThoughtItem)
CONFIGURATION: Final = msgspec.json.Decoder(ConfigurationUpdate)
ADDITIONAL_TOOLS: Final = msgspec.json.Decoder(AdditionalTools)
PICTURE: Final = msgspec.json.Decoder(PictureItem)
