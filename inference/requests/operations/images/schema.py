"""The request for images, which the interfaces of OpenRouter and OpenAI share.

``POST /images`` has OpenRouter's members, ``POST /images/generations`` and ``/images/edits`` have
OpenAI's. All of them are accepted on each route, and mean the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from catalog.dialects.shared.images.pictures import InvalidImage, read_url
from catalog.pricing.sizes import TOLERANCE, find_tiers
from inference.requests.problems import field_error
from inference.requests.schemas import ProviderPreferences, Session, Slug, Slugs, User

MAX_IMAGES: Final = 10
# OpenAI's limit for an edit.
MAX_REFERENCES: Final = 16
_SIZE: Final = r"^(auto|512|768|1K|1\.5K|2K|4K|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})\Z"
_PIXELS: Final = re.compile(r"([0-9]+)x([0-9]+)")
# The formats whose compression can be chosen, and those that can be transparent.
_COMPRESSED: Final = ("jpeg", "webp")
_TRANSPARENT: Final = (None, "png", "webp", "gif", "svg")

Ratio = Literal[
    "1:1", "1:2", "1:4", "1:8", "2:1", "2:3", "2.35:1", "3:2", "3:4", "4:1", "4:3", "4:5", "5:2",
    "5:4", "5:7", "7:5", "8:1", "9:16", "16:9", "9:19.5", "19.5:9", "9:20", "20:9", "9:21", "21:9",
    "auto",
]  # fmt: skip


class _ImageAddress(msgspec.Struct):
    """The URL of an image, which may hold the image; it stays raw, because it can be long."""

    url: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "string"})]


class ImageReference(msgspec.Struct):
    """An image that the request shows the model."""

    image_url: _ImageAddress
    type: Literal["image_url"] = "image_url"


_References = Annotated[list[ImageReference], msgspec.Meta(max_length=MAX_REFERENCES)]


class _SvgReasoning(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class Svg(msgspec.Struct):
    """The model that writes an SVG, at OpenAI."""

    model: Slug
    reasoning: _SvgReasoning | None = None


class ImagesRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /images`` and ``POST /images/generations``."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    model: Slug | None = None
    models: Slugs | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_IMAGES)] | None = None
    size: Annotated[str, msgspec.Meta(pattern=_SIZE)] | None = None
    resolution: Literal["512", "768", "1K", "1.5K", "2K", "4K"] | None = None
    aspect_ratio: Ratio | None = None
    quality: Literal["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"] | None = (
        None
    )
    output_format: Literal["png", "jpeg", "webp", "svg", "gif"] | None = None
    output_compression: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    background: Literal["auto", "transparent", "opaque"] | None = None
    input_references: _References | None = None
    mask: ImageReference | None = None
    markup: ImageReference | None = None
    input_fidelity: Literal["high", "low"] | None = None
    seed: int | None = None
    moderation: Literal["low", "auto"] | None = None
    style: Literal["vivid", "natural"] | None = None
    response_format: Literal["url", "b64_json"] | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    svg: Svg | None = None
    frame_count: Annotated[int, msgspec.Meta(ge=2, le=16)] | None = None
    frame_duration_ms: Annotated[int, msgspec.Meta(ge=1, le=655_350)] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, msgspec.Meta(ge=0, le=3)] | None = None
    provider: ProviderPreferences | None = None
    user: User | None = None
    safety_identifier: User | None = None
    session_id: Session | None = None

    def __post_init__(self) -> None:
        # OpenAI's newer name of the end user takes precedence.
        self.user = self.safety_identifier or self.user


def check_images(request: ImagesRequest, fields: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidRequest` for values that the schema cannot check.

    These are members that contradict each other, and those that only others give an effect.
    """
    _check_size(request)
    _check_format(request)
    if request.partial_images and not request.stream:
        raise field_error("partial_images", "Needs stream: true.")
    if request.mask is not None and request.markup is not None:
        raise field_error("markup", "Cannot be combined with mask.")
    for name in ("mask", "markup", "input_fidelity"):
        if getattr(request, name) is not None and not request.input_references:
            raise field_error(name, "Needs an image to edit, in input_references.")
    for index, reference in enumerate(request.input_references or ()):
        _check_reference(f"input_references[{index}]", reference)
    for name in ("mask", "markup"):
        if (reference := getattr(request, name)) is not None:
            _check_reference(name, reference)


def _check_reference(name: str, reference: ImageReference) -> None:
    try:
        read_url(reference.image_url.url)
    except InvalidImage as exc:
        raise field_error(f"{name}.image_url.url", str(exc)) from None


def _check_size(request: ImagesRequest) -> None:
    """Raises :class:`InvalidRequest` when two members ask for different sizes."""
    size, tier, ratio = request.size, request.resolution, request.aspect_ratio
    if size is None or size == "auto":
        return
    pixels = _PIXELS.fullmatch(size)
    if pixels is None:
        if tier not in (None, size):
            raise field_error("resolution", f"Contradicts size, which is {size}.")
        return
    width, height = int(pixels[1]), int(pixels[2])
    if ratio not in (None, "auto"):
        first, second = map(float, ratio.split(":"))
        if not math.isclose(width / height, first / second, rel_tol=TOLERANCE):
            raise field_error("aspect_ratio", f"Contradicts size, which is {size}.")
    if tier is not None and tier not in find_tiers(size):
        raise field_error("resolution", f"Contradicts size, which is {size}.")


def _check_format(request: ImagesRequest) -> None:
    """Raises :class:`InvalidRequest` for options that the format of the images does not have."""
    output = request.output_format
    if request.background == "transparent" and output not in _TRANSPARENT:
        raise field_error("background", "Is transparent only with output_format png or webp.")
    if request.output_compression not in (None, 100) and output not in _COMPRESSED:
        raise field_error("output_compression", "Needs output_format jpeg or webp.")
    if output != "gif":
        for name in ("frame_count", "frame_duration_ms"):
            if getattr(request, name) is not None:
                raise field_error(name, "Needs output_format gif.")
    if output != "svg" and request.svg is not None:
        raise field_error("svg", "Needs output_format svg.")
    if output in ("gif", "svg") and request.partial_images:
        raise field_error("partial_images", f"There are none with output_format {output}.")
