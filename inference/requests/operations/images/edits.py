"""Turns OpenAI's form for edits of images into the JSON of a request for images."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from catalog.dialects.shared.images.pictures import IMAGES, sniff_bytes
from catalog.dialects.shared.multipart import FormPart
from inference.requests.multipart import (
    FieldKind,
    FormFile,
    describe_field,
    parse_form,
    to_json,
)
from inference.requests.operations.images.schema import MAX_REFERENCES, ImagesRequest
from inference.requests.problems import field_error, missing_parts

_AS_JSON: Final = ("provider", "trace")
# The form, for the documentation alone: it becomes an ``ImagesRequest``.
EditsForm: Final = msgspec.defstruct(
    "EditsForm",
    [
        ("image", Annotated[list[FormFile], msgspec.Meta(min_length=1, max_length=MAX_REFERENCES)]),
        ("mask", FormFile | UnsetType, UNSET),
        ("markup", FormFile | UnsetType, UNSET),
        ("svg_model", str | UnsetType, UNSET),
        ("svg_effort", str | UnsetType, UNSET),
        *(
            describe_field(field, _AS_JSON)
            for field in msgspec.structs.fields(ImagesRequest)
            if field.name not in IMAGES and field.name != "svg"
        ),
    ],
    # The names that OpenAI's clients write.
    rename={"svg_model": "svg[model]", "svg_effort": "svg[reasoning][effort]"},
    kw_only=True,
)

_KINDS: Final = {
    **dict.fromkeys(
        (
            "n", "output_compression", "partial_images", "seed", "frame_count",
            "frame_duration_ms",
        ),
        FieldKind.NUMBER,
    ),
    "stream": FieldKind.BOOLEAN,
    "models": FieldKind.LIST,
    **dict.fromkeys(_AS_JSON, FieldKind.JSON),
}  # fmt: skip
_FIELDS: Final = frozenset(("image", "image[]"))
_OVERLAYS: Final = frozenset(("mask", "markup"))
# The names of files, which no text may have.
_FILES: Final = _FIELDS | _OVERLAYS | {"input_references"}
_SVG: Final = re.compile(r"svg\[(model|reasoning\]\[effort)\]")
# The most bytes of the start of a file from which its type is told.
_HEAD_BYTES: Final = 256
# A multiple of three: Base64 has four characters for three bytes. A thread that encodes lets others
# run after each piece.
_PIECE_BYTES: Final = 96 * 1024
_BEFORE: Final = b'{"type":"image_url","image_url":{"url":"data:'


def to_images(content_type: str, body: bytes) -> bytes:
    """Returns the JSON of a request for images; raises :class:`InvalidRequest`.

    Its files become the members ``input_references``, ``mask`` and ``markup``, in data URLs.
    """
    parts = parse_form(content_type, body)
    svg = [part for part in parts if _SVG.fullmatch(part.name)]
    text, files = to_json([part for part in parts if part not in svg], _KINDS)
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    for name in sorted(_FILES & fields.keys()):
        raise field_error(name, "Send each image as a file of the form.")
    if svg:
        fields["svg"] = _read_svg(svg)
    references = [part for part in files if part.name in _FIELDS]
    if not references:
        raise missing_parts(fields, *({"prompt"} - fields.keys()), "image")
    if len(references) > MAX_REFERENCES:
        raise field_error("image", f"Send at most {MAX_REFERENCES} images.")
    overlays = _find_overlays(files)
    text = msgspec.json.encode(fields)
    pieces = [text[:-1], b"," if len(text) > 2 else b"", b'"input_references":[']
    pieces += _write_images(references)
    pieces.append(b"]")
    for name, part in overlays.items():
        pieces += [b',"%b":' % name.encode(), *_write_images([part])]
    return b"".join([*pieces, b"}"])


def _find_overlays(files: Sequence[FormPart]) -> dict[str, FormPart]:
    """Returns the files beside the images to edit; raises :class:`InvalidRequest`."""
    overlays: dict[str, FormPart] = {}
    for part in files:
        if part.name in _FIELDS:
            continue
        if part.name not in _OVERLAYS:
            raise field_error(part.name, "This field takes no file.")
        if part.name in overlays:
            raise field_error(part.name, "The form names this field twice; name it once.")
        overlays[part.name] = part
    return overlays


def _read_svg(parts: Sequence[FormPart]) -> msgspec.Raw:
    """Returns the object that clients write as the fields ``svg[model]`` and so on."""
    names = [FormPart(part.name.removeprefix("svg")[1:-1], part.data) for part in parts]
    members = msgspec.json.decode(to_json(names, {})[0])
    effort = members.pop("reasoning][effort", None)
    return msgspec.Raw(
        msgspec.json.encode(
            members if effort is None else {**members, "reasoning": {"effort": effort}}
        )
    )


def _write_images(parts: Sequence[FormPart]) -> list[bytes]:
    pieces: list[bytes] = []
    for index, part in enumerate(parts):
        media_type = sniff_bytes(bytes(part.data[:_HEAD_BYTES]))
        if media_type is None:
            name = part.name.removesuffix("[]")
            raise field_error(
                name if len(parts) == 1 else f"{name}[{index}]",
                "Is no image of a known format. Send PNG, JPEG or WebP.",
            )
        pieces += [b"," if index else b"", _BEFORE, media_type.encode(), b";base64,"]
        pieces += [
            b2a_base64(part.data[start : start + _PIECE_BYTES], newline=False)
            for start in range(0, len(part.data), _PIECE_BYTES)
        ]
        pieces.append(b'"}}')
    return pieces
