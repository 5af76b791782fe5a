"""Images: how the body of a request is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from catalog.dialects.base import Reply, UnusableReply
from catalog.dialects.shared.images.pictures import (
    IMAGES,
    PARAMETERS,
    TIERS,
    is_given,
    read_members,
)
from catalog.dialects.shared.images.replies import IMAGE_TOKENS
from catalog.dialects.shared.raw import first_byte, read_text
from catalog.pricing import Usage
from catalog.tokens import TextCounts
from inference.requests.operations.images.schema import ImagesRequest, check_images
from inference.requests.rows import Demands, Fields, RequestRow, count_texts, name_models

# An image of common size costs about 1,024 tokens, at four bytes a token.
_IMAGE_TOKENS: Final = 1_024
_SQUARE_PIXELS: Final = 1024 * 1024
_SQUARE_TOKENS: Final = 8_192
_MORE_TOKENS: Final = 16_384
# The largest image that a provider makes when the request leaves the size open.
_LARGEST_PIXELS: Final = 2048 * 1024
# The members that choose among the rates of a price list.
_VARIANT: Final = ("size", "resolution", "quality")
# What any endpoint can do, or what the gateway does itself.
_ALWAYS: Final = frozenset(("n", "stream", "response_format"))

# The members that are measured and priced, and the form of the answer.
_RESERVED: Final = frozenset(
    (
        "response_format", "size", "resolution", "aspect_ratio", "quality", "partial_images",
        "input_references", "mask", "markup",
    )
)  # fmt: skip

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _count_images(request: ImagesRequest) -> int:
    return request.n or 1


def _read_demands(request: ImagesRequest) -> Demands:
    """Returns the most tokens of one image: no member of the interface bounds them, but its size.

    https://platform.openai.com/docs/guides/image-generation counts 4,160 for a square of 1024
    pixels at high quality. Twice as many are allowed, and some for text and thinking.
    """
    pixels = _LARGEST_PIXELS
    if request.size is not None and "x" in request.size:
        width, _, height = request.size.partition("x")
        pixels = int(width) * int(height)
    elif (tier := request.resolution or request.size) is not None:
        pixels = TIERS.get(tier, 0) ** 2 or _LARGEST_PIXELS
    return Demands(_MORE_TOKENS + -(-pixels // _SQUARE_PIXELS) * _SQUARE_TOKENS)


def _find_images(request: ImagesRequest) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the images of the prompt as parts, without what else a reference may have."""
    for reference in (*(request.input_references or ()), request.mask, request.markup):
        if reference is not None:
            yield {"image_url": reference.image_url.url}


def _count_text(fields: Fields) -> TextCounts:
    """Counts the prompt; each image counts 1,024 tokens."""
    counts = count_texts(fields["prompt"])
    for raw in (fields[name] for name in IMAGES if is_given(fields.get(name))):
        images = len(_decode_list(raw)) if first_byte(raw) == b"[" else 1
        counts.tokens += _IMAGE_TOKENS * images
    return counts


def _imply_parameters(fields: Fields) -> Iterable[str]:
    """Yields the members that an endpoint must support; those that ask for nothing need none."""
    members = read_members(fields)
    for name in PARAMETERS - _ALWAYS:
        if name in IMAGES:
            if is_given(fields.get(name)):
                yield name
        elif members.get(name) not in (None, "auto"):
            yield name


def _name_variant(fields: Fields) -> tuple[str, ...]:
    """Returns the size and the quality that the request names, as price lists spell them."""
    members = read_members({name: fields[name] for name in _VARIANT if name in fields})
    size = members.get("size", "auto")
    if size == "auto":
        size = members.get("resolution")
    return tuple(each for each in (size, members.get("quality")) if each not in (None, "auto"))


def _allow(fields: Fields) -> Usage:
    """Returns the number of images, and their variant if the request leaves nothing of it open.

    A tier such as 2K is open: each provider has pixels of its own for it.
    """
    number = read_members({name: fields[name] for name in ("n",) if name in fields}).get("n", 1)
    named = _name_variant(fields)
    is_decided = len(named) == 2 and "x" in named[0]
    return Usage(0, 0, output_images=number, image_variant="/".join(named) if is_decided else "")


def _name_least(fields: Fields) -> Usage:
    """Returns the size and quality that the request names, for an answer that states neither."""
    return Usage(0, 0, image_variant="/".join(_name_variant(fields)))


def _estimate(prompt: int, completion: int, known: Usage) -> Usage:
    """Returns the usage of images by the size of what came of them.

    A process of an earlier release has journalled neither their number nor their variant.
    """
    images = completion // IMAGE_TOKENS
    return Usage(
        prompt,
        completion,
        image_output=completion,
        output_images=min(images, known.output_images or images),
        image_variant=known.image_variant if images else "",
    )


def _complete(fields: Fields, reply: Reply) -> None:
    """Raises :class:`UnusableReply` for URLs in the answer to a caller who asked for data.

    Nobody fetches them: a URL is the upstream's word.
    """
    if read_text(fields.get("response_format")) != "b64_json":
        return
    if any("url" in image for image in reply.fields["data"]):
        raise UnusableReply(
            "It has URLs instead of images. An endpoint whose provider can send data must list "
            "response_format among its parameters."
        )


ROW: Final = RequestRow(
    shape=ImagesRequest,
    models=name_models,
    default_model="image_model",
    check=check_images,
    answers=_count_images,
    answers_field="n",
    demands=_read_demands,
    parts=_find_images,
    count_text=_count_text,
    implied_parameters=_imply_parameters,
    reserved=_RESERVED,
    complete=_complete,
    allowed=_allow,
    least=_name_least,
    estimate=_estimate,
)
