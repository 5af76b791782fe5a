#!/usr/bin/env bash
# One second of streamed WAV: three readers say 24.9 hours, or fail; one says a second
#
# Software: mutagen 1.48.1, tinytag 2.3.2, soundfile 0.14.0 (PyPI), Python's `wave`
# Guess:    A length in the header that exceeds the file is unknown: the bytes tell the length.
# Seen:     With 0xFFFFFFFF for both lengths, as a header has that is written before the sound,
#           mutagen and tinytag say 89,478 seconds, and `wave` 2,147,483,647 frames, of which it
#           reads 24,000; soundfile says 1 second. With 0 for both, soundfile and tinytag say 0
#           seconds without an error, mutagen and `wave` raise.
# Matters:  Speech is billed by its length: an answer of a second is a day, or nothing. Count the
#           bytes after the header.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    mutagen==1.48.1 tinytag==2.3.2 soundfile==0.14.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import struct
import wave
from collections.abc import Callable

import mutagen
import soundfile
import tinytag


def write(riff: int, data: int) -> str:
    """Writes a second of 16-bit mono sound at 24,000 Hz, with these lengths in its header."""
    head = struct.pack("<4sI4s", b"RIFF", riff, b"WAVE")
    kind = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 24_000, 48_000, 2, 16)
    name = f"{data}.wav"
    with open(name, "wb") as file:
        file.write(head + kind + struct.pack("<4sI", b"data", data) + bytes(48_000))
    return name


def read_wave(name: str) -> tuple[int, int]:
    with wave.open(name) as sound:
        return sound.getnframes(), len(sound.readframes(sound.getnframes())) // 2


READERS: dict[str, Callable[[str], object]] = {
    "mutagen": lambda name: round(mutagen.File(name).info.length),
    "tinytag": lambda name: round(tinytag.TinyTag.get(name).duration),
    "soundfile": lambda name: round(soundfile.info(name).duration),
    "wave": read_wave,
}


def read(reader: str, name: str) -> object:
    try:
        return READERS[reader](name)
    except Exception as exc:
        return type(exc).__name__


files = {"known": write(48_036, 48_000), "streamed": write(2**32 - 1, 2**32 - 1),
         "zero": write(0, 0)}
seen = {kind: [read(reader, name) for reader in READERS] for kind, name in files.items()}
for kind, lengths in seen.items():
    print(kind.ljust(9), dict(zip(READERS, lengths)))
assert seen["known"] == [1, 1, 1, (24_000, 24_000)]
assert seen["streamed"] == [89_478, 89_478, 1, (2_147_483_647, 24_000)]
assert seen["zero"] == ["InvalidChunk", 0, 0, "Error"]
PYTHON
