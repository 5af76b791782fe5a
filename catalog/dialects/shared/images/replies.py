"""Builds the answers of image requests, whole and streamed, from those of all wire formats.

They have the members that OpenRouter's and OpenAI's interfaces share: ``data`` is a list of images,
each with ``b64_json`` and its ``media_type``, or with a ``url``; the events of a stream are partial
images and completed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import Chunk, InvalidReply, InvalidStream, Reply, UnusableReply
from catalog.dialects.shared.images.pictures import is_base64, sniff
from catalog.dialects.shared.raw import first_byte, is_null
from catalog.pricing import Usage
from catalog.pricing.usage import COMPLETION_PARTS, PROMPT_PARTS

PARTIAL: Final = "image_generation.partial_image"
COMPLETED: Final = "image_generation.completed"
# Without a usage, an image counts 1,290 tokens, as Google documents it, at four bytes a token. A
# partial image costs 100 tokens at OpenAI.
IMAGE_TOKENS: Final = 1290
IMAGE_BYTES: Final = 4 * IMAGE_TOKENS
_PARTIAL_BYTES: Final = 4 * 100
# OpenAI sends at most three partial images of each image.
_PARTIALS: Final = 3
# The tokens that the images of one stream share, and those that each has of its own.
_SHARED: Final = ("prompt", *PROMPT_PARTS)
_OWN: Final = ("completion", *COMPLETION_PARTS)
_DATA_URL: Final = b'"data:'
_MARK: Final = b";base64,"
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode


def build_image(members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an image of an answer with what the gateway knows about it.

    ``members`` has ``b64_json`` or ``url`` as raw JSON. A URL that holds its image becomes the
    image. Raises :class:`InvalidReply` for anything else, and for text that is not Base64.
    """
    image = {name: value for name, value in members.items() if not _is_null(value)}
    encoded, url = image.pop("b64_json", None), image.pop("url", None)
    if encoded is None and url is not None:
        if first_byte(url) != b'"':
            raise InvalidReply("The URL of an image is not a text.")
        if bytes(memoryview(url)[:6]) != _DATA_URL:
            return {**image, "url": _check_url(url)}
        url = _without_escapes(url)
        start = bytes(memoryview(url)[:128]).find(_MARK)
        if start < 0:
            raise InvalidReply("An image of the answer is not Base64.")
        encoded = msgspec.Raw(b'"' + memoryview(url)[start + len(_MARK) :])
    if encoded is None:
        raise InvalidReply("An image of the answer is neither data nor a URL.")
    encoded = _check_base64(encoded)
    media_type = sniff(memoryview(encoded)[1:-1])
    if media_type is not None:
        image["media_type"] = media_type
    return {**image, "b64_json": encoded}


def build_reply(
    images: list[dict[str, Any]],
    fields: Mapping[str, Any],
    *,
    usage: Usage | None,
    model: str | None = None,
    upstream_id: str | None = None,
) -> Reply:
    """Returns a whole answer; ``fields`` are its members beside the images."""
    if not images:
        raise InvalidReply("The answer has no images.")
    return Reply(
        fields={**fields, "data": images},
        model=model,
        usage=usage,
        finish_reason="stop",
        output_bytes=len(images) * IMAGE_BYTES,
        upstream_id=upstream_id,
        choices=len(images),
        pictures=len(images),
    )


def split_reply(reply: Reply) -> list[Chunk]:
    """Returns the chunks of a whole answer: a completed image each, and the end mark.

    Raises :class:`UnusableReply` for URLs, which no event can have.
    """
    images = reply.fields["data"]
    others = _fit_event(
        {name: value for name, value in reply.fields.items() if name not in ("data", "usage")}
    )
    chunks = [
        Chunk(
            fields={**others, **_fit_event(image), "type": COMPLETED},
            model=reply.model,
            usage=reply.usage if position == len(images) else None,
            finish_reason="stop",
            output_bytes=IMAGE_BYTES,
            has_choices=True,
            upstream_id=reply.upstream_id,
            pictures=1,
        )
        for position, image in enumerate(images, 1)
        if "b64_json" in image
    ]
    if len(chunks) < len(images):
        raise UnusableReply("It has URLs instead of images.")
    return [*chunks, Chunk(fields={}, is_done=True)]


def _fit_event(members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members that an event can have.

    Nulls are left out, as in a stream, and ``error``, which says that an event has failed. The line
    ends that JSON allows between its parts are replaced: they would end an event.
    """
    return {
        name: msgspec.Raw(bytes(value).replace(b"\r", b" "))
        if name != "b64_json" and isinstance(value, msgspec.Raw)
        else value
        for name, value in members.items()
        if name != "error" and not _is_null(value)
    }


class ImageEvents:
    """Counts the images of one stream, and builds its chunks.

    ``most`` is the number of images that were asked for. The stream is complete after as many, or
    at its end if there is at least one.
    """

    __slots__ = ("_images", "_least", "_most", "_partials", "_usage")

    def __init__(self, most: int) -> None:
        self._most = most
        self._images = self._partials = 0
        # The usage of all images so far, and the fewest tokens that an event has counted for them.
        self._usage: Usage | None = None
        self._least = 0

    @property
    def images(self) -> int:
        """The number of completed images so far."""
        return self._images

    def add_partial(self, members: Mapping[str, Any]) -> Chunk:
        """Returns the chunk of a partial image; raises :class:`InvalidStream` for too many."""
        self._partials += 1
        if self._partials > _PARTIALS * self._most:
            raise InvalidStream("It has too many partial images.")
        fields = {**_build_event(members), "type": PARTIAL}
        return Chunk(fields=fields, output_bytes=_PARTIAL_BYTES, has_choices=True)

    def add_completed(
        self, members: Mapping[str, Any], usage: Usage | None, upstream_id: str | None = None
    ) -> Chunk:
        """Returns the chunk of a completed image; raises :class:`InvalidStream` for too many."""
        self._images += 1
        if self._images > self._most:
            raise InvalidStream(f"It has more than {self._most} images.")
        usage = self._add_up(usage)
        if usage is not None:
            self._usage = usage = replace(usage, output_images=self._images)
        return Chunk(
            fields={**_build_event(members), "type": COMPLETED},
            usage=usage,
            finish_reason="stop",
            output_bytes=IMAGE_BYTES,
            has_choices=True,
            upstream_id=upstream_id,
            pictures=1,
        )

    def _add_up(self, usage: Usage | None) -> Usage | None:
        """Returns the usage of all images so far, with that of one more event.

        OpenAI's events count the tokens of their own image, and the prompt that all images share.
        Where an event has at least half as many tokens more than all before it as the smallest one
        had, it counts them all. An event may also count nothing.
        """
        known, least = self._usage, self._least
        if usage is None:
            return known
        if usage.completion:
            self._least = min(least or usage.completion, usage.completion)
        if known is None:
            return usage
        if usage.completion and 2 * (usage.completion - known.completion) < least:
            both = known, usage
            shared = {name: max(getattr(each, name) for each in both) for name in _SHARED}
            own = {name: sum(getattr(each, name) for each in both) for name in _OWN}
            return replace(usage, **shared, **own)
        is_less = usage.prompt + usage.completion < known.prompt + known.completion
        return known if is_less else usage

    def end(self) -> list[Chunk]:
        """Returns the end mark, or nothing when no image is complete."""
        return [Chunk(fields={}, is_done=True)] if self._images else []

    def end_if_whole(self) -> Iterable[Chunk]:
        """Returns the end mark as soon as there are all images."""
        return self.end() if self._images == self._most else ()


def _build_event(members: Mapping[str, Any]) -> dict[str, Any]:
    try:
        image = build_image(members)
    except InvalidReply as exc:
        raise InvalidStream(str(exc)) from None
    if "url" in image:
        raise InvalidStream("An event has a URL instead of an image.")
    return image


def _check_url(raw: msgspec.Raw) -> msgspec.Raw:
    try:
        text = _decode_text(raw)
    except msgspec.DecodeError:
        text = ""
    if not text.startswith(("https://", "http://")) or len(text) > 16_384:
        raise InvalidReply("The URL of an image is not valid.")
    return raw


def _check_base64(raw: Any) -> msgspec.Raw:
    if first_byte(raw) == b'"':
        encoded = _without_escapes(raw)
        if is_base64(memoryview(encoded)[1:-1]):
            return encoded
    raise InvalidReply("An image of the answer is not Base64.")


def _without_escapes(raw: msgspec.Raw) -> msgspec.Raw:
    """Returns a text without escapes; some encoders escape every slash of Base64."""
    # An image has thousands of slashes, so the first part shows whether they are escaped.
    if b"\\" not in bytes(memoryview(raw)[:65_536]):
        return raw
    try:
        return msgspec.Raw(_encode(_decode_text(raw)))
    except msgspec.DecodeError:
        raise InvalidReply("An image of the answer is not Base64.") from None


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, msgspec.Raw) and is_null(value))
