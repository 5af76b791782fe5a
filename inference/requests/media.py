"""Measures the media in a request as far as it holds them itself; pure.

A file says how large it is; a wrong word leaves an excess under review, as any count does that was
not allowed. What a link names is not fetched, so it is not known.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from catalog.dialects import audio
from catalog.dialects.shared.raw import Piece
from catalog.tokens import Medium

# The members of a part that hold encoded media, with the modality of each one; any other member may
# be read as text.
MODALITIES: Final[Mapping[str, str]] = {
    "image_url": "image", "video_url": "video", "input_audio": "audio", "input_video": "video",
    "input_file": "file", "file": "file",
}  # fmt: skip
MEDIA: Final = frozenset(MODALITIES)
_FORMS: Final = {
    "image": ("base64_images", "image_urls"),
    "file": ("base64_files", "file_urls"),
}
# The address stands behind at most a detail or the name of a file, and so does the detail.
_HEAD: Final = 2_048
_TAIL: Final = 256
_DATA: Final = re.compile(rb'"data:[^,"]*,')
_AUDIO: Final = re.compile(rb'"data"\s*:\s*"(?:data:[^,"]*,)?')
_LOW: Final = re.compile(rb'"detail"\s*:\s*"low"')
_TILE: Final = 512
# The frame of a JPEG picture stands behind its previews, which may be long.
_PICTURE_BYTES: Final = 512 * 1024
_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PAGES: Final = re.compile(rb"/Count\s+(\d{1,6})\b")
_MS: Final = 1_000


class _NamedFile(msgspec.Struct):
    filename: msgspec.Raw = msgspec.Raw()


_decode_file = msgspec.json.Decoder(_NamedFile).decode


def measure_name(raw: msgspec.Raw) -> int:
    """Returns the bytes of the name of a file, which is text for the model; 0 without one."""
    with suppress(msgspec.ValidationError):
        return len(_decode_file(raw).filename)
    return 0


def find_form(name: str, raw: msgspec.Raw) -> str:
    """Returns the form in which a part holds its media; its data stands in a ``data:`` address."""
    inline, linked = _FORMS.get(MODALITIES[name], (MODALITIES[name],) * 2)
    return inline if b'"data:' in bytes(memoryview(raw)[:_HEAD]) else linked


def measure_medium(name: str, raw: msgspec.Raw) -> Medium:
    """Returns a medium with its size, if the part holds it and the file says it."""
    modality, view = MODALITIES[name], memoryview(raw)
    head = bytes(view[:_HEAD])
    is_low = modality == "image" and bool(
        _LOW.search(head) or (len(view) > _HEAD and _LOW.search(bytes(view[-_TAIL:])))
    )
    found = (_AUDIO if modality == "audio" else _DATA).search(head)
    if found is None:
        return Medium(modality, None, is_low)
    most = _PICTURE_BYTES if modality == "image" else len(view)
    data = _decode(bytes(view[found.end() : found.end() + most]))
    units = None
    if data:
        units = _COUNTS[modality](data)
    return Medium(modality, units, is_low)


def _decode(text: bytes) -> bytes:
    """Returns the bytes of Base64 up to the end of its JSON text; none of anything else."""
    text = text.partition(b'"')[0].replace(b"\\/", b"/").rstrip(b"=")
    try:
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def _count_tiles(data: bytes) -> int | None:
    size = _read_size(data)
    if size is None or not all(size):
        return None
    width, height = size
    return -(-width // _TILE) * -(-height // _TILE)


def _read_size(data: bytes) -> tuple[int, int] | None:
    """Returns the width and height of a picture in pixels; ``None`` if they are not found."""
    try:
        if data.startswith(b"\x89PNG"):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(b"GIF8"):
            width, height = struct.unpack_from("<HH", data, 6)
        elif data.startswith(b"\xff\xd8"):
            return _read_jpeg(data)
        elif data[8:15] == b"WEBPVP8":
            return _read_webp(data)
        else:
            return None
    except struct.error:
        return None
    return width, height


def _read_jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while True:
        mark, kind, length = struct.unpack_from(">BBH", data, at)
        if mark != 0xFF:
            return None
        if kind in _FRAME:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + length if kind != 0xFF else 1


def _read_webp(data: bytes) -> tuple[int, int] | None:
    kind = data[15:16]
    if kind == b"X":
        return tuple(  # type: ignore[return-value]
            int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27)
        )
    if kind == b"L":
        [bits] = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _count_sound(data: Piece) -> int:
    return -(-audio.measure(data, "").bound // _MS)


def _count_film(data: bytes) -> int | None:
    """Returns the seconds that the header of an MP4 or QuickTime film names."""
    at = data.find(b"mvhd")
    try:
        scale, length = (
            struct.unpack_from(">IQ", data, at + 24)
            if data[at + 4]
            else struct.unpack_from(">II", data, at + 16)
        )
    except (struct.error, IndexError):
        return None
    if at <= 0 or not scale or not length:
        return None
    return min(-(-length // scale), audio.MOST_MS // _MS)


def _count_pages(data: bytes) -> int | None:
    """Returns the pages of a PDF file whose page tree is not compressed."""
    if not data.startswith(b"%PDF"):
        return None
    return max((int(count) for count in _PAGES.findall(data)), default=0) or None


_COUNTS: Final = {
    "image": _count_tiles,
    "audio": _count_sound,
    "video": _count_film,
    "file": _count_pages,
}
