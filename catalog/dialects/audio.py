"""Recognizes containers of audio, and bounds how long the audio in a file can be; pure.

A price by the second needs a length before the provider has reported one. Containers that say it
are read; the header of a file may lie, so a length beyond the bound is under review like any count
that was not allowed.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from catalog.dialects.shared.raw import Piece

# The bytes of output that are not text and count as a token; models produce about 20 tokens for a
# second of speech.
OUTPUT_BYTES: Final = 4
SPEECH_BYTES: Final = 20 * OUTPUT_BYTES
# The characters of Base64 that stand for a byte of output: a second of what chat streams, samples
# of 16 bits at 24 kHz, has 64,000. Compressed sound has fewer, and counts too low.
_CHAT_CHARACTERS: Final = 64_000 // SPEECH_BYTES

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
# The codecs of WAV whose bytes a second follow from their header: PCM and floats, with the sizes of
# their samples, and A-law and mu-law, whose samples are bytes whatever the header says.
_PLAIN_CODECS: Final = frozenset((1, 3))
_SAMPLE_BYTES: Final = frozenset((1, 2, 3, 4, 8))
_BYTE_CODECS: Final = frozenset((6, 7))
_EXTENSIBLE: Final = 0xFFFE
_MS: Final = 1000
# The longest sound that is believed is a year, so that sums stay in the range of the database.
MOST_MS: Final = 365 * 24 * 3_600_000
# More chunks are in no recording, and each takes a step.
_MOST_CHUNKS: Final = 1_000
# The containers whose length follows from their samples; others say it themselves.
_PLAIN: Final = frozenset(("wav", "flac"))
# Those that are nothing but frames, each of which has a length.
_FRAMED: Final = frozenset(("mp3", "aac"))
# The highest bytes a second of compressed sound: a length that needs more is not believed.
_HIGHEST_COMPRESSED: Final = 80_000
# The kilobits a second of a frame of layer III, of MPEG 1 and of later ones; and rates of samples.
_BITRATES: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_LOW_BITRATES: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES: Final = (44_100, 48_000, 32_000)
_AAC_RATES: Final = (
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350,
)  # fmt: skip
# The bytes of a header, and the frames that are counted: 43 minutes, and a tenth of a second.
_FRAME_HEAD: Final = 7
_MOST_FRAMES: Final = 100_000
# The places without a frame at which the next one is searched, and the bytes of a search.
_MOST_GAPS: Final = 10_000
_SEARCHED: Final = 65_536
_SYNC: Final = re.compile(rb"\xff")
# A tag of ID3v1, which stands at the end of a file.
_LAST_TAG: Final = b"TAG"
_LAST_TAG_BYTES: Final = 128
# The bytes of the beginning of a sound that are kept while it comes in pieces.
_KEPT_HEAD: Final = 65_536
# A page of Ogg is not longer.
_LAST_PAGE: Final = 65_307
# The elements of WebM: information, the length in it, and the nanoseconds of its unit.
_WEBM_INFO: Final = b"\x15\x49\xa9\x66"
_WEBM_LENGTH: Final = b"\x44\x89"
_WEBM_SCALE: Final = b"\x2a\xd7\xb1"
_SAMPLE_RATE: Final = re.compile(r"[1-9][0-9]{3,5}", re.ASCII)
_PLAIN_TYPES: Final = frozenset(
    ("audio/pcm", "audio/x-pcm", "audio/l16", "audio/raw", "audio/x-raw", "audio/s16le")
)
_MARKS: Final = (
    (b"ID3", "mp3"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1aE\xdf\xa3", "webm"),
    (b"#!AMR", "amr"), (b"FORM", "aiff"),
)  # fmt: skip


class Length(NamedTuple):
    """The length of a file of audio in milliseconds: an estimate, and an upper bound."""

    estimate: int
    bound: int


def measure_base64(characters: int) -> int:
    """Returns the bytes of output for which sound in Base64 counts; any sound is one at least."""
    return max(characters // _CHAT_CHARACTERS, 1) if characters > 0 else 0


def join_base64(pieces: Sequence[str]) -> str:
    """Returns the Base64 of bytes that came in pieces, of which each may end in padding."""
    if any(piece.endswith("=") for piece in pieces[:-1]):
        with suppress(ValueError):
            decoded = [b64decode(piece, validate=True) for piece in pieces]
            return b64encode(b"".join(decoded)).decode()
    return "".join(pieces)


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
    """Returns the length of the audio in a file, a year at most.

    Only the container that the bytes show is believed: the name of a file says nothing.
    """
    length = _measure(data, extension)
    return Length(min(length.estimate, MOST_MS), min(length.bound, MOST_MS))


def _measure(data: Piece, extension: str) -> Length:
    found = recognize(data) or extension
    size, lowest = len(data), _LOWEST.get(found, _LOWEST_OF_OTHERS)
    bound = _divide(size, lowest)
    frames: SoundFrames | None = None
    if found in _FRAMED:
        frames = SoundFrames()
        frames.feed(data)
        exact = frames.measure()
    else:
        exact = _read_length(found, data, data[-_LAST_PAGE:], size)
    if exact is not None:
        if frames is not None:
            return Length(exact, max(exact, frames.length + _divide(frames.uncounted, lowest)))
        # Only the bytes of plain samples cannot say less than there is.
        return Length(exact, exact if found in _PLAIN else max(exact, bound))
    return Length(_divide(size, _COMMON.get(found, _COMMON_OF_OTHERS)), bound)


def _read_length(found: str, head: Piece, tail: Piece, size: int) -> int | None:
    """Returns the milliseconds that a container names, if they are credible."""
    read = _READERS.get(found)
    exact = None if read is None else read(head, tail, size)
    highest = _HIGHEST if found in _PLAIN else _HIGHEST_COMPRESSED
    is_credible = exact is not None and (size - _HEADER_BYTES) * _MS <= highest * exact
    return exact if is_credible else None


class PlainSound(NamedTuple):
    """Raw samples as the head of an answer states them; ``rate`` is in samples a second."""

    is_stated: bool
    rate: int | None
    channels: int = 1


def read_plain_sound(headers: Mapping[str, str]) -> PlainSound:
    """Reads ``X-Sample-Rate`` and a content type such as ``audio/pcm;rate=22050;channels=1``."""
    kind, _, rest = headers.get("Content-Type", "").lower().partition(";")
    members = {
        name.strip(): value.strip(' "')
        for name, _, value in (each.partition("=") for each in rest.split(";"))
    }
    named = (headers.get("X-Sample-Rate"), members.get("rate"), members.get("samplerate"))
    rate = next((int(text) for text in named if text and _SAMPLE_RATE.fullmatch(text)), None)
    channels = 2 if members.get("channels") == "2" else 1
    return PlainSound(rate is not None or kind.strip() in _PLAIN_TYPES, rate, channels)


def is_ambiguous(data: Piece) -> bool:
    """Returns whether the first bytes are a frame's, which samples may have too."""
    return bytes(data[:3]) != b"ID3" and recognize(data) in _FRAMED


class SoundMeter:
    """Measures a sound that comes in pieces: what a container says of all of it, or its bytes.

    It keeps the beginning and the end. ``rate`` is the bytes a second of samples without container.
    """

    __slots__ = ("_frames", "_head", "_tail", "found", "rate", "size")

    def __init__(self) -> None:
        self.found: str | None = None
        self.rate: int | None = None
        self.size = 0
        self._head = self._tail = b""
        self._frames: SoundFrames | None = None

    def feed(self, data: bytes) -> None:
        if not self.size:
            self.found = recognize(data)
            self._frames = SoundFrames() if self.found in _FRAMED else None
        self.size += len(data)
        if len(self._head) < _KEPT_HEAD:
            self._head += data[: _KEPT_HEAD - len(self._head)]
        self._tail = (self._tail + data)[-_LAST_PAGE:]
        if self._frames is not None:
            self._frames.feed(data)

    def measure(self) -> int | None:
        """Returns the milliseconds of the whole sound; ``None`` if it does not say its length."""
        if self.found is None:
            return _divide(self.size, self.rate) if self.rate else None
        if self._frames is not None:
            return self._frames.measure()
        return _read_length(self.found, self._head, self._tail, self.size)


def _measure_wav(data: Piece, tail: Piece, size: int) -> int | None:
    """Returns the milliseconds of a WAV file; ``None`` for a codec whose rate varies.

    The whole rest of the file counts as audio: the size in the header of a streamed file is unknown
    or wrong. Of several formats the one with the longest sound counts: decoders take the first or
    the last.
    """
    at = 12
    rates: list[int] = []
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(data):
            break
        name, length = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt ":
            rates.append(_read_rate(data, at, length))
        elif name == b"data":
            rate = min(rates, default=0)
            return _divide(size - at, rate) if rate else None
        at += length + length % 2
    return None


def _read_rate(data: Piece, at: int, length: int) -> int:
    """Returns the bytes a second of a format of WAV; 0 if they vary, or if it is none.

    They are calculated: the header's own may be anything.
    """
    if length < 16 or at + 16 > len(data):
        return 0
    codec, channels, samples, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
    if codec == _EXTENSIBLE and length >= 26 and at + 26 <= len(data):
        used, codec = struct.unpack_from("<H4xH", data, at + 18)
        # Sound of 24 bits in samples of 32 is common, and claims no other size.
        bits = bits if (bits, used) == (32, 24) else used or bits
    sample = 1 if codec in _BYTE_CODECS else (bits + 7) // 8 if codec in _PLAIN_CODECS else 0
    rate: int = channels * samples * sample
    return rate if sample in _SAMPLE_BYTES else 0


def _measure_flac(data: Piece, tail: Piece, size: int) -> int | None:
    """Returns the milliseconds that a FLAC file names; ``None`` if it names none."""
    if len(data) < 26 or data[4] & 0x7F:
        return None
    # 20 bits of rate, 3 of channels, 5 of bits a sample, 36 of samples.
    word = int.from_bytes(bytes(data[18:26]), "big")
    rate, samples = word >> 44, word & ((1 << 36) - 1)
    return _divide(samples, rate) if rate and samples else None


class SoundFrames:
    """Counts the frames of MPEG audio or AAC in a sound that may come in pieces.

    What stands between frames is passed over, as decoders do: a tag, or anything else, of whatever
    size it says that it is. Beyond a bound the frames so far stand for the others, because each
    takes a step.
    """

    __slots__ = (
        "_begin", "_counted", "_end", "_gaps", "_kinds", "_left", "_rest", "_samples", "_size",
        "_tag_end",
    )  # fmt: skip

    def __init__(self) -> None:
        # Where the frames begin, how far they are read, and the bytes of a header that is cut.
        self._begin = self._end = -1
        self._rest = b""
        # The bytes of the sound so far, those of its frames, and where its latest tag ends.
        self._size = self._counted = 0
        self._tag_end = -1
        # The frames and the gaps that may still be read; -1 frames once there were too many gaps.
        self._left, self._gaps = _MOST_FRAMES, _MOST_GAPS
        self._samples: dict[int, int] = {}
        self._kinds: dict[bytes, SoundFrame | None] = {}

    @property
    def length(self) -> int:
        """The milliseconds of the frames that were counted."""
        return sum(_divide(samples, rate) for rate, samples in self._samples.items())

    @property
    def uncounted(self) -> int:
        """The bytes that are in no frame that was counted, without the tags at both ends."""
        last = _LAST_TAG_BYTES if self._tag_end == self._size else 0
        return max(self._size - last - self._begin - self._counted, 0)

    def feed(self, data: Piece) -> None:
        if self._begin < 0:
            self._begin = self._end = _skip_tag(data)
        start = self._size - len(self._rest)
        if self._rest:
            data, self._rest = self._rest + bytes(data), b""
        self._size = start + len(data)
        at, most = self._end - start, len(data) - _FRAME_HEAD
        while self._left > 0 and at <= most:
            frame = self._read(bytes(data[at : at + _FRAME_HEAD]))
            if frame is None:
                self._gaps -= 1
                if not self._gaps:
                    self._left = -1
                    break
                if bytes(data[at : at + len(_LAST_TAG)]) == _LAST_TAG:
                    self._tag_end = start + at + _LAST_TAG_BYTES
                end = min(at + _SEARCHED, len(data))
                found = _SYNC.search(data, at + 1, end)
                at = end if found is None else found.start()
                continue
            self._samples[frame.rate] = self._samples.get(frame.rate, 0) + frame.samples
            self._left -= 1
            self._counted += frame.size
            at += frame.size
        self._end = start + at
        if self._left > 0:
            self._rest = bytes(data[at:])

    def _read(self, head: bytes) -> SoundFrame | None:
        if head[1] & 0x06 == 0:
            return _read_aac_frame(head)
        # The third byte alone differs between the frames of a sound.
        kind = head[:3]
        if kind not in self._kinds:
            self._kinds[kind] = _read_frame(head)
        return self._kinds[kind]

    def measure(self) -> int | None:
        """Returns the milliseconds of the frames; ``None`` if most of the sound is none."""
        counted, length = self._counted, self.length
        if not counted or (self._left and self.uncounted > counted):
            return None
        if self._left <= 0:
            length = length * (counted + max(self._size - self._end, 0)) // counted
        return length or None


class SoundFrame(NamedTuple):
    """A frame of MPEG audio: its bytes, its samples, and their rate."""

    size: int
    samples: int
    rate: int


def _read_frame(head: bytes) -> SoundFrame | None:
    """Returns the frame of layer III that a header of four bytes begins."""
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bitrate, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    is_sync = head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    if not is_sync or version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return None
    is_first = version == 3
    by_second = (_BITRATES if is_first else _LOW_BITRATES)[bitrate] * 1000
    samples_by_second = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    samples = 1152 if is_first else 576
    return SoundFrame(samples // 8 * by_second // samples_by_second + padding, samples,
                  samples_by_second)  # fmt: skip


def _read_aac_frame(head: bytes) -> SoundFrame | None:
    """Returns the frame of AAC that a header of ADTS begins."""
    rate = head[2] >> 2 & 15
    size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    if head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or rate >= len(_AAC_RATES) or size < 7:
        return None
    return SoundFrame(size, 1024 * (1 + (head[6] & 3)), _AAC_RATES[rate])


def _skip_tag(data: Piece) -> int:
    """Returns where the audio of an MP3 file begins, behind a tag of ID3."""
    head = bytes(data[:10])
    if len(head) < 10 or head[:3] != b"ID3":
        return 0
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])


def _measure_ogg(data: Piece, tail: Piece, size: int) -> int | None:
    """Returns the milliseconds up to the last page of an Ogg file of Opus or Vorbis."""
    head, tail = bytes(data[:_HEADER_BYTES]), bytes(tail)
    at = tail.rfind(b"OggS")
    if at < 0 or at + 14 > len(tail):
        return None
    [position] = struct.unpack_from("<q", tail, at + 6)
    if (opus := head.find(b"OpusHead")) >= 0 and opus + 12 <= len(head):
        [skipped] = struct.unpack_from("<H", head, opus + 10)
        return _divide(position - skipped, 48_000) if position > skipped else None
    vorbis = head.find(b"\x01vorbis")
    if vorbis < 0 or vorbis + 16 > len(head) or position <= 0:
        return None
    [rate] = struct.unpack_from("<I", head, vorbis + 12)
    return _divide(position, rate) if rate else None


def _measure_mp4(data: Piece, tail: Piece, size: int) -> int | None:
    """Returns the milliseconds that the header of an MP4 file names; fragments name none."""
    at = 0
    for _ in range(_MOST_CHUNKS):
        if at + 16 > len(data):
            return None
        length, name = struct.unpack_from(">I4s", data, at)
        start = 8
        if length == 1:
            [length] = struct.unpack_from(">Q", data, at + 8)
            start = 16
        if name == b"mvhd":
            return _read_movie(bytes(data[at + start : at + start + 32]))
        # The header of the movie is inside of its box.
        at += start if name == b"moov" else max(length, 8) if length else size
    return None


def _read_movie(head: bytes) -> int | None:
    if len(head) < 32:
        return None
    scale, length = struct.unpack_from(">IQ" if head[0] else ">II", head, 20 if head[0] else 12)
    return _divide(length, scale) if scale and length < 1 << 40 else None


def _measure_webm(data: Piece, tail: Piece, size: int) -> int | None:
    """Returns the milliseconds that a WebM file names; one that was streamed names none."""
    head = bytes(data[: 64 * _HEADER_BYTES])
    begin = head.find(_WEBM_INFO)
    if begin < 0:
        return None
    info = head[begin : begin + _HEADER_BYTES]
    scale, found = 1_000_000, info.find(_WEBM_SCALE)
    if 0 <= found < len(info) - 3 and (count := info[found + 3] & 0x7F) <= 8:
        scale = int.from_bytes(info[found + 4 : found + 4 + count], "big")
    found = info.find(_WEBM_LENGTH)
    if found < 0 or found + 11 > len(info):
        return None
    kind = {0x84: ">f", 0x88: ">d"}.get(info[found + 2])
    if kind is None:
        return None
    [length] = struct.unpack_from(kind, info, found + 3)
    if not 0 < length < 1e12:
        return None
    return -(-int(length * scale) // 1_000_000)


def _divide(count: int, by_second: int) -> int:
    """Returns milliseconds, rounded up."""
    return -(-count * _MS // by_second)


# They read the beginning, the end and the size of a sound.
_READERS: Final[Mapping[str, Callable[[Piece, Piece, int], int | None]]] = {
    "wav": _measure_wav, "flac": _measure_flac, "ogg": _measure_ogg, "mp4": _measure_mp4,
    "m4a": _measure_mp4, "webm": _measure_webm,
}  # fmt: skip
