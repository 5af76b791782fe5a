"""Speech: the bytes of audio, or events with pieces of it, which also report the tokens."""

from __future__ import annotations

import binascii
import re
from typing import Any, Final

import msgspec

from catalog.dialects.audio import SPEECH_BYTES, PlainSound, SoundMeter, is_ambiguous
from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Reply,
    decode_object,
    read_usage,
)
from catalog.dialects.openai.members import NULL, ReportedUsage, raise_for_error
from catalog.dialects.shared.multipart import MultipartContent
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge
from catalog.pricing import Usage

# A container is known by its first four bytes, an event by its first word.
_SNIFFED_BYTES: Final = 16
_EVENTS: Final = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(?:(?:data|event|id|retry):|: [ -~]{4})")
_TEXTS: Final = re.compile(rb'\s*(?:<!doctype|<html|<\?xml|\{\s*")', re.IGNORECASE)
# The bytes a second of the containers that speech comes in, until all of it has come; anything else
# is PCM with 24,000 samples of two bytes.
_RATES: Final = {"wav": 48_000, "flac": 24_000, "ogg": 8_000, "webm": 8_000, "mp4": 8_000}
_COMPRESSED: Final = 16_000
_PLAIN: Final = 48_000
_encode = msgspec.json.Encoder().encode


class _Event(msgspec.Struct):
    """One event of a speech: a piece of its audio, or its end."""

    type: Any = None
    audio: Any = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


def write_speech(call: Call) -> MultipartContent:
    """Returns a request for speech; for events where the price needs their count of tokens."""
    fields = {name: raw for name, raw in call.fields.items() if raw != NULL}
    fields["model"] = call.model
    # OpenAI's interface has none here, and the end user is nobody's business.
    fields.pop("user", None)
    if call.is_billed_by_token:
        fields["stream_format"] = "sse"
    headers = {"Content-Type": "application/json", "Accept": "*/*"}
    return MultipartContent(headers, _encode(fields))


def refuse_whole_speech(fields: dict[str, msgspec.Raw]) -> Reply:
    """Raises :class:`InvalidReply`: a JSON object, which is no error, is no audio either."""
    raise InvalidReply("The answer is not audio.")


class SpeechParser:
    """Parses one answer: audio, or events, as its first bytes show.

    Servers that do not know events answer a request for them with audio.
    """

    __slots__ = (
        "_decoder", "_done", "_has_begun", "_head", "_is_plain", "_meter", "_rate", "notes",
        "pending",
    )  # fmt: skip

    def __init__(self) -> None:
        self._head = b""
        self._has_begun = False
        self._decoder: EventDecoder | None = None
        self._done = False
        # Whether samples without a container may come; what measures the sound; its bytes a second
        # while it comes.
        self._is_plain: bool | None = None
        self._meter = SoundMeter()
        self._rate = _PLAIN
        self.notes: set[str] = set()
        self.pending: list[Chunk] = []

    def expect(self, sound: PlainSound, *, is_plain: bool) -> None:
        """Tells what the head of the answer says, and whether samples were asked for."""
        self._is_plain = is_plain or sound.is_stated
        self._meter.rate = sound.rate and sound.rate * sound.channels * 2

    @property
    def held(self) -> int:
        return 0 if self._decoder is None else self._decoder.held

    def feed(self, data: bytes) -> list[Chunk]:
        self.pending = []
        if not self._has_begun:
            self._head += data
            if len(self._head) < _SNIFFED_BYTES:
                return []
            data = self._begin()
        return self._parse(data)

    def finish(self) -> list[Chunk]:
        self.pending = []
        if not self._has_begun and self._head:
            self._parse(self._begin())
        if self._done:
            return []
        if self._decoder is not None:
            raise InvalidStream("The stream ended without its end mark.")
        if not self._meter.size:
            raise InvalidStream("The answer has no audio.")
        return [*self.pending, self._end(None)]

    def _begin(self) -> bytes:
        """Decides what the answer is and returns its bytes so far; raises for a text."""
        head, self._head, self._has_begun = self._head, b"", True
        if _TEXTS.match(head):
            raise InvalidStream("The answer is not audio.")
        if _EVENTS.match(head):
            self._decoder = EventDecoder(limit=8 * 1_048_576)
        return head

    def _parse(self, data: bytes) -> list[Chunk]:
        if self._decoder is None:
            self._add(data)
            return self.pending
        try:
            for event in self._decoder.feed(data):
                if not self._done:
                    self._read_event(event)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        return self.pending

    def _read_event(self, event: bytes) -> None:
        if event.strip() == b"[DONE]":
            return
        fields = decode_object(event)
        if fields is None:
            raise InvalidStream("An event of the stream is not a JSON object.")
        raise_for_error(fields)
        try:
            read = _decode_event(event)
            if read.type == "speech.audio.delta":
                self._add(binascii.a2b_base64(read.audio))
            elif read.type == "speech.audio.done":
                self._done = True
                self.pending.append(self._end(_read_usage(read.usage)))
        except (msgspec.DecodeError, binascii.Error, TypeError, ValueError):
            raise InvalidStream("An event of the stream is malformed.") from None

    def _add(self, data: bytes) -> None:
        """Adds a chunk of audio, whose output is measured by its length in time."""
        if not data:
            return
        is_first = not self._meter.size
        before = self._measure()
        self._meter.feed(data)
        if is_first:
            self._choose_rate(data)
        size = self._measure() - before
        self.pending.append(Chunk(fields={}, has_choices=True, output_bytes=size, data=data))

    def _choose_rate(self, data: bytes) -> None:
        """Decides by the first bytes how many make a second; raises where they are no sound."""
        if self._is_plain and is_ambiguous(data):
            self._meter.found = None
        found = self._meter.found
        if found is None and self._is_plain is False:
            raise InvalidStream("The answer is not audio in a known container.")
        plain = self._meter.rate or _PLAIN
        self._rate = plain if found is None else _RATES.get(found, _COMPRESSED)

    def _measure(self) -> int:
        return -(-self._meter.size * SPEECH_BYTES // self._rate)

    def _end(self, usage: Usage | None) -> Chunk:
        """Returns the end, with the length of all the sound where that is known."""
        length = self._meter.measure()
        if usage is not None and length is not None:
            usage = msgspec.structs.replace(usage, milliseconds=length)
        return Chunk(
            fields={}, usage=usage, finish_reason="stop", is_done=True, milliseconds=length
        )


def _read_usage(given: Any) -> Usage | None:
    try:
        usage = msgspec.convert(given, ReportedUsage)
    except msgspec.ValidationError:
        return None
    return read_usage(usage.input_tokens, usage.output_tokens, audio_output=usage.output_tokens)
