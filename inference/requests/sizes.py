"""Bounds the tokens of prompts from above and below, and finds the modalities of their media."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from inference.requests.rows import Body, RequestRow

# The most tokens that a provider documents for one image, and a generous number for a document, a
# recording or a film, because their encoded size says little about their tokens.
_IMAGE_TOKENS: Final = 36_864
_OTHER_PART_TOKENS: Final = 131_072
# The members of a part that hold encoded media, with the modality of each one; any other member may
# be read as text.
_MODALITIES: Final[Mapping[str, str]] = {
    "image_url": "image", "video_url": "video", "input_audio": "audio", "input_video": "video",
    "input_file": "file", "file": "file",
}  # fmt: skip
_MEDIA: Final = frozenset(_MODALITIES)
_TEXT_ONLY: Final[frozenset[str]] = frozenset()
# Spaces, and all bytes of a character but the first.
_UNCOUNTED: Final = bytes((0x20, *range(0x80, 0xC0)))
# English has four to five characters a token, and no language has more than six on average.
CHARACTERS_PER_TOKEN: Final = 6
# The JSON of the shortest token: a digit and a comma.
TOKEN_BYTES: Final = 2
# The types of text parts; a part without a type counts as text.
_TEXTS: Final = frozenset((b"", b'"text"', b'"refusal"'))


class PromptSize(NamedTuple):
    """An upper bound of a prompt's tokens, its number of images, and the modalities of its media.

    ``inputs`` does not name text.
    """

    bound: int
    images: int
    inputs: frozenset[str]


def bound_prompt(
    row: RequestRow[Any], request: Body, fields: Mapping[str, msgspec.Raw]
) -> PromptSize:
    """Returns the size of a prompt, with an upper bound of its tokens.

    The bound is the size of the JSON in bytes: a token is at least one byte of UTF-8, JSON is never
    shorter than its text, and its punctuation covers the few tokens that a provider adds between
    messages. A part that is not text counts by a bound of its own instead of its size. The options
    of one provider join the fields, and which one is not known yet.
    """
    bound = _size(fields) + row.added_tokens(request)
    if request.provider is not None and request.provider.options:
        bound += max(map(_size, request.provider.options.values()))
    images, inputs = 0, _TEXT_ONLY
    for part in row.parts(request):
        media = _MEDIA.intersection(part)
        bound -= _size({name: part[name] for name in media})
        images += "image_url" in media
        inputs |= {_MODALITIES[name] for name in media}
        # A part with several members may be read as any of them.
        bound += _IMAGE_TOKENS if media == {"image_url"} else _OTHER_PART_TOKENS
    return PromptSize(bound, images, inputs)


def _size(members: Mapping[str, msgspec.Raw]) -> int:
    return sum([memoryview(raw).nbytes for raw in members.values()])


def find_media(
    contents: Iterable[list[dict[str, msgspec.Raw]]],
) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the parts of contents that are not text."""
    for content in contents:
        yield from (part for part in content if bytes(part.get("type", b"")) not in _TEXTS)


def count_characters(text: msgspec.Raw | bytes) -> int:
    """Returns the characters of a JSON text without its spaces; an escaped one counts once.

    Tokenizers join spaces, so spaces say nothing about the tokens that a text has at least.
    """
    raw = bytes(text)
    return max(len(raw.translate(None, _UNCOUNTED)) - 5 * raw.count(rb"\u"), 0)
