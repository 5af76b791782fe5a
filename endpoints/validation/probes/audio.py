"""The probes of speech and transcription."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from catalog.dialects.audio import recognize
from catalog.dialects.base import Chunk, InvalidStream, ProviderFailure
from catalog.dialects.shared.multipart import FormPart
from config import egress
from endpoints.validation.checks import Reason
from endpoints.validation.probes.base import Probe

# A text and its container; a deployment that knows one container alone may send that.
_SPOKEN: Final = (("Ready.", "mp3"), ("Ready again.", "wav"))
# OpenAI's interface has no default voice, and other servers take its names. A model whose voices
# the catalogue knows is asked for one of them.
_VOICE: Final = "alloy"
_MAX_BYTES: Final = 4 * 1_048_576
_RATE: Final = 16_000
# One period of a plain wave of 500 Hz, which is sound without a word.
_PERIOD: Final = struct.pack("<32h", *(round(8_000 * (1 - abs(n - 16) / 8)) for n in range(32)))


class SpeechProbe(Probe):
    """Asks for the sound of two texts: each answer is audio in a known container."""

    check = "speech"

    async def make_calls(self) -> None:
        voices = self.caller.voices
        voice = _VOICE if not voices or _VOICE in voices else voices[0]
        for text, container in _SPOKEN:
            await self._listen({"input": text, "voice": voice, "response_format": container})
        self.result.add_pass("speech")

    async def _listen(self, fields: dict[str, Any]) -> None:
        """Reads one answer to its end; raises :class:`CheckFailed`."""
        response = await self.caller.send(fields, stream=True)
        parser = self.caller.dialect.stream_parser(self.caller.call.operation)
        chunks: list[Chunk] = []
        size = 0
        try:
            while data := await response.readany():
                size += len(data)
                if size > _MAX_BYTES:
                    raise InvalidStream("The answer is too large.")
                chunks += parser.feed(data)
            chunks += parser.finish()
        except (InvalidStream, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self.caller.fail(Reason.INVALID_RESPONSE, exc) from None
        finally:
            response.close()
        if recognize(b"".join(chunk.data for chunk in chunks)) is None:
            raise self.refuse("The answer is not audio in a known container.")
        usage = next((chunk.usage for chunk in chunks if chunk.usage is not None), None)
        if usage is not None:
            self.note(None, usage)


class TranscriptionProbe(Probe):
    """Sends a second of generated sound, and half of one: each answer has a text, maybe empty."""

    check = "transcription"

    async def make_calls(self) -> None:
        for samples in (_RATE, _RATE // 2):
            reply = await self.caller.ask(_FIELDS, [_make_sound(samples)])
            if samples == _RATE:
                self.note_reply(reply)
            elif reply.usage is not None:
                self.note(reply.model, reply.usage)
        self.result.add_pass("transcription")


_FIELDS: Final = {"response_format": msgspec.Raw(b'"json"')}


def _make_sound(samples: int) -> FormPart:
    data = _PERIOD * (samples // 32)
    head = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, _RATE, 2 * _RATE, 2, 16)
    body = head + b"data" + struct.pack("<I", len(data)) + data
    wave = b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body
    return FormPart("file", wave, "audio.wav", "audio/wav")
