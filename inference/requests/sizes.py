"""Measures prompts: an upper bound of their tokens, and the size of their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import first_byte, is_null, measure_value
from inference.requests.problems import explain_decode_error
from inference.requests.schemas import (
    AssistantMessage,
    Body,
    ChatRequest,
    EmbeddingsItem,
    EmbeddingsRequest,
    Parts,
)

# A message's role and delimiters are about four tokens.
_MESSAGE_BYTES: Final = 16
# An image of common size costs about 1,024 tokens, at four bytes a token.
_OTHER_PART_BYTES: Final = 4096
# The most tokens that a provider documents for one image, and a generous number for a document, a
# recording or a film, because their encoded size says little about their tokens.
_IMAGE_TOKENS: Final = 36_864
_OTHER_PART_TOKENS: Final = 131_072
# Providers add text to the prompt that explains the tools to the model.
_TOOLS_TOKENS: Final = 1_024
# The members of a part that hold encoded media; any other member may be read as text.
_MEDIA: Final = frozenset(
    ("image_url", "video_url", "input_audio", "input_video", "input_file", "file")
)
# The types of text parts; a part without a type counts as text.
_TEXTS: Final = frozenset((b"", b'"text"', b'"refusal"'))


class _SizedMessage(msgspec.Struct):
    """The members of any message that are text for a model."""

    content: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()


_decode_parts = msgspec.json.Decoder(Parts).decode
_decode_content = msgspec.json.Decoder(str | Parts).decode
_decode_messages = msgspec.json.Decoder(list[_SizedMessage]).decode


def read_contents(request: ChatRequest) -> list[list[dict[str, msgspec.Raw]]]:
    """Returns the parts of the messages that have parts.

    Raises :class:`InvalidRequest` for a content that is neither a text nor a list of parts.
    """
    contents = []
    for index, message in enumerate(request.messages):
        content = message.content
        kind = first_byte(content)
        if kind == b'"' or (isinstance(message, AssistantMessage) and is_null(content)):
            continue
        try:
            contents.append((_decode_parts if kind == b"[" else _decode_content)(content))
        except msgspec.ValidationError as exc:
            place = f"messages[{index}].content"
            raise explain_decode_error(str(exc), within=place) from None
    return contents


def bound_prompt(request: Body, fields: dict[str, msgspec.Raw]) -> tuple[int, int]:
    """Returns an upper bound of the prompt's tokens, and the number of its images.

    The bound is the size of the JSON in bytes: a token is at least one byte of UTF-8, JSON is never
    shorter than its text, and its punctuation covers the few tokens that a provider adds between
    messages. A part that is not text counts by a bound of its own instead of its size. The options
    of one provider join the fields, and which one is not known yet.
    """
    bound = _size(fields)
    if request.provider is not None and request.provider.options:
        bound += max(map(_size, request.provider.options.values()))
    images = 0
    for part in _other_parts(request):
        media = _MEDIA.intersection(part)
        bound -= _size({name: part[name] for name in media})
        images += "image_url" in media
        # A part with several members may be read as any of them.
        bound += _IMAGE_TOKENS if media == {"image_url"} else _OTHER_PART_TOKENS
    if "tools" in fields:
        bound += _TOOLS_TOKENS
    return bound, images


def _size(members: dict[str, msgspec.Raw]) -> int:
    return sum([memoryview(raw).nbytes for raw in members.values()])


def _other_parts(request: Body) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the parts of the prompt that are not text."""
    contents: Iterable[Any] = ()
    if isinstance(request, ChatRequest):
        contents = read_contents(request)
    elif isinstance(request, EmbeddingsRequest) and isinstance(request.input, list):
        contents = (item.content for item in request.input if isinstance(item, EmbeddingsItem))
    for content in contents:
        if isinstance(content, list):
            yield from (part for part in content if bytes(part.get("type", b"")) not in _TEXTS)


def measure_text(operation: Operation, fields: Mapping[str, msgspec.Raw]) -> int:
    """Returns the size of the prompt's text in bytes, for an estimate of its tokens.

    Tools and tool calls are text too. A part that is not text counts 4,096 bytes, however large its
    encoding is.
    """
    if operation is Operation.TEXT:
        return len(fields["prompt"])
    if operation is Operation.EMBEDDINGS:
        return len(fields["input"])
    messages = _decode_messages(fields["messages"])
    return sum(map(_message_bytes, messages)) + len(fields.get("tools", b""))


def _message_bytes(message: _SizedMessage) -> int:
    size = _MESSAGE_BYTES + len(message.tool_calls)
    if first_byte(message.content) != b"[":
        return size + measure_value(message.content)
    return size + sum(
        len(part["text"]) if "text" in part else _OTHER_PART_BYTES
        for part in _decode_parts(message.content)
    )
