"""Image generations and edits: builds requests, and parses answers and streams.

https://platform.openai.com/docs/api-reference/images describes them. A request that shows the model
images is an edit, whose body is a form.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Reply,
    StreamParser,
    Untranslatable,
    check_answer,
    decode_object,
    post_json,
    read_usage,
)
from catalog.dialects.openai.members import (
    NULL,
    decode_usage,
    find_detail,
    raise_for_error,
    read_text,
)
from catalog.dialects.shared.images.pictures import (
    IMAGES,
    PARAMETERS,
    TIERS,
    InvalidImage,
    Picture,
    choose_size,
    is_given,
    read_members,
    read_reference,
    read_references,
    refuse_members,
)
from catalog.dialects.shared.images.replies import ImageEvents, build_image, build_reply
from catalog.dialects.shared.multipart import FormPart, encode_form
from catalog.dialects.shared.replies import EventParser
from catalog.dialects.shared.sse import EventDecoder
from catalog.pricing import Usage
from config.api.text import CONTROL_CHARACTERS
from config.egress import OutboundRequest

EDITS: Final = "images/edits"
# The members of OpenRouter's interface that OpenAI's lacks; ``choose_size`` translates two of them.
_TRANSLATED: Final = frozenset(("resolution", "aspect_ratio"))
_FOREIGN: Final = frozenset(("seed",))
# The gateway itself knows whether it streams, and gives the end user's pseudonym as ``user``.
_NOT_SENT: Final = frozenset(("stream", "safety_identifier"))
# Base64 of this size is decoded at once.
_PIECE_BYTES: Final = 128 * 1024
_EXTENSIONS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}
_LARGE_EVENT_BYTES: Final = 16 * 1024
# The words of a size and a quality are not longer.
_WORD: Final = 64
_encode = msgspec.json.Encoder().encode
_decode_images = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def build_images(call: Call, url: str, login: Mapping[str, str]) -> OutboundRequest:
    """Returns the HTTP request of a call to this URL; raises :class:`base.Untranslatable`.

    An endpoint that lists parameters of images gets no others. One without such a list gets all of
    OpenAI's, and its provider judges them.
    """
    members = _adapt_members(call)
    try:
        references = read_references(call.fields)
        overlays = {
            name: read_reference(call.fields[name])
            for name in ("mask", "markup")
            if is_given(call.fields.get(name))
        }
    except (msgspec.DecodeError, InvalidImage):
        raise Untranslatable("input_references: An image has an unexpected shape.") from None
    if references or overlays:
        content_type, body = encode_form(_build_parts(members, references, overlays))
        data = b"".join(body)
    else:
        content_type, data = "application/json", _encode(members)
    return post_json(call, url, login, data, content_type)


def image_parameters(listed: frozenset[str]) -> frozenset[str]:
    """Returns the members that an endpoint takes which lists these; without a list, all."""
    return listed | {"n", "size", *_TRANSLATED} if listed else PARAMETERS - _FOREIGN


def _adapt_members(call: Call) -> dict[str, Any]:
    """Returns the members of the request as OpenAI's interface has them."""
    members = read_members(call.fields)
    listed = (call.supported_parameters or frozenset()) & PARAMETERS
    known = image_parameters(listed)
    shown = {name: True for name in IMAGES if is_given(call.fields.get(name))}
    members["stream"] = call.stream
    refuse_members(shown | members, known, "this provider")
    if members.get("size") in TIERS and "resolution" in listed:
        members["resolution"] = members.pop("size")
    native = _TRANSLATED & members.keys()
    if not native or not listed >= native:
        size = choose_size(members)
        for name in ("size", *_TRANSLATED):
            members.pop(name, None)
        if size is not None:
            members["size"] = size
    if "response_format" not in listed and members.get("response_format") == "b64_json":
        # OpenAI's own models refuse the member, and always answer with data.
        del members["response_format"]
    for name in _NOT_SENT & members.keys():
        del members[name]
    if call.stream:
        members["stream"] = True
    members["model"] = call.model
    return members


def _build_parts(
    members: Mapping[str, Any], references: list[Picture], overlays: Mapping[str, Picture]
) -> list[FormPart]:
    """Returns the parts of an edit's form; raises :class:`base.Untranslatable` for a URL."""
    parts = [part for name, value in members.items() for part in _write_texts(name, value)]
    field = "image" if len(references) == 1 else "image[]"
    for index, picture in enumerate(references):
        parts.append(_write_picture(field, f"input_references[{index}]", picture))
    parts += [_write_picture(name, name, picture) for name, picture in overlays.items()]
    return parts


def _write_texts(name: str, value: Any) -> Iterator[FormPart]:
    """Yields the parts of a member; the names of inner ones stand in brackets."""
    if isinstance(value, dict):
        for inner, each in value.items():
            yield from _write_texts(f"{name}[{inner}]", each)
    elif isinstance(value, list):
        for each in value:
            yield from _write_texts(f"{name}[]", each)
    elif value is not None:
        text = value.encode() if isinstance(value, str) else _encode(value)
        yield FormPart(name, text)


def _write_picture(field: str, place: str, picture: Picture) -> FormPart:
    if picture.base64 is None:
        raise Untranslatable(
            f"{place}: This provider takes images as data. Send a data URL with Base64."
        )
    media_type = picture.media_type or "application/octet-stream"
    filename = f"image.{_EXTENSIONS.get(media_type, 'bin')}"
    return FormPart(field, _decode_base64(picture.base64), filename, media_type)


def _decode_base64(text: memoryview) -> bytes:
    return b"".join(
        a2b_base64(text[start : start + _PIECE_BYTES])
        for start in range(0, len(text), _PIECE_BYTES)
    )


def parse_images(fields: dict[str, msgspec.Raw]) -> Reply:
    """Parses a whole answer; raises :class:`InvalidReply`."""
    try:
        images = _decode_images(fields.get("data", NULL))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The images of the answer are malformed.") from None
    usage = _parse_usage(fields, len(images))
    others = {name: value for name, value in fields.items() if name != "data"}
    return build_reply(
        [build_image(image) for image in images],
        others,
        usage=usage,
        model=read_text(fields, "model"),
        upstream_id=read_text(fields, "id"),
    )


def images_parser(choices: int) -> StreamParser:
    """Returns the parser of one stream for a request for this number of images."""
    reader = _Reader(choices)
    return EventParser(EventDecoder(), reader.read, reader.events.end)


class _Reader:
    """Reads the events of one stream; unknown ones are left out."""

    __slots__ = ("_most", "events")

    def __init__(self, most: int) -> None:
        self._most = most
        self.events = ImageEvents(most)

    def read(self, event: bytes) -> Iterator[Chunk]:
        if event[:1] != b"{" and event.strip() == b"[DONE]":
            if not (end := self.events.end()):
                raise InvalidStream("The stream has no image.")
            yield from end
            return
        if len(event) > _LARGE_EVENT_BYTES:
            try:
                check_answer(event, self._most)
            except InvalidReply as exc:
                raise InvalidStream(str(exc)) from None
        fields = decode_object(event)
        if fields is None:
            raise InvalidStream("An event of the stream is not a JSON object.")
        raise_for_error(fields)
        kind = (read_text(fields, "type") or "").rpartition(".")[2]
        if kind == "partial_image":
            yield self.events.add_partial(fields)
        elif kind == "completed":
            usage = _parse_usage(fields, self.events.images + 1)
            yield self.events.add_completed(fields, usage)
            yield from self.events.end_if_whole()


def _parse_usage(fields: dict[str, msgspec.Raw], images: int) -> Usage:
    """Returns the usage of a number of images, without tokens if the provider counts none."""
    usage, counted = decode_usage(fields.get("usage", NULL)), None
    if usage is not None:
        inputs = usage.input_tokens_details or usage.prompt_tokens_details
        outputs = usage.output_tokens_details or usage.completion_tokens_details
        completion = _first(usage.output_tokens, usage.completion_tokens)
        counted = read_usage(
            _first(usage.input_tokens, usage.prompt_tokens),
            completion,
            cached=find_detail(inputs, "cached_tokens"),
            image_prompt=find_detail(inputs, "image_tokens"),
            # Without details everything that such a model produces is image.
            image_output=_first(find_detail(outputs, "image_tokens"), completion),
            reasoning=find_detail(outputs, "reasoning_tokens"),
        )
    return replace(
        counted or Usage(0, 0), output_images=images, image_variant=_read_variant(fields)
    )


def _read_variant(fields: dict[str, msgspec.Raw]) -> str:
    """Returns size and quality as the answer states them, for instance ``1024x1024/high``."""
    stated = ((read_text(fields, name) or "")[:_WORD] for name in ("size", "quality"))
    return "/".join(filter(None, (CONTROL_CHARACTERS.sub("", text) for text in stated)))[:_WORD]


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
