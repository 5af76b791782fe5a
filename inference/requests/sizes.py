"""Bounds the tokens of prompts from above, for any tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from inference.requests.rows import Body, RequestRow

# The most tokens that a provider documents for one image, and a generous number for a document, a
# recording or a film, because their encoded size says little about their tokens.
_IMAGE_TOKENS: Final = 36_864
_OTHER_PART_TOKENS: Final = 131_072
# The members of a part that hold encoded media; any other member may be read as text.
_MEDIA: Final = frozenset(
    ("image_url", "video_url", "input_audio", "input_video", "input_file", "file")
)
# The types of text parts; a part without a type counts as text.
_TEXTS: Final = frozenset((b"", b'"text"', b'"refusal"'))


def bound_prompt(
    row: RequestRow[Any], request: Body, fields: Mapping[str, msgspec.Raw]
) -> tuple[int, int]:
    """Returns an upper bound of the prompt's tokens, and the number of its images.

    The bound is the size of the JSON in bytes: a token is at least one byte of UTF-8, JSON is never
    shorter than its text, and its punctuation covers the few tokens that a provider adds between
    messages. A part that is not text counts by a bound of its own instead of its size. The options
    of one provider join the fields, and which one is not known yet.
    """
    bound = _size(fields) + row.added_tokens(request)
    if request.provider is not None and request.provider.options:
        bound += max(map(_size, request.provider.options.values()))
    images = 0
    for part in row.parts(request):
        media = _MEDIA.intersection(part)
        bound -= _size({name: part[name] for name in media})
        images += "image_url" in media
        # A part with several members may be read as any of them.
        bound += _IMAGE_TOKENS if media == {"image_url"} else _OTHER_PART_TOKENS
    return bound, images


def _size(members: Mapping[str, msgspec.Raw]) -> int:
    return sum([memoryview(raw).nbytes for raw in members.values()])


def find_media(
    contents: Iterable[list[dict[str, msgspec.Raw]]],
) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the parts of contents that are not text."""
    for content in contents:
        yield from (part for part in content if bytes(part.get("type", b"")) not in _TEXTS)
