"""The probes of speech and transcription."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from catalog.dialects.audio import recognize
from catalog.dialects.base import Chunk, InvalidStream, ProviderFailure
from catalog.dialects.shared.multipart import FormPart
from config import egress
from endpoints.validation.calls import REFUSALS, Refused
from endpoints.validation.checks import Reason
from endpoints.validation.probes.base import Probe

_TEXTS: Final = ("Ready.", "Ready again.")
# A deployment that knows one container alone may refuse another one, or send its own.
_CONTAINERS: Final = ("mp3", "wav", "opus", "flac", "aac")
# OpenAI's interface has no default voice, and other servers take its names. A model whose voices
# the catalogue knows is asked for one of them, and then for its own default.
_VOICE: Final = "alloy"
_WITHOUT_VOICE: Final = "The voice {} is refused; requests without a voice are answered."
# Statuses that say nothing of a voice or a container.
_FINAL: Final = frozenset((401, 402, 403, 404, 405, 407, 429))
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
        ways = [{"voice": voice, "response_format": each} for each in _CONTAINERS]
        ways += [{"response_format": each} for each in _CONTAINERS]
        way = await self._find_way(ways)
        # Another container shows what else is known; one is enough.
        others = [each for each in ways if each.keys() == way.keys() and each != way]
        try:
            await self._listen({"input": _TEXTS[1], **others[0]})
        except Refused:
            await self._listen({"input": _TEXTS[1], **way})
        notes = [] if "voice" in way else [_WITHOUT_VOICE.format(voice)]
        self.result.add_pass("speech", notes=notes)

    async def _find_way(self, ways: list[dict[str, str]]) -> dict[str, str]:
        """Returns the first voice and container that are spoken.

        Raises the first :class:`CheckFailed` where none is. A server may answer an unknown voice
        with 500; another container does not help then.
        """
        failure: Refused | None = None
        skipped: set[bool] = set()
        for way in ways:
            has_voice = "voice" in way
            if has_voice in skipped:
                continue
            try:
                await self._listen({"input": _TEXTS[0], **way})
            except Refused as exc:
                failure = failure or exc
                if exc.status not in REFUSALS:
                    skipped.add(has_voice)
                if exc.status in _FINAL:
                    break
            else:
                return way
        assert failure is not None
        raise failure

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
