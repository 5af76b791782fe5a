"""Speech and transcriptions: answers of bytes, and requests with a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from django.conf import settings

from catalog.dialects.audio import CONTENT_TYPES, PlainSound, is_ambiguous, recognize
from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError
from config.server.bodies import body_length, largest_file_body, read_body
from config.server.bulkheads import Occupancy
from inference.faces.connection import ENCODING, Connection
from inference.requests.multipart import is_form
from inference.requests.parsing import InferenceRequest
from inference.requests.transcriptions import parse_transcription

# The rate of samples without a container where their server names none, as OpenAI has it.
_RATE: Final = 24_000
_decode_text = msgspec.json.Decoder(str).decode


class SpeechConnection(Connection):
    """Answers with the bytes of audio as they come; an error after the first one cuts it off."""

    _format = "pcm"
    # Returns what the server says of samples without a container.
    find_sound: Callable[[], PlainSound | None] = staticmethod(lambda: None)

    def parse(self, body: bytes) -> InferenceRequest:
        request = super().parse(body)
        self._format = _decode_text(request.fields["response_format"])
        return request

    def begin_comments(self) -> None:
        """Does nothing: audio has no place for a comment."""

    async def deliver(self, data: bytes) -> None:
        """Sends audio; the first call also sends the status 200."""
        if not self.has_begun:
            self.has_begun = True
            self.kind = self.kind or self._content_type(data).encode()
            await self._send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", self.kind),
                        (b"cache-control", b"no-cache"),
                        (b"x-accel-buffering", b"no"),
                        *self.common_headers(),
                    ],
                }
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def respond_error(self, error: GatewayError) -> None:
        """Sends an error; once audio was sent, closes the connection instead.

        Nothing else tells the caller that the audio is not whole.
        """
        if self.has_begun:
            await self.abort()
        else:
            await super().respond_error(error)

    def _content_type(self, data: bytes) -> str:
        """Returns the type of what the provider sends, which may know fewer formats."""
        found = recognize(data)
        if found is not None and not (self._format == "pcm" and is_ambiguous(data)):
            return CONTENT_TYPES[found]
        sound = self.find_sound() or PlainSound(False, None)
        return f"audio/pcm;rate={sound.rate or _RATE};channels={sound.channels}"


class TranscriptionConnection(Connection):
    """Reads a form with a file, or JSON with the audio in Base64."""

    async def read_request(self, occupancy: Occupancy) -> InferenceRequest:
        limit = largest_file_body()
        body = await read_body(
            self._receive,
            occupancy,
            body_length(self._scope, limit),
            limit=limit,
            encoding=b",".join(self._headers(ENCODING)),
        )
        size = len(body)
        if not is_form(self.header(b"content-type")):
            # Base64 is decoded beside the body, which is given back afterwards.
            occupancy.reserve(size * 3 // 4)
        # A repeat of a form is recognized by its parts.
        request = await self.workload.run(size, self.parse_body, body, copies=1)
        del body
        held = sum(_measure(part.data) for part in request.files)
        occupancy.release(max(occupancy.held - held, 0))
        return request

    def parse(self, body: bytes) -> InferenceRequest:
        return parse_transcription(
            body,
            self.header(b"content-type"),
            max_bytes=settings.MAX_FILE_BYTES,
            session_id=self.header(b"x-session-id"),
        )


def _measure(data: Piece) -> int:
    """Returns the bytes that data keep in memory: those of the whole body of a view."""
    owner: Any = data.obj if isinstance(data, memoryview) else data
    return len(owner)
