"""Images in the format of Google's Gemini API.

Its image models answer a chat request with images: see
https://ai.google.dev/gemini-api/docs/image-generation. Each request makes one image.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    ProviderFailure,
    Reply,
    StreamParser,
    Untranslatable,
    parse_error,
)
from catalog.dialects.gemini.chat import FINISHES, CamelStruct, Counts, PromptFeedback
from catalog.dialects.shared.images.pictures import (
    InvalidImage,
    Picture,
    is_given,
    read_members,
    read_references,
    refuse_members,
)
from catalog.dialects.shared.images.replies import ImageEvents, build_image, build_reply
from catalog.dialects.shared.raw import encode_pieces
from catalog.dialects.shared.replies import EventParser
from catalog.dialects.shared.sse import EventDecoder
from catalog.pricing import Usage

_KNOWN: Final = frozenset(
    ("size", "resolution", "aspect_ratio", "seed", "stream", "input_references")
)
_RATIOS: Final = frozenset(
    (
        "1:1", "1:4", "1:8", "2:3", "3:2", "3:4", "4:1", "4:3", "4:5", "5:4", "8:1", "9:16",
        "16:9", "21:9",
    )
)  # fmt: skip
_TIERS: Final = frozenset(("512", "1K", "2K", "4K"))
# The sizes in pixels that a square has at each tier; other ratios have no round numbers.
_SQUARES: Final = {"512x512": "512", "1024x1024": "1K", "2048x2048": "2K", "4096x4096": "4K"}
_NAME: Final = "Gemini"


def image_parameters(listed: frozenset[str]) -> frozenset[str]:
    """Returns the members that every endpoint takes, whatever it lists."""
    return _KNOWN


class _Blob(CamelStruct):
    data: msgspec.Raw


class _Part(CamelStruct):
    inline_data: _Blob | None = None
    thought: bool = False


class _Content(CamelStruct):
    parts: list[_Part] = []


class _Candidate(CamelStruct):
    content: _Content | None = None
    finish_reason: str | None = None


class _Response(CamelStruct):
    candidates: list[_Candidate] = []
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: Counts | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: dict[str, msgspec.Raw] | None = None

    @property
    def images(self) -> list[dict[str, Any]]:
        """The images, without drafts that the model made while it thought."""
        return [
            build_image({"b64_json": part.inline_data.data})
            for candidate in self.candidates
            if candidate.content is not None
            for part in candidate.content.parts
            if part.inline_data is not None and not part.thought
        ]

    @property
    def refusal(self) -> str | None:
        """The provider's reason for making no image, if it names one."""
        if self.prompt_feedback is not None and self.prompt_feedback.block_reason:
            return self.prompt_feedback.block_reason
        reasons = [each.finish_reason for each in self.candidates if each.finish_reason]
        return next((reason for reason in reasons if FINISHES.get(reason) != "stop"), None)

    @property
    def has_finished(self) -> bool:
        return any(each.finish_reason for each in self.candidates)

    def usage(self, images: int) -> Usage:
        """Returns the usage of a number of images, without tokens if there are no counts."""
        counts = self.usage_metadata
        counted = None if counts is None else counts.total
        usage = replace(counted or Usage(0, 0), output_images=images)
        if counts is None or counts.candidates_tokens_details:
            return usage
        # Without details all that is written is image, as the request asked for that alone.
        return replace(usage, image_output=usage.completion - usage.reasoning)


_decode = msgspec.json.Decoder(_Response).decode


def build_images(call: Call) -> tuple[bytes, frozenset[str]]:
    """Returns the body of a request, which lacks nothing; raises :class:`base.Untranslatable`."""
    members = read_members(call.fields)
    if members.get("n", 1) != 1:
        raise Untranslatable(f"n: {_NAME} makes one image a request. Send several requests.")
    try:
        references = read_references(call.fields)
    except (msgspec.DecodeError, InvalidImage):
        raise Untranslatable("input_references: An image has an unexpected shape.") from None
    members |= {name: True for name in ("mask", "markup") if is_given(call.fields.get(name))}
    refuse_members(members, _KNOWN, _NAME)
    config: dict[str, Any] = {"responseModalities": ["IMAGE"]}
    if "seed" in members:
        config["seed"] = members["seed"]
    if image := _build_image_config(members):
        config["imageConfig"] = image
    parts = [*map(_build_media, references), {"text": members.get("prompt", "")}]
    body = {"contents": [{"role": "user", "parts": parts}], "generationConfig": config}
    return b"".join(encode_pieces(body)), frozenset()


def _build_image_config(members: dict[str, Any]) -> dict[str, str]:
    size, tier = members.get("size"), members.get("resolution")
    ratio = members.get("aspect_ratio", "auto")
    if size in _SQUARES:
        ratio, tier = "1:1", _SQUARES[size]
    elif size not in (None, "auto"):
        tier = size
    if ratio != "auto" and ratio not in _RATIOS:
        raise Untranslatable(f"aspect_ratio: {_NAME} makes no images of {ratio}.")
    if tier is not None and tier not in _TIERS:
        name = "resolution" if size in (None, "auto") else "size"
        raise Untranslatable(
            f"{name}: {_NAME} makes no images of {tier}. Send aspect_ratio, and resolution 1K, 2K "
            "or 4K."
        )
    config = {} if ratio == "auto" else {"aspectRatio": ratio}
    # 1K is the default, and the only size of models that do not know the member.
    return config if tier in (None, "1K") else {**config, "imageSize": tier}


def _build_media(picture: Picture) -> dict[str, Any]:
    if picture.base64 is None:
        return {"fileData": {"fileUri": picture.url}}
    data = msgspec.Raw(b"".join((b'"', picture.base64, b'"')))
    return {"inlineData": {"mimeType": picture.media_type, "data": data}}


def parse_images(body: Body) -> Reply:
    """Parses a whole answer; raises :class:`InvalidReply` or :class:`ProviderFailure`."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The answer holds no candidates.") from None
    if answer.error is not None:
        raise parse_error(body)
    images = answer.images
    if not images:
        _raise_refusal(answer)
    return build_reply(
        images,
        {},
        usage=answer.usage(len(images)),
        model=answer.model_version,
        upstream_id=answer.response_id,
    )


def images_parser(choices: int) -> StreamParser:
    """Returns the parser of one stream for a request for this number of images."""
    reader = _Reader(choices)
    return EventParser(EventDecoder(), reader.read, reader.end)


class _Reader:
    """Reads the events of one stream.

    An image comes whole, and the usage at the end may be the only one that counts it. So the last
    image is kept until the end.
    """

    __slots__ = ("_answer", "_events", "_has_finished", "_images")

    def __init__(self, most: int) -> None:
        self._events = ImageEvents(most)
        self._images: list[dict[str, Any]] = []
        self._answer = _Response()
        self._has_finished = False

    def read(self, event: bytes) -> Iterator[Chunk]:
        try:
            answer = _decode(event)
        except (msgspec.DecodeError, RecursionError):
            raise InvalidStream("An event of the stream is malformed.") from None
        if answer.error is not None:
            raise parse_error(event)
        try:
            self._images += answer.images
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None
        if answer.refusal is not None and not self._images:
            _raise_refusal(answer)
        if answer.usage_metadata is not None or self._answer.usage_metadata is None:
            self._answer = answer
        self._has_finished = self._has_finished or answer.has_finished
        while len(self._images) > 1:
            yield self._events.add_completed(self._images.pop(0), None)

    def end(self) -> list[Chunk]:
        """Returns the last image with the usage, or nothing when the stream was cut off."""
        if not self._has_finished:
            return []
        if not self._images:
            raise InvalidStream("The stream has no image.")
        answer = self._answer
        usage = answer.usage(self._events.images + 1)
        chunk = self._events.add_completed(self._images.pop(), usage, answer.response_id)
        chunk.model = answer.model_version
        return [chunk, *self._events.end()]


def _raise_refusal(answer: _Response) -> None:
    """Raises the error for an answer without an image."""
    if answer.refusal is None:
        raise InvalidReply("The answer has no images.")
    raise ProviderFailure(f"The provider made no image: {answer.refusal}.", answer.refusal)
