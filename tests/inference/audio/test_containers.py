"""Audio files: their containers are recognized, and their lengths are bounded."""

from __future__ import annotations

import struct

import pytest

from catalog.dialects.audio import SoundMeter, find_extension, measure, read_plain_sound, recognize


def wav(
    seconds: float, *, codec: int = 1, rate: int = 8_000, bits: int = 16, tail: bytes = b""
) -> bytes:
    data = bytes(int(seconds * rate) * 2)
    head = struct.pack("<HHIIHH", codec, 1, rate, 1, 2, bits) + tail
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", 7) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


# A format with 36 times the bytes a second of `wav`.
FAST = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 2, 96_000, 1, 2, 24)


def flac(samples: int, rate: int = 44_100) -> bytes:
    word = (rate << 44) | (15 << 36) | samples
    return b"fLaC\x80\x00\x00\x22" + bytes(10) + word.to_bytes(8, "big") + bytes(16)


def mp3(frames: int, *, second: int = 0xFB, third: int = 0x90, tag: int = 0) -> bytes:
    """Frames of MPEG 1 at 128 kbit/s and 44.1 kHz, or those that the header's bytes say."""
    size = {0x90: 417, 0x10: 104, 0xE0: 1044, 0x14: 24}[third]
    head = b"ID3\x04\0\0\0\0" + bytes((tag >> 7, tag & 0x7F)) + bytes(tag) if tag else b""
    return head + (bytes((0xFF, second, third, 0)) + bytes(size - 4)) * frames


ID3V1 = b"TAG" + bytes(125)
ID3V2 = b"ID3\x04\0\0\0\0\x07\x74" + bytes(1_012)


def adts(frames: int, *, rate: int = 4, size: int = 371) -> bytes:
    length = (0x80 | size >> 11, size >> 3 & 0xFF, (size & 7) << 5)
    return (bytes((0xFF, 0xF1, 0x40 | rate << 2, *length, 0xFC)) + bytes(size - 7)) * frames


def ogg(codec: bytes, position: int, size: int) -> bytes:
    page = b"OggS" + bytes(24) + codec
    return page + bytes(size) + b"OggS\0\4" + struct.pack("<q", position) + bytes(40)


OPUS = b"OpusHead\1\1" + struct.pack("<H", 312) + bytes(8)
VORBIS = b"\x01vorbis" + struct.pack("<IBI", 0, 1, 22_050) + bytes(8)


def box(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I4s", len(data) + 8, name) + data


def mp4(size: int, *, scale: int = 1_000, length: int = 200_000, is_long: bool = False) -> bytes:
    times = struct.pack(">IQQIQ", 1 << 24, 0, 0, scale, length) if is_long else struct.pack(
        ">IIIII", 0, 0, 0, scale, length
    )  # fmt: skip
    movie = box(b"moov", box(b"mvhd", times + bytes(80)))
    return box(b"ftyp", b"M4A " + bytes(8)) + box(b"mdat", bytes(size)) + movie


def webm(size: int, length: bytes) -> bytes:
    info = b"\x2a\xd7\xb1\x83\x0f\x42\x40" + length
    segment = b"\x15\x49\xa9\x66" + bytes((0x80 | len(info),)) + info
    return b"\x1aE\xdf\xa3\x84webm\x18\x53\x80\x67\xff" + segment + bytes(size)


@pytest.mark.parametrize(
    ("data", "estimate", "is_certain"),
    [
        # 200 s of any bitrate are 200 s: 7,657 frames of 1,152 samples at 44.1 kHz.
        (mp3(7_657), 200_020, True),
        (mp3(7_657, third=0x10), 200_020, True),
        (mp3(7_657, third=0xE0), 200_020, True),
        (mp3(7_657, tag=900), 200_020, True),
        (mp3(7_657) + ID3V1, 200_020, True),
        # MPEG 2 at 8 kbit/s and 24 kHz.
        (mp3(8_334, second=0xF3, third=0x14), 200_016, True),
        (ogg(OPUS, 200 * 48_000 + 312, 400_000), 200_000, False),
        (ogg(VORBIS, 200 * 22_050, 400_000), 200_000, False),
        (mp4(400_000), 200_000, False),
        (mp4(400_000, is_long=True, scale=48_000, length=9_600_000), 200_000, False),
        (webm(400_000, b"\x44\x89\x88" + struct.pack(">d", 200_000)), 200_000, False),
        (webm(400_000, b"\x44\x89\x84" + struct.pack(">f", 200_000)), 200_000, False),
    ],
)
def test_the_bitrate_does_not_set_the_length(data: bytes, estimate: int, is_certain: bool) -> None:
    found = measure(data, "wav")
    assert found.estimate == measure(memoryview(data), "wav").estimate == estimate
    assert (found.bound == estimate) is is_certain


@pytest.mark.parametrize(
    "data",
    [
        mp4(400_000, length=0), mp4(400_000, scale=0), mp4(400_000)[:-90],
        mp4(400_000, length=1), webm(400_000, b""),
        webm(400_000, b"\x44\x89\x88" + struct.pack(">d", float("nan"))),
        webm(400_000, b"\x44\x89\x88" + struct.pack(">d", -1.0)),
        ogg(OPUS, -1, 400_000), ogg(OPUS, 48_000, 400_000), ogg(b"Speex", 48_000, 400_000),
        ogg(VORBIS, 0, 400_000), mp3(3) + bytes(400_000), b"\xff\xfb\xff\xff" + bytes(400_000),
    ],
)  # fmt: skip
def test_a_length_that_is_not_told_or_not_credible_is_estimated_by_the_size(data: bytes) -> None:
    common = {"mp3": 16_000}.get(recognize(data) or "", 8_000)
    assert measure(data, "wav").estimate == -(-len(data) * 1_000 // common)


@pytest.mark.parametrize(
    ("head", "extension"),
    [
        (wav(0), "wav"), (b"RIFF1234AVI ", None), (b"ID3\x04", "mp3"), (b"\xff\xfb\x90", "mp3"),
        (b"\xff\xf3", "mp3"), (b"\xff\xf1\x50", "aac"), (b"\xff\xf9", "aac"), (b"\xff", None),
        (flac(1), "flac"), (b"OggS\x00", "ogg"), (b"\x1aE\xdf\xa3", "webm"), (b"#!AMR\n", "amr"),
        (b"\x00\x00\x00\x20ftypM4A ", "mp4"), (b"<!doctype", None), (b'{"error', None), (b"", None),
    ],
)  # fmt: skip
def test_a_container_is_recognized_by_its_first_bytes(head: bytes, extension: str | None) -> None:
    assert recognize(head) == recognize(memoryview(head)) == extension


@pytest.mark.parametrize(
    ("name", "extension"),
    [
        ("a.WAV", "wav"), ("two.dots.mp3", "mp3"), ("mp3", "mp3"), ("audio/mpeg", "mp3"),
        ("audio/ogg; codecs=opus", "ogg"), ("dir/a.m4a", "m4a"), ("audio/x-wav", "wav"),
        ("a.exe", None), ("", None), ("audio", None), ("application/octet-stream", None),
    ],
)  # fmt: skip
def test_a_name_tells_the_extension(name: str, extension: str | None) -> None:
    assert find_extension(name) == extension


@pytest.mark.parametrize(
    ("data", "extension", "length"),
    [
        # A header that says its length is believed, but not the size or the rate that it repeats.
        (wav(2), "mp3", (2000, 2000)),
        (wav(1, codec=3), "wav", (1000, 1000)),
        (wav(1, codec=0xFFFE, tail=struct.pack("<HHIH", 22, 16, 0, 1) + bytes(14)), "wav",
         (1000, 1000)),
        # Samples of A-law and mu-law are bytes, and a decoder takes the bits in use for the size.
        (wav(1, codec=6, bits=592), "wav", (2000, 2000)),
        (wav(1, codec=7), "wav", (2000, 2000)),
        (wav(1, codec=0xFFFE, tail=struct.pack("<HHIH", 22, 8, 0, 1) + bytes(14)), "wav",
         (2000, 2000)),
        # 24 bits in samples of 32 are common.
        (wav(1, codec=0xFFFE, bits=32, tail=struct.pack("<HHIH", 22, 24, 0, 1) + bytes(14)), "wav",
         (500, 500)),
        # One decoder takes the first format, another one the last.
        (wav(1)[:12] + FAST + wav(1)[12:], "wav", (1000, 1000)),
        (wav(1)[:36] + FAST + wav(1)[36:], "wav", (1000, 1000)),
        (flac(44_101), "flac", (1001, 1001)),
        # A codec of MP3 in WAV, and a FLAC of unknown length: the lowest rate bounds them.
        (wav(1, codec=0x55), "wav", (502, 16_044)),
        # No sample has 592 bits: the lowest rate bounds this file too.
        (wav(1, bits=592), "wav", (502, 16_044)),
        (flac(0), "flac", (2, 84)),
        (b"ID3" + bytes(15_997), "wav", (1000, 16_000)),
        (b"OggS" + bytes(996), "wav", (125, 2_000)),
        # Bytes that show nothing: the name decides.
        (bytes(1_000), "mp3", (63, 1_000)),
        (b"", "wav", (0, 0)),
    ],
)  # fmt: skip
def test_the_length_is_estimated_and_bounded(
    data: bytes, extension: str, length: tuple[int, int]
) -> None:
    assert measure(data, extension) == measure(memoryview(data), extension) == length


@pytest.mark.parametrize(
    "data",
    [
        b"RIFF1234WAVE",
        b"RIFF1234WAVEfmt \xff\xff\xff\xff",
        b"RIFF1234WAVE" + b"fmt \x10\x00\x00\x00" + bytes(16) + b"data\x00\x00\x00\x00x",
        b"RIFF1234WAVEdata\x00\x00\x00\x00" + bytes(1_000),
        # The format ends before its bits.
        b"RIFF1234WAVEfmt "
        + struct.pack("<IHHIIH", 14, 1, 1, 1, 1, 1)
        + b" \x00xx\x00\x00\x00\x00"
        + b"data\x00\x00\x00\x00"
        + bytes(1_000),
        b"fLaC",
    ],
)
def test_a_broken_header_leaves_the_bound(data: bytes) -> None:
    lowest = 1_000 if data[:1] == b"R" else 500
    assert measure(data, "wav").bound == len(data) * 1_000 // lowest


@pytest.mark.parametrize(
    "data",
    [
        wav(0.1), wav(0.1, codec=0xFFFE, tail=struct.pack("<HHIH", 22, 16, 0, 1) + bytes(14)),
        flac(44_100), mp3(2, tag=20), adts(2, size=20), ogg(OPUS, 48_312, 30),
        ogg(VORBIS, 22_050, 30), mp4(30), mp4(30, is_long=True),
        webm(30, b"\x44\x89\x88" + struct.pack(">d", 1_000)),
        webm(30, b"\x44\x89\x84" + struct.pack(">f", 1_000)),
    ],
)  # fmt: skip
def test_a_file_may_end_anywhere(data: bytes) -> None:
    for end in range(len(data) + 1):
        found = measure(data[:end], "wav")
        assert found == measure(memoryview(data)[:end], "wav")
        assert found.estimate <= found.bound
        meter = SoundMeter()
        meter.feed(data[:end])
        meter.measure()


def test_a_length_that_needs_too_many_bytes_a_second_is_not_believed() -> None:
    second = flac(44_100)
    full = second + bytes(601_024 - len(second))
    assert measure(full, "flac") == (1_000, 1_000)
    assert measure(full + b"x", "flac").bound == 601_025 * 1_000 // 500
    fast = wav(1, rate=301_000)
    assert measure(fast, "wav").bound == len(fast)


def test_no_sound_is_longer_than_a_year() -> None:
    endless = ogg(b"\x01vorbis" + struct.pack("<IBI", 0, 1, 1) + bytes(8), 2**62, 0)
    year = 365 * 86_400_000
    assert measure(endless, "ogg") == (year, year)


def test_frames_beyond_a_bound_are_not_counted() -> None:
    # Frames of 24 ms in 24 bytes: those that are counted stand for the others, which may be longer.
    frames = mp3(100_000 + 4_000, second=0xF3, third=0x14)
    assert measure(memoryview(frames), "wav") == (2_496_000, 2_400_000 + 4_000 * 24)
    quiet = mp3(100_000, third=0xE0) + mp3(1_000, second=0xF3, third=0x14)
    found = measure(quiet, "wav")
    assert (found.estimate, found.bound) == (2_612_845, 2_612_245 + 24_000)


@pytest.mark.parametrize("between", [b"\0", ID3V1, ID3V2])
def test_all_parts_of_a_joined_file_are_counted(between: bytes) -> None:
    # 400 frames of 320 kbit/s and 3,900 of 32 kbit/s; what is no frame counts in the bound alone.
    sound = mp3(400, third=0xE0) + between + mp3(3_900, third=0x10) + ID3V1
    length = (112_327, 112_327 + len(between))
    assert measure(sound, "wav") == measure(memoryview(sound), "wav") == length


def test_frames_behind_countless_gaps_are_estimated_by_those_before() -> None:
    # The last gap and the 100 frames behind it are not read.
    sound = mp3(200) + b"\xff" * 10_000 + mp3(100)
    estimate = 5_225 * (83_400 + 41_701) // 83_400
    assert measure(memoryview(sound), "wav") == (estimate, 5_225 + 10_000 + 41_700)


@pytest.mark.parametrize("piece", [1, 7, 370, 65_536])
@pytest.mark.parametrize(
    ("data", "length"),
    [
        (mp3(200), 5_225), (mp3(200, tag=900), 5_225), (adts(100), 2_322), (wav(2), 2_000),
        # A server may send whole files, one after another.
        (mp3(100) + ID3V1 + mp3(100), 5_225), (mp3(100, tag=900) * 2, 5_225),
        (adts(50) + b"\0" + adts(50), 2_322),
        (flac(44_101) + bytes(9_000), 1_001), (ogg(OPUS, 2 * 48_000 + 312, 9_000), 2_000),
        (webm(9_000, b"\x44\x89\x88" + struct.pack(">d", 2_000)), 2_000),
        (webm(9_000, b""), None), (flac(0), None), (mp4(70_000), None), (mp3(2) + bytes(900), None),
        (bytes(3_200), 100),
    ],
)  # fmt: skip
def test_a_sound_that_comes_in_pieces_has_the_same_length(
    data: bytes, length: int | None, piece: int
) -> None:
    meter = SoundMeter()
    meter.rate = 32_000
    # The parser of speech waits for the first bytes, which show the container.
    meter.feed(data[: max(piece, 16)])
    for at in range(max(piece, 16), len(data), piece):
        meter.feed(data[at : at + piece])
    assert meter.measure() == length


@pytest.mark.parametrize(
    ("headers", "sound"),
    [
        ({"X-Sample-Rate": "22050"}, (True, 22_050, 1)),
        ({"Content-Type": "audio/pcm;rate=16000;channels=2"}, (True, 16_000, 2)),
        ({"Content-Type": 'audio/L16; rate="44100"'}, (True, 44_100, 1)),
        ({"Content-Type": "audio/pcm"}, (True, None, 1)),
        ({"Content-Type": "audio/pcm", "X-Sample-Rate": "fast"}, (True, None, 1)),
        ({"Content-Type": "audio/mpeg"}, (False, None, 1)),
        ({"X-Sample-Rate": "0"}, (False, None, 1)),
        ({}, (False, None, 1)),
    ],
)
def test_the_head_of_an_answer_says_the_rate_of_samples(
    headers: dict[str, str], sound: tuple[bool, int | None, int]
) -> None:
    assert read_plain_sound(headers) == sound


def test_a_file_of_countless_chunks_is_not_walked_through() -> None:
    sound = wav(1)
    junk = b"junk" + bytes(4)
    assert measure(sound[:12] + junk * 900 + sound[12:], "wav").estimate == 1_000
    many = sound[:12] + junk * 1_000 + sound[12:]
    assert measure(many, "wav").bound == len(many)
