"""Recognizes containers of audio, and bounds how long the audio in a file can be; pure.

A price by the second needs a length before the provider has reported one. Containers that say it
are read; the header of a file may lie, so a length beyond the bound is under review like any count
that was not allowed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from catalog.dialects.shared.raw import Piece

# The output that a second of speech counts as: models produce about 20 tokens a second, and a token
# is estimated from four bytes.
SPEECH_BYTES: Final = 80

# The extension that a file is sent with, by the name of its format or of its content type.
_EXTENSIONS: Final = {
    "aac": "aac", "aiff": "aiff", "amr": "amr", "flac": "flac", "m4a": "m4a", "mp3": "mp3",
    "mp4": "mp4", "mpeg": "mp3", "mpga": "mp3", "oga": "ogg", "ogg": "ogg", "opus": "ogg",
    "wav": "wav", "wave": "wav", "webm": "webm", "x-wav": "wav", "x-m4a": "m4a", "x-flac": "flac",
}  # fmt: skip
CONTENT_TYPES: Final = {
    "aac": "audio/aac", "aiff": "audio/aiff", "amr": "audio/amr", "flac": "audio/flac",
    "m4a": "audio/mp4", "mp3": "audio/mpeg", "mp4": "audio/mp4", "ogg": "audio/ogg",
    "wav": "audio/wav", "webm": "audio/webm",
}  # fmt: skip
# The lowest bytes a second of speech in a container: 8 kbit/s of MP3, 6 of Opus, 4.75 of AMR.
_LOWEST: Final = {"mp3": 1_000, "amr": 590, "wav": 1_000}
_LOWEST_OF_OTHERS: Final = 500
# The highest bytes a second of a recording, two channels of 24 bits at 96 kHz, beside its header. A
# length that needs more is not believed, because the hold for its file would be almost nothing.
_HIGHEST: Final = 600_000
_HEADER_BYTES: Final = 1_024
# The bytes a second of common recordings, for an estimate.
_COMMON: Final = {"mp3": 16_000, "amr": 1_500, "wav": 32_000, "flac": 32_000, "aac": 16_000}
_COMMON_OF_OTHERS: Final = 8_000
# The codecs of WAV whose bytes a second follow from their header: PCM, floats, A-law, mu-law.
_PLAIN_CODECS: Final = frozenset((1, 3, 6, 7))
_EXTENSIBLE: Final = 0xFFFE
_MS: Final = 1000
# More chunks are in no recording, and each takes a step.
_MOST_CHUNKS: Final = 1_000
_MARKS: Final = (
    (b"ID3", "mp3"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1aE\xdf\xa3", "webm"),
    (b"#!AMR", "amr"), (b"FORM", "aiff"),
)  # fmt: skip


class Length(NamedTuple):
    """The length of a file of audio in milliseconds: an estimate, and an upper bound."""

    estimate: int
    bound: int


def find_extension(name: str) -> str | None:
    """Returns the extension for a file name, a format or a content type; ``None`` if unknown."""
    word = name.partition(";")[0].strip().lower()
    word = word.rpartition("/")[2] if "/" in word and "." not in word else word.rpartition(".")[2]
    return _EXTENSIONS.get(word)


def recognize(data: Piece) -> str | None:
    """Returns the extension of the container that the first bytes show; ``None`` if unknown."""
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return "wav"
    for mark, extension in _MARKS:
        if head.startswith(mark):
            return extension
    if head[4:8] == b"ftyp":
        return "mp4"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        # The layer is zero in AAC's frames, and never in those of MPEG audio.
        return "mp3" if head[1] & 0x06 else "aac"
    return None


def measure(data: Piece, extension: str) -> Length:
    """Returns the length of the audio in a file.

    Only the container that the bytes show is believed: the name of a file says nothing.
    """
    found = recognize(data) or extension
    size = len(data)
    exact = None
    if found == "wav":
        exact = _measure_wav(data)
    elif found == "flac":
        exact = _measure_flac(data)
    if exact is not None and (size - _HEADER_BYTES) * _MS <= _HIGHEST * exact:
        return Length(exact, exact)
    return Length(
        _divide(size, _COMMON.get(found, _COMMON_OF_OTHERS)),
        _divide(size, _LOWEST.get(found, _LOWEST_OF_OTHERS)),
    )


def _measure_wav(data: Piece) -> int | None:
    """Returns the milliseconds of a WAV file; ``None`` for a codec whose rate varies.

    The whole rest of the file counts as audio: the size in the header of a streamed file is unknown
    or wrong.
    """
    at, size = 12, len(data)
    rate = 0
    for _ in range(_MOST_CHUNKS):
        if at + 8 > size:
            break
        name, length = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt " and at + 16 <= size:
            codec, channels, samples, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
            if codec == _EXTENSIBLE and length >= 26 and at + 26 <= size:
                [codec] = struct.unpack_from("<H", data, at + 24)
            # The rate is calculated: the header's own may be anything.
            rate = channels * samples * bits // 8 if codec in _PLAIN_CODECS else 0
        elif name == b"data":
            return _divide(size - at, rate) if rate else None
        at += length + length % 2
    return None


def _measure_flac(data: Piece) -> int | None:
    """Returns the milliseconds that a FLAC file names; ``None`` if it names none."""
    if len(data) < 26 or data[4] & 0x7F:
        return None
    # 20 bits of rate, 3 of channels, 5 of bits a sample, 36 of samples.
    word = int.from_bytes(bytes(data[18:26]), "big")
    rate, samples = word >> 44, word & ((1 << 36) - 1)
    return _divide(samples, rate) if rate and samples else None


def _divide(count: int, by_second: int) -> int:
    """Returns milliseconds, rounded up."""
    return -(-count * _MS // by_second)
