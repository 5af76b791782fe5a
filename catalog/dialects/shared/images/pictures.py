"""Reads requests for images and the images of answers, whatever their wire format; pure.

A request has the members of OpenRouter's ``POST /images``, with those of OpenAI's interface that it
lacks. Images are long: their Base64 is checked in pieces, and is never decoded or copied here.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from catalog.dialects.base import Untranslatable
from catalog.dialects.shared.raw import first_byte, is_empty

# The members of a request that describe the images, and so the parameters of an endpoint for them.
PARAMETERS: Final = frozenset(
    (
        "n", "size", "resolution", "aspect_ratio", "quality", "output_format",
        "output_compression", "background", "seed", "stream", "input_references", "mask",
        "markup", "input_fidelity", "moderation", "style", "partial_images", "response_format",
        "svg", "frame_count", "frame_duration_ms", "complexity",
    )
)  # fmt: skip
# The members that hold images.
IMAGES: Final = ("input_references", "mask", "markup")
# The longer side of each tier in pixels. 4K is the width of a screen, which is OpenAI's longest.
TIERS: Final = {"512": 512, "768": 768, "1K": 1024, "1.5K": 1536, "2K": 2048, "4K": 3840}
# The shorter side when only a ratio is given; it makes OpenAI's own sizes of 1:1, 3:2 and 2:3.
_SHORT_SIDE: Final = 1024
# OpenAI accepts sides that are multiples of this number.
_STEP: Final = 16
_PIXELS: Final = re.compile(r"[0-9]+x[0-9]+|auto")
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# A multiple of four: Base64 has four characters for three bytes.
_PIECE_BYTES: Final = 128 * 1024
# The characters of Base64 from which the type of an image is told.
_HEAD_CHARACTERS: Final = 344
_MARKS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_DATA_URL: Final = re.compile(rb'"data:([A-Za-z0-9.+-]{1,64}/[A-Za-z0-9.+-]{1,64});base64,')
# The longest URL of an image.
_URL_BYTES: Final = 16_384
# What members ask for if they ask for nothing special; ``auto`` and ``false`` do so anywhere.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "n": 1,
    "output_compression": 100,
    "partial_images": 0,
    "response_format": "b64_json",
}
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode


class InvalidImage(ValueError):
    """A text that holds no image; the message is ours and safe to show."""


class Picture(NamedTuple):
    """An image: its Base64, or the URL where it lies; ``media_type`` is ``None`` if unknown."""

    media_type: str | None
    base64: memoryview | None = None
    url: str | None = None


class _Address(msgspec.Struct):
    url: msgspec.Raw


class _Reference(msgspec.Struct):
    image_url: _Address


_decode_references = msgspec.json.Decoder(list[_Reference]).decode
_decode_reference = msgspec.json.Decoder(_Reference).decode


def shows_images(fields: Mapping[str, Any]) -> bool:
    """Returns whether a request shows the model an image."""
    return any(is_given(fields.get(name)) for name in IMAGES)


def is_given(value: Any) -> bool:
    """Returns whether a member is there and neither null nor empty."""
    return not is_empty(value) if isinstance(value, msgspec.Raw) else bool(value)


def read_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Decodes the members of a request, except for its images; null members are left out."""
    members = {name: _decode(value) for name, value in fields.items() if name not in IMAGES}
    return {name: value for name, value in members.items() if value is not None}


def read_references(fields: Mapping[str, Any]) -> list[Picture]:
    """Returns the images that the request shows the model.

    Raises ``msgspec.DecodeError`` for another shape, and :class:`InvalidImage`.
    """
    given = fields.get("input_references")
    references = _decode_references(_raw(given)) if is_given(given) else []
    return [read_url(each.image_url.url) for each in references]


def read_reference(value: Any) -> Picture:
    """Returns the image of a member such as ``mask``; raises what :func:`read_references` does."""
    return read_url(_decode_reference(_raw(value)).image_url.url)


def read_url(raw: msgspec.Raw) -> Picture:
    """Reads the URL of an image, which may hold the image itself; raises :class:`InvalidImage`."""
    if b"\\" in bytes(memoryview(raw)[:_URL_BYTES]) or first_byte(raw) != b'"':
        # Some encoders escape every slash.
        try:
            raw = msgspec.Raw(_encode(_decode_text(raw)))
        except msgspec.DecodeError:
            raise InvalidImage("Must be a text with a URL.") from None
    view = memoryview(raw)
    found = _DATA_URL.match(view)
    if found is not None:
        text = view[found.end() : -1]
        if not is_base64(text):
            raise InvalidImage("Must hold Base64 after its comma.")
        return Picture(sniff(text) or found[1].decode(), base64=text)
    if len(view) > _URL_BYTES:
        raise InvalidImage("Must be a data URL with Base64, or a shorter URL.")
    url = _decode_text(raw)
    if not re.match(r"https?://[^\s]+\Z", url):
        raise InvalidImage("Must be a data URL with Base64, or an http or https URL.")
    return Picture(None, url=url)


def is_base64(text: memoryview | bytes) -> bool:
    """Returns whether a text is Base64 with its padding, and not empty."""
    view = memoryview(text)
    if not view or len(view) % 4:
        return False
    end = len(view)
    while end > len(view) - 2 and view[end - 1] == 0x3D:
        end -= 1
    return all(
        not bytes(view[start : min(start + _PIECE_BYTES, end)]).translate(None, _BASE64)
        for start in range(0, end, _PIECE_BYTES)
    )


def sniff(base64: memoryview | bytes) -> str | None:
    """Returns the type of an image in Base64 by its first bytes; ``None`` for an unknown one."""
    head = bytes(base64[:_HEAD_CHARACTERS])
    try:
        return sniff_bytes(a2b_base64(head[: len(head) - len(head) % 4]))
    except ValueError:
        return None


def sniff_bytes(head: bytes) -> str | None:
    """Returns the type of an image by its first 256 bytes; ``None`` for an unknown one."""
    for mark, media_type in _MARKS:
        if head.startswith(mark):
            return media_type
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:12] == b"ftypavif":
        return "image/avif"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"<svg", b"<?xml")) and b"<svg" in head:
        return "image/svg+xml"
    return None


def choose_size(members: Mapping[str, Any]) -> str | None:
    """Returns the size in pixels that OpenAI's interface has for all members about the size.

    A tier alone is a square. ``None`` leaves the size to the model, as ``auto`` does that stands
    alone.
    """
    size, ratio = members.get("size"), members.get("aspect_ratio")
    if size == "auto" and (members.get("resolution") or ratio not in (None, "auto")):
        size = None
    if isinstance(size, str) and _PIXELS.fullmatch(size):
        return size
    tier = size or members.get("resolution")
    if ratio in (None, "auto"):
        if tier is None:
            return None
        ratio = "1:1"
    width, height = map(float, ratio.split(":"))
    if tier is None:
        scale = _SHORT_SIDE / min(width, height)
    elif tier in TIERS:
        scale = TIERS[tier] / max(width, height)
    else:
        raise Untranslatable(f"resolution: This provider has no size {tier}.")
    return "x".join(str(round(side * scale / _STEP) * _STEP) for side in (width, height))


def refuse_members(members: Mapping[str, Any], known: frozenset[str], format_name: str) -> None:
    """Raises :class:`Untranslatable` for a member that would have no effect.

    A member that asks for nothing special has none anywhere, so it is not refused.
    """
    for name in sorted(PARAMETERS & members.keys() - known):
        value = members[name]
        if value not in (_DEFAULTS.get(name, "auto"), [], {}) and value is not False:
            raise Untranslatable(
                f"{name}: {format_name} has no such option. Leave it out, or choose another model "
                "or provider."
            )


def _raw(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(_encode(value))


def _decode(value: Any) -> Any:
    """Decodes a member; one with a number out of range stays as it is."""
    try:
        return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    except msgspec.DecodeError:
        return value
